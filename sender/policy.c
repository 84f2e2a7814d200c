/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/policy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define POLICY_TEXT_MAX 512

static enum refit_status parse_count(const char *text, struct refit_policy *out, struct refit_error *err)
{
    char *end;
    errno = 0;
    unsigned long count = strtoul(text, &end, 10);
    if (errno || *text < '0' || *text > '9' || *end || count == 0 || count > UINT32_MAX)
        return refit_fail(err, REFIT_INVALID, "policy: \"%s\" is not a number of replicas, 1 or more", text);
    out->count = (uint32_t)count;
    return REFIT_OK;
}

static enum refit_status parse_wait(const char *text, struct refit_policy *out, struct refit_error *err)
{
    if (refit_text_duration(text, 1000, &out->wait_ms))
        return REFIT_OK;
    return refit_fail(err, REFIT_INVALID, "policy: wait=%s: expected a duration such as 500ms, 30s or 10m", text);
}

static enum refit_status parse_option(const char *text, struct refit_policy *out, struct refit_error *err)
{
    if (strncmp(text, "wait=", 5) == 0)
        return parse_wait(text + 5, out, err);
    if (strncmp(text, "check=", 6) != 0)
        return refit_fail(err, REFIT_INVALID, "policy: \"%s\": expected wait=TIME or check=URL", text);
    out->checks = true;
    enum refit_status status = refit_http_url_parse(text + 6, &out->check, err);
    return status == REFIT_OK ? status : refit_error_prefix(err, status, "policy: check");
}

static enum refit_status parse_canary(char *text, struct refit_policy *out, struct refit_error *err)
{
    char *rest = text, *count = strsep(&rest, ",");
    enum refit_status status = parse_count(count, out, err);
    for (char *option = strsep(&rest, ","); option && status == REFIT_OK; option = strsep(&rest, ","))
        status = parse_option(option, out, err);
    return status;
}

enum refit_status refit_policy_parse(const char *text, struct refit_policy *out, struct refit_error *err)
{
    char copy[POLICY_TEXT_MAX];
    *out = (struct refit_policy){.kind = REFIT_POLICY_EACH};
    if (!text || !*text || strcmp(text, "each") == 0)
        return REFIT_OK;
    out->kind = REFIT_POLICY_ALL;
    if (strcmp(text, "all") == 0)
        return REFIT_OK;
    out->kind = REFIT_POLICY_QUORUM;
    if (strncmp(text, "quorum:", 7) == 0)
        return parse_count(text + 7, out, err);
    out->kind = REFIT_POLICY_CANARY;
    if (strncmp(text, "canary:", 7) != 0 || strlen(text) >= sizeof copy)
        return refit_fail(err, REFIT_INVALID, "policy \"%.80s\": expected each, all, quorum:N or "
                          "canary:N[,wait=TIME][,check=URL]", text);
    memcpy(copy, text, strlen(text) + 1);
    return parse_canary(copy + 7, out, err);
}
