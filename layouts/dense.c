/* SPDX-License-Identifier: Apache-2.0 */
#include "layouts/dense.h"

#include <stdlib.h>
#include <string.h>

/* Of a model between the bounds: as many buckets as make the first and the last one, which nothing overlaps, cheap. */
#define BUCKETS_WANTED 32u

/* --- the layout ------------------------------------------------------------------------------------------------- */

static json_t *shape_of(const struct refit_tensor *tensor)
{
    json_t *shape = json_array();
    for (uint32_t d = 0; d < tensor->dims; d++)
        json_array_append_new(shape, json_integer(tensor->shape[d]));
    return shape;
}

static json_t *entries_of(const struct refit_layout *layout)
{
    json_t *entries = json_array();
    for (uint32_t id = 0; entries && id < refit_layout_tensor_count(layout); id++) {
        struct refit_tensor tensor;
        refit_layout_tensor(layout, id, &tensor);
        json_t *entry = json_pack("{s:s, s:s, s:o, s:s}", "tensor", tensor.name, "dtype", refit_dtype_name(tensor.dtype),
                                  "shape", shape_of(&tensor), "mesh", "m");
        if (json_array_append_new(entries, entry) != 0) {
            json_decref(entries);
            return NULL;
        }
    }
    return entries;
}

static bool add_alias(void *ctx, const char *name, const char *target)
{
    return json_object_set_new(ctx, name, json_string(target)) == 0;
}

/* As they stand in the other document: they are no part of the compiled form's interface. */
static enum refit_status add_excused(json_t *document, const struct refit_layout *layout, struct refit_error *err)
{
    size_t len = 0;
    json_t *other = NULL;
    const char *text = refit_layout_text(layout, &len);
    enum refit_status status = refit_json_parse(text, len, "a layout", &other, err);
    json_t *excused = status == REFIT_OK ? json_object_get(other, "excused") : NULL;
    if (excused && json_object_set(document, "excused", excused) != 0)
        status = refit_fail_alloc(err, "excused names", json_array_size(excused));
    json_decref(other);
    return status;
}

static enum refit_status add_names(json_t *document, const struct refit_layout *layout, struct refit_error *err)
{
    json_t *aliases = json_object();
    if (!aliases || !refit_layout_aliases(layout, add_alias, aliases)) {
        json_decref(aliases);
        return refit_fail_alloc(err, "aliases", 128);
    }
    if (json_object_size(aliases) > 0)
        json_object_set(document, "aliases", aliases);
    json_decref(aliases);
    return add_excused(document, layout, err);
}

enum refit_status refit_layout_dense(const struct refit_layout *layout, struct refit_layout **out,
                                     struct refit_error *err)
{
    json_t *entries = entries_of(layout);
    json_t *document = entries ? json_pack("{s:s, s:i, s:{s:{s:[s], s:[i]}}, s:o}", "format", "refit-layout/1", "ranks", 1,
                                           "meshes", "m", "axes", "x", "shape", 1, "entries", entries)
                               : NULL;
    if (!document)
        return refit_fail_alloc(err, "a dense layout", refit_layout_tensor_count(layout) * 128ull);
    enum refit_status status = add_names(document, layout, err);
    if (status == REFIT_OK)
        status = refit_layout_from_json(document, "the whole model, dense", out, err);
    json_decref(document);
    return status;
}

/* --- buckets ---------------------------------------------------------------------------------------------------- */

static uint64_t bucket_bytes(const struct refit_layout *dense)
{
    uint64_t bytes = REFIT_BUCKET_BYTES_MIN;
    while (bytes < REFIT_BUCKET_BYTES_MAX && bytes < refit_layout_model_bytes(dense) / BUCKETS_WANTED)
        bytes *= 2;
    return bytes;
}

struct filling {
    struct refit_buckets *buckets;
    uint64_t bytes_wanted;
    uint32_t tensors; /* so far */
};

static struct refit_bucket *next_bucket(struct filling *filling, uint64_t begin)
{
    struct refit_bucket *bucket = &filling->buckets->items[filling->buckets->count++];
    *bucket = (struct refit_bucket){.first = filling->tensors, .begin = begin};
    return bucket;
}

/* Buffers come in the order of ids, each behind the one before. */
static bool take_buffer(void *ctx, const struct refit_buffer *buffer)
{
    struct filling *filling = ctx;
    struct refit_buckets *buckets = filling->buckets;
    struct refit_bucket *bucket = buckets->count ? &buckets->items[buckets->count - 1] : NULL;
    uint32_t id;
    if (!refit_layout_find(buckets->dense, buffer->name, &id) || id != filling->tensors)
        return false;
    if (!bucket || (bucket->bytes > 0 && buffer->offset + buffer->bytes - bucket->begin > filling->bytes_wanted))
        bucket = next_bucket(filling, buffer->offset);
    if (buffer->bytes > 0)
        bucket->bytes = buffer->offset + buffer->bytes - bucket->begin;
    if (bucket->bytes > buckets->bytes_max)
        buckets->bytes_max = bucket->bytes;
    bucket->count++;
    filling->tensors++;
    return true;
}

enum refit_status refit_buckets_create(struct refit_layout *dense, struct refit_buckets *out, struct refit_error *err)
{
    uint32_t tensors = refit_layout_tensor_count(dense);
    struct filling filling = {.buckets = out, .bytes_wanted = bucket_bytes(dense)};
    *out = (struct refit_buckets){.dense = refit_layout_retain(dense)};
    out->items = calloc((size_t)tensors + 1, sizeof *out->items);
    enum refit_status status = REFIT_OK;
    if (!out->items)
        status = refit_fail_alloc(err, "buckets", tensors * sizeof *out->items);
    else if (refit_layout_ranks(dense) != 1 || !refit_layout_buffers(dense, 0, take_buffer, &filling) ||
             filling.tensors != tensors)
        status = refit_fail(err, REFIT_INVALID, "the source is broadcast whole: its layout must be of one rank, with one buffer "
                            "for each tensor, in the order of tensors");
    if (status != REFIT_OK)
        refit_buckets_release(out);
    return status;
}

void refit_buckets_release(struct refit_buckets *buckets)
{
    free(buckets->items);
    refit_layout_release(buckets->dense);
    *buckets = (struct refit_buckets){.count = 0};
}

struct alias_mask {
    const struct refit_layout *layout;
    const struct refit_bucket *bucket;
    const struct refit_layout *dense;
    uint8_t *mask;
};

/* A tensor that the dense side has under one of the other's aliases. */
static bool want_alias(void *ctx, const char *name, const char *target)
{
    struct alias_mask *m = ctx;
    uint32_t there, here;
    if (refit_layout_find(m->dense, name, &there) && there - m->bucket->first < m->bucket->count &&
        refit_layout_find(m->layout, target, &here) && !refit_layout_find(m->dense, target, &there))
        m->mask[here] = 1;
    return true;
}

uint8_t *refit_bucket_mask(const struct refit_buckets *buckets, uint32_t number, const struct refit_layout *layout)
{
    uint32_t tensors = refit_layout_tensor_count(layout);
    struct alias_mask m = {.layout = layout, .bucket = &buckets->items[number], .dense = buckets->dense,
                           .mask = calloc((size_t)tensors + 1, 1)};
    for (uint32_t id = 0; m.mask && id < tensors; id++) {
        struct refit_tensor tensor;
        uint32_t there;
        refit_layout_tensor(layout, id, &tensor);
        m.mask[id] = refit_layout_find(buckets->dense, tensor.name, &there) &&
                     there - m.bucket->first < m.bucket->count;
    }
    if (m.mask)
        (void)refit_layout_aliases(layout, want_alias, &m);
    return m.mask;
}
