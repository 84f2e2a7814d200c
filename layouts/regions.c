/* SPDX-License-Identifier: Apache-2.0
 *
 * A tensor's regions, rank by rank. This is the planner's innermost loop: no allocation, no division that a common
 * layout doesn't need.
 */
#include "layouts/layout_internal.h"

/* One piece on its mesh, asked for one tensor. */
struct piece_walk {
    const struct refit_layout *layout;
    const struct refit_entry *entry;
    const struct refit_piece *piece;
    const struct refit_mesh *mesh;
    uint32_t tensor;
    uint32_t known;                    /* bit per index that the tensor's name fixes */
    uint32_t id[REFIT_INDICES_MAX];    /* of those */
    refit_region_sink sink;
    void *ctx;
};

/* Cells of a mesh, restricted to begin .. end on each axis. */
struct cell_range {
    uint32_t begin[REFIT_AXES_MAX], end[REFIT_AXES_MAX];
};

/* Binds the numbers in the tensor's name to the entry's indices; false when this piece isn't of that tensor. */
static bool bind_piece(struct piece_walk *walk, const struct refit_layout *layout, uint32_t piece, uint32_t tensor,
                       const uint32_t *values)
{
    walk->layout = layout;
    walk->piece = &layout->pieces[piece];
    walk->entry = &layout->entries[walk->piece->entry];
    walk->mesh = &layout->meshes[walk->entry->mesh];
    walk->tensor = tensor;
    walk->known = walk->piece->tensor.vars_used;
    for (uint32_t f = 0; f < walk->piece->tensor.fields; f++) {
        int v = walk->piece->tensor.var[f];
        if (v >= 0)
            walk->id[v] = values[f];
        else if (walk->piece->tensor.literal[f] != values[f])
            return false;
    }
    return true;
}

/* The local positions that each index takes on a cell. */
struct positions {
    uint32_t begin[REFIT_INDICES_MAX]; /* see refit_index_positions(); 0 where the name doesn't fix the index */
    uint32_t count[REFIT_INDICES_MAX];
    uint32_t total[REFIT_INDICES_MAX]; /* of the index on this rank */
};

static bool find_positions(const struct piece_walk *walk, const uint32_t *coords, struct positions *out)
{
    for (uint32_t v = 0; v < walk->entry->index_count; v++) {
        const struct refit_index *index = &walk->entry->indices[v];
        out->begin[v] = 0;
        out->total[v] = out->count[v] = refit_index_count(index, coords);
        if (walk->known >> v & 1)
            out->count[v] = refit_index_positions(index, coords, walk->id[v], &out->begin[v]);
        if (out->count[v] == 0)
            return false;
    }
    return true;
}

static uint32_t position_at(const struct piece_walk *walk, const struct positions *positions, uint32_t v, uint32_t n)
{
    const struct refit_index *index = &walk->entry->indices[v];
    if ((walk->known >> v & 1) && index->ids)
        return index->sorted[positions->begin[v] + n];
    return positions->begin[v] + n;
}

/* Arena offset of the cell that has the n[v]-th of its positions in each index. */
static uint64_t member_offset(const struct piece_walk *walk, const struct positions *positions, const uint32_t *n,
                              const struct refit_geometry *geometry)
{
    uint64_t part[2] = {0, 0}; /* buffer number, cell number in it */
    for (uint32_t i = 0; i < walk->entry->index_count; i++) {
        uint32_t v = walk->entry->index_order[i], stacked = i >= walk->entry->named_count;
        part[stacked] = part[stacked] * positions->total[v] + position_at(walk, positions, v, n[v]);
    }
    return part[0] * geometry->buffer_step + part[1] * geometry->cell_bytes;
}

static bool walk_cell(const struct piece_walk *walk, uint32_t cell)
{
    const struct refit_entry *entry = walk->entry;
    const uint32_t *coords = walk->mesh->coords + (size_t)cell * walk->mesh->axes;
    uint32_t number = (uint32_t)(walk->piece - &walk->layout->pieces[entry->first_piece]);
    uint64_t base = entry->bases ? entry->bases[cell] : entry->base;
    uint32_t n[REFIT_INDICES_MAX] = {0}, rank = walk->mesh->ranks[cell], i;
    struct positions positions;
    struct refit_geometry geometry;
    if (!find_positions(walk, coords, &positions))
        return true;
    refit_entry_geometry(walk->layout, entry, coords, number, &geometry);
    do {
        uint64_t at = base + member_offset(walk, &positions, n, &geometry);
        if (!refit_piece_regions(entry, walk->piece, &geometry, at, walk->tensor, rank, walk->sink, walk->ctx))
            return false;
        /* Next combination, last index fastest: only copies of one tensor on a rank have more than one. */
        for (i = entry->index_count; i-- > 0;) {
            uint32_t v = entry->index_order[i];
            if (++n[v] < positions.count[v])
                break;
            n[v] = 0;
        }
    } while (i != UINT32_MAX);
    return true;
}

/* The coordinate that has `id` of a consecutively cut index. */
static uint32_t owner(const struct refit_index *index, uint32_t size, uint32_t id)
{
    uint32_t low = 0, high = size - 1;
    id -= index->lo;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (index->first[middle + 1] <= id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Of 256 ranks in 16 expert groups only 16 hold a given expert: an axis that cuts an index consecutively is fixed. */
static struct cell_range cells_of(const struct piece_walk *walk)
{
    struct cell_range range = {0};
    for (uint32_t a = 0; a < walk->mesh->axes; a++) {
        range.begin[a] = 0;
        range.end[a] = walk->mesh->size[a];
    }
    for (uint32_t v = 0; v < walk->entry->index_count; v++) {
        const struct refit_index *index = &walk->entry->indices[v];
        if (index->axis < 0 || index->ids || !(walk->known >> v & 1) ||
            walk->id[v] - index->lo >= index->hi - index->lo)
            continue;
        range.begin[index->axis] = owner(index, walk->mesh->size[index->axis], walk->id[v]);
        range.end[index->axis] = range.begin[index->axis] + 1;
    }
    return range;
}

static bool walk_cells(const struct piece_walk *walk)
{
    const struct refit_mesh *mesh = walk->mesh;
    if (mesh->by_rank) {
        for (uint32_t i = 0; i < mesh->cells; i++)
            if (!walk_cell(walk, mesh->by_rank[i]))
                return false;
        return true;
    }
    struct cell_range range = cells_of(walk);
    uint32_t at[REFIT_AXES_MAX], cell = 0, a;
    for (a = 0; a < mesh->axes; a++) {
        at[a] = range.begin[a];
        cell += at[a] * mesh->step[a];
    }
    do {
        if (!walk_cell(walk, cell))
            return false;
        for (a = mesh->axes; a-- > 0;) {
            cell += mesh->step[a];
            if (++at[a] < range.end[a])
                break;
            cell -= (at[a] - range.begin[a]) * mesh->step[a];
            at[a] = range.begin[a];
        }
    } while (a != UINT32_MAX);
    return true;
}

/* ---- all holders of a tensor ---- */

struct tensor_walk {
    const struct refit_layout *layout;
    const struct refit_tensor_group *tensor;
    const struct refit_link *links;
    uint32_t id;
    uint32_t values[REFIT_NAME_FIELDS];
    refit_region_sink sink;
    void *ctx;
};

static bool walk_piece_on(const struct tensor_walk *walk, uint32_t link, uint32_t rank)
{
    struct piece_walk piece = {.sink = walk->sink, .ctx = walk->ctx};
    if (!bind_piece(&piece, walk->layout, walk->links[link].item, walk->id, walk->values))
        return true;
    uint32_t cell = piece.mesh->cell_of[rank];
    return cell == UINT32_MAX ? true : walk_cell(&piece, cell);
}

static const struct refit_listed *listed_at(const struct tensor_walk *walk, uint32_t link)
{
    return &walk->layout->listed[walk->links[link].item & ~REFIT_LINK_LISTED];
}

static uint32_t listed_rank(const struct tensor_walk *walk, uint32_t link)
{
    return walk->layout->entries[listed_at(walk, link)->entry].rank;
}

/* The first listed link of `rank` or a later one. */
static uint32_t find_listed(const struct tensor_walk *walk, uint32_t rank)
{
    uint32_t low = walk->tensor->mesh_links, high = low + walk->tensor->listed_links;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (listed_rank(walk, middle) < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A family may share its group with a single name that is listed. */
static bool walk_listed(const struct tensor_walk *walk, uint32_t link)
{
    const struct refit_listed *listed = listed_at(walk, link);
    return listed->tensor != walk->id || refit_listed_regions(walk->layout, listed, walk->id, walk->sink, walk->ctx);
}

static bool walk_rank(const struct tensor_walk *walk, uint32_t rank)
{
    uint32_t links = walk->tensor->mesh_links + walk->tensor->listed_links;
    for (uint32_t link = 0; link < walk->tensor->mesh_links; link++)
        if (!walk_piece_on(walk, link, rank))
            return false;
    for (uint32_t link = find_listed(walk, rank); link < links && listed_rank(walk, link) == rank; link++)
        if (!walk_listed(walk, link))
            return false;
    return true;
}

static bool walk_all_ranks(const struct tensor_walk *walk)
{
    const struct refit_tensor_group *tensor = walk->tensor;
    if (tensor->mesh_links == 1 && tensor->listed_links == 0) {
        struct piece_walk piece = {.sink = walk->sink, .ctx = walk->ctx};
        if (!bind_piece(&piece, walk->layout, walk->links[0].item, walk->id, walk->values))
            return true;
        return walk_cells(&piece);
    }
    if (tensor->mesh_links == 0) {
        for (uint32_t link = 0; link < tensor->listed_links; link++)
            if (!walk_listed(walk, link))
                return false;
        return true;
    }
    for (uint32_t rank = 0; rank < walk->layout->ranks; rank++)
        if (!walk_rank(walk, rank))
            return false;
    return true;
}

bool refit_layout_regions(const struct refit_layout *layout, uint32_t tensor, uint32_t rank, refit_region_sink sink,
                          void *ctx)
{
    uint32_t group = refit_names_group_of(&layout->tensor_names, tensor);
    struct tensor_walk walk = {.layout = layout, .tensor = &layout->tensors[group], .id = tensor, .sink = sink,
                               .ctx = ctx};
    walk.links = layout->tensor_links + walk.tensor->first_link;
    refit_names_member(&layout->tensor_names, group, tensor - layout->tensor_names.groups[group].first_id,
                       walk.values);
    if (rank == REFIT_ALL_RANKS)
        return walk_all_ranks(&walk);
    return rank < layout->ranks ? walk_rank(&walk, rank) : true;
}
