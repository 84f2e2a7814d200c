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
#include "base/log.h"
#include "transport/local_device.h"
#include "transport/window.h"

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

static bool reserve_arenas(struct refit_local_supply *supply, size_t count)
{
    supply->arenas = calloc(count + 1, sizeof(struct refit_arena *));
    supply->view.arenas = supply->arenas;
    supply->view.arena_count = supply->arenas ? count : 0;
    return supply->arenas != NULL;
}

struct refit_local_supply *refit_local_supply_of(const struct refit_view *view)
{
    struct refit_local_supply *supply = refit_local_supply_create();
    if (!supply || !reserve_arenas(supply, view->arena_count)) {
        refit_local_supply_release(supply);
        return NULL;
    }
    supply->view.plan = refit_plan_retain(refit_plan_mutable(view->plan));
    supply->view.side = view->side;
    supply->view.rank = view->rank;
    for (size_t i = 0; i < view->arena_count; i++)
        supply->arenas[i] = view->arenas[i] ? refit_arena_retain(view->arenas[i]) : NULL;
    supply->listed = true;
    return supply;
}

void refit_local_supply_release(struct refit_local_supply *supply)
{
    if (!supply || --supply->references > 0)
        return;
    for (size_t i = 0; i < supply->view.arena_count; i++)
        refit_arena_release(supply->arenas[i]);
    free(supply->arenas);
    refit_plan_release(refit_plan_mutable(supply->view.plan));
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
    struct refit_frame frame = {.type = 0};
    struct refit_cursor at = refit_cursor_over(packet, len);
    const uint8_t *head = refit_cursor_bytes(&at, sizeof frame);
    const uint8_t *memory = refit_cursor_bytes(&at, sizeof supply->memory);
    if (head)
        memcpy(&frame, head, sizeof frame);
    if (at.failed || frame.type != REFIT_FRAME_PIECES || frame.argument > REFIT_LOCAL_RING_SLOTS_MAX ||
        frame.argument == 0 || frame.length > REFIT_LOCAL_PACKET_PIECES ||
        refit_cursor_left(&at) != frame.length * sizeof *supply->pieces)
        return refit_fail(err, REFIT_PEER, "the holder's list of pieces is malformed");
    if (supply->piece_count + frame.length > REFIT_LOCAL_PIECES_MAX)
        return refit_fail(err, REFIT_PEER, "the holder lists more than %u pieces", REFIT_LOCAL_PIECES_MAX);
    if (!reserve_pieces(supply, frame.length))
        return refit_fail_alloc(err, "a holder's pieces", frame.length * sizeof *supply->pieces);
    memcpy(&supply->memory, memory, sizeof supply->memory);
    supply->ring_slots = frame.argument;
    if (frame.length > 0)
        memcpy(supply->pieces + supply->piece_count, refit_cursor_bytes(&at, frame.length * sizeof *supply->pieces),
               frame.length * sizeof *supply->pieces);
    supply->piece_count += frame.length;
    *more = frame.batch != 0;
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
        return refit_fail(err, REFIT_PEER, "the holder passed no ring");
    enum refit_status status = examine_fd(ring, &mappable, err);
    if (status != REFIT_OK)
        return status;
    if (!mappable || ring->bytes != (uint64_t)supply->ring_slots * REFIT_BATCH_BYTES_MAX)
        return refit_fail(err, REFIT_PEER, "the holder's ring has %llu bytes, %s; expected %u sealed slots of %u",
                          (unsigned long long)ring->bytes, mappable ? "sealed" : "not sealed", supply->ring_slots,
                          REFIT_BATCH_BYTES_MAX);
    status = map_fd(ring, err);
    supply->ring = ring->mapping;
    return status;
}

/* All descriptors of the arena can be mapped, and then are. */
static enum refit_status map_sources(struct refit_local_supply *supply, bool *mapped, struct refit_error *err)
{
    *mapped = true;
    for (size_t i = 1; i < supply->fd_count; i++) {
        bool mappable;
        if (supply->fds[i].of_device)
            continue;
        enum refit_status status = examine_fd(&supply->fds[i], &mappable, err);
        if (status != REFIT_OK)
            return status;
        *mapped = *mapped && mappable;
    }
    for (size_t i = 1; i < supply->fd_count && *mapped; i++) {
        enum refit_status status = supply->fds[i].of_device ? REFIT_OK : map_fd(&supply->fds[i], err);
        if (status != REFIT_OK)
            return status;
    }
    return REFIT_OK;
}

/* Host memory and a file's. */
static enum refit_status bind_range(struct refit_local_supply *supply, const struct refit_local_piece *piece,
                                    struct refit_error *err)
{
    char what[64];
    uint64_t end;
    struct refit_local_source_fd *source = &supply->fds[piece->fd_number];
    if (source->of_device)
        return refit_fail(err, REFIT_PEER, "the holder says of descriptor %u that it is a GPU's and that it is the host's",
                          piece->fd_number);
    if (__builtin_add_overflow(piece->fd_offset, piece->bytes, &end) || end > source->bytes)
        return refit_fail(err, REFIT_PEER,
                          "a piece of %llu bytes at %llu lies outside the %llu bytes of its descriptor",
                          (unsigned long long)piece->bytes, (unsigned long long)piece->fd_offset,
                          (unsigned long long)source->bytes);
    struct refit_arena *arena = supply->arenas[piece->arena];
    uint64_t space = refit_arena_bytes(arena), bytes = piece->bytes;
    /* A slot is whole pages, and so longer than the rank's space. */
    if (piece->offset <= space && bytes > space - piece->offset)
        bytes = space - piece->offset;
    if (source->mapping)
        return refit_arena_bind_host(arena, piece->offset, (uint8_t *)source->mapping + piece->fd_offset, bytes, -1, 0,
                                     err);
    snprintf(what, sizeof what, "memory of a holder, arena %u", piece->arena);
    return refit_arena_bind_file(arena, piece->offset, source->fd, piece->fd_offset, bytes, what, err);
}

/* The arena becomes the slot. One that can't be opened here stays empty, and its batches go through the ring. */
static enum refit_status bind_slot(struct refit_local_supply *supply, const struct refit_local_piece *piece,
                                   const struct refit_endpoint_config *receiver, struct refit_error *err)
{
    struct refit_arena **arena = &supply->arenas[piece->arena], *slot;
    struct refit_error why;
    if (refit_arena_piece_count(*arena) > 0 || piece->offset != 0 || piece->fd_offset != 0 ||
        piece->bytes < refit_arena_bytes(*arena))
        return refit_fail(err, REFIT_PEER, "the holder lists a part of a GPU's slot, %llu bytes at %llu of arena %u",
                          (unsigned long long)piece->bytes, (unsigned long long)piece->offset, piece->arena);
    if (refit_local_device_open(piece, supply->fds[piece->fd_number].fd, receiver, &slot, &why) != REFIT_OK) {
        refit_log_limited(REFIT_LOG_INFO, "a holder's GPU is out of reach, its bytes go through host memory",
                          refit_log_text("refit", receiver->refit_id), REFIT_LOG_CAUSE(&why));
        supply->memory.flags &= ~REFIT_LOCAL_LISTED;
        return REFIT_OK;
    }
    refit_arena_release(*arena);
    *arena = slot;
    return REFIT_OK;
}

static enum refit_status bind_piece(struct refit_local_supply *supply, const struct refit_local_piece *piece,
                                    const struct refit_endpoint_config *receiver, struct refit_error *err)
{
    if (piece->arena >= supply->view.arena_count || !supply->arenas[piece->arena])
        return refit_fail(err, REFIT_PEER, "the holder names arena %u of %zu", piece->arena, supply->view.arena_count);
    if (piece->fd_number < 1 || piece->fd_number >= supply->fd_count)
        return refit_fail(err, REFIT_PEER, "the holder names descriptor %u and passed %zu", piece->fd_number,
                          supply->fd_count);
    return refit_local_of_device(piece) ? bind_slot(supply, piece, receiver, err) : bind_range(supply, piece, err);
}

/* The plan over the holder's memory, where its layout is one of ours; none: *plan stays NULL. */
static enum refit_status plan_view(struct refit_local_supply *supply, struct refit_plan *ours, struct refit_plan **plan,
                                   struct refit_error *err)
{
    const struct refit_local_memory *memory = &supply->memory;
    struct refit_plan_scope scope = refit_plan_scope_of(ours);
    struct refit_layout *layout =
        memory->side == REFIT_SOURCE ? refit_plan_source(ours) : refit_plan_destination(ours);
    if (memcmp(memory->layout, refit_layout_digest(layout), sizeof memory->layout) != 0)
        return REFIT_OK;
    if (memory->side == REFIT_DESTINATION) {
        if (memory->first_rank == scope.first_rank && memory->rank_count == scope.rank_count)
            *plan = refit_plan_retain(ours);
        return REFIT_OK;
    }
    if (memory->rank != REFIT_ALL_RANKS && memory->rank >= refit_layout_ranks(layout))
        return refit_fail(err, REFIT_MISMATCH, "source rank %u offered, the source layout has %u ranks", memory->rank,
                          refit_layout_ranks(layout));
    scope.side = REFIT_SOURCE;
    scope.rank = memory->rank;
    return refit_plan_build(layout, refit_plan_destination(ours), scope, plan, err);
}

/* The rank whose memory arena `index` of the view is. */
static uint32_t rank_of(const struct refit_local_memory *memory, size_t index)
{
    if (memory->side == REFIT_DESTINATION)
        return memory->first_rank + (uint32_t)index;
    return memory->rank == REFIT_ALL_RANKS ? (uint32_t)index : memory->rank;
}

static enum refit_status create_arenas(struct refit_local_supply *supply, const struct refit_plan *plan, bool mapped,
                                       struct refit_error *err)
{
    const struct refit_local_memory *memory = &supply->memory;
    struct refit_layout *layout = memory->side == REFIT_SOURCE ? refit_plan_source(plan) : refit_plan_destination(plan);
    size_t count = memory->side == REFIT_DESTINATION ? memory->rank_count
                   : memory->rank == REFIT_ALL_RANKS ? refit_layout_ranks(layout)
                                                     : 1;
    if (memory->arenas != count)
        return refit_fail(err, REFIT_PEER, "the holder lists %u arenas of %zu ranks", memory->arenas, count);
    if (!reserve_arenas(supply, count))
        return refit_fail_alloc(err, "a holder's arenas", count * sizeof(struct refit_arena *));
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < count && status == REFIT_OK; i++)
        status = refit_arena_create(mapped ? REFIT_ARENA_HOST : REFIT_ARENA_FILE,
                                    refit_layout_arena_bytes(layout, rank_of(memory, i)), &supply->arenas[i], err);
    return status;
}

/* A GPU's descriptor is no file. */
static void mark_devices(struct refit_local_supply *supply)
{
    for (size_t i = 0; i < supply->piece_count; i++)
        if (refit_local_of_device(&supply->pieces[i]) && supply->pieces[i].fd_number < supply->fd_count)
            supply->fds[supply->pieces[i].fd_number].of_device = true;
}

static enum refit_status bind(struct refit_local_supply *supply, const struct refit_plan *plan,
                              const struct refit_endpoint_config *receiver, struct refit_error *err)
{
    bool mapped;
    mark_devices(supply);
    enum refit_status status = map_sources(supply, &mapped, err);
    if (status == REFIT_OK)
        status = create_arenas(supply, plan, mapped, err);
    for (size_t i = 0; i < supply->piece_count && status == REFIT_OK; i++)
        status = bind_piece(supply, &supply->pieces[i], receiver, err);
    return status;
}

enum refit_status refit_local_supply_build(struct refit_local_supply *supply,
                                           const struct refit_endpoint_config *receiver, struct refit_error *err)
{
    const struct refit_local_memory *memory = &supply->memory;
    struct refit_plan *plan = NULL;
    enum refit_status status = map_ring(supply, err);
    if (status == REFIT_OK && memory->side != REFIT_SOURCE && memory->side != REFIT_DESTINATION)
        status = refit_fail(err, REFIT_PEER, "the holder's list of pieces is of no side");
    if (status == REFIT_OK)
        status = plan_view(supply, refit_plan_mutable(receiver->plan), &plan, err);
    if (status == REFIT_OK && plan)
        status = bind(supply, plan, receiver, err);
    supply->view.plan = plan;
    supply->view.side = memory->side == REFIT_SOURCE ? REFIT_SOURCE : REFIT_DESTINATION;
    supply->view.rank = memory->rank;
    supply->listed = memory->flags & REFIT_LOCAL_LISTED;
    supply->relay = memory->flags & REFIT_LOCAL_RELAY;
    free(supply->pieces);
    supply->pieces = NULL;
    return status;
}

bool refit_local_supply_window(const struct refit_local_supply *supply, const struct refit_edge *edge, uint32_t batch,
                               const struct refit_arena **arena, struct refit_walk *walk)
{
    /* Looked up anew, since the view's plan need not be the receiver's. */
    const struct refit_edge *there = supply->view.plan ? refit_plan_edge(supply->view.plan, edge->digest) : NULL;
    return there && refit_view_window(&supply->view, there, batch, arena, walk) &&
           (supply->listed || refit_window_bound(*arena, *walk));
}

/* Over a fresh mapping, faults of 16 pages each take a third as long as the copy; one call for all takes a quarter
 * less. Where the kernel lacks the call (before 5.14) the faults do it. */
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
void refit_local_supply_populate(const struct refit_local_supply *supply, const struct refit_arena *arena,
                                 struct refit_walk walk)
{
    struct refit_strip strip;
    if (refit_arena_kind(arena) != REFIT_ARENA_HOST || supply->piece_count == 0)
        return;
    while (refit_walk_next(&walk, UINT64_MAX, &strip))
        if (strip.count == 1 && !populate(arena, strip.offset, strip.run_bytes))
            return;
}
