/* SPDX-License-Identifier: Apache-2.0 */
#include "random_layout.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

#define TEXT_MAX ((size_t)8 << 20)
#define AXES 3u

uint64_t random_next(struct random *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t random_below(struct random *r, uint32_t n)
{
    return (uint32_t)(random_next(r) % n);
}

struct model random_model(struct random *r)
{
    static const enum refit_dtype dtypes[] = {REFIT_DTYPE_BF16, REFIT_DTYPE_F32, REFIT_DTYPE_U8, REFIT_DTYPE_F4,
                                              REFIT_DTYPE_F6_E2M3, REFIT_DTYPE_I64};
    struct model model = {.count = 1 + random_below(r, 5)};
    for (uint32_t i = 0; i < model.count; i++) {
        struct model_tensor *t = &model.tensors[i];
        t->dtype = dtypes[random_below(r, 6)];
        const uint32_t unit = refit_dtype_unit_elements(t->dtype);
        t->dims = unit > 1 ? 1 + random_below(r, 3) : random_below(r, 5);
        for (uint32_t d = 0; d < t->dims; d++) {
            t->shape[d] = 1 + random_below(r, d < 2 ? 14 : 5);
        }
        if (t->dims > 0) {
            t->shape[t->dims - 1] *= unit;
        }
        t->layers = random_below(r, 3) == 0 ? 1 + random_below(r, 5) : 0;
        t->experts = t->layers > 0 && random_below(r, 2) ? 1 + random_below(r, 6) : 0;
        (void)snprintf(t->name, sizeof(t->name), "m.t%u%s%s.weight", i, t->layers ? ".layers.{l}" : "",
                       t->experts ? ".experts.{e}" : "");
    }
    return model;
}

/* What is being written, and on which ranks. */
struct writer {
    struct random *r;
    struct refit_buf text;
    uint32_t ranks;
    uint32_t sizes[AXES];
    uint32_t buffers; /* for names of their own */
    bool overlaps;
    bool first;
};

static bool coin(struct writer *w, uint32_t n)
{
    return random_below(w->r, n) == 0;
}

static void begin_entry(struct writer *w)
{
    refit_buf_printf(&w->text, "%s{", w->first ? "" : ",");
    w->first = false;
}

static void write_numbers(struct writer *w, const char *key, const int64_t *numbers, uint32_t count)
{
    refit_buf_printf(&w->text, "\"%s\":[", key);
    for (uint32_t i = 0; i < count; i++) {
        refit_buf_printf(&w->text, "%s%lld", i ? "," : "", (long long)numbers[i]);
    }
    refit_buf_printf(&w->text, "]");
}

/* A random order of 0 .. n - 1. */
static void shuffle(struct writer *w, int64_t *order, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t j = random_below(w->r, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

static void write_index(struct writer *w, const char *name, uint32_t n, int axis)
{
    static const char *const axes[AXES] = {"a", "b", "c"};
    if (axis < 0) {
        refit_buf_printf(&w->text, "\"%s\":[0,%u]", name, n);
        return;
    }
    refit_buf_printf(&w->text, "\"%s\":{\"range\":[0,%u],\"axis\":\"%s\"", name, n, axes[axis]);
    const uint32_t size = w->sizes[axis];
    if (coin(w, 3)) { /* uneven stages */
        refit_buf_printf(&w->text, ",\"counts\":[");
        for (uint32_t c = 0, left = n; c < size; c++) {
            const uint32_t count = c + 1 == size ? left : random_below(w->r, left + 1);
            refit_buf_printf(&w->text, "%s%u", c ? "," : "", count);
            left -= count;
        }
        refit_buf_printf(&w->text, "]");
    } else if (coin(w, 2)) { /* any assignment, some ids twice */
        refit_buf_printf(&w->text, ",\"lists\":[");
        for (uint32_t c = 0; c < size; c++) {
            const char *comma = "";
            refit_buf_printf(&w->text, "%s[", c ? "," : "");
            for (uint32_t id = 0; id < n; id++) {
                if (id % size == c || coin(w, 4)) {
                    refit_buf_printf(&w->text, "%s%u", comma, n - 1 - id);
                    comma = ",";
                }
            }
            refit_buf_printf(&w->text, "]");
        }
        refit_buf_printf(&w->text, "]");
    }
    refit_buf_printf(&w->text, "}");
}

/* Axes that cut an index must be replicated; the others shard a dimension or not. */
static void write_placements(struct writer *w, const struct model_tensor *t, int layer_axis, int expert_axis)
{
    refit_buf_printf(&w->text, ",\"placements\":[");
    for (int axis = 0; axis < (int)AXES; axis++) {
        refit_buf_printf(&w->text, "%s", axis ? "," : "");
        /* Packed dtypes can't be cut inside a unit, so their last dimension stays whole. */
        const uint32_t cuttable = t->dims - (refit_dtype_unit_elements(t->dtype) > 1);
        if (axis == layer_axis || axis == expert_axis || t->dims == 0 || cuttable == 0 || coin(w, 3)) {
            refit_buf_printf(&w->text, "\"Replicate\"");
        } else {
            refit_buf_printf(&w->text, "\"Shard(%u)\"", random_below(w->r, cuttable));
        }
    }
    refit_buf_printf(&w->text, "]");
}

static void write_mesh_entry(struct writer *w, const struct model_tensor *t, const char *mesh)
{
    const int layer_axis = t->layers && coin(w, 2) ? (int)random_below(w->r, AXES) : -1;
    int expert_axis = t->experts && coin(w, 2) ? (int)random_below(w->r, AXES) : -1;
    expert_axis = expert_axis == layer_axis ? -1 : expert_axis;
    begin_entry(w);
    refit_buf_printf(&w->text, "\"tensor\":\"%s\",\"dtype\":\"%s\",\"mesh\":\"%s\",", t->name,
                     refit_dtype_name(t->dtype), mesh);
    write_numbers(w, "shape", t->shape, t->dims);
    if (t->layers) {
        refit_buf_printf(&w->text, ",\"for\":{");
        write_index(w, "l", t->layers, layer_axis);
        if (t->experts) {
            refit_buf_printf(&w->text, ",");
            write_index(w, "e", t->experts, expert_axis);
        }
        refit_buf_printf(&w->text, "}");
    }
    if (t->experts && coin(w, 2)) { /* stacked: the index is not in the buffer's name */
        refit_buf_printf(&w->text, ",\"buffer\":\"stack%u.{l}\"", w->buffers++);
    } else if (!t->experts && (mesh[0] == 's' || coin(w, 2))) { /* the tensor's name is taken on that rank */
        refit_buf_printf(&w->text, ",\"buffer\":\"own%u%s\"", w->buffers++, t->layers ? ".{l}" : "");
    } else if (t->experts) { /* an id may stand twice on a rank, so its place tells the buffers apart */
        refit_buf_printf(&w->text, ",\"buffer\":\"one%u.{l}.{e:local}\"", w->buffers++);
    }
    write_placements(w, t, layer_axis, expert_axis);
    if (t->dims > 1 && coin(w, 2)) {
        int64_t order[REFIT_DIMS_MAX];
        shuffle(w, order, t->dims);
        refit_buf_printf(&w->text, ",");
        write_numbers(w, "order", order, t->dims);
    }
    refit_buf_printf(&w->text, "}");
}

/* The whole tensor once more on one rank, in memory of another order perhaps: a replica unlike the others. */
static void write_extra_copy(struct writer *w, const struct model_tensor *t)
{
    const uint32_t sizes[AXES] = {w->sizes[0], w->sizes[1], w->sizes[2]};
    w->sizes[0] = w->sizes[1] = w->sizes[2] = 1;
    write_mesh_entry(w, t, "s");
    memcpy(w->sizes, sizes, sizeof(sizes));
}

static void write_box_entry(struct writer *w, const struct model_tensor *t, const char *name,
                            const struct refit_box *box, uint32_t rank)
{
    const int64_t unit = refit_dtype_unit_elements(t->dtype);
    int64_t stride[REFIT_DIMS_MAX];
    int64_t order[REFIT_DIMS_MAX];
    int64_t start[REFIT_DIMS_MAX];
    int64_t extent[REFIT_DIMS_MAX];
    int64_t bytes = refit_dtype_unit_bytes(t->dtype);
    shuffle(w, order, t->dims);
    const bool natural = coin(w, 2);
    for (uint32_t i = 0; i < t->dims; i++) { /* from the fastest dimension to the slowest */
        const uint32_t d = natural ? t->dims - 1 - i : (uint32_t)order[i];
        stride[d] = bytes;
        bytes *= box->extent[d] + (coin(w, 4) ? 1 : 0); /* a gap now and then */
    }
    for (uint32_t d = 0; d < t->dims; d++) {
        start[d] = box->start[d] * (d + 1 == t->dims ? unit : 1);
        extent[d] = box->extent[d] * (d + 1 == t->dims ? unit : 1);
    }
    const int64_t offset = random_below(w->r, 40);
    begin_entry(w);
    refit_buf_printf(&w->text, "\"rank\":%u,\"buffer\":\"listed%u\",\"bytes\":%lld,\"dtype\":\"%s\",\"regions\":[{",
                     rank, w->buffers++, (long long)(bytes + offset + random_below(w->r, 30)),
                     refit_dtype_name(t->dtype));
    refit_buf_printf(&w->text, "\"tensor\":\"%s\",", name);
    write_numbers(w, "shape", t->shape, t->dims);
    refit_buf_printf(&w->text, ",");
    write_numbers(w, "start", start, t->dims);
    refit_buf_printf(&w->text, ",");
    write_numbers(w, "extent", extent, t->dims);
    refit_buf_printf(&w->text, ",\"offset\":%lld,", (long long)offset);
    write_numbers(w, "stride", stride, t->dims);
    refit_buf_printf(&w->text, "}]}");
}

static struct refit_box whole_box(const struct model_tensor *t)
{
    struct refit_box box = refit_box_of_shape(t->dims, t->shape);
    if (t->dims > 0) {
        box.extent[t->dims - 1] /= refit_dtype_unit_elements(t->dtype);
    }
    return box;
}

static void write_replicas(struct writer *w, const struct model_tensor *t, const char *name,
                           const struct refit_box *box)
{
    const uint32_t copies = coin(w, 3) ? 1 + random_below(w->r, w->ranks) : 1;
    const uint32_t first = random_below(w->r, w->ranks);
    for (uint32_t i = 0; i < copies; i++) {
        write_box_entry(w, t, name, box, (first + i) % w->ranks);
    }
}

/* Cuts the box at random, again and again, and lists what comes out. */
static void write_cut_boxes(struct writer *w, const struct model_tensor *t, const char *name, struct refit_box box,
                            uint32_t depth)
{
    const uint32_t d = t->dims ? random_below(w->r, t->dims) : 0;
    if (t->dims == 0 || depth == 0 || box.extent[d] < 2) {
        write_replicas(w, t, name, &box);
        return;
    }
    struct refit_box tail = box;
    const int64_t cut = 1 + random_below(w->r, (uint32_t)box.extent[d] - 1);
    box.extent[d] = cut;
    tail.start[d] += cut;
    tail.extent[d] -= cut;
    write_cut_boxes(w, t, name, box, depth - 1);
    write_cut_boxes(w, t, name, tail, depth - 1);
}

static void write_overlaps(struct writer *w, const struct model_tensor *t, const char *name)
{
    const uint32_t count = random_below(w->r, 5);
    for (uint32_t i = 0; i < count; i++) {
        struct refit_box box = whole_box(t);
        for (uint32_t d = 0; d < t->dims; d++) {
            const uint32_t n = (uint32_t)box.extent[d];
            box.start[d] = random_below(w->r, n);
            box.extent[d] = 1 + random_below(w->r, n - (uint32_t)box.start[d]);
        }
        write_box_entry(w, t, name, &box, random_below(w->r, w->ranks));
    }
}

/* As FSDP1: a flat range of the elements per rank. */
static void write_flat(struct writer *w, const struct model_tensor *t, const char *name)
{
    const struct refit_box box = whole_box(t);
    const uint64_t units = refit_box_volume(&box);
    const uint64_t unit = refit_dtype_unit_elements(t->dtype);
    for (uint64_t at = 0; at < units;) {
        uint64_t n = 1 + random_below(w->r, (uint32_t)units);
        n = n < units - at ? n : units - at;
        begin_entry(w);
        refit_buf_printf(&w->text, "\"rank\":%u,\"buffer\":\"flat%u\",\"bytes\":%llu,\"dtype\":\"%s\",\"regions\":[{",
                         random_below(w->r, w->ranks), w->buffers++,
                         (unsigned long long)(n * refit_dtype_unit_bytes(t->dtype)), refit_dtype_name(t->dtype));
        refit_buf_printf(&w->text, "\"tensor\":\"%s\",", name);
        write_numbers(w, "shape", t->shape, t->dims);
        refit_buf_printf(&w->text, ",\"flat\":[%llu,%llu],\"offset\":0}]}", (unsigned long long)(at * unit),
                         (unsigned long long)((at + n) * unit));
        at += n;
    }
}

static void member_name(char out[64], const struct model_tensor *t, uint32_t layer, uint32_t expert)
{
    char *end = out + 64;
    for (const char *at = t->name; *at;) {
        if (*at == '{') {
            out += snprintf(out, (size_t)(end - out), "%u", at[1] == 'l' ? layer : expert);
            at += 3;
        } else {
            *out++ = *at++;
        }
    }
    *out = '\0';
}

static void write_listed(struct writer *w, const struct model_tensor *t)
{
    for (uint32_t l = 0; l < (t->layers ? t->layers : 1); l++) {
        for (uint32_t e = 0; e < (t->experts ? t->experts : 1); e++) {
            char name[64];
            member_name(name, t, l, e);
            if (t->dims > 0 && coin(w, 3)) {
                write_flat(w, t, name);
            } else {
                write_cut_boxes(w, t, name, whole_box(t), random_below(w->r, 5));
            }
            if (w->overlaps) {
                write_overlaps(w, t, name);
            }
        }
    }
}

static void write_model(struct writer *w, const struct model *model)
{
    int64_t order[MODEL_TENSORS_MAX];
    shuffle(w, order, model->count);
    refit_buf_printf(&w->text, "{\"format\":\"refit-layout/1\",\"ranks\":%u,", w->ranks);
    refit_buf_printf(&w->text, "\"meshes\":{\"m\":{\"axes\":[\"a\",\"b\",\"c\"],\"shape\":[%u,%u,%u],\"ranks\":[",
                     w->sizes[0], w->sizes[1], w->sizes[2]);
    int64_t ranks[64];
    shuffle(w, ranks, w->ranks);
    for (uint32_t i = 0; i < w->sizes[0] * w->sizes[1] * w->sizes[2]; i++) {
        refit_buf_printf(&w->text, "%s%lld", i ? "," : "", (long long)ranks[i]);
    }
    refit_buf_printf(&w->text, "]},\"s\":{\"axes\":[\"a\",\"b\",\"c\"],\"shape\":[1,1,1],\"ranks\":[%u]}},"
                     "\"entries\":[", random_below(w->r, w->ranks));
    w->first = true;
    for (uint32_t i = 0; i < model->count; i++) {
        const struct model_tensor *t = &model->tensors[order[i]];
        if (coin(w, 3)) {
            write_listed(w, t);
        } else {
            write_mesh_entry(w, t, "m");
            if (coin(w, 4)) {
                write_extra_copy(w, t);
            }
        }
    }
    refit_buf_printf(&w->text, "]}");
}

struct refit_layout *random_layout(struct random *r, const struct model *model, uint32_t ranks_max, bool overlaps)
{
    struct writer w = {.r = r, .overlaps = overlaps};
    struct refit_layout *layout = NULL;
    struct refit_error err;
    refit_buf_init(&w.text, TEXT_MAX);
    do {
        for (uint32_t i = 0; i < AXES; i++) {
            w.sizes[i] = 1 + random_below(r, 4);
        }
    } while (w.sizes[0] * w.sizes[1] * w.sizes[2] > ranks_max);
    w.ranks = w.sizes[0] * w.sizes[1] * w.sizes[2];
    w.ranks += w.ranks < ranks_max && random_below(r, 3) == 0; /* one that the mesh leaves out */
    write_model(&w, model);
    if (w.text.failed || refit_layout_parse(w.text.data, w.text.len, "a random layout", &layout, &err) != REFIT_OK) {
        (void)fprintf(stderr, "%.*s\n%s\n", (int)w.text.len, (const char *)w.text.data,
                      w.text.failed ? "out of memory" : err.text);
    }
    refit_buf_release(&w.text);
    return layout;
}
