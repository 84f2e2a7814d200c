/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/system/pattern.h"

#include <stdio.h>
#include <string.h>

struct visit {
    const struct refit_layout *layout;
    uint8_t *write;      /* fill */
    const uint8_t *read; /* check */
    uint64_t version;
    char *text;
    size_t text_len;
    int wrong;
    struct refit_tensor tensor;
    uint64_t seed;
};

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t seed_of(const char *name, uint64_t version)
{
    uint64_t hash = 1469598103934665603ull;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 1099511628211ull;
    return mix(hash + version * 0x9e3779b97f4a7c15ull);
}

/* A trainer that writes during its publish races with the transfer on purpose: ThreadSanitizer need not tell. */
__attribute__((no_sanitize("thread"))) static void write_unit(volatile uint8_t *to, const uint8_t *unit, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = unit[i];
}

/* One unit: at most 8 bytes in all dtypes. */
static bool visit_unit(struct visit *v, uint64_t index, uint64_t at)
{
    uint64_t value = mix(v->seed + index);
    if (v->write) {
        write_unit(v->write + at, (const uint8_t *)&value, v->tensor.unit_bytes);
        return true;
    }
    if (memcmp(v->read + at, &value, v->tensor.unit_bytes) == 0)
        return true;
    snprintf(v->text, v->text_len, "version %llu: %s unit %llu at byte %llu differs", (unsigned long long)v->version,
             v->tensor.name, (unsigned long long)index, (unsigned long long)at);
    v->wrong = 1;
    return false;
}

static bool visit_region(void *context, const struct refit_region *region)
{
    struct visit *v = context;
    const struct refit_box *box = &region->box;
    int64_t at[REFIT_DIMS_MAX] = {0};
    for (uint64_t n = refit_box_volume(box); n > 0; n--) {
        uint64_t index = 0, offset = region->offset;
        for (uint32_t d = 0; d < box->dims; d++) {
            index = index * (uint64_t)v->tensor.shape_units[d] + (uint64_t)(box->start[d] + at[d]);
            offset += (uint64_t)(at[d] * region->stride[d]);
        }
        if (!visit_unit(v, index, offset))
            return false;
        for (uint32_t d = box->dims; d-- > 0 && ++at[d] == box->extent[d];)
            at[d] = 0;
    }
    return true;
}

static void visit_all(struct visit *v, uint32_t rank)
{
    for (uint32_t id = 0; id < refit_layout_tensor_count(v->layout) && !v->wrong; id++) {
        refit_layout_tensor(v->layout, id, &v->tensor);
        v->seed = seed_of(v->tensor.name, v->version);
        refit_layout_regions(v->layout, id, rank, visit_region, v);
    }
}

void pattern_fill(const struct refit_layout *layout, uint32_t rank, uint8_t *memory, uint64_t version)
{
    struct visit v = {.layout = layout, .write = memory, .version = version};
    visit_all(&v, rank);
}

static bool check_fill(void *context, const struct refit_fill *fill)
{
    struct visit *v = context;
    for (uint64_t row = 0; row < fill->count; row++)
        for (uint64_t i = 0; i < fill->row_bytes; i++)
            if (v->read[fill->offset + row * fill->stride + i] != fill->value) {
                snprintf(v->text, v->text_len, "version %llu: fill byte %llu differs", (unsigned long long)v->version,
                         (unsigned long long)(fill->offset + row * fill->stride + i));
                v->wrong = 1;
                return false;
            }
    return true;
}

int pattern_check(const struct refit_layout *layout, uint32_t rank, const uint8_t *memory, uint64_t version, char *text,
                  size_t text_len)
{
    struct visit v = {.layout = layout, .read = memory, .version = version, .text = text, .text_len = text_len};
    visit_all(&v, rank);
    if (!v.wrong)
        refit_layout_fills(layout, rank, check_fill, &v);
    return v.wrong;
}
