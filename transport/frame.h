/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames: what follows the greeting, in both directions and on both transports. 24 bytes, little-endian:
 *
 *   u32 type, u32 length, u64 edge digest, u32 batch, u32 argument
 *
 *   type     from      meaning, and what follows
 *   WELCOME  receiver  the greeting was accepted
 *   REFUSED  receiver  `length` bytes of text follow; argument: the status
 *   GRANT    receiver  edge, batch. local: argument is the ring slot to fill plus 1, or 0 when the receiver pulls
 *   DONE     receiver  nothing more is needed
 *   DATA     holder    edge, batch; `length` payload bytes follow, then the trailer: u32 count, count digests of 16
 * bytes
 *   DIGESTS  holder    (local) edge, batch; `length` digests in this packet, after u32 first, u32 total
 *   PIECES   holder    (local) see local_pieces.h
 *   ALIVE    holder    a sign of life: something is owed (nccl: of the receiver, too, while a group is under way)
 *   BYE      holder    the answer to DONE
 *
 * Over nccl alone (nccl_wire.h); `edge` is the communicator's tag, but in READY and DIGESTS:
 *   HELLO    holder    its version of NCCL and its devices; answered as a greeting is. argument 1: it can reshard with the
 *                      library that the card names, and `batch` is its source rank
 *   READY    holder    edge, batch: may be asked for in a GO; argument: the device it lies on, by HELLO's list
 *   GO       receiver  `batch` batches are to be sent, in this order: a group
 *   STARTED  holder    the device's turn is taken, for this group and those until PAUSE
 *   DENIED   holder    nothing was begun; argument: enum refit_denial
 *   FREE     holder    a turn that was denied may be free now
 *   PAUSE    receiver  no further group for now; the turn is given back once all are sent
 *   SHARD    receiver  asks for the device's turn, for a reshard of `batch` ranks; STARTED or DENIED, then RUN or PAUSE
 *   RUN      receiver  all ranks have their turn: go
 *   RAN      holder    this rank is through; argument: 0, or a status. PAUSE follows: all are, or it is given up
 *   DIGESTS  holder    edge, batch: all is with NCCL and has left; `length` bytes of digests of 16
 *
 * `length` is 0 where nothing follows.
 */
#ifndef REFIT_TRANSPORT_FRAME_H
#define REFIT_TRANSPORT_FRAME_H

#include <stdint.h>

#include "base/error.h"
#include "memory/ops.h"

#define REFIT_FRAME_BYTES 24
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
    REFIT_FRAME_ALIVE = 0x56494c41,   /* "ALIV" */
    REFIT_FRAME_BYE = 0x45594223,     /* "#BYE" */
    REFIT_FRAME_HELLO = 0x4f4c4c48,   /* "HLLO" */
    REFIT_FRAME_READY = 0x59444552,   /* "REDY" */
    REFIT_FRAME_GO = 0x214f4723,      /* "#GO!" */
    REFIT_FRAME_STARTED = 0x54525453, /* "STRT" */
    REFIT_FRAME_DENIED = 0x594e4544,  /* "DENY" */
    REFIT_FRAME_FREE = 0x45455246,    /* "FREE" */
    REFIT_FRAME_PAUSE = 0x53554150,   /* "PAUS" */
    REFIT_FRAME_SHARD = 0x44524853,   /* "SHRD" */
    REFIT_FRAME_RUN = 0x214e5552,     /* "RUN!" */
    REFIT_FRAME_RAN = 0x234e4152,     /* "RAN#" */
};

struct refit_frame {
    uint32_t type, length;
    uint64_t edge;
    uint32_t batch, argument;
};
_Static_assert(sizeof(struct refit_frame) == REFIT_FRAME_BYTES, "a frame travels as its little-endian fields");

/* Digests as they travel: `count` of them starting with segment `first`, into `out`. */
void refit_digests_encode(const struct refit_segments *segments, size_t first, size_t count, uint8_t *out);
/* True when they equal those of the segments from `first` on. */
bool refit_digests_match(const struct refit_segments *segments, size_t first, size_t count, const uint8_t *in);

/* The status a refusal may carry; anything else a peer sends becomes REFIT_PEER. */
enum refit_status refit_refusal_status(uint32_t code);

/* Never waits. False when it did not fit into the socket's buffer, and so when the connection is not worth keeping. */
bool refit_frame_post(int fd, const struct refit_frame *frame);
static inline bool refit_frame_post_type(int fd, enum refit_frame_type type)
{
    return refit_frame_post(fd, &(struct refit_frame){.type = type});
}

#endif
