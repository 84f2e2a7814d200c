/* SPDX-License-Identifier: Apache-2.0
 *
 * What refitd and an engine that receives for it say to each other: one message per packet, of fixed size, with bytes and
 * descriptors behind some. Both are on one host and of one release.
 *
 *   to the engine   OPEN     struct refit_remote_open; source and destination layout, slot [, what is wanted]
 *                   ADMIT    holder, argument: how many edges it offers; its connection, a memfd with their digests
 *                   POST     holder, edge, batch
 *                   DROP     holder
 *                   FINISH   all is landed
 *                   CLOSE    answered by CLOSED, as the last
 *   from it         OPENED   argument: status, value[0]: the plan's class; text when it failed
 *                   STATE    holder, argument: REFIT_REMOTE_CONNECTED, value[0]: ns since it was heard
 *                   DIGESTS  edge, batch, argument: the first segment; digests of 16 bytes
 *                   ENDED    holder, edge, batch, argument: status; of a batch, after its digests
 *                   DROPPED  holder: nothing of it lands any more, and all it owed has ENDED
 *                   ALIVE    value: payload, wire, copied bytes so far
 *                   CLOSED   nothing is written any more, and the slot is not mapped for that
 */
#ifndef REFIT_TRANSPORT_REMOTE_WIRE_H
#define REFIT_TRANSPORT_REMOTE_WIRE_H

#include "base/json.h"
#include "memory/cuda.h"
#include "transport/endpoint.h"

#define REFIT_REMOTE_VERSION 1
#define REFIT_REMOTE_DIGESTS_MAX 1024 /* of a message */
#define REFIT_REMOTE_PAYLOAD_MAX (REFIT_REMOTE_DIGESTS_MAX * 16)
#define REFIT_REMOTE_FDS_MAX 4
#define REFIT_REMOTE_CONNECTED 1u

enum refit_remote_type {
    REFIT_REMOTE_OPEN = 1, REFIT_REMOTE_ADMIT, REFIT_REMOTE_POST, REFIT_REMOTE_DROP, REFIT_REMOTE_FINISH,
    REFIT_REMOTE_CLOSE, REFIT_REMOTE_OPENED, REFIT_REMOTE_STATE, REFIT_REMOTE_DIGESTS, REFIT_REMOTE_ENDED,
    REFIT_REMOTE_DROPPED, REFIT_REMOTE_ALIVE, REFIT_REMOTE_CLOSED
};

struct refit_remote_message {
    uint32_t type, holder;
    uint64_t edge;
    uint32_t batch, argument;
    uint64_t value[3];
};
_Static_assert(sizeof(struct refit_remote_message) == 48, "messages have no padding");

struct refit_remote_open {
    uint32_t version;
    uint32_t rank, first_rank, rank_count; /* its own, and those planned for */
    uint32_t holders, patience_ms;
    uint32_t verify, wanted; /* 0 or 1 */
    uint64_t rate, bytes;    /* per second; of the slot */
    int32_t nice;
    uint8_t uuid[REFIT_CUDA_UUID_BYTES], id[REFIT_CUDA_ID_BYTES]; /* of the device, of the slot */
    char refit_id[REFIT_WIRE_ID_MAX + 1];
    char source[REFIT_SHA256_HEX_MAX], destination[REFIT_SHA256_HEX_MAX];
};

/* A message as it was received. */
struct refit_remote_packet {
    struct refit_remote_message message;
    uint8_t payload[REFIT_REMOTE_PAYLOAD_MAX];
    size_t len; /* of the payload */
    int fds[REFIT_REMOTE_FDS_MAX];
    size_t fd_count;
};

/* REFIT_BUSY: the other end does not read. REFIT_PEER: it is gone. */
REFIT_MUST_CHECK enum refit_status refit_remote_send(int sock, const struct refit_remote_message *message,
                                                     const void *payload, size_t len, const int *fds, size_t fd_count,
                                                     struct refit_error *err);
/* REFIT_BUSY: nothing is there. REFIT_PEER: closed. The caller has the descriptors. */
REFIT_MUST_CHECK enum refit_status refit_remote_receive(int sock, struct refit_remote_packet *out,
                                                        struct refit_error *err);
void refit_remote_packet_release(struct refit_remote_packet *packet);

/* A memfd with these bytes; -1 with the error. */
REFIT_MUST_CHECK enum refit_status refit_remote_memfd(const void *data, size_t len, int *out, struct refit_error *err);
/* What such a descriptor holds, `len` bytes at most. *data is new. */
REFIT_MUST_CHECK enum refit_status refit_remote_read(int fd, size_t max, const char *what, char **data, size_t *len,
                                                     struct refit_error *err);

#endif
