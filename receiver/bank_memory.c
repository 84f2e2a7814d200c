/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of slots: in memfds or on GPUs, made, counted before it is taken, passed to engines and taken back.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/cuda.h"
#include "memory/cuda_probe.h"
#include "receiver/bank_internal.h"

_Static_assert(sizeof(struct refit_slot_identity) == REFIT_CUDA_ID_BYTES, "one identity for slots of every kind");

/* --- what slots are of ------------------------------------------------------------------------------------- */

bool refit_bank_on_device(const struct refit_bank *bank, uint32_t slot)
{
    return slot < bank->device_slots;
}

enum refit_protection refit_bank_protection(const struct refit_bank *bank)
{
    return bank->device_slots > 0 ? REFIT_PROTECT_MAPPING : bank->protection;
}

static enum refit_status find_device(struct refit_bank *bank, uint32_t rank, int ordinal, struct refit_error *err)
{
    struct refit_cuda_device_info info;
    struct refit_bank_device *device = &bank->device[rank];
    enum refit_status status = refit_cuda_device_read(ordinal, &info, err);
    if (status != REFIT_OK)
        return refit_error_prefix(err, status, "slots of rank %u", refit_bank_rank_number(bank, rank));
    *device = (struct refit_bank_device){.ordinal = ordinal, .granularity = info.granularity};
    memcpy(device->uuid, info.uuid, sizeof device->uuid);
    return REFIT_OK;
}

enum refit_status refit_bank_find_devices(struct refit_bank *bank, const struct refit_bank_config *config,
                                          struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    if (config->memory != REFIT_ARENA_CUDA)
        return REFIT_OK;
    /* The live slot of swap mode copy is 0, always. */
    bank->device_slots = config->host_staging ? 1 : bank->slots;
    bank->device = calloc(bank->ranks, sizeof *bank->device);
    if (!bank->device)
        return refit_fail_alloc(err, "the table of devices", bank->ranks * sizeof *bank->device);
    for (uint32_t rank = 0; rank < bank->ranks && status == REFIT_OK; rank++)
        status = find_device(bank, rank, config->devices ? config->devices[rank] : (int)rank, err);
    return status;
}

/* --- sizes ------------------------------------------------------------------------------------------------- */

bool refit_bank_sized(const struct refit_bank *bank)
{
    return bank->slot_bytes > 0 || bank->layout;
}

uint64_t refit_bank_rank_bytes(const struct refit_bank *bank, uint32_t rank)
{
    if (bank->slot_bytes > 0)
        return bank->slot_bytes;
    return bank->layout ? refit_layout_arena_bytes(bank->layout, refit_bank_rank_number(bank, rank)) : 0;
}

/* A rank that owns nothing has memory all the same: nobody needs a special case. */
static uint64_t device_bytes(const struct refit_bank *bank, uint32_t rank)
{
    uint64_t bytes = refit_bank_rank_bytes(bank, rank);
    return bytes > 0 ? bytes : 1;
}

bool refit_bank_has_memory(const struct refit_bank *bank)
{
    for (uint32_t slot = 0; slot < bank->slots; slot++) {
        for (uint32_t rank = 0; rank < bank->ranks; rank++) {
            if (!bank->slot[slot].arena[rank])
                return false;
        }
    }
    return true;
}

/* --- admission of device memory ---------------------------------------------------------------------------- */

/* What the ranks that have device `ordinal` lack, and what one slot of theirs takes there. */
struct demand {
    uint64_t missing, slot; /* bytes */
    uint32_t slots;         /* of the rank that lacks most */
};

static uint32_t missing_slots(const struct refit_bank *bank, uint32_t rank)
{
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < bank->device_slots; slot++)
        count += !bank->slot[slot].arena[rank];
    return count;
}

/* False: more than can be counted. */
static bool add_demand(struct demand *demand, uint64_t bytes, uint64_t granularity, uint32_t slots)
{
    uint64_t whole, all;
    /* A slot's size and id lie behind its bytes. */
    if (__builtin_add_overflow(bytes, 2 * REFIT_CUDA_ID_BYTES + granularity - 1, &whole))
        return false;
    whole -= whole % granularity;
    demand->slots = slots > demand->slots ? slots : demand->slots;
    return !__builtin_mul_overflow(whole, (uint64_t)slots, &all) &&
           !__builtin_add_overflow(demand->missing, all, &demand->missing) &&
           !__builtin_add_overflow(demand->slot, whole, &demand->slot);
}

static enum refit_status check_device(struct refit_bank *bank, uint32_t first, struct refit_error *err)
{
    struct demand demand = {0};
    struct refit_cuda_device_info info;
    char uuid[REFIT_CUDA_UUID_TEXT_MAX];
    int ordinal = bank->device[first].ordinal;
    enum refit_status status = refit_cuda_device_read(ordinal, &info, err);
    if (status != REFIT_OK)
        return status;
    refit_cuda_uuid_text(info.uuid, uuid);
    for (uint32_t rank = first; rank < bank->ranks; rank++) {
        if (bank->device[rank].ordinal == ordinal &&
            !add_demand(&demand, device_bytes(bank, rank), info.granularity, missing_slots(bank, rank)))
            return refit_fail(err, REFIT_INVALID, "slots of rank %u: sizes beyond 64 bits",
                              refit_bank_rank_number(bank, rank));
    }
    if (demand.missing <= info.available)
        return REFIT_OK;
    return refit_fail(err, REFIT_NO_MEMORY,
                      "CUDA device %d (%s): %u slots of %" PRIu64 " bytes need %" PRIu64 ", %" PRIu64 " of %" PRIu64
                      " are free, which is room for %" PRIu64 "; leave the engine less of the device, use fewer slots, or "
                      "keep them in host memory",
                      ordinal, uuid, demand.slots, demand.slot, demand.missing, info.available, info.total,
                      info.available / demand.slot);
}

static bool is_first_on_device(const struct refit_bank *bank, uint32_t rank)
{
    for (uint32_t i = 0; i < rank; i++) {
        if (bank->device[i].ordinal == bank->device[rank].ordinal)
            return false;
    }
    return true;
}

/* For all that is missing at once: with room for one slot of two, none is made. */
static enum refit_status check_devices(struct refit_bank *bank, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (uint32_t rank = 0; bank->device_slots > 0 && rank < bank->ranks && status == REFIT_OK; rank++) {
        if (missing_slots(bank, rank) > 0 && is_first_on_device(bank, rank))
            status = check_device(bank, rank, err);
    }
    return status;
}

/* --- making ------------------------------------------------------------------------------------------------ */

static enum refit_status create(const struct refit_bank *bank, uint32_t slot, uint32_t rank, struct refit_arena **out,
                                struct refit_error *err)
{
    char name[64];
    if (refit_bank_on_device(bank, slot))
        return refit_cuda_slot_create(bank->device[rank].ordinal, device_bytes(bank, rank), out, err);
    snprintf(name, sizeof name, "refit-slot%u-rank%u", slot, refit_bank_rank_number(bank, rank));
    return refit_slot_create(name, refit_bank_rank_bytes(bank, rank), bank->protection, out, err);
}

static enum refit_status make_one(struct refit_bank *bank, uint32_t slot, uint32_t rank, struct refit_error *err)
{
    struct refit_arena *arena = NULL;
    enum refit_status status = create(bank, slot, rank, &arena, err);
    if (status != REFIT_OK)
        return status;
    refit_bank_lock(bank);
    bank->slot[slot].arena[rank] = arena;
    bank->slot[slot].writable[rank] = true;
    refit_bank_unlock(bank);
    return REFIT_OK;
}

/* What can't be written is given up before the new one is made: both together may not fit under the limit. */
static enum refit_status renew(struct refit_bank *bank, uint32_t slot, bool replace, struct refit_error *err)
{
    for (uint32_t rank = 0; rank < bank->ranks; rank++) {
        refit_bank_lock(bank);
        struct refit_arena *old = bank->slot[slot].arena[rank];
        bool keep = old && (bank->slot[slot].writable[rank] || !replace);
        if (!keep)
            bank->slot[slot].arena[rank] = NULL;
        refit_bank_unlock(bank);
        if (keep)
            continue;
        refit_arena_release(old);
        enum refit_status status = make_one(bank, slot, rank, err);
        if (status != REFIT_OK)
            return refit_error_prefix(err, status, "slot %u of rank %u", slot,
                                      refit_bank_rank_number(bank, rank));
    }
    return REFIT_OK;
}

enum refit_status refit_bank_make_memory(struct refit_bank *bank, uint32_t slot, struct refit_error *err)
{
    if (slot != REFIT_SLOT_NONE)
        return renew(bank, slot, true, err);
    enum refit_status status = check_devices(bank, err);
    for (uint32_t i = 0; status == REFIT_OK && i < bank->slots; i++)
        status = renew(bank, i, false, err);
    return status;
}

/* --- to engines and back ----------------------------------------------------------------------------------- */

enum refit_status refit_bank_export(struct refit_bank *bank, uint32_t slot, uint32_t rank, int *fd,
                                    struct refit_error *err)
{
    const struct refit_arena *arena = bank->slot[slot].arena[rank];
    return refit_bank_on_device(bank, slot) ? refit_cuda_slot_export(arena, fd, err) : refit_slot_export(arena, fd, err);
}

void refit_bank_identify(const struct refit_arena *arena, struct refit_slot_identity *out)
{
    struct refit_piece piece;
    struct refit_cuda_slot_info info;
    *out = (struct refit_slot_identity){0}; /* nobody's memory */
    if (!arena)
        return;
    if (refit_arena_kind(arena) == REFIT_ARENA_CUDA) {
        refit_cuda_slot_info(arena, &info);
        memcpy(out, info.id, sizeof *out);
        return;
    }
    refit_arena_piece_at(arena, 0, &piece);
    (void)!refit_slot_identify(piece.fd, out, NULL);
}

void refit_bank_describe_device(const struct refit_bank *bank, uint32_t rank, struct refit_attach_device *out)
{
    *out = (struct refit_attach_device){.slots = (1u << bank->device_slots) - 1};
    if (out->slots == 0)
        return;
    memcpy(out->uuid, bank->device[rank].uuid, sizeof out->uuid);
    out->granularity = bank->device[rank].granularity;
    for (uint32_t slot = 0; slot < bank->device_slots; slot++) {
        struct refit_slot_identity id;
        refit_bank_identify(bank->slot[slot].arena[rank], &id);
        memcpy(out->id[slot], &id, sizeof id);
    }
}

enum refit_status refit_bank_take_back(struct refit_bank *bank, uint32_t slot, uint32_t rank, int fd,
                                       struct refit_arena **out, bool *writable, struct refit_error *err)
{
    struct refit_slot_identity found;
    const struct refit_slot_identity *recorded = &bank->record[slot].memory[rank];
    if (refit_bank_on_device(bank, slot)) {
        *writable = true;
        return refit_cuda_slot_adopt(bank->device[rank].ordinal, fd, device_bytes(bank, rank),
                                     (const uint8_t *)recorded, out, err);
    }
    if (refit_slot_identify(fd, &found, NULL) != REFIT_OK || found.device != recorded->device ||
        found.inode != recorded->inode)
        return refit_fail(err, REFIT_MISMATCH, "not the memory that was recorded");
    return refit_slot_adopt(fd, refit_bank_rank_bytes(bank, rank), bank->protection, out, writable, err);
}
