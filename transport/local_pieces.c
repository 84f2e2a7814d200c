/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/local_pieces.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "memory/slot.h"
#include "transport/wire.h"

/* Descriptors already numbered, and the packet being filled. */
struct packing {
    int keys[REFIT_LOCAL_FDS_MAX]; /* as the arenas have them */
    int fds[REFIT_LOCAL_FDS_MAX];  /* as they are passed */
    bool owned[REFIT_LOCAL_FDS_MAX];
    size_t fd_count, fd_sent;
    int sock, wake;
    bool same_user; /* as the receiver */
    struct refit_deadline deadline;
    struct {
        struct refit_frame frame;
        struct refit_local_memory memory;
        struct refit_local_piece pieces[REFIT_LOCAL_PACKET_PIECES];
    } packet;
};

/* False when the piece has no descriptor, or one too many. */
static bool number_fd(struct packing *packing, const struct refit_arena *arena, int fd, uint32_t *number)
{
    int exported;
    if (fd < 0)
        return false;
    for (size_t i = packing->fd_count; i-- > 0;) {
        if (packing->keys[i] == fd) {
            *number = (uint32_t)i;
            return true;
        }
    }
    if (packing->fd_count == REFIT_LOCAL_FDS_MAX)
        return false;
    *number = (uint32_t)packing->fd_count++;
    packing->keys[*number] = fd;
    /* A slot is opened again for reading only; other memory is as its owner registered it. */
    packing->owned[*number] = refit_slot_export(arena, &exported, NULL) == REFIT_OK;
    packing->fds[*number] = packing->owned[*number] ? exported : fd;
    return true;
}

static enum refit_status send_packet(struct packing *packing, struct refit_error *err)
{
    size_t len = sizeof packing->packet.frame + sizeof packing->packet.memory +
                 packing->packet.frame.length * sizeof packing->packet.pieces[0];
    size_t fresh = packing->fd_count - packing->fd_sent;
    for (;;) {
        enum refit_status status =
            refit_io_send_fds(packing->sock, &packing->packet, len, packing->fds + packing->fd_sent, fresh, err);
        if (status == REFIT_OK)
            packing->fd_sent = packing->fd_count;
        if (status != REFIT_BUSY)
            return status;
        status = refit_wire_wait(packing->sock, POLLOUT, packing->wake, packing->deadline, err);
        if (status != REFIT_OK)
            return status;
    }
}

static bool full(const struct packing *packing)
{
    return packing->packet.frame.length == REFIT_LOCAL_PACKET_PIECES ||
           packing->fd_count - packing->fd_sent == REFIT_IO_FDS_MAX;
}

/* A GPU's descriptor is as good for writing as for reading, whoever has it. It is passed to whom could read and write this
 * process's memory anyway; everybody else gets the bytes by the ring. */
static bool is_same_user(int sock)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.uid == geteuid();
}

/* The descriptor that the receiver may have of the piece; -1: none. */
static int shared_fd(const struct packing *packing, const struct refit_arena *arena, const struct refit_piece *piece)
{
    return refit_arena_kind(arena) != REFIT_ARENA_CUDA || packing->same_user ? piece->fd : -1;
}

static void describe_piece(const struct refit_arena *arena, const struct refit_piece *piece,
                           struct refit_local_piece *out)
{
    struct refit_cuda_slot_info info;
    out->offset = piece->offset;
    out->bytes = piece->bytes;
    out->fd_offset = piece->fd_offset;
    memset(out->device, 0, sizeof out->device);
    if (refit_arena_kind(arena) != REFIT_ARENA_CUDA)
        return;
    refit_cuda_slot_info(arena, &info); /* it has a descriptor, so it is a slot */
    memcpy(out->device, info.uuid, sizeof out->device);
}

static enum refit_status send_arena(struct packing *packing, const struct refit_arena *arena, uint32_t index,
                                    struct refit_error *err)
{
    size_t count = refit_arena_piece_count(arena);
    for (size_t i = 0; i < count; i++) {
        struct refit_piece piece;
        uint32_t number;
        refit_arena_piece_at(arena, i, &piece);
        if (!number_fd(packing, arena, shared_fd(packing, arena, &piece), &number)) {
            packing->packet.memory.flags &= ~REFIT_LOCAL_LISTED;
            continue;
        }
        struct refit_local_piece *listed = &packing->packet.pieces[packing->packet.frame.length++];
        listed->arena = index;
        listed->fd_number = number;
        describe_piece(arena, &piece, listed);
        if (!full(packing))
            continue;
        packing->packet.frame.batch = 1; /* more follow: at least the last packet */
        enum refit_status status = send_packet(packing, err);
        if (status != REFIT_OK)
            return status;
        packing->packet.frame.length = 0;
    }
    return REFIT_OK;
}

static void describe(const struct refit_view *view, bool relay, struct refit_local_memory *memory)
{
    const struct refit_plan *plan = view->plan;
    bool source = view->side == REFIT_SOURCE;
    *memory = (struct refit_local_memory){.flags = REFIT_LOCAL_LISTED | (relay ? REFIT_LOCAL_RELAY : 0),
                                          .side = source ? REFIT_SOURCE : REFIT_DESTINATION,
                                          .rank = view->rank,
                                          .first_rank = refit_plan_first_rank(plan),
                                          .rank_count = refit_plan_rank_count(plan),
                                          .arenas = (uint32_t)view->arena_count};
    memcpy(memory->layout, refit_layout_digest(source ? refit_plan_source(plan) : refit_plan_destination(plan)),
           sizeof memory->layout);
}

enum refit_status refit_local_pieces_send(int sock, const struct refit_view *view, bool relay, int ring_fd,
                                          unsigned ring_slots, int wake, struct refit_deadline deadline,
                                          struct refit_error *err)
{
    struct packing *packing = calloc(1, sizeof *packing);
    if (!packing)
        return refit_fail_alloc(err, "a list of pieces", sizeof *packing);
    packing->sock = sock;
    packing->same_user = is_same_user(sock);
    packing->wake = wake;
    packing->deadline = deadline;
    packing->packet.frame = (struct refit_frame){.type = REFIT_FRAME_PIECES, .argument = ring_slots};
    describe(view, relay, &packing->packet.memory);
    packing->keys[0] = packing->fds[0] = ring_fd;
    packing->fd_count = 1;
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < view->arena_count && status == REFIT_OK; i++)
        if (view->arenas[i])
            status = send_arena(packing, view->arenas[i], (uint32_t)i, err);
    packing->packet.frame.batch = 0;
    if (status == REFIT_OK)
        status = send_packet(packing, err);
    for (size_t i = 0; i < packing->fd_count; i++)
        if (packing->owned[i])
            refit_io_close(&packing->fds[i]);
    free(packing);
    return status;
}
