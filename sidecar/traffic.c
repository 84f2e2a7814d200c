/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/traffic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layouts/plan_json.h"

#define EDGES_SHOWN 256 /* the largest */

void refit_traffic_init(struct refit_traffic *traffic)
{
    *traffic = (struct refit_traffic){.working = false};
    pthread_mutex_init(&traffic->lock, NULL);
}

void refit_traffic_release(struct refit_traffic *traffic)
{
    json_decref(traffic->plan);
    pthread_mutex_destroy(&traffic->lock);
}

void refit_traffic_note(struct refit_traffic *traffic, const char *refit, const struct refit_request *request)
{
    pthread_mutex_lock(&traffic->lock);
    snprintf(traffic->refit, sizeof traffic->refit, "%s", refit);
    memcpy(traffic->source, request->source, sizeof traffic->source);
    memcpy(traffic->checkpoint, request->checkpoint, sizeof traffic->checkpoint);
    pthread_mutex_unlock(&traffic->lock);
}

static int larger_first(const void *a, const void *b)
{
    const struct refit_edge *x = a, *y = b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : 0;
}

static json_t *edge_json(const struct refit_plan *plan, const struct refit_edge *edge)
{
    char from[64], to[64];
    refit_group_format(refit_plan_group(plan, REFIT_SOURCE, edge->source_group), from, sizeof from);
    refit_group_format(refit_plan_group(plan, REFIT_DESTINATION, edge->destination_group), to, sizeof to);
    return json_pack("{s:s, s:s, s:o}", "source_ranks", from, "destination_ranks", to, "bytes", refit_json_u64(edge->bytes));
}

static json_t *edges_json(const struct refit_plan *plan, const struct refit_edge *edges, size_t count)
{
    json_t *out = json_array();
    for (size_t i = 0; i < count && i < EDGES_SHOWN; i++)
        json_array_append_new(out, edge_json(plan, &edges[i]));
    return out;
}

/* {"edges": [...], "more": n} */
static json_t *sum_up(const struct refit_plan *plan)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    struct refit_edge *sorted = malloc((count ? count : 1) * sizeof *sorted);
    if (!sorted)
        return NULL;
    if (count)
        memcpy(sorted, edges, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, larger_first);
    json_t *out = json_pack("{s:o, s:I}", "edges", edges_json(plan, sorted, count), "more",
                            (json_int_t)(count > EDGES_SHOWN ? count - EDGES_SHOWN : 0));
    free(sorted);
    return out;
}

static enum refit_status make(const char *source, struct refit_receiver *receiver, json_t **out, struct refit_error *err)
{
    struct refit_plan *plan = NULL;
    enum refit_status status = refit_receiver_plan(receiver, source, &plan, err);
    if (status)
        return status;
    *out = sum_up(plan);
    refit_plan_release(plan);
    return *out ? REFIT_OK : refit_fail_alloc(err, "the edges of a plan", 0);
}

/* Makes the sums of `source`, without the lock. */
static enum refit_status refresh(struct refit_traffic *traffic, const char *source, struct refit_receiver *receiver,
                                 struct refit_error *err)
{
    json_t *plan = NULL;
    traffic->working = true;
    pthread_mutex_unlock(&traffic->lock);
    enum refit_status status = make(source, receiver, &plan, err);
    pthread_mutex_lock(&traffic->lock);
    traffic->working = false;
    if (status)
        return status;
    json_decref(traffic->plan);
    traffic->plan = plan;
    snprintf(traffic->plan_source, sizeof traffic->plan_source, "%s", source);
    return REFIT_OK;
}

static json_t *whole(const struct refit_traffic *traffic)
{
    json_t *out = json_pack("{s:s, s:s, s:s}", "refit", traffic->refit, "source", traffic->source, "checkpoint",
                            traffic->checkpoint);
    if (out && traffic->source[0] && strcmp(traffic->source, traffic->plan_source) == 0)
        json_object_update(out, traffic->plan);
    else if (out)
        json_object_set_new(out, "edges", json_array());
    return out;
}

enum refit_status refit_traffic_json(struct refit_traffic *traffic, struct refit_receiver *receiver, json_t **out,
                                     struct refit_error *err)
{
    char source[REFIT_SHA256_HEX_MAX];
    enum refit_status status = REFIT_OK;
    pthread_mutex_lock(&traffic->lock);
    memcpy(source, traffic->source, sizeof source);
    if (source[0] && strcmp(source, traffic->plan_source) != 0)
        status = traffic->working ? refit_fail(err, REFIT_BUSY, "the plan is being summed up; retry")
                                  : refresh(traffic, source, receiver, err);
    *out = status ? NULL : whole(traffic);
    pthread_mutex_unlock(&traffic->lock);
    return status || *out ? status : refit_fail_alloc(err, "the traffic of a plan", 0);
}
