/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nccl_group.h"

#include <stdlib.h>

#include "transport/nccl_pair.h"

enum refit_status refit_nccl_group_init(struct refit_nccl_group *group, struct refit_nccl_device *device, unsigned index,
                                        bool verify, struct refit_error *err)
{
    *group = (struct refit_nccl_group){.device = device, .index = index};
    for (unsigned i = 0; i < REFIT_NCCL_GROUP_MAX; i++) {
        refit_segments_init(&group->ops[i].segments, verify);
        refit_places_init(&group->ops[i].places);
    }
    return refit_cuda_event_create(device->ordinal, &group->moved, err);
}

void refit_nccl_group_release(struct refit_nccl_group *group)
{
    if (!group->device)
        return;
    for (unsigned i = 0; i < REFIT_NCCL_GROUP_MAX; i++) {
        refit_segments_release(&group->ops[i].segments);
        refit_places_release(&group->ops[i].places);
        free(group->ops[i].copies);
    }
    refit_cuda_event_destroy(group->moved);
    group->device = NULL;
}

void refit_nccl_group_empty(struct refit_nccl_group *group)
{
    group->stage = REFIT_NCCL_IDLE;
    group->count = 0;
    group->bytes = 0;
    group->pair = NULL;
    group->rings = false;
}

struct refit_nccl_op *refit_nccl_group_add(struct refit_nccl_group *group, const struct refit_edge *edge,
                                           uint32_t batch, uint64_t bytes)
{
    if (group->count == REFIT_NCCL_GROUP_MAX || bytes > REFIT_NCCL_GROUP_BYTES - group->bytes)
        return NULL;
    struct refit_nccl_op *op = &group->ops[group->count++];
    group->bytes += bytes;
    op->edge = edge;
    op->batch = batch;
    op->bytes = bytes;
    op->copy_count = 0;
    op->digested = (struct refit_completion){.status = REFIT_OK};
    return op;
}

/* ---- before the wire ---- */

/* Where the window is dense in one piece of memory, there; else at `at` in the ring. */
static enum refit_status place(struct refit_nccl_group *group, struct refit_nccl_op *op, uint64_t at,
                               struct refit_error *err)
{
    struct refit_iov_cursor cursor;
    struct refit_device_run run = {.bytes = 0};
    int count;
    refit_iov_begin(&cursor, op->walk);
    enum refit_status status = refit_device_runs_next(&cursor, op->arena, &run, 1, op->bytes, &count, err);
    if (status != REFIT_OK)
        return status;
    op->staged = run.bytes != op->bytes;
    op->address = run.address;
    return op->staged ? refit_nccl_device_stage(group->device, group->index, at, op->bytes, &op->address, err) : REFIT_OK;
}

static enum refit_status place_all(struct refit_nccl_group *group, struct refit_error *err)
{
    uint64_t at = 0;
    enum refit_status status = REFIT_OK;
    for (unsigned i = 0; i < group->count && status == REFIT_OK; i++) {
        struct refit_nccl_op *op = &group->ops[i];
        status = place(group, op, at, err);
        group->rings |= op->staged;
        at += op->staged ? (op->bytes + 255) / 256 * 256 : 0;
    }
    return status;
}

/* Digests are of the memory itself: of what is read for the ring, or beside the wire where it is read in place. */
static enum refit_status pack(struct refit_nccl_group *group, struct refit_nccl_op *op, struct refit_error *err)
{
    const struct refit_cuda_stream *work = group->device->work;
    if (op->staged)
        return refit_cuda_pack(work, op->arena, op->walk, op->address, &op->segments, &op->digested, err);
    if (op->segments.digesting)
        return refit_cuda_digest(work, op->arena, op->walk, &op->segments, &op->digested, err);
    return refit_segments_of(&op->segments, op->walk, err);
}

static enum refit_status pack_those(struct refit_nccl_group *group, bool staged, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (unsigned i = 0; i < group->count && status == REFIT_OK; i++)
        if (group->ops[i].staged == staged)
            status = pack(group, &group->ops[i], err);
    return status;
}

/* First what the wire waits for, then the digests of what it reads in place. */
static enum refit_status pack_all(struct refit_nccl_group *group, struct refit_error *err)
{
    const struct refit_nccl_device *device = group->device;
    enum refit_status status = pack_those(group, true, err);
    if (status == REFIT_OK && group->rings)
        status = refit_cuda_event_record(group->moved, device->work, err);
    if (status == REFIT_OK && group->rings)
        status = refit_cuda_event_order(group->moved, device->wire, err);
    return status == REFIT_OK ? pack_those(group, false, err) : status;
}

/* ---- the wire ---- */

static enum refit_status call(const struct refit_nccl_group *group, const struct refit_nccl_op *op,
                              struct refit_error *err)
{
    const struct refit_nccl_driver *nccl = group->device->nccl;
    ncclComm_t comm = group->pair->comm;
    int other = refit_nccl_pair_other(group->pair);
    cudaStream_t wire = refit_cuda_stream_handle(group->device->wire);
    void *at = (void *)(uintptr_t)op->address;
    return group->pair->receiving ? NCCL(nccl, comm, err, ncclRecv, at, op->bytes, ncclUint8, other, comm, wire)
                                  : NCCL(nccl, comm, err, ncclSend, at, op->bytes, ncclUint8, other, comm, wire);
}

/* A group that was begun is ended, whatever its calls said: it is the thread's. */
static enum refit_status call_all(struct refit_nccl_group *group, struct refit_error *err)
{
    const struct refit_nccl_driver *nccl = group->device->nccl;
    ncclComm_t comm = group->pair->comm;
    enum refit_status status = NCCL(nccl, comm, err, ncclGroupStart);
    if (status != REFIT_OK)
        return status;
    for (unsigned i = 0; i < group->count && status == REFIT_OK; i++)
        status = call(group, &group->ops[i], err);
    enum refit_status ended = NCCL(nccl, comm, status == REFIT_OK ? err : NULL, ncclGroupEnd);
    return status == REFIT_OK ? ended : status;
}

enum refit_status refit_nccl_group_post(struct refit_nccl_group *group, struct refit_nccl_pair *pair,
                                        struct refit_error *err)
{
    group->pair = pair;
    group->stage = REFIT_NCCL_POSTED;
    enum refit_status status = place_all(group, err);
    if (status == REFIT_OK && !pair->receiving)
        status = pack_all(group, err);
    return status == REFIT_OK ? call_all(group, err) : status;
}

/* For a completion per further place. */
static enum refit_status make_room(struct refit_nccl_op *op, struct refit_error *err)
{
    if (op->places.count <= op->copy_capacity)
        return REFIT_OK;
    struct refit_completion *copies = reallocarray(op->copies, op->places.count, sizeof *copies);
    if (!copies)
        return refit_fail_alloc(err, "the copies of a batch", op->places.count * sizeof *copies);
    op->copies = copies;
    op->copy_capacity = op->places.count;
    return REFIT_OK;
}

static enum refit_status verify(struct refit_nccl_group *group, struct refit_nccl_op *op, struct refit_error *err)
{
    enum refit_status status = make_room(op, err);
    op->staged = false;
    if (status != REFIT_OK)
        return status;
    if (op->segments.digesting)
        return refit_cuda_digest(group->device->work, op->arena, op->walk, &op->segments, &op->digested, err);
    return refit_segments_of(&op->segments, op->walk, err);
}

enum refit_status refit_nccl_group_verify(struct refit_nccl_group *group, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    group->pair = NULL;
    for (unsigned i = 0; i < group->count && status == REFIT_OK; i++)
        status = verify(group, &group->ops[i], err);
    if (status == REFIT_OK)
        status = refit_cuda_event_record(group->moved, group->device->work, err);
    group->stage = REFIT_NCCL_QUEUED;
    return status;
}

/* ---- behind the wire ---- */

static enum refit_status unpack(struct refit_nccl_group *group, struct refit_nccl_op *op, struct refit_error *err)
{
    const struct refit_cuda_stream *work = group->device->work;
    if (op->staged)
        return refit_cuda_scatter(work, op->arena, op->walk, op->address, &op->segments, &op->digested, err);
    if (op->segments.digesting)
        return refit_cuda_digest(work, op->arena, op->walk, &op->segments, &op->digested, err);
    return refit_segments_of(&op->segments, op->walk, err);
}

/* The other ranks of this device that want the same. */
static enum refit_status copy(struct refit_nccl_group *group, struct refit_nccl_op *op, struct refit_error *err)
{
    struct refit_places *places = &op->places;
    enum refit_status status = make_room(op, err);
    for (size_t i = 1; i < places->count && status == REFIT_OK; i++) {
        struct refit_place *place = &places->items[i];
        if (refit_arena_device(place->arena) == group->device->ordinal)
            status = refit_cuda_scatter(group->device->work, place->arena, place->walk, op->address, &places->spare,
                                        &op->copies[op->copy_count++], err);
    }
    return status;
}

static enum refit_status queue_rest(struct refit_nccl_group *group, struct refit_error *err)
{
    const struct refit_nccl_device *device = group->device;
    enum refit_status status = refit_cuda_event_record(group->moved, device->wire, err);
    if (status != REFIT_OK || !group->pair->receiving)
        return status;
    status = refit_cuda_event_order(group->moved, device->work, err);
    for (unsigned i = 0; i < group->count && status == REFIT_OK; i++)
        status = unpack(group, &group->ops[i], err);
    for (unsigned i = 0; i < group->count && status == REFIT_OK; i++)
        status = copy(group, &group->ops[i], err);
    return status;
}

/* An error of the communicator comes before what would never be done. */
static enum refit_status look(struct refit_nccl_group *group, struct refit_error *err)
{
    enum refit_status status = group->pair ? refit_nccl_pair_poll(group->device, group->pair, err) : REFIT_OK;
    /* The other group's calls may be on their way to the stream: this one's are there. */
    if (status == REFIT_OK || status == REFIT_BUSY)
        status = refit_cuda_event_poll(group->moved, err);
    for (unsigned i = 0; i < group->count && status == REFIT_OK; i++) {
        struct refit_nccl_op *op = &group->ops[i];
        status = refit_completion_poll(&op->digested, err);
        for (size_t c = 0; c < op->copy_count && status == REFIT_OK; c++)
            status = refit_completion_poll(&op->copies[c], err);
    }
    return status;
}

enum refit_status refit_nccl_group_step(struct refit_nccl_group *group, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    if (group->stage == REFIT_NCCL_POSTED) {
        status = refit_nccl_pair_poll(group->device, group->pair, err);
        if (status == REFIT_OK)
            status = queue_rest(group, err);
        if (status == REFIT_OK)
            group->stage = REFIT_NCCL_QUEUED;
    }
    if (status == REFIT_OK && group->stage == REFIT_NCCL_QUEUED) {
        status = look(group, err);
        if (status == REFIT_OK)
            group->stage = REFIT_NCCL_DONE;
    }
    if (status == REFIT_BUSY && refit_deadline_passed(group->deadline))
        return refit_fail(err, REFIT_TIMEOUT, "a group of %u batches was not through in time", group->count);
    return status;
}

/* Also after a failure: something may have begun. */
static enum refit_status ended(enum refit_status status, struct refit_completion *completion,
                               struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_error ignored;
    enum refit_status waited = refit_completion_wait(completion, deadline, status == REFIT_OK ? err : &ignored);
    return status == REFIT_OK ? waited : status;
}

/* The copies to devices of its own are done: their room serves those to others, which go side by side. */
enum refit_status refit_nccl_op_spread(struct refit_nccl_op *op, struct refit_deadline deadline, uint64_t *carried,
                                       struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    size_t queued = 0;
    *carried = 0;
    for (size_t i = 1; i < op->places.count && status == REFIT_OK; i++) {
        struct refit_place *place = &op->places.items[i];
        if (refit_arena_device(place->arena) == refit_arena_device(op->arena))
            continue;
        *carried += refit_memory_reaches(place->arena, op->arena) ? 0 : op->bytes;
        status = refit_memory_copy(place->arena, place->walk, op->arena, op->walk, &op->places.spare,
                                   &op->copies[queued++], err);
    }
    for (size_t i = 0; i < queued; i++)
        status = ended(status, &op->copies[i], deadline, err);
    return status;
}

/* Whatever becomes of a batch that nobody believes any more. */
static void forget(struct refit_completion *completion)
{
    struct refit_error err;
    enum refit_status status = refit_completion_wait(completion, refit_deadline_in_ms(REFIT_ABORT_MS), &err);
    (void)status;
}

void refit_nccl_group_settle(struct refit_nccl_group *group)
{
    for (unsigned i = 0; i < group->count; i++) {
        struct refit_nccl_op *op = &group->ops[i];
        forget(&op->digested);
        for (size_t c = 0; c < op->copy_count; c++)
            forget(&op->copies[c]);
    }
    refit_nccl_group_empty(group);
}
