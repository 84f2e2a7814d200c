/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nccl_member.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/thread.h"
#include "transport/nccl_m2n.h"

#define GROUP_TENSORS 64 /* in one submission: the library fuses what it can */
#define CTAS_MAX 16      /* as in nccl_pair.c: the engine keeps most of its GPU */

struct refit_nccl_member {
    struct refit_nccl_member_config config;
    const struct refit_nccl_m2n *m2n;
    pthread_t thread;
    struct refit_cuda_event *moved;
    atomic_bool cancelled, through; /* through: `status` and `why` are final */
    enum refit_status status;
    struct refit_error why;
    ncclM2nHandle_t handle;
    ncclComm_t comm; /* set once, and kept until the thread has ended */
    pthread_mutex_t lock;
    bool calling; /* under the lock: the library may be waiting with the communicator */
};

static enum refit_status go_on(const struct refit_nccl_member *member, struct refit_error *err)
{
    bool cancelled = atomic_load_explicit(&member->cancelled, memory_order_acquire);
    return cancelled ? refit_fail(err, REFIT_ABORTED, "broken off") : REFIT_OK;
}

static enum refit_status look_again(const struct refit_nccl_member *member, struct refit_error *err)
{
    struct timespec span = {.tv_nsec = REFIT_NCCL_POLL_MAX_NS};
    nanosleep(&span, NULL);
    return go_on(member, err);
}

/* ---- the communicator ---- */

static enum refit_status begin_comm(struct refit_nccl_member *member, struct refit_error *err)
{
    const struct refit_nccl_member_config *config = &member->config;
    const struct refit_nccl_driver *nccl = config->device->nccl;
    int ranks = (int)(config->list->sources + config->list->destinations);
    ncclUniqueId id;
    ncclConfig_t how = NCCL_CONFIG_INITIALIZER;
    memcpy(&id, config->unique, sizeof id);
    how.blocking = 0;
    how.minCTAs = 1;
    how.maxCTAs = CTAS_MAX;
    return NCCL(nccl, NULL, err, ncclCommInitRankConfig, &member->comm, ranks, id, (int)config->rank, &how);
}

static enum refit_status poll_comm(const struct refit_nccl_member *member, struct refit_error *err)
{
    const struct refit_nccl_driver *nccl = member->config.device->nccl;
    ncclResult_t state = ncclSuccess;
    enum refit_status status = NCCL(nccl, member->comm, err, ncclCommGetAsyncError, member->comm, &state);
    if (status != REFIT_OK)
        return status;
    return state == ncclInProgress ? REFIT_BUSY : refit_nccl_check(nccl, member->comm, state, "NCCL", err);
}

static enum refit_status make_comm(struct refit_nccl_member *member, struct refit_error *err)
{
    enum refit_status status = begin_comm(member, err);
    while (status == REFIT_OK && (status = poll_comm(member, err)) == REFIT_BUSY)
        status = look_again(member, err);
    return status;
}

/* ---- tensors ---- */

struct find {
    uint64_t offset;
    bool found;
};

static bool take_offset(void *context, const struct refit_region *region)
{
    *(struct find *)context = (struct find){.offset = region->offset, .found = true};
    return false;
}

static bool has_part(const struct refit_nccl_member *member, const struct refit_reshard_side *side)
{
    int rank = (int)member->config.rank, ranks = side->mesh[0] * (side->mesh_dims == 2 ? side->mesh[1] : 1);
    return rank >= side->start && rank < side->start + ranks;
}

/* Where this rank has its part; NULL: it has none. */
static enum refit_status address_of(const struct refit_nccl_member *member, const struct refit_reshard_tensor *tensor,
                                    void **out, struct refit_error *err)
{
    const struct refit_nccl_member_config *config = &member->config;
    const struct refit_reshard_side *side = &tensor->sides[config->side];
    struct find find = {.found = false};
    uint64_t bytes = 1;
    *out = NULL;
    if (!has_part(member, side))
        return REFIT_OK;
    refit_layout_regions(config->layout, tensor->id[config->side], config->layout_rank, take_offset, &find);
    for (int d = 0; d < tensor->dims; d++)
        bytes *= side->shape[d];
    uint64_t address = find.found ? refit_arena_device_address(config->arena, find.offset, bytes) : 0;
    if (address == 0)
        return refit_fail(err, REFIT_UNSUPPORTED, "the memory of a tensor of %llu bytes is not in one piece",
                          (unsigned long long)bytes);
    *out = (void *)(uintptr_t)address;
    return REFIT_OK;
}

/* The library reads these arrays through pointers that are not const, and copies them. */
static void describe(const struct refit_reshard_tensor *tensor, enum refit_side which, void *data, ncclMesh_t *mesh,
                     ncclDistTensor_t *out)
{
    struct refit_reshard_side *side = (struct refit_reshard_side *)(uintptr_t)&tensor->sides[which];
    *mesh = (ncclMesh_t)NCCL_M2N_MESH_INITIALIZER;
    mesh->ndims = side->mesh_dims;
    mesh->dims = side->mesh;
    mesh->startRank = side->start;
    *out = (ncclDistTensor_t)NCCL_M2N_DIST_TENSOR_INITIALIZER;
    out->dataPtr = data;
    out->localShape = side->shape;
    out->ndims = tensor->dims;
    out->dtype = ncclUint8;
    out->mesh = mesh;
    out->placements = side->placement;
}

_Static_assert(REFIT_RESHARD_WHOLE == NCCL_RESHARD_REPLICATE, "placements are the library's");
_Static_assert(NCCL_RESHARD_SHARD(2) == 2, "placements are the library's");
_Static_assert(REFIT_RESHARD_DIMS_MAX == NCCL_RESHARD_MAX_TENSOR_DIMS, "dimensions are the library's");
_Static_assert(REFIT_RESHARD_MESH_MAX == NCCL_RESHARD_MAX_MESH_DIMS, "axes are the library's");

static enum refit_status reshard(struct refit_nccl_member *member, const struct refit_reshard_tensor *tensor,
                                 struct refit_error *err)
{
    const struct refit_nccl_member_config *config = &member->config;
    ncclMesh_t meshes[2];
    ncclDistTensor_t sides[2];
    void *mine;
    enum refit_status status = address_of(member, tensor, &mine, err);
    if (status != REFIT_OK)
        return status;
    for (int s = 0; s < 2; s++)
        describe(tensor, s, (enum refit_side)s == config->side ? mine : NULL, &meshes[s], &sides[s]);
    return M2N(member->m2n, err, ncclReshard, member->handle, member->comm, &sides[REFIT_SOURCE],
               &sides[REFIT_DESTINATION], refit_cuda_stream_handle(config->device->wire));
}

/* A group that was begun is ended or discarded: it is the thread's. */
static enum refit_status reshard_some(struct refit_nccl_member *member, size_t first, size_t count,
                                      struct refit_error *err)
{
    struct refit_error ignored;
    enum refit_status status = M2N(member->m2n, err, ncclM2nGroupStart);
    if (status != REFIT_OK)
        return status;
    for (size_t i = first; i < first + count && status == REFIT_OK; i++)
        status = reshard(member, &member->config.list->tensors[i], err);
    if (status == REFIT_OK)
        status = go_on(member, err);
    if (status == REFIT_OK)
        return M2N(member->m2n, err, ncclM2nGroupEnd);
    if (M2N(member->m2n, &ignored, ncclM2nGroupAbort) != REFIT_OK)
        refit_log_limited(REFIT_LOG_WARN, "a group of NCCL M2N could not be discarded", REFIT_LOG_CAUSE(&ignored));
    return status;
}

/* From here on it is a revoke that ends what the library waits for; before that, this thread looks itself. */
static enum refit_status begin_calls(struct refit_nccl_member *member, struct refit_error *err)
{
    pthread_mutex_lock(&member->lock);
    enum refit_status status = go_on(member, err);
    member->calling = status == REFIT_OK;
    pthread_mutex_unlock(&member->lock);
    return status;
}

static enum refit_status reshard_all(struct refit_nccl_member *member, struct refit_error *err)
{
    size_t count = member->config.list->count;
    enum refit_status status = begin_calls(member, err);
    for (size_t i = 0; i < count && status == REFIT_OK; i += GROUP_TENSORS)
        status = reshard_some(member, i, count - i < GROUP_TENSORS ? count - i : GROUP_TENSORS, err);
    return status;
}

/* An error of the communicator comes before what would never be done. */
static enum refit_status await_device(struct refit_nccl_member *member, struct refit_error *err)
{
    enum refit_status status = refit_cuda_event_record(member->moved, member->config.device->wire, err);
    while (status == REFIT_OK) {
        status = poll_comm(member, err);
        if (status == REFIT_OK || status == REFIT_BUSY)
            status = refit_cuda_event_poll(member->moved, err);
        if (status != REFIT_BUSY)
            return status;
        status = look_again(member, err);
    }
    return status;
}

/* ---- the thread ---- */

static void *run(void *arg)
{
    struct refit_nccl_member *member = arg;
    const struct refit_cuda_stream *wire = member->config.device->wire;
    enum refit_status status = refit_cuda_stream_enter(wire, &member->why);
    if (status == REFIT_OK) {
        status = make_comm(member, &member->why);
        if (status == REFIT_OK)
            status = reshard_all(member, &member->why);
        if (status == REFIT_OK)
            status = await_device(member, &member->why);
        refit_cuda_stream_leave(wire);
    }
    member->status = status;
    atomic_store_explicit(&member->through, true, memory_order_release);
    return NULL;
}

static void release(struct refit_nccl_member *member)
{
    refit_cuda_event_destroy(member->moved);
    pthread_mutex_destroy(&member->lock);
    free(member);
}

enum refit_status refit_nccl_member_start(const struct refit_nccl_member_config *config,
                                          struct refit_nccl_member **out, struct refit_error *err)
{
    const struct refit_nccl_m2n *m2n;
    enum refit_status status = refit_nccl_m2n(&m2n, err);
    if (status != REFIT_OK)
        return status;
    struct refit_nccl_member *member = calloc(1, sizeof *member);
    if (!member)
        return refit_fail_alloc(err, "a rank of a reshard", sizeof *member);
    member->config = *config;
    member->m2n = m2n;
    pthread_mutex_init(&member->lock, NULL);
    status = refit_cuda_event_create(config->device->ordinal, &member->moved, err);
    if (status == REFIT_OK)
        status = refit_nccl_m2n_enter(m2n, &member->handle, err);
    if (status != REFIT_OK)
        goto fail;
    status = refit_thread_start(&member->thread, run, member, "a rank of a reshard", err);
    if (status != REFIT_OK) {
        refit_nccl_m2n_leave(m2n, NULL);
        goto fail;
    }
    *out = member;
    return REFIT_OK;
fail:
    release(member);
    return status;
}

enum refit_status refit_nccl_member_poll(struct refit_nccl_member *member, struct refit_error *err)
{
    if (!atomic_load_explicit(&member->through, memory_order_acquire))
        return REFIT_BUSY;
    if (member->status != REFIT_OK)
        *err = member->why;
    return member->status;
}

/* After a revoke the communicator is still there for the library, as it is not after an abort. */
static void break_off(struct refit_nccl_member *member)
{
    const struct refit_nccl_driver *nccl = member->config.device->nccl;
    struct refit_error err;
    pthread_mutex_lock(&member->lock);
    atomic_store_explicit(&member->cancelled, true, memory_order_release);
    if (member->calling && NCCL(nccl, NULL, &err, ncclCommRevoke, member->comm, NCCL_REVOKE_DEFAULT) != REFIT_OK)
        refit_log_limited(REFIT_LOG_WARN, "a communicator could not be revoked", REFIT_LOG_CAUSE(&err));
    pthread_mutex_unlock(&member->lock);
}

void refit_nccl_member_end(struct refit_nccl_member *member)
{
    struct refit_error err;
    if (!member)
        return;
    bool well = refit_nccl_member_poll(member, &err) == REFIT_OK;
    if (!well)
        break_off(member);
    pthread_join(member->thread, NULL);
    if (!well)
        refit_nccl_device_quiet(member->config.device);
    refit_nccl_m2n_leave(member->m2n, member->comm);
    release(member);
}
