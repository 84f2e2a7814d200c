/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/engine.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

static const struct refit_driver_engine *const engines[] = {&refit_driver_vllm, &refit_driver_sglang};

enum refit_status refit_driver_engine_parse(const char *text, const struct refit_driver_engine **engine,
                                            struct refit_http_url *url, struct refit_error *err)
{
    size_t len = strcspn(text, "=");
    for (size_t i = 0; i < sizeof engines / sizeof *engines && text[len] == '='; i++) {
        if (strlen(engines[i]->name) != len || strncmp(engines[i]->name, text, len) != 0)
            continue;
        *engine = engines[i];
        enum refit_status status = refit_http_url_parse(text + len + 1, url, err);
        if (status == REFIT_OK && url->secure)
            return refit_fail(err, REFIT_UNSUPPORTED, "%.200s: an engine is reached over plain http, within the pod",
                              text);
        return status;
    }
    return refit_fail(err, REFIT_INVALID, "expected native, vllm=http://HOST:PORT or sglang=http://HOST:PORT, found "
                      "\"%.200s\"", text);
}

enum refit_status refit_driver_check_engine(const char *text, struct refit_error *err)
{
    const struct refit_driver_engine *engine;
    struct refit_http_url url;
    return refit_driver_engine_parse(text, &engine, &url, err);
}

struct refit_deadline refit_driver_call_deadline(const struct refit_driver_link *link)
{
    return refit_deadline_in_ms(link->call_ms);
}

enum refit_status refit_driver_take_version(const json_t *answer, const char *path, struct refit_driver_sight *out,
                                            struct refit_error *err)
{
    const json_t *version = json_object_get(answer, "weight_version");
    const char *text = json_is_null(version) ? "" : json_string_value(version);
    if (!text)
        return refit_fail(err, REFIT_UNSUPPORTED, "engine: %s has no weight_version; a newer engine is needed", path);
    size_t len = strlen(text);
    if (len >= sizeof out->version || refit_text_first_control(text) != len)
        return refit_fail(err, REFIT_INVALID, "engine: %s: weight_version of %zu bytes is not one of ours", path, len);
    memcpy(out->version, text, len + 1);
    return REFIT_OK;
}
