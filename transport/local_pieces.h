/* SPDX-License-Identifier: Apache-2.0
 *
 * How a holder on the same host describes its memory to the receiver: PIECES packets with descriptors.
 *
 *   frame {PIECES, ring slots, 1 when another packet follows, pieces in this packet}
 *   per piece: u64 offset in the arena space, u64 bytes, u64 offset in the descriptor, u64 descriptor number
 *
 * Descriptors are numbered in the order in which they come, over all packets. With ring slots, number 0 is the ring's.
 * Pieces that are ordinary heap are not listed: batches that touch them go through the ring.
 */
#ifndef REFIT_TRANSPORT_LOCAL_PIECES_H
#define REFIT_TRANSPORT_LOCAL_PIECES_H

#include "base/io.h"
#include "transport/frame.h"

#define REFIT_LOCAL_FDS_MAX 256          /* of one holder; what lies in further ones goes through the ring */
#define REFIT_LOCAL_PIECES_MAX (1u << 18)
#define REFIT_LOCAL_PACKET_PIECES 256
#define REFIT_LOCAL_PIECE_BYTES 32
#define REFIT_LOCAL_DIGESTS 2048         /* in one packet */
#define REFIT_LOCAL_PACKET_MAX (REFIT_FRAME_BYTES + 8 + REFIT_LOCAL_DIGESTS * REFIT_DIGEST_BYTES)
#define REFIT_LOCAL_RING_SLOTS_MAX 8 /* 32 MiB */

struct refit_local_piece {
    uint64_t offset, bytes, fd_offset, fd_number;
};
_Static_assert(sizeof(struct refit_local_piece) == REFIT_LOCAL_PIECE_BYTES, "a piece travels as its four words");

/* True when the whole arena can be handed over by descriptor. */
bool refit_local_shareable(const struct refit_arena *arena);
/* Sends the list; ring_fd -1: no ring. */
REFIT_MUST_CHECK enum refit_status refit_local_pieces_send(int sock, const struct refit_arena *arena, int ring_fd,
                                                           unsigned ring_slots, int wake,
                                                           struct refit_deadline deadline, struct refit_error *err);

#endif
