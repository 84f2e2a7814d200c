/* SPDX-License-Identifier: Apache-2.0
 *
 * Members of a family that live on the same ranks are a *class*: they have one geometry, and the offset of each of
 * its regions is linear in the numbers of their names, since buffers of a family follow one another at equal steps.
 * The steps are learnt from the first members and then spare asking the layout for every region of the others.
 */
#include <stdlib.h>
#include <string.h>

#include "layouts/layout_internal.h"
#include "layouts/plan_internal.h"

struct family_class {
    uint32_t group;
    uint64_t key;
    uint32_t geometry;
    uint32_t count; /* regions */
    uint32_t fields;
    uint32_t values[REFIT_NAME_FIELDS]; /* of the first member */
    uint32_t known;                     /* bit per field: its steps have been learnt */
    uint64_t *offsets;                  /* of the first member; NULL when not wanted */
    int64_t *steps[REFIT_NAME_FIELDS];
};

struct refit_plan_families {
    struct family_class *classes;
    size_t count, capacity;
    struct refit_plan_table table;
    uint32_t group; /* of the tensor looked at last */
};

void refit_plan_families_destroy(struct refit_plan_families *families)
{
    if (!families) {
        return;
    }
    for (size_t i = 0; i < families->count; i++) {
        free(families->classes[i].offsets);
        for (uint32_t f = 0; f < REFIT_NAME_FIELDS; f++) {
            free(families->classes[i].steps[f]);
        }
    }
    free(families->classes);
    refit_plan_table_release(&families->table);
    free(families);
}

static uint32_t group_of(const struct refit_layout *layout, struct refit_plan_families *families, uint32_t tensor)
{
    const struct refit_name_group *group = &layout->tensor_names.groups[families->group];
    if (tensor - group->first_id >= group->count) { /* wraps when below */
        families->group = refit_names_group_of(&layout->tensor_names, tensor);
    }
    return families->group;
}

/* Who has number `id` of an index: 0 nobody, otherwise equal for ids that the same ranks have. *radix bounds it. */
static uint64_t owner_class(const struct refit_mesh *mesh, const struct refit_index *index, uint32_t id,
                            uint64_t *radix)
{
    const uint32_t range = index->hi - index->lo;
    *radix = (uint64_t)range + 1;
    if (id < index->lo || id >= index->hi) {
        return 0;
    }
    id -= index->lo;
    if (index->axis < 0) {
        return 1;
    }
    if (index->ids) {
        return (uint64_t)id + 1; /* each id may have owners of its own */
    }
    uint32_t low = 0;
    uint32_t high = mesh->size[index->axis];
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (index->first[middle] <= id) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return (uint64_t)index->first[low] + 1;
}

/* Appends a digit to a number in mixed radix; false when it no longer fits. */
static bool append_digit(uint64_t *key, uint64_t digit, uint64_t radix)
{
    return !__builtin_mul_overflow(*key, radix, key) && !__builtin_add_overflow(*key, digit, key);
}

/* What one piece contributes to the key; false when it doesn't fit. */
static bool piece_key(const struct refit_layout *layout, const struct refit_piece *piece, const uint32_t *values,
                      uint64_t *key)
{
    const struct refit_entry *entry = &layout->entries[piece->entry];
    for (uint32_t f = 0; f < piece->tensor.fields; f++) {
        uint64_t radix = 2;
        uint64_t digit = values[f] == piece->tensor.literal[f];
        if (piece->tensor.var[f] >= 0) {
            digit = owner_class(&layout->meshes[entry->mesh], &entry->indices[piece->tensor.var[f]], values[f], &radix);
        }
        if (!append_digit(key, digit, radix)) {
            return false;
        }
    }
    return true;
}

/* Equal keys of one group: the same regions but for offsets. False: don't share. */
static bool class_key(const struct refit_layout *layout, uint32_t group, const uint32_t *values, uint64_t *key)
{
    const struct refit_tensor_group *tensors = &layout->tensors[group];
    const struct refit_link *links = layout->tensor_links + tensors->first_link;
    if (layout->tensor_names.groups[group].count == 1 || tensors->listed_links > 0) {
        return false;
    }
    *key = 0;
    for (uint32_t i = 0; i < tensors->mesh_links; i++) {
        if (!piece_key(layout, &layout->pieces[links[i].item], values, key)) {
            return false;
        }
    }
    return true;
}

static uint64_t class_hash(uint32_t group, uint64_t key)
{
    return refit_plan_mix(key + group * 0x9e3779b97f4a7c15u);
}

static struct family_class *class_find(struct refit_plan_families *families, uint32_t group, uint64_t key)
{
    struct refit_probe probe = refit_plan_table_begin(class_hash(group, key));
    for (uint32_t number; (number = refit_plan_table_next(&families->table, &probe)) != REFIT_PLAN_NONE;) {
        struct family_class *class = &families->classes[number];
        if (class->group == group && class->key == key) {
            return class;
        }
    }
    return NULL;
}

/* Makes a class of the tensor that the side has just enumerated. */
static bool class_add(struct refit_plan_side *side, const struct family_class *facts)
{
    struct refit_plan_families *families = side->families;
    uint64_t *offsets = NULL;
    if (!refit_array_reserve(&families->classes, &families->capacity, families->count + 1,
                             sizeof(*families->classes))
        || !refit_plan_table_add(&families->table, class_hash(facts->group, facts->key), (uint32_t)families->count)) {
        return false;
    }
    if (side->offsets_wanted) {
        offsets = malloc((side->count ? side->count : 1) * sizeof(*offsets));
        if (!offsets) {
            return false;
        }
        if (side->count) {
            memcpy(offsets, side->offsets, side->count * sizeof(*offsets));
        }
    }
    families->classes[families->count] = *facts;
    families->classes[families->count].offsets = offsets;
    families->classes[families->count].count = side->count;
    families->count++;
    return true;
}

/* Offset of region i of the member with these numbers, by the fields in `mask`. */
static uint64_t predict(const struct family_class *class, const uint32_t *values, uint32_t mask, uint32_t i)
{
    uint64_t offset = class->offsets[i];
    for (uint32_t f = 0; f < class->fields; f++) {
        if (mask & (1u << f)) {
            offset += (uint64_t)(((int64_t)values[f] - (int64_t)class->values[f]) * class->steps[f][i]);
        }
    }
    return offset;
}

static void predict_later(struct refit_plan_side *side, const struct family_class *class, const uint32_t *values,
                          uint32_t mask)
{
    side->base = class->offsets;
    side->term_count = 0;
    for (uint32_t f = 0; f < class->fields; f++) {
        if (mask & (1u << f)) {
            side->terms[side->term_count++] = (struct refit_plan_term){
                .steps = class->steps[f], .distance = (int64_t)values[f] - (int64_t)class->values[f]};
        }
    }
}

/* From the member that the side has just enumerated, which differs from the first in field f and known ones. */
static void learn(const struct refit_plan_side *side, struct family_class *class, const uint32_t *values,
                  uint32_t known, uint32_t f)
{
    const int64_t distance = (int64_t)values[f] - (int64_t)class->values[f];
    int64_t *steps = malloc((class->count ? class->count : 1) * sizeof(*steps));
    if (!steps) {
        return; /* then all members are enumerated */
    }
    for (uint32_t i = 0; i < class->count; i++) {
        const int64_t moved = (int64_t)(side->offsets[i] - predict(class, values, known, i));
        if (moved % distance != 0) {
            free(steps);
            return;
        }
        steps[i] = moved / distance;
    }
    class->steps[f] = steps;
    class->known |= 1u << f;
}

static uint32_t fields_that_differ(const struct family_class *class, const uint32_t *values)
{
    uint32_t mask = 0;
    for (uint32_t f = class->fields; f-- > 0;) {
        mask = mask << 1 | (uint32_t)(values[f] != class->values[f]);
    }
    return mask;
}

static uint32_t look_in_class(struct refit_plan_side *side, struct family_class *class, const uint32_t *values,
                              uint32_t tensor)
{
    if (!side->offsets_wanted) {
        return class->geometry;
    }
    const uint32_t differ = fields_that_differ(class, values);
    const uint32_t unknown = differ & ~class->known;
    if (unknown == 0) {
        predict_later(side, class, values, differ);
        return class->geometry;
    }
    const uint32_t geometry = refit_plan_side_enumerate(side, tensor);
    if (geometry == class->geometry && (unknown & (unknown - 1)) == 0) {
        learn(side, class, values, differ & class->known, (uint32_t)__builtin_ctz(unknown));
    }
    return geometry;
}

uint32_t refit_plan_side_look(struct refit_plan_side *side, uint32_t tensor)
{
    const struct refit_layout *layout = side->layout;
    struct family_class facts = {.known = 0};
    uint32_t values[REFIT_NAME_FIELDS];
    if (!side->families && !(side->families = calloc(1, sizeof(*side->families)))) {
        return REFIT_PLAN_NONE;
    }
    facts.group = group_of(layout, side->families, tensor);
    const struct refit_name_group *group = &layout->tensor_names.groups[facts.group];
    refit_names_member(&layout->tensor_names, facts.group, tensor - group->first_id, values);
    if (!class_key(layout, facts.group, values, &facts.key)) {
        return refit_plan_side_enumerate(side, tensor);
    }
    struct family_class *class = class_find(side->families, facts.group, facts.key);
    if (class) {
        return look_in_class(side, class, values, tensor);
    }
    facts.geometry = refit_plan_side_enumerate(side, tensor);
    facts.fields = layout->tensor_names.skeletons[group->skeleton].fields;
    memcpy(facts.values, values, sizeof(values));
    if (facts.geometry == REFIT_PLAN_NONE || !class_add(side, &facts)) {
        return REFIT_PLAN_NONE;
    }
    return facts.geometry;
}
