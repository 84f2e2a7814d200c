/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/twins.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "sender/control.h"

#define ASK_MS 2000

typedef char instance_name[REFIT_HTTP_HEADER_MAX];

void refit_twins_release(struct refit_twins *twins)
{
    for (size_t i = 0; i < twins->count; i++)
        free(twins->urls[i]);
    free(twins->urls);
    *twins = (struct refit_twins){.epoch = 0};
}

/* Only an address says of which family it is; a name that is dialled is one member, whatever is behind it. */
static bool has_both_families(const struct refit_membership *now)
{
    bool four = false, six = false;
    struct refit_http_url url;
    struct in6_addr address;
    for (size_t i = 0; i < now->count; i++) {
        if (refit_http_url_parse(now->members[i].urls[0], &url, NULL) != REFIT_OK)
            continue;
        four = four || inet_pton(AF_INET, url.host, &address) == 1;
        six = six || inet_pton(AF_INET6, url.host, &address) == 1;
    }
    return four && six;
}

/* Empty when it does not say. */
static void identify(const char *url, struct refit_credentials *credentials, struct refit_deadline deadline,
                     instance_name out)
{
    struct refit_control control;
    struct refit_control_weights weights;
    out[0] = '\0';
    if (refit_control_init(&control, url, NULL) != REFIT_OK)
        return;
    control.credentials = credentials;
    deadline = refit_deadline_earlier(deadline, refit_deadline_in_ms(ASK_MS));
    if (refit_control_weights(&control, deadline, &weights, NULL) == REFIT_OK)
        memcpy(out, control.instance, sizeof control.instance);
}

static enum refit_status note(struct refit_twins *twins, const char *url, struct refit_error *err)
{
    char **grown = realloc(twins->urls, (twins->count + 1) * sizeof *grown);
    if (grown)
        twins->urls = grown;
    if (!grown || !(twins->urls[twins->count] = strdup(url)))
        return refit_fail_alloc(err, "members", strlen(url));
    twins->count++;
    return REFIT_OK;
}

static bool is_known(instance_name *instances, size_t count, const char *instance)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(instances[i], instance) == 0)
            return true;
    return false;
}

static enum refit_status find(struct refit_twins *twins, const struct refit_membership *now,
                              struct refit_credentials *credentials, struct refit_deadline deadline,
                              struct refit_error *err)
{
    instance_name *instances = calloc(now->count + 1, sizeof *instances);
    enum refit_status status = instances ? REFIT_OK : refit_fail_alloc(err, "members", now->count * sizeof *instances);
    bool all = true;
    for (size_t i = 0; i < now->count && status == REFIT_OK; i++) {
        const char *url = now->members[i].urls[0];
        identify(url, credentials, deadline, instances[i]);
        all = all && instances[i][0];
        if (!instances[i][0] || !is_known(instances, i, instances[i]))
            continue;
        status = note(twins, url, err);
        refit_log_event(REFIT_LOG_INFO, "a member is another one under a second address", refit_log_text("replica",
                                                                                                         url),
                        refit_log_text("instance", instances[i]));
    }
    free(instances);
    twins->epoch = status == REFIT_OK && all ? now->epoch : 0;
    return status;
}

static bool is_twin(const struct refit_twins *twins, const char *url)
{
    for (size_t i = 0; i < twins->count; i++)
        if (strcmp(twins->urls[i], url) == 0)
            return true;
    return false;
}

enum refit_status refit_twins_drop(struct refit_twins *twins, struct refit_membership *now,
                                   struct refit_credentials *credentials, struct refit_deadline deadline,
                                   struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    if (twins->epoch != now->epoch) {
        refit_twins_release(twins);
        if (has_both_families(now))
            status = find(twins, now, credentials, deadline, err);
        else
            twins->epoch = now->epoch;
    }
    for (size_t i = now->count; i-- > 0 && status == REFIT_OK;)
        if (is_twin(twins, now->members[i].urls[0]))
            refit_membership_remove(now, i);
    return status;
}
