/* SPDX-License-Identifier: Apache-2.0
 *
 * A group: some batches that one end sends and the other receives as one call of NCCL, in the order of a GO.
 *
 * On the wire a batch is dense, the edge stream's bytes. Each end decides for itself how: where its memory is dense, too,
 * NCCL reads or writes it there; where it is not, the batch is packed into or unpacked from the device's ring. So the
 * operations of both ends always match, whatever their layouts.
 *
 *   sending    work: pack, digest -> event -> wire: ncclSend of each      -> event
 *   receiving                                 wire: ncclRecv of each      -> event -> work: unpack, digest
 *
 * Nothing blocks: a group is moved on by polling it.
 */
#ifndef REFIT_TRANSPORT_NCCL_GROUP_H
#define REFIT_TRANSPORT_NCCL_GROUP_H

#include "transport/endpoint.h"
#include "transport/nccl_pair.h"
#include "transport/places.h"

struct refit_nccl_op {
    const struct refit_edge *edge; /* of this end's plan */
    uint32_t batch;
    uint64_t bytes;
    struct refit_arena *arena; /* not written when sending */
    struct refit_walk walk;
    struct refit_places places; /* receiving: the first is arena and walk */
    uint64_t address;           /* dense: in the arena or in the ring */
    bool staged;
    struct refit_segments segments;
    struct refit_completion digested;
    struct refit_completion *copies; /* owned: one per further place */
    size_t copy_count, copy_capacity;
};

enum refit_nccl_stage {
    REFIT_NCCL_IDLE,   /* being filled, or empty */
    REFIT_NCCL_POSTED, /* NCCL has the operations, perhaps not all on the stream yet */
    REFIT_NCCL_QUEUED, /* all is on the streams */
    REFIT_NCCL_DONE,   /* the bytes have left or are in place, and digests are there */
};

struct refit_nccl_group {
    struct refit_nccl_device *device;
    struct refit_nccl_pair *pair;
    unsigned index; /* which part of the ring */
    enum refit_nccl_stage stage;
    unsigned count;
    uint64_t bytes;
    bool rings; /* some of it is in the ring */
    struct refit_cuda_event *moved;
    struct refit_deadline deadline;
    struct refit_nccl_op ops[REFIT_NCCL_GROUP_MAX];
};

REFIT_MUST_CHECK enum refit_status refit_nccl_group_init(struct refit_nccl_group *group,
                                                         struct refit_nccl_device *device, unsigned index, bool verify,
                                                         struct refit_error *err);
void refit_nccl_group_release(struct refit_nccl_group *group); /* not at work */
void refit_nccl_group_empty(struct refit_nccl_group *group);

/* The next batch of a group that is being filled; the caller sets arena and walk, or the places. NULL: it is full. */
struct refit_nccl_op *refit_nccl_group_add(struct refit_nccl_group *group, const struct refit_edge *edge,
                                           uint32_t batch, uint64_t bytes);
/* All operations to NCCL. After an error the group may be half posted: refit_nccl_group_settle. */
REFIT_MUST_CHECK enum refit_status refit_nccl_group_post(struct refit_nccl_group *group, struct refit_nccl_pair *pair,
                                                         struct refit_error *err);
/* Instead: the bytes are in place at this end, and digests alone are wanted. */
REFIT_MUST_CHECK enum refit_status refit_nccl_group_verify(struct refit_nccl_group *group, struct refit_error *err);
/* REFIT_BUSY: not done. REFIT_TIMEOUT: beyond its deadline. Once done, what a batch has in places on other devices is
 * still to be put there: refit_nccl_op_spread. */
REFIT_MUST_CHECK enum refit_status refit_nccl_group_step(struct refit_nccl_group *group, struct refit_error *err);
/* From where it has landed to other devices, which read it there, or by way of the host. Blocks. *carried: the bytes that
 * went by way of the host. */
REFIT_MUST_CHECK enum refit_status refit_nccl_op_spread(struct refit_nccl_op *op, struct refit_deadline deadline,
                                                        uint64_t *carried, struct refit_error *err);
/* Its pair was aborted and the device is quiet: what it waited for is taken back. */
void refit_nccl_group_settle(struct refit_nccl_group *group);

#endif
