/* SPDX-License-Identifier: Apache-2.0
 *
 * The range of addresses that an engine reads through in the swap modes that keep them constant, and its table. A slot
 * has two mappings then: its own, where a prepare hook reads it, and the window, while it is the one that is served.
 * The slot that is shown lends its place in the engine's tables to the window's table.
 */
#include <stdlib.h>

#include "engine/engine_internal.h"

static enum refit_status make(struct refit_engine *engine, const struct refit_arena *slot, struct refit_error *err)
{
    engine->window_table = calloc(engine->buffer_count + 1, sizeof *engine->window_table);
    if (!engine->window_table)
        return refit_fail_alloc(err, "the window's table", engine->buffer_count * sizeof *engine->window_table);
    enum refit_status status = refit_window_create(slot, &engine->window, err);
    if (status != REFIT_OK) {
        free(engine->window_table);
        engine->window_table = NULL;
        return status;
    }
    for (uint32_t i = 0; i < engine->buffer_count; i++)
        engine->window_table[i] = refit_window_at(engine->window, engine->buffers[i].offset);
    return REFIT_OK;
}

static void put_back_own_table(struct refit_engine *engine)
{
    if (engine->windowed != REFIT_SLOT_NONE)
        engine->table[engine->windowed] = engine->own_table;
    engine->windowed = REFIT_SLOT_NONE;
}

enum refit_status refit_engine_window_show(struct refit_engine *engine, uint32_t slot, struct refit_error *err)
{
    uint32_t before = engine->windowed;
    enum refit_status status = refit_window_show(engine->window, engine->arena[slot], err);
    put_back_own_table(engine);
    if (status != REFIT_OK) {
        if (before == REFIT_SLOT_NONE || before == slot ||
            refit_window_show(engine->window, engine->arena[before], NULL) != REFIT_OK)
            return status;
        slot = before;
    }
    engine->own_table = engine->table[slot];
    engine->table[slot] = engine->window_table;
    engine->windowed = slot;
    return status;
}

enum refit_status refit_engine_window_open(struct refit_engine *engine, uint32_t slot, struct refit_error *err)
{
    if (slot >= engine->slots)
        return refit_fail(err, REFIT_PEER, "refitd named slot %u of %u", slot, engine->slots);
    enum refit_status status = engine->window ? REFIT_OK : make(engine, engine->arena[slot], err);
    return status == REFIT_OK && engine->windowed != slot ? refit_engine_window_show(engine, slot, err) : status;
}

void refit_engine_window_close(struct refit_engine *engine)
{
    put_back_own_table(engine);
    refit_window_destroy(engine->window);
    free(engine->window_table);
    engine->window = NULL;
    engine->window_table = NULL;
}
