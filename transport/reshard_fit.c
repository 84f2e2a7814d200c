/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/reshard_fit.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define NO_CUT (-1)

const char *refit_reshard_fit_text(enum refit_reshard_fit fit)
{
    static const char *const texts[] = {
        [REFIT_RESHARD_FITS] = "fits",
        [REFIT_RESHARD_UNWANTED] = "is not wanted",
        [REFIT_RESHARD_ABSENT] = "is on no rank of one side",
        [REFIT_RESHARD_TYPES] = "has another element type at the other end",
        [REFIT_RESHARD_PIECES] = "is in several pieces on a rank",
        [REFIT_RESHARD_STRIDED] = "is strided on a rank",
        [REFIT_RESHARD_UNEVEN] = "is cut unevenly",
        [REFIT_RESHARD_AXES] = "is cut in more than one dimension",
        [REFIT_RESHARD_MESH] = "is on ranks that do not follow each other as its shards do",
        [REFIT_RESHARD_SHARDS] = "has more shards than one call takes",
    };
    return texts[fit];
}

/* ---- one side ---- */

/* What is seen of a tensor's regions, rank by rank. */
struct look {
    const struct refit_tensor *tensor;
    uint32_t first, count; /* ranks that matter */
    uint32_t start, seen;  /* those that have it */
    int cut;               /* dimension; NO_CUT: whole */
    int64_t extent;        /* of a shard in it */
    uint32_t *shards;      /* owned: which one each rank has */
    enum refit_reshard_fit fit;
};

static bool is_dense(const struct refit_tensor *tensor, const struct refit_region *region)
{
    int64_t stride = tensor->unit_bytes;
    for (uint32_t d = tensor->dims; d-- > 0;) {
        if (region->box.extent[d] > 1 && region->stride[d] != stride)
            return false;
        stride *= region->box.extent[d];
    }
    return true;
}

/* The dimension in which the box is less than the tensor; -2: in several. */
static int cut_of(const struct refit_tensor *tensor, const struct refit_box *box)
{
    int cut = NO_CUT;
    for (uint32_t d = 0; d < tensor->dims; d++)
        if (box->extent[d] != tensor->shape_units[d])
            cut = cut == NO_CUT ? (int)d : -2;
    return cut;
}

static enum refit_reshard_fit see_first(struct look *look, const struct refit_region *region)
{
    look->cut = cut_of(look->tensor, &region->box);
    if (look->cut == -2)
        return REFIT_RESHARD_AXES;
    look->start = region->rank;
    look->extent = look->cut == NO_CUT ? 1 : region->box.extent[look->cut];
    bool even = look->cut == NO_CUT || look->tensor->shape_units[look->cut] % look->extent == 0;
    return even ? REFIT_RESHARD_FITS : REFIT_RESHARD_UNEVEN;
}

static enum refit_reshard_fit see(struct look *look, const struct refit_region *region)
{
    enum refit_reshard_fit fit = REFIT_RESHARD_FITS;
    if (look->seen == 0)
        fit = see_first(look, region);
    if (fit != REFIT_RESHARD_FITS)
        return fit;
    if (look->seen > 0 && region->rank < look->start + look->seen)
        return REFIT_RESHARD_PIECES;
    if (region->rank != look->start + look->seen)
        return REFIT_RESHARD_MESH;
    if (!is_dense(look->tensor, region))
        return REFIT_RESHARD_STRIDED;
    int cut = cut_of(look->tensor, &region->box);
    if (cut != look->cut)
        return cut == -2 ? REFIT_RESHARD_AXES : REFIT_RESHARD_UNEVEN;
    if (cut != NO_CUT && (region->box.extent[cut] != look->extent || region->box.start[cut] % look->extent != 0))
        return REFIT_RESHARD_UNEVEN;
    look->shards[look->seen++] = cut == NO_CUT ? 0 : (uint32_t)(region->box.start[cut] / look->extent);
    return REFIT_RESHARD_FITS;
}

static bool see_region(void *context, const struct refit_region *region)
{
    struct look *look = context;
    if (region->rank < look->first || region->rank - look->first >= look->count)
        return true;
    look->fit = see(look, region);
    return look->fit == REFIT_RESHARD_FITS;
}

/* Row-major, the mesh's axes are (replicas, shards) or (shards, replicas). */
static bool find_mesh(const struct look *look, uint32_t shards, struct refit_reshard_side *side)
{
    uint32_t replicas = look->seen / shards;
    bool inner = look->seen % shards == 0, outer = inner;
    for (uint32_t i = 0; i < look->seen && (inner || outer); i++) {
        inner = inner && look->shards[i] == i % shards;
        outer = outer && look->shards[i] == i / replicas;
    }
    side->mesh_dims = shards == 1 || replicas == 1 ? 1 : 2;
    side->mesh[0] = side->mesh_dims == 1 ? (int)look->seen : (int)(inner ? replicas : shards);
    side->mesh[1] = side->mesh_dims == 1 ? 1 : (int)(inner ? shards : replicas);
    /* The axis that is cut; the dimension's number comes later. */
    int cuts = side->mesh_dims == 1 ? 0 : (int)inner;
    side->placement[0] = side->placement[1] = REFIT_RESHARD_WHOLE;
    if (shards > 1)
        side->placement[cuts] = look->cut;
    return inner || outer;
}

static enum refit_reshard_fit look_at(const struct refit_layout *layout, uint32_t id, const struct refit_tensor *tensor,
                                      struct look *look, struct refit_reshard_side *side)
{
    look->tensor = tensor;
    look->fit = REFIT_RESHARD_FITS;
    refit_layout_regions(layout, id, REFIT_ALL_RANKS, see_region, look);
    if (look->fit != REFIT_RESHARD_FITS)
        return look->fit;
    if (look->seen == 0)
        return REFIT_RESHARD_ABSENT;
    int64_t shards = look->cut == NO_CUT ? 1 : tensor->shape_units[look->cut] / look->extent;
    return shards <= look->seen && find_mesh(look, (uint32_t)shards, side) ? REFIT_RESHARD_FITS : REFIT_RESHARD_MESH;
}

/* ---- both ---- */

static int shards_of(const struct refit_reshard_side *side)
{
    for (int axis = 0; axis < side->mesh_dims; axis++)
        if (side->placement[axis] != REFIT_RESHARD_WHOLE)
            return side->mesh[axis];
    return 1;
}

/* How many of `ours` one of `theirs` shares anything with, at most; both cut the same dimension. */
static int most_shared(int ours, int theirs)
{
    int most = 0;
    for (int64_t i = 0; i < theirs; i++) {
        int64_t first = i * ours / theirs, end = ((i + 1) * ours + theirs - 1) / theirs;
        most = end - first > most ? (int)(end - first) : most;
    }
    return most;
}

static bool flows(const struct look looks[2], const struct refit_reshard_tensor *t)
{
    int from = shards_of(&t->sides[REFIT_SOURCE]), to = shards_of(&t->sides[REFIT_DESTINATION]);
    bool along = from > 1 && to > 1 && looks[REFIT_SOURCE].cut == looks[REFIT_DESTINATION].cut;
    int in = along ? most_shared(from, to) : from, out = along ? most_shared(to, from) : to;
    return in <= REFIT_RESHARD_FAN_IN_MAX &&
           out * (int64_t)(looks[REFIT_DESTINATION].seen / (uint32_t)to) <= REFIT_RESHARD_FAN_OUT_MAX;
}

/* Dimensions begin at 0 and where a side is cut: each is joined with those behind it that are cut nowhere. */
static void join_dims(struct look looks[2], const struct refit_tensor *tensor, struct refit_reshard_tensor *t)
{
    size_t whole[REFIT_RESHARD_DIMS_MAX] = {1, 1, 1};
    int joined[2] = {0, 0};
    t->dims = 1;
    for (uint32_t d = 0; d < tensor->dims; d++) {
        bool cut = looks[0].cut == (int)d || looks[1].cut == (int)d;
        if (cut && d > 0)
            t->dims++;
        whole[t->dims - 1] *= (size_t)tensor->shape_units[d];
        for (int s = 0; s < 2; s++)
            if (looks[s].cut == (int)d)
                joined[s] = t->dims - 1;
    }
    whole[t->dims - 1] *= tensor->unit_bytes;
    for (int s = 0; s < 2; s++) {
        struct refit_reshard_side *side = &t->sides[s];
        memcpy(side->shape, whole, sizeof whole);
        side->shape[joined[s]] /= (size_t)shards_of(side);
        for (int axis = 0; axis < REFIT_RESHARD_MESH_MAX; axis++)
            if (side->placement[axis] != REFIT_RESHARD_WHOLE)
                side->placement[axis] = joined[s];
    }
}

static enum refit_reshard_fit fit_both(const struct refit_plan *plan, struct look looks[2],
                                       struct refit_reshard_tensor *t)
{
    struct refit_layout *layouts[2] = {refit_plan_source(plan), refit_plan_destination(plan)};
    struct refit_tensor tensors[2];
    const uint8_t *wanted = refit_plan_scope_of(plan).wanted;
    refit_layout_tensor(layouts[REFIT_DESTINATION], t->id[REFIT_DESTINATION], &tensors[REFIT_DESTINATION]);
    t->bytes = tensors[REFIT_DESTINATION].bytes;
    if (t->bytes == 0 || (wanted && !wanted[t->id[REFIT_DESTINATION]]))
        return REFIT_RESHARD_UNWANTED;
    if (!refit_layout_find(layouts[REFIT_SOURCE], tensors[REFIT_DESTINATION].name, &t->id[REFIT_SOURCE]))
        return REFIT_RESHARD_ABSENT;
    refit_layout_tensor(layouts[REFIT_SOURCE], t->id[REFIT_SOURCE], &tensors[REFIT_SOURCE]);
    if (tensors[REFIT_SOURCE].dtype != tensors[REFIT_DESTINATION].dtype)
        return REFIT_RESHARD_TYPES;
    for (int s = 0; s < 2; s++) {
        enum refit_reshard_fit fit = look_at(layouts[s], t->id[s], &tensors[s], &looks[s], &t->sides[s]);
        if (fit != REFIT_RESHARD_FITS)
            return fit;
    }
    if (!flows(looks, t))
        return REFIT_RESHARD_SHARDS;
    join_dims(looks, &tensors[REFIT_DESTINATION], t);
    uint32_t sources = looks[REFIT_SOURCE].count;
    t->sides[REFIT_SOURCE].start = (int)looks[REFIT_SOURCE].start;
    t->sides[REFIT_DESTINATION].start = (int)(sources + looks[REFIT_DESTINATION].start - looks[REFIT_DESTINATION].first);
    return REFIT_RESHARD_FITS;
}

/* Room for what is seen, which is the same for all tensors. */
static enum refit_status looks_init(const struct refit_plan *plan, struct look looks[2], struct refit_error *err)
{
    looks[REFIT_SOURCE] = (struct look){.count = refit_layout_ranks(refit_plan_source(plan))};
    looks[REFIT_DESTINATION] =
        (struct look){.first = refit_plan_first_rank(plan), .count = refit_plan_rank_count(plan)};
    for (int s = 0; s < 2; s++)
        looks[s].shards = malloc((looks[s].count + 1) * sizeof *looks[s].shards);
    if (looks[0].shards && looks[1].shards)
        return REFIT_OK;
    free(looks[0].shards);
    free(looks[1].shards);
    return refit_fail_alloc(err, "the shards of a tensor", (looks[0].count + looks[1].count) * sizeof(uint32_t));
}

static void looks_release(struct look looks[2])
{
    free(looks[0].shards);
    free(looks[1].shards);
}

static enum refit_reshard_fit fit_one(const struct refit_plan *plan, struct look looks[2], uint32_t id,
                                      struct refit_reshard_tensor *out)
{
    memset(out, 0, sizeof *out);
    out->id[REFIT_DESTINATION] = id;
    looks[0].seen = looks[1].seen = 0;
    return fit_both(plan, looks, out);
}

enum refit_status refit_reshard_fit(const struct refit_plan *plan, uint32_t destination_tensor,
                                    enum refit_reshard_fit *fit, struct refit_reshard_tensor *out,
                                    struct refit_error *err)
{
    struct look looks[2];
    enum refit_status status = looks_init(plan, looks, err);
    if (status != REFIT_OK)
        return status;
    *fit = fit_one(plan, looks, destination_tensor, out);
    looks_release(looks);
    return REFIT_OK;
}

/* ---- the list ---- */

/* FNV-1a. */
static void mix(uint64_t *digest, uint64_t value)
{
    for (int i = 0; i < 8; i++) {
        *digest ^= value >> (8 * i) & 0xff;
        *digest *= UINT64_C(0x100000001b3);
    }
}

static void mix_tensor(uint64_t *digest, const struct refit_reshard_tensor *t)
{
    mix(digest, t->id[REFIT_DESTINATION]);
    mix(digest, (uint64_t)t->dims);
    for (int s = 0; s < 2; s++) {
        const struct refit_reshard_side *side = &t->sides[s];
        mix(digest, (uint64_t)side->start);
        for (int axis = 0; axis < side->mesh_dims; axis++) {
            mix(digest, (uint64_t)side->mesh[axis]);
            mix(digest, (uint64_t)side->placement[axis]);
        }
        for (int d = 0; d < t->dims; d++)
            mix(digest, side->shape[d]);
    }
}

static void take_all(const struct refit_plan *plan, struct look looks[2], uint32_t count,
                     struct refit_reshard_list *list)
{
    list->digest = UINT64_C(0xcbf29ce484222325);
    mix(&list->digest, list->sources);
    mix(&list->digest, list->destinations);
    for (uint32_t id = 0; id < count; id++) {
        struct refit_reshard_tensor *t = &list->tensors[list->count];
        list->fits[id] = (uint8_t)fit_one(plan, looks, id, t);
        if (list->fits[id] != REFIT_RESHARD_FITS)
            continue;
        mix_tensor(&list->digest, t);
        list->bytes += t->bytes;
        list->count++;
    }
}

enum refit_status refit_reshard_list_build(const struct refit_plan *plan, struct refit_reshard_list *out,
                                           struct refit_error *err)
{
    struct look looks[2];
    uint32_t count = refit_layout_tensor_count(refit_plan_destination(plan));
    enum refit_status status = looks_init(plan, looks, err);
    if (status != REFIT_OK)
        return status;
    *out = (struct refit_reshard_list){.sources = looks[REFIT_SOURCE].count,
                                       .destinations = looks[REFIT_DESTINATION].count,
                                       .tensors = calloc(count + (size_t)1, sizeof *out->tensors),
                                       .fits = calloc(count + (size_t)1, 1)};
    if (out->tensors && out->fits)
        take_all(plan, looks, count, out);
    else
        status = refit_fail_alloc(err, "a list of tensors", (count + (size_t)1) * sizeof *out->tensors);
    looks_release(looks);
    if (status != REFIT_OK)
        refit_reshard_list_release(out);
    return status;
}

void refit_reshard_list_release(struct refit_reshard_list *list)
{
    free(list->tensors);
    free(list->fits);
    *list = (struct refit_reshard_list){.count = 0};
}

bool refit_reshard_covers(const struct refit_reshard_list *list, const struct refit_plan *plan,
                          const struct refit_edge *edge, uint32_t batch)
{
    struct refit_walk walk = refit_walk_batch(plan, edge, batch, refit_plan_landing_rank(plan, edge, batch));
    struct refit_strip strip;
    while (refit_walk_next(&walk, UINT64_MAX, &strip))
        if (list->fits[strip.tensor] != REFIT_RESHARD_FITS)
            return false;
    return true;
}
