/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames: what follows the greeting, in both directions and on both transports. 16 bytes, little-endian:
 *
 *   u32 type, u32 destination rank, u32 batch, u32 length
 *
 *   type     from      meaning of length, and what follows
 *   WELCOME  receiver  0: the greeting was accepted
 *   REFUSED  receiver  bytes of text that follow; batch holds the status
 *   GRANT    receiver  tcp: 0. local: the ring slot to fill plus 1, or 0 when the receiver pulls
 *   DONE     receiver  0: nothing more is needed
 *   DATA     holder    payload bytes that follow, then the trailer: u32 count, count digests of 16 bytes
 *   DIGESTS  holder    (local) digests in this packet; batch as granted, then u32 first, u32 count, the digests
 *   PIECES   holder    (local) see local_pieces.h
 *   BYE      holder    0: the answer to DONE
 */
#ifndef REFIT_TRANSPORT_FRAME_H
#define REFIT_TRANSPORT_FRAME_H

#include <stdint.h>

#include "base/error.h"
#include "memory/ops.h"

#define REFIT_FRAME_BYTES 16
#define REFIT_REFUSAL_MAX 512 /* bytes of text */
#define REFIT_DIGEST_BYTES 16

enum refit_frame_type {
    REFIT_FRAME_WELCOME = 0x4d4c4557, /* "WELM": types are unlikely in random bytes */
    REFIT_FRAME_REFUSED = 0x53464552, /* "REFS" */
    REFIT_FRAME_GRANT = 0x544e5247,   /* "GRNT" */
    REFIT_FRAME_DONE = 0x454e4f44,    /* "DONE" */
    REFIT_FRAME_DATA = 0x41544144,    /* "DATA" */
    REFIT_FRAME_DIGESTS = 0x54534744, /* "DGST" */
    REFIT_FRAME_PIECES = 0x43454950,  /* "PIEC" */
    REFIT_FRAME_BYE = 0x45594223,     /* "#BYE" */
};

struct refit_frame {
    uint32_t type, destination_rank, batch, length;
};
_Static_assert(sizeof(struct refit_frame) == REFIT_FRAME_BYTES, "a frame is its four little-endian words");

/* Digests as they travel: `count` of them starting with segment `first`, into `out`. */
void refit_digests_encode(const struct refit_segments *segments, size_t first, size_t count, uint8_t *out);
/* True when they equal those of the segments from `first` on. */
bool refit_digests_match(const struct refit_segments *segments, size_t first, size_t count, const uint8_t *in);

/* The status a refusal may carry; anything else a peer sends becomes REFIT_PEER. */
enum refit_status refit_refusal_status(uint32_t code);

#endif
