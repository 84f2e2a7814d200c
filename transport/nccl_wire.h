/* SPDX-License-Identifier: Apache-2.0
 *
 * What `nccl` says over its control stream besides plain frames (frame.h): who the two ends are, and which batches make
 * a group. Batches are named as everywhere; no length and no address travels.
 *
 *   HELLO: u32 version of NCCL, u32 devices, 16 bytes process, 16 bytes UUID of each device
 *   GO:    16 bytes process, 16 bytes UUID of the device that it lands on, 128 bytes unique id when argument is
 *          REFIT_GO_NEW, then u64 edge, u32 batch of each
 *   SHARD: 128 bytes unique id, u64 digest of the list of tensors
 */
#ifndef REFIT_TRANSPORT_NCCL_WIRE_H
#define REFIT_TRANSPORT_NCCL_WIRE_H

#include <stdbool.h>
#include <stddef.h>

#include "transport/frame.h"

#define REFIT_NCCL_ID_BYTES 16    /* of a process, of a device */
#define REFIT_NCCL_UNIQUE_BYTES 128
#define REFIT_NCCL_DEVICES_MAX 16 /* of one process */
#define REFIT_NCCL_GROUP_MAX 16   /* batches, which are its operations */
#define REFIT_NCCL_GROUP_BYTES (32u << 20)

struct refit_nccl_id {
    uint8_t bytes[REFIT_NCCL_ID_BYTES];
};
bool refit_nccl_id_equal(const struct refit_nccl_id *a, const struct refit_nccl_id *b);
/* This process, by chance; a forked child is another one. */
struct refit_nccl_id refit_nccl_process(void);

struct refit_nccl_hello {
    uint32_t version, device_count;
    struct refit_nccl_id process, devices[REFIT_NCCL_DEVICES_MAX];
    bool reshards; /* in the frame itself, which older receivers do not look at: */
    uint32_t rank; /* of the source layout */
};
#define REFIT_HELLO_RESHARDS 1u
#define REFIT_NCCL_HELLO_MAX (8 + (1 + REFIT_NCCL_DEVICES_MAX) * REFIT_NCCL_ID_BYTES)
/* Returns the bytes of the frame and what follows it, into REFIT_FRAME_BYTES + REFIT_NCCL_HELLO_MAX. */
size_t refit_nccl_hello_encode(const struct refit_nccl_hello *hello, uint8_t *out);
REFIT_MUST_CHECK enum refit_status refit_nccl_hello_decode(const uint8_t *payload, size_t len,
                                                           struct refit_nccl_hello *out, struct refit_error *err);

#define REFIT_GO_NEW 1u    /* the communicator is to be made, of the unique id that follows */
#define REFIT_GO_PLACED 2u /* a reshard has put these batches in place: their digests are asked for, and no bytes */
enum refit_denial {
    REFIT_DENIED_BUSY = 0,    /* the device is at work with somebody else: FREE follows, or ask again */
    REFIT_DENIED_UNKNOWN = 1, /* no communicator of this tag: make a new one */
};

struct refit_nccl_go {
    uint64_t tag;
    bool fresh, placed;
    struct refit_nccl_id process, device;
    uint8_t unique[REFIT_NCCL_UNIQUE_BYTES];
    uint32_t count;
    struct {
        uint64_t edge;
        uint32_t batch;
    } batches[REFIT_NCCL_GROUP_MAX];
};
#define REFIT_NCCL_GO_MAX (2 * REFIT_NCCL_ID_BYTES + REFIT_NCCL_UNIQUE_BYTES + REFIT_NCCL_GROUP_MAX * 12)
size_t refit_nccl_go_encode(const struct refit_nccl_go *go, uint8_t *out);
REFIT_MUST_CHECK enum refit_status refit_nccl_go_decode(const struct refit_frame *frame, const uint8_t *payload,
                                                        struct refit_nccl_go *out, struct refit_error *err);

struct refit_nccl_shard {
    uint64_t tag;
    uint32_t ranks;
    uint8_t unique[REFIT_NCCL_UNIQUE_BYTES];
    uint64_t list;
};
#define REFIT_NCCL_SHARD_BYTES (REFIT_NCCL_UNIQUE_BYTES + 8)
size_t refit_nccl_shard_encode(const struct refit_nccl_shard *shard, uint8_t *out);
REFIT_MUST_CHECK enum refit_status refit_nccl_shard_decode(const struct refit_frame *frame, const uint8_t *payload,
                                                           struct refit_nccl_shard *out, struct refit_error *err);

#endif
