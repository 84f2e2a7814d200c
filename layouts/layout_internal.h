/* SPDX-License-Identifier: Apache-2.0
 *
 * The compiled layout. (Internal to layouts/.)
 *
 * An *entry* is one buffer or family of buffers; a *piece* is a tensor (family) inside it; a *link* says which
 * pieces and listed regions hold a tensor. Nothing is stored per family member: a member's memory follows from the
 * entry's geometry on a rank, which is the same for all members, and from the member's place in its index.
 */
#ifndef REFIT_LAYOUTS_LAYOUT_INTERNAL_H
#define REFIT_LAYOUTS_LAYOUT_INTERNAL_H

#include <stdatomic.h>

#include "layouts/layout.h"
#include "layouts/names.h"

#define REFIT_AXES_MAX 8
#define REFIT_INDICES_MAX 8
#define REFIT_MESHES_MAX 64
#define REFIT_PIECES_MAX 4096              /* of one entry */
#define REFIT_MESH_CELLS_MAX (1u << 22)    /* ranks of all meshes together */
#define REFIT_BASES_MAX (1u << 24)         /* (entry, rank) pairs */
#define REFIT_BYTES_MAX ((int64_t)1 << 60) /* of a tensor, a buffer, an arena: sums of two stay in int64_t */

/* Cells are numbered row-major over the axes. */
struct refit_mesh {
    char *name;
    uint32_t axes;
    uint32_t cells;
    uint32_t size[REFIT_AXES_MAX];
    uint32_t step[REFIT_AXES_MAX]; /* from one cell to the next along an axis */
    char *axis_name[REFIT_AXES_MAX];
    uint32_t *ranks;   /* of each cell */
    uint32_t *cell_of; /* of each rank; UINT32_MAX: not in this mesh */
    uint32_t *by_rank; /* cells by rising rank; NULL when they are in that order already */
    uint32_t *coords;  /* axes numbers per cell */
};

/* One cut of a dimension: the rank at coordinate c of `axis` has part c / width of `parts`. */
struct refit_cut {
    uint32_t axis;
    uint32_t parts;
    uint32_t width;
};

/* The cuts of all dimensions, dimension by dimension, each in the order in which they are applied. */
struct refit_placement {
    uint8_t first[REFIT_DIMS_MAX + 1]; /* cuts first[d] .. first[d + 1] are of dimension d */
    struct refit_cut cut[REFIT_AXES_MAX];
};

struct refit_index {
    char *name;
    uint32_t lo, hi;
    int32_t axis;          /* that cuts it, or -1: every rank has the whole range */
    uint32_t *first;       /* axis size + 1 numbers: where each coordinate's ids begin (in `ids`, or after lo) */
    uint32_t *ids;         /* lists: ids less lo, coordinate by coordinate, in local order; else NULL */
    uint32_t *sorted;      /* lists: local positions of each coordinate sorted by (id, position) */
};

struct refit_piece {
    bool fill;                /* constant rows, no tensor */
    uint8_t value;            /* of the fill, or of the pad */
    struct refit_pattern tensor;
    struct refit_placement placement;
    int64_t shape[REFIT_DIMS_MAX];  /* of what the piece takes, in units; along `dim` the rows it selects */
    int64_t padded[REFIT_DIMS_MAX]; /* the same, padded, in elements: this is what the placements cut */
    int64_t row_start, row_block, row_every; /* along `dim`, in units: blocks of tensor rows, one each `row_every` */
    int64_t group_rows;       /* along `dim`, in units, padded: of one group, when the entry has groups */
    uint32_t entry;
};

struct refit_listed {
    uint32_t entry;
    uint32_t tensor; /* id */
    uint8_t dtype;
    bool flat;
    uint8_t dims;
    uint64_t offset; /* in the buffer */
    size_t numbers;  /* in layout.numbers, in units: start, extent, stride; or shape, begin, end when flat */
};

struct refit_listed_fill {
    uint64_t offset, bytes;
    uint8_t value;
};

struct refit_entry {
    bool listed, derived;
    uint8_t dtype;
    uint8_t unit_bytes, unit_shift;
    uint8_t dims, dim;
    uint8_t order[REFIT_DIMS_MAX];
    uint8_t index_count;
    uint8_t named_count; /* the first named_count of index_order tell buffers apart; the rest are stacked */
    uint8_t index_order[REFIT_INDICES_MAX];
    uint32_t rank; /* listed */
    uint32_t mesh;
    int64_t groups;
    struct refit_index *indices;
    struct refit_pattern buffer;
    uint32_t first_piece, piece_count; /* pieces, or listed regions */
    uint32_t first_fill, fill_count;
    uint64_t bytes;    /* listed, derived: given in the document */
    uint64_t base;     /* in the arena space, when it is the same on every rank */
    uint64_t *bases;   /* else one per cell of the mesh */
};

/* Who holds a tensor: an entry's piece, or a listed region. */
struct refit_link {
    uint32_t group;
    uint32_t item; /* a piece, or a listed region with REFIT_LINK_LISTED set */
};
#define REFIT_LINK_LISTED 0x80000000u

struct refit_tensor_group {
    uint8_t dtype, dims;
    size_t shape; /* in layout.numbers, in elements */
    uint32_t first_link, mesh_links, listed_links; /* pieces in document order, then listed regions by rank */
    int32_t mesh;  /* the one mesh of all pieces, or -1 */
};

struct refit_alias {
    char *name;
    char *target;
    uint32_t tensor;
};

struct refit_layout {
    atomic_uint references;
    char *text;
    size_t text_len;
    char digest[REFIT_SHA256_HEX_MAX];
    uint32_t ranks;
    uint64_t model_bytes;
    uint64_t entry_cells; /* cells of all entries' meshes */

    struct refit_mesh *meshes;
    uint32_t mesh_count;
    struct refit_entry *entries;
    size_t entry_count, entry_capacity;
    struct refit_piece *pieces;
    size_t piece_count, piece_capacity;
    struct refit_listed *listed;
    size_t listed_count, listed_capacity;
    struct refit_listed_fill *fills;
    size_t fill_count, fill_capacity;
    int64_t *numbers;
    size_t numbers_len, numbers_capacity;

    struct refit_names tensor_names;
    struct refit_tensor_group *tensors; /* parallel to tensor_names.groups */
    size_t tensor_capacity;
    struct refit_link *tensor_links; /* sorted by group */
    size_t tensor_link_count, tensor_link_capacity;

    struct refit_names buffer_names;
    struct refit_link *buffer_links; /* item: entry */
    size_t buffer_link_count, buffer_link_capacity;
    uint32_t *first_buffer_link; /* per group of buffer_names, and one more */

    uint32_t *mesh_entries; /* entries on meshes, in document order */
    size_t mesh_entry_count;
    uint32_t *rank_entries; /* listed entries by rank, then in document order */
    uint32_t *first_rank_entry; /* per rank, and one more */
    uint64_t *arena_bytes; /* per rank */

    struct refit_alias *aliases; /* sorted by name */
    size_t alias_count;
    char **excused;
    size_t excused_count;
};

/* ---- placement.c ---- */

/* Parses one placement per axis of `mesh` for a tensor of `dims` dimensions. */
REFIT_MUST_CHECK enum refit_status refit_placement_parse(const json_t *placements, const struct refit_mesh *mesh,
                                                         uint32_t dims, const char *what, struct refit_placement *out,
                                                         struct refit_error *err);
/* Cuts 0..n of dimension d for the rank at `coords`, each level as torch.chunk. */
void refit_placement_cut(const struct refit_placement *placement, uint32_t d, const uint32_t *coords, int64_t n,
                         int64_t *start, int64_t *extent);
/* torch.chunk: part `part` of `parts` of n rows. */
void refit_chunk(int64_t n, uint32_t parts, uint32_t part, int64_t *start, int64_t *extent);
bool refit_placement_cuts_axis(const struct refit_placement *placement, uint32_t axis);

/* ---- mesh.c ---- */

REFIT_MUST_CHECK enum refit_status refit_meshes_parse(struct refit_layout *layout, const json_t *meshes,
                                                      const char *what, struct refit_error *err);
void refit_mesh_release(struct refit_mesh *mesh);

/* ---- index.c ---- */

REFIT_MUST_CHECK enum refit_status refit_indices_parse(struct refit_entry *entry, const json_t *ranges,
                                                       const struct refit_mesh *mesh, const char *what,
                                                       struct refit_error *err);
void refit_indices_release(struct refit_entry *entry);
/* How many ids the rank at `coords` has; the id at a local position; the local positions of an id, which are
 * index.sorted[*begin .. *begin + count) for lists and *begin itself otherwise. */
uint32_t refit_index_count(const struct refit_index *index, const uint32_t *coords);
uint32_t refit_index_id(const struct refit_index *index, const uint32_t *coords, uint32_t position);
uint32_t refit_index_longest(const struct refit_index *index, uint32_t axis_size);
/* Some coordinate's list holds an id twice. */
bool refit_index_repeats(const struct refit_index *index, const struct refit_mesh *mesh, uint32_t *repeated);
uint32_t refit_index_positions(const struct refit_index *index, const uint32_t *coords, uint32_t id, uint32_t *begin);

/* ---- parse: layout_parse.c, entry_parse.c, listed_parse.c, finish.c ---- */

REFIT_MUST_CHECK enum refit_status refit_entry_parse(struct refit_layout *layout, const json_t *json, const char *what,
                                                     struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_listed_parse(struct refit_layout *layout, const json_t *json,
                                                      const char *what, struct refit_error *err);
/* A tensor is named by `pattern` with its fields in `box`: it must have the dtype and shape of earlier mentions. */
REFIT_MUST_CHECK enum refit_status refit_tensor_claim(struct refit_layout *layout, const struct refit_pattern *pattern,
                                                      const struct refit_box *box, enum refit_dtype dtype,
                                                      uint32_t dims, const int64_t *shape, uint32_t item,
                                                      const char *what, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_buffer_claim(struct refit_layout *layout, const struct refit_box *box,
                                                      const struct refit_pattern *pattern, uint32_t entry,
                                                      const char *what, struct refit_error *err);
/* After the last entry: links sorted, arenas packed, buffer names unique on each rank. */
REFIT_MUST_CHECK enum refit_status refit_layout_finish(struct refit_layout *layout, const char *what,
                                                       struct refit_error *err);
/* Shape in elements of `json`'s member "shape"; the last dimension in whole units, sizes without overflow. */
REFIT_MUST_CHECK enum refit_status refit_shape_parse(const json_t *json, const char *what, enum refit_dtype dtype,
                                                     uint32_t *dims, int64_t shape[static REFIT_DIMS_MAX],
                                                     struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_dtype_member(const json_t *json, const char *what, enum refit_dtype *dtype,
                                                      struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_shape_check(const char *what, enum refit_dtype dtype, uint32_t dims,
                                                     const int64_t *shape, struct refit_error *err);
/* The numbers that the fields of a pattern may take. */
struct refit_box refit_pattern_box(const struct refit_pattern *pattern, const struct refit_index *indices,
                                   const struct refit_mesh *mesh);
/* One more entry on a mesh of `cells`; the sum over all entries is bounded. */
REFIT_MUST_CHECK enum refit_status refit_layout_count_cells(struct refit_layout *layout, uint32_t cells,
                                                            const char *what, struct refit_error *err);
/* Arrays of integers of at most `max` members, each within [lowest, highest]. */
REFIT_MUST_CHECK enum refit_status refit_numbers_member(const json_t *json, const char *key, const char *what,
                                                        size_t max, int64_t lowest, int64_t highest, int64_t *out,
                                                        size_t *count, struct refit_error *err);

/* ---- geometry.c ---- */

/* The part of one piece that a rank holds, in units of its tensor; along `dim` in rows of the piece. */
struct refit_span {
    int64_t start[REFIT_DIMS_MAX];
    int64_t extent[REFIT_DIMS_MAX]; /* with its padding */
    int64_t groups;                 /* 1 without groups */
};

/* One cell (a buffer without its stacked dimensions) of an entry on one rank. */
struct refit_geometry {
    int64_t extent[REFIT_DIMS_MAX]; /* of the cell, in units */
    int64_t stride[REFIT_DIMS_MAX]; /* bytes */
    int64_t groups;                 /* on this rank; 1 without groups */
    int64_t group_rows;             /* of all pieces together in one group */
    uint64_t cell_bytes;
    uint64_t buffer_bytes;
    uint64_t buffer_step; /* from one buffer of the family to the next in the arena */
    uint64_t stacked;     /* cells in a buffer */
    uint64_t buffers;     /* of the family on this rank */
    /* Of the piece asked for: */
    struct refit_span span;
    int64_t rows_before; /* rows of the pieces before it in one group */
};

void refit_piece_span(const struct refit_entry *entry, const struct refit_piece *piece, const uint32_t *coords,
                      struct refit_span *span);
/* For a checked entry; `piece` is a number within the entry. */
void refit_entry_geometry(const struct refit_layout *layout, const struct refit_entry *entry, const uint32_t *coords,
                          uint32_t piece, struct refit_geometry *out);
/* The same with every check: equal extents, whole units, no overflow. Names the rank. */
REFIT_MUST_CHECK enum refit_status refit_entry_check_cell(const struct refit_layout *layout,
                                                          const struct refit_entry *entry, uint32_t cell,
                                                          struct refit_geometry *out, const char *what,
                                                          struct refit_error *err);
uint64_t refit_entry_base(const struct refit_layout *layout, const struct refit_entry *entry, uint32_t rank);

/* ---- expand.c ---- */

/* Calls the sinks for every region and fill of one piece in one cell of the entry, at arena offset `at`. */
bool refit_piece_regions(const struct refit_entry *entry, const struct refit_piece *piece,
                         const struct refit_geometry *geometry, uint64_t at, uint32_t tensor, uint32_t rank,
                         refit_region_sink sink, void *ctx);
/* It has constant rows, or padding on some rank. */
bool refit_piece_has_fill(const struct refit_entry *entry, const struct refit_piece *piece);
bool refit_piece_fills(const struct refit_entry *entry, const struct refit_piece *piece,
                       const struct refit_geometry *geometry, uint64_t at, uint32_t rank, refit_fill_sink sink,
                       void *ctx);
bool refit_listed_regions(const struct refit_layout *layout, const struct refit_listed *listed, uint32_t tensor,
                          refit_region_sink sink, void *ctx);

/* ---- names for messages ---- */

/* The numbers of the first name of a pattern on a rank that has some. */
void refit_pattern_first(const struct refit_layout *layout, const struct refit_entry *entry,
                         const struct refit_pattern *pattern, uint32_t rank, uint32_t values[static REFIT_NAME_FIELDS]);

static inline bool refit_layout_on_rank(const struct refit_layout *layout, const struct refit_entry *entry,
                                        uint32_t rank)
{
    return entry->listed ? entry->rank == rank : layout->meshes[entry->mesh].cell_of[rank] != UINT32_MAX;
}

#endif
