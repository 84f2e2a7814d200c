/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/gather.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/host.h"
#include "layouts/dense.h"
#include "sender/check.h"

#define ID_MAX 128

struct gathering {
    struct refit_layout *source, *dense;
    struct refit_buckets buckets;
    uint32_t rank;
};

static enum refit_status init(struct gathering *g, struct refit_layout *source, uint32_t rank, struct refit_error *err)
{
    *g = (struct gathering){.source = source, .rank = rank};
    enum refit_status status = refit_layout_dense(source, &g->dense, err);
    return status == REFIT_OK ? refit_buckets_create(g->dense, &g->buckets, err) : status;
}

static void release(struct gathering *g)
{
    refit_buckets_release(&g->buckets);
    refit_layout_release(g->dense);
}

static enum refit_status plan_bucket(const struct gathering *g, uint32_t number, struct refit_plan **out,
                                     struct refit_error *err)
{
    uint8_t *mask = refit_bucket_mask(&g->buckets, number, g->dense);
    const struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = g->rank, .wanted = mask};
    enum refit_status status = mask ? refit_plan_build(g->source, g->dense, scope, out, err)
                                    : refit_fail_alloc(err, "the mask of a bucket", refit_layout_tensor_count(g->dense));
    free(mask);
    return status;
}

static enum refit_status serve_bucket(const struct gathering *g, uint32_t number, const char *refit_id,
                                      refit_gather_move_fn move, void *context, struct refit_error *err)
{
    char id[ID_MAX];
    size_t edges = 0;
    struct refit_plan *plan = NULL;
    enum refit_status status = plan_bucket(g, number, &plan, err);
    if (status != REFIT_OK)
        return status;
    refit_plan_edges(plan, &edges);
    snprintf(id, sizeof id, "%s/%" PRIu32, refit_id, number);
    if (edges > 0)
        status = move(context, id, plan, err);
    refit_plan_release(plan);
    return status;
}

enum refit_status refit_gather_serve(struct refit_layout *source, uint32_t rank, const char *refit_id,
                                     refit_gather_move_fn move, void *context, struct refit_error *err)
{
    struct gathering g;
    enum refit_status status = init(&g, source, rank, err);
    for (uint32_t number = 0; status == REFIT_OK && number < g.buckets.count; number++)
        status = serve_bucket(&g, number, refit_id, move, context, err);
    release(&g);
    return status;
}

enum refit_status refit_gather_check(struct refit_layout *source, uint32_t rank, const struct refit_arena *arena,
                                     struct refit_tally *again, struct refit_error *err)
{
    struct gathering g;
    struct refit_plan *plan = NULL;
    const struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = rank};
    enum refit_status status = init(&g, source, rank, err);
    if (status == REFIT_OK)
        status = refit_plan_build(source, g.dense, scope, &plan, err);
    if (status == REFIT_OK)
        status = refit_check_source(plan, rank, arena, again, err);
    refit_plan_release(plan);
    release(&g);
    return status;
}

/* ---- tensors that a callback fills ---- */

static json_t *entry_of(const struct refit_sender_tensor *tensor)
{
    json_t *shape = json_array();
    for (size_t d = 0; shape && d < tensor->dims; d++)
        json_array_append_new(shape, json_integer(tensor->shape[d]));
    return json_pack("{s:s, s:s, s:o, s:s}", "tensor", tensor->name, "dtype", tensor->dtype, "shape", shape, "mesh", "m");
}

enum refit_status refit_gather_layout(const struct refit_sender_tensor *tensors, size_t count, struct refit_layout **out,
                                      struct refit_error *err)
{
    json_t *entries = json_array();
    for (size_t i = 0; i < count; i++) {
        if (!tensors[i].name || !tensors[i].dtype || (tensors[i].dims > 0 && !tensors[i].shape)) {
            json_decref(entries);
            return refit_fail(err, REFIT_INVALID, "tensor %zu needs a name, a dtype and a shape", i);
        }
        if (json_array_append_new(entries, entry_of(&tensors[i])) != 0) {
            json_decref(entries);
            return refit_fail(err, REFIT_INVALID, "tensor %zu: its name and dtype must be UTF-8", i);
        }
    }
    json_t *document = json_pack("{s:s, s:i, s:{s:{s:[s], s:[i]}}, s:o}", "format", "refit-layout/1", "ranks", 1, "meshes",
                                 "m", "axes", "x", "shape", 1, "entries", entries);
    enum refit_status status = document ? refit_layout_from_json(document, "the tensors to gather", out, err)
                                        : refit_fail_alloc(err, "a layout", count * 128ull);
    json_decref(document);
    return status;
}

/* ---- the way to rank 0 ---- */

static bool is_near(const json_t *cards)
{
    char here[REFIT_BOOT_ID_MAX];
    const char *there = json_string_value(json_object_get(cards, "boot_id"));
    const char *path = json_string_value(json_object_get(json_object_get(cards, "local"), "path"));
    refit_boot_id(here);
    return there && *here && strcmp(here, there) == 0 && path && access(path, R_OK | W_OK) == 0;
}

enum refit_status refit_gather_path(const json_t *cards, const char *wanted, uint32_t rank, const char *lead_address,
                                    const struct refit_transport **transport, json_t **card, struct refit_error *err)
{
    bool local = rank == 0 || strcmp(wanted, "local") == 0 || (strcmp(wanted, "auto") == 0 && is_near(cards));
    *transport = local ? &refit_transport_local : &refit_transport_tcp;
    *card = json_deep_copy(json_object_get(cards, (*transport)->name));
    if (!*card)
        return refit_fail(err, REFIT_UNSUPPORTED, "rank 0 can't be reached over %s to gather the model", (*transport)->name);
    if (!local)
        json_object_set_new(*card, "address", json_string(lead_address));
    return REFIT_OK;
}
