/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/local_pieces.h"

#include <poll.h>
#include <string.h>

#include "transport/wire.h"

/* Descriptors already numbered, and the packet being filled. */
struct packing {
    int fds[REFIT_LOCAL_FDS_MAX];
    size_t fd_count, fd_sent;
    struct {
        struct refit_frame frame;
        struct refit_local_piece pieces[REFIT_LOCAL_PACKET_PIECES];
    } packet;
};

/* False when the piece has no descriptor, or one too many. */
static bool number_fd(struct packing *packing, int fd, uint64_t *number)
{
    if (fd < 0)
        return false;
    for (size_t i = packing->fd_count; i-- > 0;) {
        if (packing->fds[i] == fd) {
            *number = i;
            return true;
        }
    }
    if (packing->fd_count == REFIT_LOCAL_FDS_MAX)
        return false;
    *number = packing->fd_count;
    packing->fds[packing->fd_count++] = fd;
    return true;
}

bool refit_local_shareable(const struct refit_arena *arena)
{
    struct packing packing = {.fd_count = 1}; /* as if there were a ring */
    packing.fds[0] = -1;
    uint64_t number;
    for (size_t i = 0; i < refit_arena_piece_count(arena); i++) {
        struct refit_piece piece;
        refit_arena_piece_at(arena, i, &piece);
        if (!number_fd(&packing, piece.fd, &number))
            return false;
    }
    return true;
}

static enum refit_status send_packet(int sock, struct packing *packing, int wake, struct refit_deadline deadline,
                                     struct refit_error *err)
{
    size_t len = sizeof packing->packet.frame + packing->packet.frame.length * sizeof packing->packet.pieces[0];
    size_t fresh = packing->fd_count - packing->fd_sent;
    for (;;) {
        enum refit_status status =
            refit_io_send_fds(sock, &packing->packet, len, packing->fds + packing->fd_sent, fresh, err);
        if (status == REFIT_OK)
            packing->fd_sent = packing->fd_count;
        if (status != REFIT_BUSY)
            return status;
        status = refit_wire_wait(sock, POLLOUT, wake, deadline, err);
        if (status != REFIT_OK)
            return status;
    }
}

static bool full(const struct packing *packing)
{
    return packing->packet.frame.length == REFIT_LOCAL_PACKET_PIECES ||
           packing->fd_count - packing->fd_sent == REFIT_IO_FDS_MAX;
}

enum refit_status refit_local_pieces_send(int sock, const struct refit_arena *arena, int ring_fd, unsigned ring_slots,
                                          int wake, struct refit_deadline deadline, struct refit_error *err)
{
    struct packing packing;
    memset(&packing, 0, sizeof packing);
    packing.packet.frame = (struct refit_frame){.type = REFIT_FRAME_PIECES, .destination_rank = ring_slots};
    if (ring_fd >= 0)
        packing.fds[packing.fd_count++] = ring_fd;
    size_t count = refit_arena_piece_count(arena);
    for (size_t i = 0; i < count; i++) {
        struct refit_piece piece;
        uint64_t number;
        refit_arena_piece_at(arena, i, &piece);
        if (!number_fd(&packing, piece.fd, &number))
            continue;
        packing.packet.pieces[packing.packet.frame.length++] = (struct refit_local_piece){
            .offset = piece.offset, .bytes = piece.bytes, .fd_offset = piece.fd_offset, .fd_number = number};
        if (!full(&packing))
            continue;
        packing.packet.frame.batch = 1; /* more follow: at least the last packet */
        enum refit_status status = send_packet(sock, &packing, wake, deadline, err);
        if (status != REFIT_OK)
            return status;
        packing.packet.frame.length = 0;
    }
    packing.packet.frame.batch = 0;
    return send_packet(sock, &packing, wake, deadline, err);
}
