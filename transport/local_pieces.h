/* SPDX-License-Identifier: Apache-2.0
 *
 * How a holder on the same host describes its memory to the receiver: PIECES packets with descriptors.
 *
 *   frame {PIECES, length: pieces in this packet, batch: 1 when another packet follows, argument: ring slots}
 *   struct refit_local_memory: what the memory is of; the same in every packet
 *   per piece: struct refit_local_piece
 *
 * Descriptors are numbered in the order in which they come, over all packets; number 0 is the ring's. Pieces that are
 * ordinary heap are not listed: batches that touch them go through the ring. So does everything of a layout that the
 * receiver does not have. A slot's descriptor is passed read-only; that of a slot on a GPU, which can't be made so, only to a
 * process of the same user.
 */
#ifndef REFIT_TRANSPORT_LOCAL_PIECES_H
#define REFIT_TRANSPORT_LOCAL_PIECES_H

#include "base/io.h"
#include "memory/cuda.h"
#include "transport/frame.h"
#include "transport/view.h"

#define REFIT_LOCAL_FDS_MAX 256          /* of one holder; what lies in further ones goes through the ring */
#define REFIT_LOCAL_PIECES_MAX (1u << 18)
#define REFIT_LOCAL_PACKET_PIECES 256
#define REFIT_LOCAL_DIGESTS 2048         /* in one packet */
#define REFIT_LOCAL_PACKET_MAX (REFIT_FRAME_BYTES + 8 + REFIT_LOCAL_DIGESTS * REFIT_DIGEST_BYTES)
#define REFIT_LOCAL_RING_SLOTS_MAX 8     /* 32 MiB, of which only what is used is there */
#define REFIT_LOCAL_LAYOUT_BYTES 64      /* a layout's digest, in hex */
#define REFIT_LOCAL_RELAY 1u             /* batches may be read only once they were answered */
#define REFIT_LOCAL_LISTED 2u            /* no piece was left out */

struct refit_local_memory {
    uint32_t flags;
    uint32_t side, rank;             /* the scope of the holder's plan */
    uint32_t first_rank, rank_count; /* of a relay */
    uint32_t arenas;
    char layout[REFIT_LOCAL_LAYOUT_BYTES];
};

struct refit_local_piece {
    uint32_t arena, fd_number;
    uint64_t offset, bytes, fd_offset;
    uint8_t device[REFIT_CUDA_UUID_BYTES]; /* the UUID of the GPU whose slot it is, all of the arena; zeros: it is the host's */
};
_Static_assert(sizeof(struct refit_local_memory) == 88 && sizeof(struct refit_local_piece) == 48,
               "both travel as their words");

/* Sends the list, after the ring's descriptor. */
REFIT_MUST_CHECK enum refit_status refit_local_pieces_send(int sock, const struct refit_view *view, bool relay,
                                                           int ring_fd, unsigned ring_slots, int wake,
                                                           struct refit_deadline deadline, struct refit_error *err);

#endif
