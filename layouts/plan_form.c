/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "layouts/plan_internal.h"

#define COUNTED ((uint64_t)1 << 8)

struct refit_form refit_form_at(const uint64_t *words)
{
    return (struct refit_form){
        .bytes = words[0],
        .tensor_offset = words[1],
        .run_bytes = words[2],
        .levels = (uint32_t)(words[3] & (COUNTED - 1)),
        .counted = (words[3] & COUNTED) != 0,
        .level = words + 4,
    };
}

/* Adds dimension `count` x (stride, tensor_stride) outside what `words` describe already. */
static void wrap(uint64_t *words, uint64_t count, int64_t stride, int64_t tensor_stride)
{
    const uint64_t levels = words[3];
    if (count == 1) {
        return;
    }
    if (levels == 0 && (uint64_t)stride == words[2] && (uint64_t)tensor_stride == words[2]) {
        words[2] *= count;
        return;
    }
    uint64_t *level = words + 4 + 3 * levels;
    if (levels > 0) {
        uint64_t *inner = level - 3;
        if ((uint64_t)stride == inner[0] * inner[1] && (uint64_t)tensor_stride == inner[0] * inner[2]) {
            inner[0] *= count;
            return;
        }
    }
    level[0] = count;
    level[1] = (uint64_t)stride;
    level[2] = (uint64_t)tensor_stride;
    words[3]++;
}

/* Returns how many words it took. */
static size_t compile(uint64_t words[static REFIT_FORM_WORDS_MAX], const struct refit_box *box, const int64_t *shape,
                      uint32_t unit_bytes, const int64_t *stride, bool counted)
{
    int64_t tensor_stride = (int64_t)unit_bytes;
    words[1] = 0;
    words[2] = unit_bytes;
    words[3] = 0;
    for (uint32_t d = box->dims; d-- > 0;) {
        words[1] += (uint64_t)(box->start[d] * tensor_stride);
        wrap(words, (uint64_t)box->extent[d], stride[d], tensor_stride);
        tensor_stride *= shape[d];
    }
    const size_t len = 4 + 3 * (size_t)words[3];
    words[0] = refit_box_volume(box) * unit_bytes;
    words[3] |= counted ? COUNTED : 0;
    return len;
}

static size_t words_of(const uint64_t *words)
{
    return 4 + 3 * (size_t)(words[3] & (COUNTED - 1));
}

static uint64_t hash_words(const uint64_t *words, size_t len)
{
    uint64_t hash = len;
    for (size_t i = 0; i < len; i++) {
        hash = refit_plan_mix(hash ^ words[i]) + i;
    }
    return hash;
}

uint32_t refit_forms_add(struct refit_forms *forms, const struct refit_box *box, const int64_t *shape,
                         uint32_t unit_bytes, const int64_t *stride, bool counted)
{
    uint64_t words[REFIT_FORM_WORDS_MAX];
    const size_t len = compile(words, box, shape, unit_bytes, stride, counted);
    const uint64_t hash = hash_words(words, len);
    struct refit_probe probe = refit_plan_table_begin(hash);
    for (uint32_t at; (at = refit_plan_table_next(&forms->table, &probe)) != REFIT_PLAN_NONE;) {
        if (words_of(forms->words + at) == len && memcmp(forms->words + at, words, len * sizeof(*words)) == 0) {
            return at;
        }
    }
    const size_t at = forms->len;
    if (at + len >= REFIT_PLAN_NONE || !refit_array_reserve(&forms->words, &forms->capacity, at + len, sizeof(*words))
        || !refit_plan_table_add(&forms->table, hash, (uint32_t)at)) {
        return REFIT_PLAN_NONE;
    }
    memcpy(forms->words + at, words, len * sizeof(*words));
    forms->len += len;
    return (uint32_t)at;
}

void refit_forms_release(struct refit_forms *forms)
{
    free(forms->words);
    refit_plan_table_release(&forms->table);
}
