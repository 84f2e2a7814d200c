/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's mappings: one claim page, and per slot a read-only mapping with its table of pointers.
 *
 * A table is written only while no reader can hold its slot. refitd replaces a slot's memory only then; the page is
 * asked once more here, since pulling memory from under a reader is worse than losing a connection.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/io.h"
#include "base/log.h"
#include "engine/engine_internal.h"
#include "memory/cuda.h"
#include "memory/cuda_probe.h"

#include <fcntl.h>

static bool same(struct refit_slot_identity a, struct refit_slot_identity b)
{
    return a.device == b.device && a.inode == b.inode;
}

static bool slot_idle(const struct refit_engine *engine, uint32_t slot)
{
    const struct refit_claim *claim = engine->page ? engine->page->claim : NULL;
    return !claim || (refit_claim_gate_slot(claim) != slot && refit_claim_pins(claim, slot) == 0);
}

/* --- the claim page ---------------------------------------------------------------------------------------- */

static void page_destroy(struct refit_engine *engine, struct refit_engine_page *page)
{
    if (page->claim && page->claim->magic == REFIT_CLAIM_MAGIC)
        refit_claim_close(page->claim);
    if (page->claim)
        refit_engine_home_unmap(engine, page->claim);
    refit_io_close(&page->fd);
    free(page);
}

static enum refit_status page_map(struct refit_engine *engine, struct refit_engine_page *page, int fd,
                                  struct refit_error *err)
{
    const uint32_t slots = engine->slots;
    page->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (page->fd < 0)
        return refit_fail_errno(err, errno, "claim page: duplicate descriptor");
    void *at = refit_engine_home_map(engine, page->fd);
    if (at == MAP_FAILED)
        return refit_fail_errno(err, errno, "claim page: map");
    page->claim = at;
    /* A forked child must not take part in the counting. */
    if (madvise(at, REFIT_CLAIM_BYTES, MADV_DONTFORK) != 0)
        return refit_fail_errno(err, errno, "claim page: madvise");
    if (page->claim->magic != REFIT_CLAIM_MAGIC || page->claim->abi != REFIT_CLAIM_ABI || page->claim->slots != slots)
        return refit_fail(err, REFIT_MISMATCH, "claim page: abi %u with %u slots, expected abi %d with %u slots",
                          page->claim->abi, page->claim->slots, REFIT_CLAIM_ABI, slots);
    return REFIT_OK;
}

static enum refit_status page_create(struct refit_engine *engine, int fd, struct refit_engine_page **out,
                                     struct refit_error *err)
{
    struct refit_engine_page *page = calloc(1, sizeof *page);
    if (!page)
        return refit_fail_alloc(err, "a claim page", sizeof *page);
    page->fd = -1;
    enum refit_status status = refit_slot_identify(fd, &page->identity, err);
    if (status == REFIT_OK)
        status = page_map(engine, page, fd, err);
    if (status != REFIT_OK) {
        page_destroy(engine, page);
        return status;
    }
    *out = page;
    return REFIT_OK;
}

/* --- slots ------------------------------------------------------------------------------------------------- */

struct slot_mapping {
    struct refit_arena *arena; /* NULL: the one that is mapped already */
    struct refit_slot_identity identity;
};

/* What a descriptor holds must be what the message says it does. */
static enum refit_status open_device_slot(const struct refit_engine *engine, int fd, const struct slot_mapping *named,
                                          struct refit_arena **out, struct refit_error *err)
{
    struct refit_cuda_slot_info info;
    enum refit_status status =
        refit_cuda_slot_open(engine->ordinal, fd, engine->slot_bytes ? engine->slot_bytes : 1, true, out, err);
    if (status != REFIT_OK)
        return status;
    refit_cuda_slot_info(*out, &info);
    if (memcmp(info.id, &named->identity, sizeof info.id) == 0)
        return REFIT_OK;
    refit_arena_release(*out);
    *out = NULL;
    return refit_fail(err, REFIT_PEER, "the descriptor is of another slot than refitd says");
}

static enum refit_status open_slot(struct refit_engine *engine, uint32_t slot, int fd,
                                   const struct refit_attach_device *device, struct slot_mapping *out,
                                   struct refit_error *err)
{
    bool on_device = device->slots >> slot & 1;
    enum refit_status status = on_device ? REFIT_OK : refit_slot_identify(fd, &out->identity, err);
    if (status != REFIT_OK)
        return status;
    if (on_device)
        memcpy(&out->identity, device->id[slot], sizeof out->identity);
    if (engine->arena[slot] && same(engine->identity[slot], out->identity))
        return REFIT_OK;
    if (!slot_idle(engine, slot))
        return refit_fail(err, REFIT_BUSY, "slot %u: refitd replaced it while it is read", slot);
    status = on_device ? open_device_slot(engine, fd, out, &out->arena, err)
                       : refit_slot_map(fd, engine->slot_bytes, &out->arena, err);
    return status == REFIT_OK ? REFIT_OK : refit_error_prefix(err, status, "slot %u", slot);
}

/* Host or device, it is what readers are given. */
static const void *address_of(const struct refit_arena *arena, const struct refit_engine_buffer_info *buffer)
{
    if (refit_arena_kind(arena) == REFIT_ARENA_CUDA)
        return (const void *)(uintptr_t)refit_arena_device_address(arena, buffer->offset, buffer->bytes);
    return refit_arena_host(arena, buffer->offset, buffer->bytes);
}

/* The window follows the slot to its new memory; where it can't, it is empty, and so are its readers' gates
 * until it shows something again. */
static void install_slot(struct refit_engine *engine, uint32_t slot, struct slot_mapping *mapping)
{
    struct refit_error error;
    if (!mapping->arena)
        return;
    struct refit_arena *old = engine->arena[slot];
    const void **table = engine->windowed == slot ? engine->own_table : engine->table[slot];
    engine->arena[slot] = mapping->arena;
    engine->identity[slot] = mapping->identity;
    mapping->arena = NULL;
    for (uint32_t i = 0; i < engine->buffer_count; i++)
        table[i] = address_of(engine->arena[slot], &engine->buffers[i]);
    if (engine->windowed == slot && refit_engine_window_show(engine, slot, &error) != REFIT_OK)
        refit_log_event(REFIT_LOG_ERROR, "window not mapped", REFIT_LOG_CAUSE(&error));
    refit_arena_release(old);
}

enum refit_status refit_engine_map_slot(struct refit_engine *engine, const struct refit_attach_message *slot, int fd,
                                        struct refit_error *err)
{
    struct slot_mapping mapping = {0};
    if ((slot->device.slots ^ engine->device.slots) & 1u << slot->slot)
        return refit_fail(err, REFIT_PEER, "slot %u: refitd replaced it by another kind of memory", slot->slot);
    enum refit_status status = open_slot(engine, slot->slot, fd, &slot->device, &mapping, err);
    if (status != REFIT_OK)
        return status;
    install_slot(engine, slot->slot, &mapping);
    atomic_store_explicit(&engine->claim, engine->page->claim, memory_order_release);
    return engine->window && engine->windowed == REFIT_SLOT_NONE
               ? refit_fail(err, REFIT_SYSTEM, "slot %u: its new memory could not be shown", slot->slot)
               : REFIT_OK;
}

enum refit_status refit_engine_move(struct refit_engine *engine, uint32_t slot, struct refit_error *err)
{
    if (slot >= engine->slots || !engine->window)
        return refit_fail(err, REFIT_PEER, "refitd moves a window of swap mode %s to slot %u of %u",
                          refit_swap_mode_name(engine->swap), slot, engine->slots);
    if (!slot_idle(engine, slot) || (engine->windowed != REFIT_SLOT_NONE && !slot_idle(engine, engine->windowed)))
        return refit_fail(err, REFIT_BUSY, "slots %u and %u are not idle", engine->windowed, slot);
    enum refit_status status = refit_engine_window_show(engine, slot, err);
    atomic_store_explicit(&engine->claim, engine->page->claim, memory_order_release);
    return status;
}

/* --- the whole of `attached` ------------------------------------------------------------------------------- */

static enum refit_status allocate_tables(struct refit_engine *engine, struct refit_error *err)
{
    for (uint32_t slot = 0; slot < engine->slots; slot++) {
        if (!engine->table[slot])
            engine->table[slot] = calloc(engine->buffer_count + 1, sizeof **engine->table);
        if (!engine->table[slot])
            return refit_fail_alloc(err, "the pointer table of a slot", engine->buffer_count * sizeof **engine->table);
    }
    return REFIT_OK;
}

static enum refit_status check_attached(struct refit_engine *engine, const struct refit_attach_message *m,
                                        size_t fd_count, struct refit_error *err)
{
    uint64_t need = refit_layout_arena_bytes(engine->layout, engine->rank);
    if (m->abi != REFIT_CLAIM_ABI)
        return refit_fail(err, REFIT_MISMATCH, "refitd speaks abi %u, this library %d; use one release of both", m->abi,
                          REFIT_CLAIM_ABI);
    if (engine->stable && m->swap == REFIT_SWAP_POINTER)
        return refit_fail(err, REFIT_MISMATCH, "this engine needs addresses that don't change, refitd swaps by pointer; "
                          "start refitd with --swap copy, remap or in-place");
    if (engine->slots != 0 && engine->swap != m->swap)
        return refit_fail(err, REFIT_MISMATCH, "refitd now swaps by %s, this process was attached for %s; restart the "
                          "engine", refit_swap_mode_name(m->swap), refit_swap_mode_name(engine->swap));
    if (m->slots < 1 || m->slots > REFIT_SLOTS_MAX || fd_count != m->slots + 1)
        return refit_fail(err, REFIT_PEER, "refitd offered %u slots with %zu descriptors", m->slots, fd_count);
    if (m->bytes < need)
        return refit_fail(err, REFIT_MISMATCH, "slots have %llu bytes, the layout of rank %u needs %llu",
                          (unsigned long long)m->bytes, engine->rank, (unsigned long long)need);
    if (engine->slots != 0 && (engine->slots != m->slots || engine->slot_bytes != m->bytes))
        return refit_fail(err, REFIT_MISMATCH,
                          "refitd now has %u slots of %llu bytes, this process holds %u of %llu; restart the engine",
                          m->slots, (unsigned long long)m->bytes, engine->slots,
                          (unsigned long long)engine->slot_bytes);
    return REFIT_OK;
}

/* By its UUID: numbers differ between processes. */
static enum refit_status find_device(struct refit_engine *engine, const struct refit_attach_device *device,
                                     struct refit_error *err)
{
    if (device->slots == 0 || engine->ordinal >= 0)
        return REFIT_OK;
    enum refit_status status = refit_cuda_device_find(device->uuid, &engine->ordinal, err);
    return status == REFIT_OK ? status : refit_error_prefix(err, status, "slots of rank %u", engine->rank);
}

static enum refit_status check_memory(struct refit_engine *engine, const struct refit_attach_device *device,
                                      struct refit_error *err)
{
    if (device->slots != 0 && engine->wanted == REFIT_MEMORY_HOST)
        return refit_fail(err, REFIT_MISMATCH, "slots are in a GPU's memory, this engine reads host memory; say so in its "
                          "config's memory if it can take device addresses, or start refitd with --memory host");
    if (device->slots == 0 && engine->wanted == REFIT_MEMORY_CUDA)
        return refit_fail(err, REFIT_MISMATCH, "slots are in host memory, this engine takes a GPU's; start refitd with "
                          "--memory cuda");
    if (engine->slots != 0 && (engine->device.slots != device->slots ||
                               memcmp(engine->device.uuid, device->uuid, sizeof device->uuid) != 0))
        return refit_fail(err, REFIT_MISMATCH, "refitd now has slots in another kind of memory or on another device than "
                          "this process holds; restart the engine");
    return find_device(engine, device, err);
}

static bool keeps_page(const struct refit_engine *engine, int fd)
{
    struct refit_slot_identity identity;
    return engine->page && refit_slot_identify(fd, &identity, NULL) == REFIT_OK &&
           same(identity, engine->page->identity);
}

static void install(struct refit_engine *engine, struct refit_engine_page *page, struct slot_mapping *mappings)
{
    for (uint32_t slot = 0; slot < engine->slots; slot++)
        install_slot(engine, slot, &mappings[slot]);
    if (page) {
        page->next = engine->page;
        engine->page = page;
    }
    atomic_store_explicit(&engine->claim, engine->page->claim, memory_order_release);
}

enum refit_status refit_engine_map_all(struct refit_engine *engine, const struct refit_attach_message *attached,
                                       const int *fds, size_t fd_count, struct refit_error *err)
{
    struct slot_mapping mappings[REFIT_SLOTS_MAX] = {0};
    struct refit_engine_page *page = NULL;
    enum refit_status status = check_attached(engine, attached, fd_count, err);
    if (status == REFIT_OK)
        status = check_memory(engine, &attached->device, err);
    if (status != REFIT_OK)
        return status;
    engine->slots = attached->slots;
    engine->slot_bytes = attached->bytes;
    engine->swap = attached->swap;
    engine->device = attached->device;
    status = allocate_tables(engine, err);
    for (uint32_t slot = 0; status == REFIT_OK && slot < engine->slots; slot++)
        status = open_slot(engine, slot, fds[slot + 1], &attached->device, &mappings[slot], err);
    if (status == REFIT_OK && !keeps_page(engine, fds[0]))
        status = page_create(engine, fds[0], &page, err);
    if (status != REFIT_OK)
        goto release_mappings;
    install(engine, page, mappings);
    if (engine->swap != REFIT_SWAP_POINTER) {
        status = refit_engine_window_open(engine, attached->window, err);
        atomic_store_explicit(&engine->claim, engine->page->claim, memory_order_release);
    }
    return status;

release_mappings:
    for (uint32_t slot = 0; slot < engine->slots; slot++)
        refit_arena_release(mappings[slot].arena);
    return status;
}

void refit_engine_unmap(struct refit_engine *engine)
{
    refit_engine_window_close(engine);
    for (uint32_t slot = 0; slot < REFIT_SLOTS_MAX; slot++) {
        refit_arena_release(engine->arena[slot]);
        free(engine->table[slot]);
    }
    /* Slots are unmapped above: from here on nothing is read. */
    while (engine->page) {
        struct refit_engine_page *page = engine->page;
        engine->page = page->next;
        page_destroy(engine, page);
    }
}
