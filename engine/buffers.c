/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"

struct loader {
    struct refit_engine *engine;
    uint32_t capacity;
    bool failed;
};

static bool grow(struct loader *loader)
{
    struct refit_engine *e = loader->engine;
    if (e->buffer_count < loader->capacity)
        return true;
    uint32_t capacity = loader->capacity ? loader->capacity * 2 : 64;
    struct refit_engine_buffer_info *items = realloc(e->buffers, capacity * sizeof *items);
    if (!items)
        return false;
    e->buffers = items;
    loader->capacity = capacity;
    return true;
}

static bool take_buffer(void *context, const struct refit_buffer *buffer)
{
    struct loader *loader = context;
    char *name = grow(loader) ? strdup(buffer->name) : NULL;
    if (!name) {
        loader->failed = true;
        return false;
    }
    struct refit_engine *e = loader->engine;
    e->buffers[e->buffer_count++] =
        (struct refit_engine_buffer_info){.name = name, .offset = buffer->offset, .bytes = buffer->bytes};
    return true;
}

static int by_name(const void *a, const void *b, void *context)
{
    const struct refit_engine_buffer_info *buffers = context;
    return strcmp(buffers[*(const uint32_t *)a].name, buffers[*(const uint32_t *)b].name);
}

enum refit_status refit_engine_buffers_load(struct refit_engine *engine, struct refit_error *err)
{
    struct loader loader = {.engine = engine};
    (void)refit_layout_buffers(engine->layout, engine->rank, take_buffer, &loader);
    if (loader.failed)
        return refit_fail_alloc(err, "the table of buffers", (engine->buffer_count + 1) * sizeof *engine->buffers);
    engine->order = malloc((engine->buffer_count + 1) * sizeof *engine->order);
    if (!engine->order)
        return refit_fail_alloc(err, "the index of buffers", (engine->buffer_count + 1) * sizeof *engine->order);
    for (uint32_t i = 0; i < engine->buffer_count; i++)
        engine->order[i] = i;
    if (engine->buffer_count > 1)
        qsort_r(engine->order, engine->buffer_count, sizeof *engine->order, by_name, engine->buffers);
    return REFIT_OK;
}

void refit_engine_buffers_release(struct refit_engine *engine)
{
    for (uint32_t i = 0; i < engine->buffer_count; i++)
        free(engine->buffers[i].name);
    free(engine->buffers);
    free(engine->order);
}

uint32_t refit_engine_buffer_id(const struct refit_engine *engine, const char *name)
{
    uint32_t low = 0, high = engine->buffer_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(name, engine->buffers[engine->order[middle]].name);
        if (order == 0)
            return engine->order[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return REFIT_NO_BUFFER;
}

uint32_t refit_engine_buffer_count(const struct refit_engine *engine)
{
    return engine->buffer_count;
}

void refit_engine_memory(const struct refit_engine *engine, struct refit_memory_info *out)
{
    bool cuda = engine->device.slots != 0;
    *out = (struct refit_memory_info){.kind = cuda ? REFIT_MEMORY_CUDA : REFIT_MEMORY_HOST,
                                      .device = engine->ordinal,
                                      .granularity = cuda ? engine->device.granularity : 0,
                                      .slot_bytes = engine->slot_bytes};
    if (cuda)
        memcpy(out->uuid, engine->device.uuid, sizeof out->uuid);
}

enum refit_memory_kind refit_engine_pin_memory(const struct refit_engine *engine, const struct refit_pin *pin)
{
    return engine->device.slots >> pin->slot & 1 ? REFIT_MEMORY_CUDA : REFIT_MEMORY_HOST;
}

size_t refit_engine_buffer_bytes(const struct refit_engine *engine, uint32_t id)
{
    return id < engine->buffer_count ? (size_t)engine->buffers[id].bytes : 0;
}
