/* SPDX-License-Identifier: Apache-2.0 */
#include "layouts/names.h"

#include <stdlib.h>
#include <string.h>

#define NUMBER_DIGITS 9
#define FAMILIES_MAX 4096  /* of one skeleton: each new family is compared with them all */
#define REMAINDERS_MAX 256 /* boxes left over when a family overlaps earlier ones */

struct scan {
    char text[REFIT_NAME_MAX]; /* the skeleton */
    size_t len;
    uint32_t fields;
    uint32_t values[REFIT_NAME_FIELDS];
};

bool refit_array_reserve(void *array_pointer, size_t *capacity, size_t count, size_t element_bytes)
{
    void *array;
    size_t bytes, wanted = *capacity ? *capacity : 8;
    if (count <= *capacity)
        return true;
    while (wanted < count)
        wanted *= 2;
    memcpy(&array, array_pointer, sizeof array);
    if (__builtin_mul_overflow(wanted, element_bytes, &bytes) || !(array = realloc(array, bytes)))
        return false;
    memcpy(array_pointer, &array, sizeof array);
    *capacity = wanted;
    return true;
}

void refit_names_init(struct refit_names *names, const char *kind)
{
    *names = (struct refit_names){.kind = kind};
}

void refit_names_release(struct refit_names *names)
{
    free(names->text);
    free(names->numbers);
    free(names->skeletons);
    free(names->groups);
    free(names->skeleton_table);
    free(names->point_table);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

static uint64_t hash_text(const char *text, size_t len)
{
    uint64_t hash = len, word;
    for (; len >= sizeof word; text += sizeof word, len -= sizeof word) {
        memcpy(&word, text, sizeof word);
        hash = mix(hash, word);
    }
    word = 0;
    memcpy(&word, text, len);
    return mix(hash, word);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool put(struct scan *scan, char c)
{
    if (scan->len + 1 >= sizeof scan->text)
        return false;
    scan->text[scan->len++] = c;
    return true;
}

/* Takes a run of digits: as a field where it is a plain number and a field is left, else as text. */
static bool scan_digits(struct scan *scan, const char **at)
{
    const char *digits = *at;
    size_t len = 0;
    uint32_t value = 0;
    while (is_digit(digits[len])) {
        if (len < NUMBER_DIGITS)
            value = value * 10 + (uint32_t)(digits[len] - '0');
        len++;
    }
    *at += len;
    if (len <= NUMBER_DIGITS && (digits[0] != '0' || len == 1) && scan->fields < REFIT_NAME_FIELDS) {
        scan->values[scan->fields++] = value;
        return put(scan, REFIT_NAME_MARK);
    }
    for (size_t i = 0; i < len; i++)
        if (!put(scan, digits[i]))
            return false;
    return true;
}

static bool scan_name(struct scan *scan, const char *name)
{
    scan->len = scan->fields = 0;
    while (*name) {
        if (is_digit(*name)) {
            if (!scan_digits(scan, &name))
                return false;
        } else if (!put(scan, *name++)) {
            return false;
        }
    }
    scan->text[scan->len] = '\0';
    return true;
}

static const char *skeleton_text(const struct refit_names *names, uint32_t skeleton)
{
    return names->text + names->skeletons[skeleton].text;
}

static uint32_t find_skeleton(const struct refit_names *names, const char *text, size_t len)
{
    if (!names->skeleton_slots)
        return REFIT_NAME_NONE;
    size_t mask = names->skeleton_slots - 1;
    for (size_t slot = hash_text(text, len) & mask; names->skeleton_table[slot]; slot = (slot + 1) & mask) {
        uint32_t id = names->skeleton_table[slot] - 1;
        const char *found = skeleton_text(names, id);
        if (memcmp(found, text, len + 1) == 0)
            return id;
    }
    return REFIT_NAME_NONE;
}

static void table_insert(uint32_t *table, size_t slots, uint64_t hash, uint32_t id)
{
    size_t slot = hash & (slots - 1);
    while (table[slot])
        slot = (slot + 1) & (slots - 1);
    table[slot] = id + 1;
}

static bool grow_skeleton_table(struct refit_names *names)
{
    size_t slots = names->skeleton_slots ? names->skeleton_slots * 2 : 64;
    uint32_t *table = calloc(slots, sizeof *table);
    if (!table)
        return false;
    for (uint32_t i = 0; i < names->skeleton_count; i++) {
        const char *text = skeleton_text(names, i);
        table_insert(table, slots, hash_text(text, strlen(text)), i);
    }
    free(names->skeleton_table);
    names->skeleton_table = table;
    names->skeleton_slots = slots;
    return true;
}

/* find_skeleton() compares whole REFIT_NAME_MAX-bounded texts, so the pool ends with that much slack. */
static bool add_skeleton(struct refit_names *names, const struct scan *scan, uint32_t *id)
{
    size_t need = names->text_len + scan->len + 1 + REFIT_NAME_MAX;
    if (need > UINT32_MAX || !refit_array_reserve(&names->text, &names->text_capacity, need, 1))
        return false;
    if (!refit_array_reserve(&names->skeletons, &names->skeleton_capacity, names->skeleton_count + 1,
                             sizeof *names->skeletons))
        return false;
    if (names->skeleton_count * 2 >= names->skeleton_slots && !grow_skeleton_table(names))
        return false;
    *id = (uint32_t)names->skeleton_count++;
    names->skeletons[*id] = (struct refit_skeleton){.text = (uint32_t)names->text_len, .fields = scan->fields,
                                                    .first_family = REFIT_NAME_NONE, .first_point = REFIT_NAME_NONE};
    memcpy(names->text + names->text_len, scan->text, scan->len + 1);
    memset(names->text + names->text_len + scan->len + 1, 0, REFIT_NAME_MAX);
    names->text_len += scan->len + 1;
    table_insert(names->skeleton_table, names->skeleton_slots, hash_text(scan->text, scan->len), *id);
    return true;
}

/* The variable at `at` ("l}" or "l:local}" ...); moves past the brace. */
static enum refit_status scan_variable(struct scan *scan, const char *text, const char **at,
                                       const char *const *var_names, uint32_t var_count, bool allow_local,
                                       struct refit_pattern *out, struct refit_error *err)
{
    const char *begin = *at, *end = strchr(begin, '}');
    if (!end)
        return refit_fail(err, REFIT_INVALID, "name \"%s\": \"{\" without \"}\"", text);
    size_t len = (size_t)(end - begin);
    bool local = allow_local && len > 6 && memcmp(end - 6, ":local", 6) == 0;
    if (local)
        len -= 6;
    uint32_t v = 0;
    while (v < var_count && (strlen(var_names[v]) != len || memcmp(var_names[v], begin, len) != 0))
        v++;
    if (v == var_count)
        return refit_fail(err, REFIT_INVALID, "name \"%s\": \"{%.*s}\" is not an index of \"for\"", text, (int)len,
                          begin);
    if (out->vars_used & 1u << v)
        return refit_fail(err, REFIT_INVALID, "name \"%s\": index \"%s\" stands in it twice", text, var_names[v]);
    if ((scan->len && (is_digit(scan->text[scan->len - 1]) || scan->text[scan->len - 1] == REFIT_NAME_MARK)) ||
        is_digit(end[1]) || end[1] == '{')
        return refit_fail(err, REFIT_INVALID, "name \"%s\": index \"%s\" must not touch another number", text,
                          var_names[v]);
    if (scan->fields == REFIT_NAME_FIELDS)
        return refit_fail(err, REFIT_INVALID, "name \"%s\": index \"%s\" must be among its first %d numbers", text,
                          var_names[v], REFIT_NAME_FIELDS);
    out->var[scan->fields++] = (int8_t)v;
    out->vars_used |= 1u << v;
    out->local |= (local ? 1u : 0u) << v;
    *at = end + 1;
    return REFIT_OK;
}

static uint32_t digit_count(uint32_t value)
{
    uint32_t count = 1;
    for (; value >= 10; value /= 10)
        count++;
    return count;
}

/* Bytes of the longest name: a variable may take NUMBER_DIGITS where the skeleton has one mark. */
static size_t longest(const struct scan *scan, const struct refit_pattern *pattern)
{
    size_t len = scan->len;
    for (uint32_t i = 0; i < scan->fields; i++)
        len += (pattern->var[i] < 0 ? digit_count(scan->values[i]) : NUMBER_DIGITS) - 1;
    return len;
}

static enum refit_status scan_pattern(const struct refit_names *names, struct scan *scan, const char *text,
                                      const char *const *var_names, uint32_t var_count, bool allow_local,
                                      struct refit_pattern *out, struct refit_error *err)
{
    const char *at = text;
    bool fits = true;
    while (*at && fits) {
        unsigned char c = (unsigned char)*at;
        if (c < 0x20 || c == 0x7f || c == '}')
            return refit_fail(err, REFIT_INVALID, "the name of a %s has the byte 0x%02x at %zu, which is not allowed",
                              names->kind, c, (size_t)(at - text));
        if (c == '{') {
            at++;
            enum refit_status status = scan_variable(scan, text, &at, var_names, var_count, allow_local, out, err);
            if (status)
                return status;
            fits = put(scan, REFIT_NAME_MARK);
        } else if (is_digit(*at)) {
            fits = scan_digits(scan, &at);
        } else {
            fits = put(scan, *at++);
        }
    }
    if (!fits || longest(scan, out) >= REFIT_NAME_MAX)
        return refit_fail(err, REFIT_INVALID, "name \"%.200s\": longer than %d bytes", text, REFIT_NAME_MAX - 1);
    return REFIT_OK;
}

enum refit_status refit_names_pattern(struct refit_names *names, const char *text, const char *const *var_names,
                                      uint32_t var_count, bool allow_local, struct refit_pattern *out,
                                      struct refit_error *err)
{
    struct scan scan = {0};
    *out = (struct refit_pattern){0};
    if (!*text)
        return refit_fail(err, REFIT_INVALID, "the name of a %s is empty", names->kind);
    memset(out->var, -1, sizeof out->var);
    enum refit_status status = scan_pattern(names, &scan, text, var_names, var_count, allow_local, out, err);
    if (status)
        return status;
    scan.text[scan.len] = '\0';
    out->fields = scan.fields;
    memcpy(out->literal, scan.values, sizeof out->literal);
    out->skeleton = find_skeleton(names, scan.text, scan.len);
    if (out->skeleton == REFIT_NAME_NONE && !add_skeleton(names, &scan, &out->skeleton))
        return refit_fail_alloc(err, "names", scan.len);
    return REFIT_OK;
}

static uint64_t hash_point(uint32_t skeleton, const uint32_t *values, uint32_t fields)
{
    uint64_t hash = mix(0x51ed270b, skeleton);
    for (uint32_t i = 0; i < fields; i++)
        hash = mix(hash, values[i]);
    return hash;
}

static uint32_t find_point(const struct refit_names *names, uint32_t skeleton, const uint32_t *values)
{
    uint32_t fields = names->skeletons[skeleton].fields;
    if (!names->point_slots)
        return REFIT_NAME_NONE;
    size_t mask = names->point_slots - 1, slot = hash_point(skeleton, values, fields) & mask;
    for (; names->point_table[slot]; slot = (slot + 1) & mask) {
        uint32_t group = names->point_table[slot] - 1;
        const struct refit_name_group *g = &names->groups[group];
        /* Names without numbers may leave `numbers` NULL, which memcmp doesn't take. */
        if (g->skeleton == skeleton &&
            (fields == 0 || memcmp(names->numbers + g->box, values, fields * sizeof *values) == 0))
            return group;
    }
    return REFIT_NAME_NONE;
}

static bool grow_point_table(struct refit_names *names)
{
    size_t slots = names->point_slots ? names->point_slots * 2 : 64;
    uint32_t *table = calloc(slots, sizeof *table);
    if (!table)
        return false;
    for (size_t i = 0; i < names->point_slots; i++) {
        if (!names->point_table[i])
            continue;
        uint32_t group = names->point_table[i] - 1, skeleton = names->groups[group].skeleton;
        table_insert(table, slots, hash_point(skeleton, names->numbers + names->groups[group].box,
                                              names->skeletons[skeleton].fields), group);
    }
    free(names->point_table);
    names->point_table = table;
    names->point_slots = slots;
    return true;
}

static bool in_group(const struct refit_names *names, uint32_t group, const uint32_t *values)
{
    const struct refit_name_group *g = &names->groups[group];
    uint32_t fields = names->skeletons[g->skeleton].fields;
    const uint32_t *start = names->numbers + g->box, *extent = start + fields;
    for (uint32_t i = 0; i < fields; i++)
        if (values[i] - start[i] >= extent[i]) /* wraps when below start */
            return false;
    return true;
}

static uint32_t find_group(const struct refit_names *names, uint32_t skeleton, const uint32_t *values)
{
    uint32_t group = names->skeletons[skeleton].first_family;
    while (group != REFIT_NAME_NONE && !in_group(names, group, values))
        group = names->groups[group].next;
    return group != REFIT_NAME_NONE ? group : find_point(names, skeleton, values);
}

uint32_t refit_names_find(const struct refit_names *names, const char *name, uint32_t values[static REFIT_NAME_FIELDS])
{
    struct scan scan;
    if (!scan_name(&scan, name))
        return REFIT_NAME_NONE;
    uint32_t skeleton = find_skeleton(names, scan.text, scan.len);
    /* A mark typed by hand would look like a field. */
    if (skeleton == REFIT_NAME_NONE || names->skeletons[skeleton].fields != scan.fields)
        return REFIT_NAME_NONE;
    memcpy(values, scan.values, sizeof scan.values);
    return find_group(names, skeleton, values);
}

struct refit_box refit_names_box(const struct refit_names *names, uint32_t group)
{
    const struct refit_name_group *g = &names->groups[group];
    struct refit_box box = {.dims = names->skeletons[g->skeleton].fields};
    for (uint32_t i = 0; i < box.dims; i++) {
        box.start[i] = names->numbers[g->box + i];
        box.extent[i] = names->numbers[g->box + box.dims + i];
    }
    return box;
}

/* A new group for names that no group has; *id is its number. */
static enum refit_status add_group(struct refit_names *names, uint32_t skeleton, const struct refit_box *box,
                                   uint32_t *id, struct refit_error *err)
{
    uint64_t volume = refit_box_volume(box), ids = names->ids + volume;
    if (ids > REFIT_LAYOUT_NAMES_MAX)
        return refit_fail(err, REFIT_INVALID, "more than %u %ss", REFIT_LAYOUT_NAMES_MAX, names->kind);
    /* One number too many: names without numbers still want an array to point into. */
    if (!refit_array_reserve(&names->groups, &names->group_capacity, names->group_count + 1, sizeof *names->groups) ||
        !refit_array_reserve(&names->numbers, &names->numbers_capacity, names->numbers_len + 2 * box->dims + 1,
                             sizeof *names->numbers) ||
        (names->point_count * 2 >= names->point_slots && !grow_point_table(names)))
        return refit_fail_alloc(err, "names", names->group_count * sizeof *names->groups);
    struct refit_skeleton *s = &names->skeletons[skeleton];
    uint32_t *head = volume == 1 ? &s->first_point : &s->first_family;
    *id = (uint32_t)names->group_count++;
    names->groups[*id] = (struct refit_name_group){
        .skeleton = skeleton, .next = *head, .first_id = (uint32_t)names->ids, .count = (uint32_t)volume,
        .box = (uint32_t)names->numbers_len};
    *head = *id;
    for (uint32_t i = 0; i < box->dims; i++) {
        names->numbers[names->numbers_len + i] = (uint32_t)box->start[i];
        names->numbers[names->numbers_len + box->dims + i] = (uint32_t)box->extent[i];
    }
    if (volume == 1) {
        names->point_count++;
        table_insert(names->point_table, names->point_slots,
                     hash_point(skeleton, names->numbers + names->numbers_len, box->dims), *id);
    } else if (++s->families > FAMILIES_MAX) {
        return refit_fail(err, REFIT_INVALID, "more than %d families of one %s name", FAMILIES_MAX, names->kind);
    }
    names->numbers_len += 2 * box->dims;
    names->ids = ids;
    return REFIT_OK;
}

struct remainders {
    struct refit_box box[REMAINDERS_MAX];
    size_t count;
};

static bool remainders_subtract(struct remainders *left, const struct refit_box *taken)
{
    struct refit_box parts[2 * REFIT_DIMS_MAX];
    for (size_t i = left->count; i-- > 0;) {
        size_t n = refit_box_subtract(&left->box[i], taken, parts);
        if (n == 1 && refit_box_equal(&parts[0], &left->box[i]))
            continue;
        left->box[i] = left->box[--left->count];
        if (left->count + n > REMAINDERS_MAX)
            return false;
        memcpy(left->box + left->count, parts, n * sizeof *parts);
        left->count += n;
    }
    return true;
}

static enum refit_status claim_from(struct refit_names *names, uint32_t group, struct remainders *left,
                                    const struct refit_box *box, refit_claimed claimed, void *ctx,
                                    struct refit_error *err)
{
    for (; group != REFIT_NAME_NONE; group = names->groups[group].next) {
        struct refit_box common, other = refit_names_box(names, group);
        if (!refit_box_intersect(box, &other, &common))
            continue;
        if (!remainders_subtract(left, &common))
            return refit_fail(err, REFIT_INVALID, "families of one %s name overlap in more than %d ways", names->kind,
                              REMAINDERS_MAX);
        enum refit_status status = claimed(ctx, group, false, err);
        if (status)
            return status;
    }
    return REFIT_OK;
}

static enum refit_status claim_point(struct refit_names *names, uint32_t skeleton, const struct refit_box *box,
                                     refit_claimed claimed, void *ctx, struct refit_error *err)
{
    uint32_t values[REFIT_NAME_FIELDS], group;
    for (uint32_t i = 0; i < box->dims; i++)
        values[i] = (uint32_t)box->start[i];
    group = find_group(names, skeleton, values);
    if (group != REFIT_NAME_NONE)
        return claimed(ctx, group, false, err);
    enum refit_status status = add_group(names, skeleton, box, &group, err);
    return status ? status : claimed(ctx, group, true, err);
}

static enum refit_status claim_family(struct refit_names *names, uint32_t skeleton, const struct refit_box *box,
                                      struct remainders *left, refit_claimed claimed, void *ctx,
                                      struct refit_error *err)
{
    enum refit_status status;
    left->box[0] = *box;
    left->count = 1;
    if ((status = claim_from(names, names->skeletons[skeleton].first_family, left, box, claimed, ctx, err)) ||
        (status = claim_from(names, names->skeletons[skeleton].first_point, left, box, claimed, ctx, err)))
        return status;
    for (size_t i = 0; i < left->count; i++) {
        uint32_t group;
        if ((status = add_group(names, skeleton, &left->box[i], &group, err)) ||
            (status = claimed(ctx, group, true, err)))
            return status;
    }
    return REFIT_OK;
}

enum refit_status refit_names_claim(struct refit_names *names, uint32_t skeleton, const struct refit_box *box,
                                    refit_claimed claimed, void *ctx, struct refit_error *err)
{
    if (refit_box_empty(box))
        return REFIT_OK;
    if (refit_box_volume(box) == 1)
        return claim_point(names, skeleton, box, claimed, ctx, err);
    struct remainders *left = malloc(sizeof *left);
    if (!left)
        return refit_fail_alloc(err, "names", sizeof *left);
    enum refit_status status = claim_family(names, skeleton, box, left, claimed, ctx, err);
    free(left);
    return status;
}

void refit_names_member(const struct refit_names *names, uint32_t group, uint32_t index,
                        uint32_t values[static REFIT_NAME_FIELDS])
{
    const struct refit_name_group *g = &names->groups[group];
    uint32_t fields = names->skeletons[g->skeleton].fields;
    const uint32_t *start = names->numbers + g->box, *extent = start + fields;
    for (uint32_t i = fields; i-- > 0; index /= extent[i])
        values[i] = start[i] + index % extent[i];
}

uint32_t refit_names_index(const struct refit_names *names, uint32_t group, const uint32_t *values)
{
    const struct refit_name_group *g = &names->groups[group];
    uint32_t fields = names->skeletons[g->skeleton].fields, index = 0;
    const uint32_t *start = names->numbers + g->box, *extent = start + fields;
    for (uint32_t i = 0; i < fields; i++)
        index = index * extent[i] + (values[i] - start[i]);
    return index;
}

uint32_t refit_names_group_of(const struct refit_names *names, uint32_t id)
{
    size_t low = 0, high = names->group_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (names->groups[middle].first_id <= id)
            low = middle;
        else
            high = middle;
    }
    return (uint32_t)low;
}

void refit_names_render(const struct refit_names *names, uint32_t skeleton, const uint32_t *values,
                        char out[static REFIT_NAME_MAX])
{
    for (const char *at = skeleton_text(names, skeleton); *at; at++) {
        if (*at != REFIT_NAME_MARK) {
            *out++ = *at;
            continue;
        }
        char digits[NUMBER_DIGITS + 1];
        uint32_t value = *values++;
        int len = 0;
        do {
            digits[len++] = (char)('0' + value % 10);
            value /= 10;
        } while (value);
        while (len > 0)
            *out++ = digits[--len];
    }
    *out = '\0';
}
