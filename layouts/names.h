/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of tensors and buffers without storing each one. (Internal to layouts/.)
 *
 * A name is split into a *skeleton* and the numbers in it: `layers.3.w` is `layers.#.w` with (3). A family is then
 * a box of number space under a skeleton, a single name is a box of one point, and overlaps of families are
 * overlaps of boxes. Only the first REFIT_NAME_FIELDS numbers count; further ones, and those with leading zeros
 * or more than 9 digits, are plain text.
 */
#ifndef REFIT_LAYOUTS_NAMES_H
#define REFIT_LAYOUTS_NAMES_H

#include "base/error.h"
#include "layouts/layout.h"

#define REFIT_NAME_FIELDS REFIT_DIMS_MAX
#define REFIT_NAME_NUMBER_MAX 1000000000 /* numbers in names are below it */
#define REFIT_NAME_NONE UINT32_MAX
#define REFIT_LAYOUT_NAMES_MAX (1u << 22) /* tensors, and buffers, of one layout */

/* A parsed name pattern. Field i is the number of variable var[i], or the constant literal[i] when var[i] < 0. */
struct refit_pattern {
    uint32_t skeleton;
    uint32_t fields;
    int8_t var[REFIT_NAME_FIELDS];
    uint32_t literal[REFIT_NAME_FIELDS];
    uint32_t vars_used; /* bit per variable */
    uint32_t local;     /* bit per variable: written {name:local} */
};

/* Names that share a skeleton, and whose numbers are in a box. Boxes of different groups are disjoint. */
struct refit_name_group {
    uint32_t skeleton;
    uint32_t next; /* of the same skeleton and kind (family or point) */
    uint32_t first_id;
    uint32_t count;
    uint32_t box; /* in refit_names.numbers: start per field, then extent per field */
};

struct refit_skeleton {
    uint32_t text; /* in refit_names.text, NUL-terminated, fields marked by REFIT_NAME_MARK */
    uint32_t fields;
    uint32_t first_family, first_point;
    uint32_t families;
};

#define REFIT_NAME_MARK '\x01'

struct refit_names {
    const char *kind; /* "tensor" or "buffer", for messages */
    char *text;
    size_t text_len, text_capacity;
    uint32_t *numbers;
    size_t numbers_len, numbers_capacity;
    struct refit_skeleton *skeletons;
    size_t skeleton_count, skeleton_capacity;
    struct refit_name_group *groups;
    size_t group_count, group_capacity;
    uint32_t *skeleton_table; /* open addressing; id + 1, 0 is empty */
    size_t skeleton_slots;
    uint32_t *point_table;
    size_t point_slots, point_count;
    uint64_t ids; /* names in all groups */
};

void refit_names_init(struct refit_names *names, const char *kind);
void refit_names_release(struct refit_names *names);

/* Parses `text`, whose {variables} must be among var_names. `allow_local` admits {name:local}. */
REFIT_MUST_CHECK enum refit_status refit_names_pattern(struct refit_names *names, const char *text,
                                                       const char *const *var_names, uint32_t var_count,
                                                       bool allow_local, struct refit_pattern *out,
                                                       struct refit_error *err);

/* Claims the names of a pattern whose fields lie in `box` (dims == fields). `claimed` is called once per group that
 * shares names with it: groups made before (fresh false), then new groups for the names nobody had (fresh true). */
typedef enum refit_status (*refit_claimed)(void *ctx, uint32_t group, bool fresh, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_names_claim(struct refit_names *names, uint32_t skeleton,
                                                     const struct refit_box *box, refit_claimed claimed, void *ctx,
                                                     struct refit_error *err);

/* The group of a name and its numbers; REFIT_NAME_NONE when there is none. */
uint32_t refit_names_find(const struct refit_names *names, const char *name, uint32_t values[static REFIT_NAME_FIELDS]);

struct refit_box refit_names_box(const struct refit_names *names, uint32_t group);
/* The numbers of the group's member `index`, row-major over its box. */
void refit_names_member(const struct refit_names *names, uint32_t group, uint32_t index,
                        uint32_t values[static REFIT_NAME_FIELDS]);
uint32_t refit_names_index(const struct refit_names *names, uint32_t group, const uint32_t *values);
/* The group that holds name number `id`. */
uint32_t refit_names_group_of(const struct refit_names *names, uint32_t id);
void refit_names_render(const struct refit_names *names, uint32_t skeleton, const uint32_t *values,
                        char out[static REFIT_NAME_MAX]);

/* Room for `count` elements in all; false when out of memory. Doubles, so that appending is cheap. */
bool refit_array_reserve(void *array_pointer, size_t *capacity, size_t count, size_t element_bytes);

#endif
