/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define ANSWER_MAX (1u << 20) /* SGLang's model_info may list sampling parameters */
#define WORDS_MAX 200

/* The first words of what the engine said, fit for one line of a message. */
static void words_of(const char *body, char out[static WORDS_MAX + 1])
{
    size_t len = strnlen(body, WORDS_MAX);
    memcpy(out, body, len);
    out[len] = '\0';
    while (len > 0 && (body[len] & 0xc0) == 0x80) /* not in the middle of a character */
        out[--len] = '\0';
    refit_text_blank_controls(out);
}

static enum refit_status check_answer(const struct refit_http_url *url, const char *path,
                                      const struct refit_http_answer *answer, struct refit_error *err)
{
    char words[WORDS_MAX + 1];
    if (answer->status >= 200 && answer->status <= 299)
        return REFIT_OK;
    words_of(answer->body, words);
    bool missing = answer->status == 404 || answer->status == 405;
    bool refused = answer->status >= 400 && answer->status <= 499;
    return refit_fail(err, missing ? REFIT_NOT_FOUND : refused ? REFIT_CONFLICT : REFIT_PEER,
                      "engine %s%s answered %d%s: %s", url->text, path, answer->status,
                      missing ? " (it has no such route)" : "", words);
}

static enum refit_status call(const struct refit_http_url *url, const struct refit_http_request *request,
                              json_t **answer, struct refit_error *err)
{
    struct refit_http_answer got;
    enum refit_status status = refit_http_call(url, request, &got, err);
    if (status != REFIT_OK)
        return refit_error_prefix(err, status, "engine");
    status = check_answer(url, request->path, &got, err);
    /* Engines write real numbers, which refit_json_parse refuses; of their answers only texts and truth values are
     * read. */
    if (status == REFIT_OK && answer)
        *answer = json_loadb(got.body, got.body_bytes, JSON_REJECT_DUPLICATES, NULL);
    refit_http_answer_release(&got);
    return status;
}

enum refit_status refit_driver_post(const struct refit_http_url *url, const char *path, json_t *body,
                                    struct refit_deadline deadline, json_t **answer, struct refit_error *err)
{
    size_t len = 0;
    char *text = NULL;
    if (answer)
        *answer = NULL;
    if (body && !(text = refit_json_canonical(body, &len))) {
        json_decref(body);
        return refit_fail_alloc(err, "a call to the engine", 1024);
    }
    json_decref(body);
    const struct refit_http_request request = {.method = REFIT_HTTP_POST, .path = path, .body = text, .body_bytes = len,
                                               .answer_max = ANSWER_MAX, .deadline = deadline};
    enum refit_status status = call(url, &request, answer, err);
    free(text);
    return status;
}

enum refit_status refit_driver_post_json(const struct refit_http_url *url, const char *path, json_t *body,
                                         struct refit_deadline deadline, json_t **answer, struct refit_error *err)
{
    if (body)
        return refit_driver_post(url, path, body, deadline, answer, err);
    if (answer)
        *answer = NULL;
    return refit_fail(err, REFIT_INVALID, "engine: the body of %s can't be made: a path or label in it is not UTF-8, "
                      "or memory is short", path);
}

enum refit_status refit_driver_get(const struct refit_http_url *url, const char *path, struct refit_deadline deadline,
                                   json_t **answer, struct refit_error *err)
{
    const struct refit_http_request request = {.method = REFIT_HTTP_GET, .path = path, .answer_max = ANSWER_MAX,
                                               .deadline = deadline};
    *answer = NULL;
    return call(url, &request, answer, err);
}

enum refit_status refit_driver_check_success(const json_t *answer, const char *path, struct refit_error *err)
{
    char words[WORDS_MAX + 1];
    if (!json_is_false(json_object_get(answer, "success")))
        return REFIT_OK;
    const char *message = json_string_value(json_object_get(answer, "message"));
    words_of(message ? message : "no reason given", words);
    return refit_fail(err, REFIT_CONFLICT, "engine: %s did not succeed: %s", path, words);
}
