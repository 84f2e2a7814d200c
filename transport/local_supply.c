/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/local_supply.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cursor.h"

/* Newer than the oldest headers this builds with. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

struct refit_local_supply *refit_local_supply_create(void)
{
    struct refit_local_supply *supply = calloc(1, sizeof *supply);
    if (supply)
        supply->references = 1;
    return supply;
}

struct refit_local_supply *refit_local_supply_of(struct refit_plan *plan, struct refit_arena *arena)
{
    struct refit_local_supply *supply = refit_local_supply_create();
    if (!supply)
        return NULL;
    supply->plan = refit_plan_retain(plan);
    supply->arena = refit_arena_retain(arena);
    supply->complete = true;
    return supply;
}

void refit_local_supply_release(struct refit_local_supply *supply)
{
    if (!supply || --supply->references > 0)
        return;
    refit_arena_release(supply->arena);
    refit_plan_release(supply->plan);
    for (size_t i = 0; i < supply->fd_count; i++) {
        if (supply->fds[i].mapping)
            munmap(supply->fds[i].mapping, supply->fds[i].bytes);
        refit_io_close(&supply->fds[i].fd);
    }
    free(supply->pieces);
    free(supply);
}

static enum refit_status add_fds(struct refit_local_supply *supply, const int *fds, size_t fd_count,
                                 struct refit_error *err)
{
    for (size_t i = 0; i < fd_count; i++) {
        int fd = fds[i];
        if (supply->fd_count < REFIT_LOCAL_FDS_MAX)
            supply->fds[supply->fd_count++] = (struct refit_local_source_fd){.fd = fd};
        else
            close(fd);
    }
    return supply->fd_count < REFIT_LOCAL_FDS_MAX
               ? REFIT_OK
               : refit_fail(err, REFIT_PEER, "the holder passed more than %d descriptors", REFIT_LOCAL_FDS_MAX - 1);
}

static bool reserve_pieces(struct refit_local_supply *supply, size_t more)
{
    size_t need = supply->piece_count + more;
    if (need <= supply->piece_capacity)
        return true;
    size_t capacity = need > 2 * supply->piece_capacity ? need : 2 * supply->piece_capacity;
    struct refit_local_piece *pieces = reallocarray(supply->pieces, capacity, sizeof *pieces);
    if (!pieces)
        return false;
    supply->pieces = pieces;
    supply->piece_capacity = capacity;
    return true;
}

enum refit_status refit_local_supply_add(struct refit_local_supply *supply, const void *packet, size_t len,
                                         const int *fds, size_t fd_count, bool *more, struct refit_error *err)
{
    enum refit_status status = add_fds(supply, fds, fd_count, err);
    if (status != REFIT_OK)
        return status;
    struct refit_cursor at = refit_cursor_over(packet, len);
    uint32_t type = refit_cursor_u32(&at);
    uint32_t ring_slots = refit_cursor_u32(&at);
    *more = refit_cursor_u32(&at) != 0;
    uint32_t count = refit_cursor_u32(&at);
    if (at.failed || type != REFIT_FRAME_PIECES || ring_slots > REFIT_LOCAL_RING_SLOTS_MAX ||
        count > REFIT_LOCAL_PACKET_PIECES || refit_cursor_left(&at) != count * sizeof *supply->pieces)
        return refit_fail(err, REFIT_PEER, "the holder's list of pieces is malformed");
    if (supply->piece_count + count > REFIT_LOCAL_PIECES_MAX)
        return refit_fail(err, REFIT_PEER, "the holder lists more than %u pieces", REFIT_LOCAL_PIECES_MAX);
    if (!reserve_pieces(supply, count))
        return refit_fail_alloc(err, "a holder's pieces", count * sizeof *supply->pieces);
    supply->ring_slots = ring_slots;
    if (count > 0)
        memcpy(supply->pieces + supply->piece_count, refit_cursor_bytes(&at, count * sizeof *supply->pieces),
               count * sizeof *supply->pieces);
    supply->piece_count += count;
    return REFIT_OK;
}

static bool sealed(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK);
}

static enum refit_status examine_fd(struct refit_local_source_fd *source, bool *mappable, struct refit_error *err)
{
    struct stat st;
    if (fstat(source->fd, &st) != 0)
        return refit_fail_errno(err, errno, "a descriptor that the holder passed");
    if (!S_ISREG(st.st_mode))
        return refit_fail(err, REFIT_PEER, "the holder passed a descriptor that is neither a memfd nor a regular file");
    source->bytes = (uint64_t)st.st_size;
    *mappable = sealed(source->fd) && source->bytes > 0;
    return REFIT_OK;
}

static enum refit_status map_fd(struct refit_local_source_fd *source, struct refit_error *err)
{
    void *mapping = mmap(NULL, source->bytes, PROT_READ, MAP_SHARED, source->fd, 0);
    if (mapping == MAP_FAILED)
        return refit_fail_errno(err, errno, "mapping %llu bytes of the holder", (unsigned long long)source->bytes);
    source->mapping = mapping;
    return REFIT_OK;
}

static enum refit_status map_ring(struct refit_local_supply *supply, struct refit_error *err)
{
    struct refit_local_source_fd *ring = &supply->fds[0];
    bool mappable = false;
    if (supply->fd_count == 0)
        return refit_fail(err, REFIT_PEER, "the holder announced a ring and passed none");
    enum refit_status status = examine_fd(ring, &mappable, err);
    if (status != REFIT_OK)
        return status;
    if (!mappable || ring->bytes != (uint64_t)supply->ring_slots * REFIT_BATCH_BYTES)
        return refit_fail(err, REFIT_PEER, "the holder's ring has %llu bytes, %s; expected %u sealed slots of %u",
                          (unsigned long long)ring->bytes, mappable ? "sealed" : "not sealed", supply->ring_slots,
                          REFIT_BATCH_BYTES);
    status = map_fd(ring, err);
    supply->ring = ring->mapping;
    return status;
}

/* All descriptors of the arena can be mapped, and then are. */
static enum refit_status map_sources(struct refit_local_supply *supply, bool *mapped, struct refit_error *err)
{
    size_t first = supply->ring ? 1 : 0;
    *mapped = true;
    for (size_t i = first; i < supply->fd_count; i++) {
        bool mappable;
        enum refit_status status = examine_fd(&supply->fds[i], &mappable, err);
        if (status != REFIT_OK)
            return status;
        *mapped = *mapped && mappable;
    }
    for (size_t i = first; i < supply->fd_count && *mapped; i++) {
        enum refit_status status = map_fd(&supply->fds[i], err);
        if (status != REFIT_OK)
            return status;
    }
    return REFIT_OK;
}

static enum refit_status bind_piece(struct refit_local_supply *supply, const struct refit_local_piece *piece,
                                    uint32_t rank, struct refit_error *err)
{
    char what[64];
    uint64_t end;
    size_t first = supply->ring ? 1 : 0;
    if (piece->fd_number < first || piece->fd_number >= supply->fd_count)
        return refit_fail(err, REFIT_PEER, "the holder names descriptor %llu and passed %zu",
                          (unsigned long long)piece->fd_number, supply->fd_count);
    struct refit_local_source_fd *source = &supply->fds[piece->fd_number];
    if (__builtin_add_overflow(piece->fd_offset, piece->bytes, &end) || end > source->bytes)
        return refit_fail(err, REFIT_PEER,
                          "a piece of %llu bytes at %llu lies outside the %llu bytes of its descriptor",
                          (unsigned long long)piece->bytes, (unsigned long long)piece->fd_offset,
                          (unsigned long long)source->bytes);
    if (source->mapping)
        return refit_arena_bind_host(supply->arena, piece->offset, (uint8_t *)source->mapping + piece->fd_offset,
                                     piece->bytes, -1, 0, err);
    snprintf(what, sizeof what, "memory of source rank %u", rank);
    return refit_arena_bind_file(supply->arena, piece->offset, source->fd, piece->fd_offset, piece->bytes, what, err);
}

enum refit_status refit_local_supply_build(struct refit_local_supply *supply, uint32_t rank,
                                           const struct refit_plan *receiver_plan, struct refit_error *err)
{
    struct refit_layout *source = refit_plan_source(receiver_plan);
    struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = rank};
    bool mapped;
    enum refit_status status = supply->ring_slots > 0 ? map_ring(supply, err) : REFIT_OK;
    if (status == REFIT_OK)
        status = map_sources(supply, &mapped, err);
    if (status == REFIT_OK)
        status = refit_arena_create(mapped ? REFIT_ARENA_HOST : REFIT_ARENA_FILE,
                                    refit_layout_arena_bytes(source, rank), &supply->arena, err);
    for (size_t i = 0; i < supply->piece_count && status == REFIT_OK; i++)
        status = bind_piece(supply, &supply->pieces[i], rank, err);
    if (status == REFIT_OK)
        status = refit_plan_build(source, refit_plan_destination(receiver_plan), scope, &supply->plan, err);
    supply->complete = supply->ring_slots == 0;
    free(supply->pieces);
    supply->pieces = NULL;
    return status;
}

/* Over a fresh mapping, faults of 16 pages each take a third as long as the copy; one call for all takes a quarter less.
 * Where the kernel lacks the call (before 5.14) the faults do it. */
static bool populate(const struct refit_arena *arena, uint64_t offset, uint64_t bytes)
{
    struct refit_piece piece;
    if (!refit_arena_piece(arena, offset, &piece) || !piece.host)
        return false;
    uint64_t fit = piece.offset + piece.bytes - offset;
    uintptr_t first = (uintptr_t)piece.host + (offset - piece.offset);
    uintptr_t page = first & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    return madvise((void *)page, first - page + (bytes < fit ? bytes : fit), MADV_POPULATE_READ) == 0;
}

/* Rows are left to the faults: the pages between them may not be wanted, and those that two destinations share would be
 * looked at twice. */
void refit_local_supply_populate(const struct refit_local_supply *supply, struct refit_walk walk)
{
    struct refit_strip strip;
    if (refit_arena_kind(supply->arena) != REFIT_ARENA_HOST || supply->piece_count == 0)
        return;
    while (refit_walk_next(&walk, UINT64_MAX, &strip))
        if (strip.count == 1 && !populate(supply->arena, strip.offset, strip.run_bytes))
            return;
}
