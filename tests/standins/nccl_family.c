/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators made of others: shrink and grow. All ranks that stay count their parent's children alike, so that they
 * need not agree on the id of the next one.
 */
#include <string.h>

#include "tests/standins/nccl_internal.h"

static uint64_t id_of_child(const struct ncclComm *parent, unsigned number)
{
    uint64_t mixed = (parent->id ^ number) * 0x9E3779B97F4A7C15u;
    return mixed ^ mixed >> 29;
}

/* Waits for what the parent does, and dies where that may not be going on. */
static ncclResult_t leave_parent(const char *call, struct ncclComm *parent, bool stops)
{
    pthread_mutex_lock(&parent->lock);
    if (parent->state == ncclInProgress)
        nccl_die(call, "the communicator is in progress: poll ncclCommGetAsyncError first");
    ncclResult_t error = stops || parent->revoked ? ncclSuccess : parent->state;
    if (error == ncclSuccess && !stops && !parent->revoked && parent->in_flight > 0)
        nccl_die(call, "the communicator has operations in flight");
    pthread_mutex_unlock(&parent->lock);
    if (!stops)
        return error;
    nccl_stop(parent, &parent->revoked);
    nccl_start(parent, JOB_REVOKE, NULL);
    nccl_wait(parent);
    return ncclSuccess;
}

ncclResult_t ncclCommShrink(ncclComm_t handle, int *excluded, int count, ncclComm_t *out, ncclConfig_t *config,
                            int flags)
{
    ENTER();
    struct ncclComm *parent = nccl_comm(__func__, handle);
    if (count < 1 || count >= parent->ranks)
        return ncclInvalidArgument;
    ncclResult_t error = leave_parent(__func__, parent, flags == NCCL_SHRINK_ABORT);
    if (error != ncclSuccess)
        return error;
    int rank = parent->rank;
    for (int i = 0; i < count; i++) {
        if (excluded[i] == parent->rank)
            nccl_die(__func__, "rank %d is excluded and may not take part", parent->rank);
        rank -= excluded[i] < parent->rank ? 1 : 0;
    }
    *out = nccl_create(__func__, id_of_child(parent, ++parent->children), rank, parent->ranks - count, config,
                       parent->blocking);
    return nccl_start(*out, JOB_INIT, NULL);
}

ncclResult_t ncclCommGetUniqueId(ncclComm_t handle, ncclUniqueId *out)
{
    ncclResult_t error;
    ENTER();
    struct ncclComm *parent = nccl_ready(__func__, handle, &error);
    if (error != ncclSuccess)
        return error;
    if (parent->id_is_out)
        return ncclInvalidUsage;
    parent->id_is_out = true;
    uint64_t id = id_of_child(parent, parent->children + 1);
    memset(out, 0, sizeof *out);
    memcpy(out->internal, &id, sizeof id);
    return ncclSuccess;
}

static ncclResult_t join(const char *call, int ranks, const ncclUniqueId *unique, int rank, ncclComm_t *out,
                         ncclConfig_t *config)
{
    uint64_t id;
    if (!unique || rank < 0 || rank >= ranks)
        return ncclInvalidArgument;
    memcpy(&id, unique->internal, sizeof id);
    *out = nccl_create(call, id, rank, ranks, config, true);
    return nccl_start(*out, JOB_INIT, NULL);
}

ncclResult_t ncclCommGrow(ncclComm_t handle, int ranks, const ncclUniqueId *unique, int rank, ncclComm_t *out,
                          ncclConfig_t *config)
{
    ENTER();
    if (ranks > RANKS_MAX)
        return ncclInvalidArgument;
    if (!handle)
        return join(__func__, ranks, unique, rank, out, config);
    struct ncclComm *parent = nccl_comm(__func__, handle);
    if (rank != -1 || ranks <= parent->ranks)
        return ncclInvalidArgument;
    ncclResult_t error = leave_parent(__func__, parent, false);
    if (error != ncclSuccess)
        return error;
    uint64_t id = id_of_child(parent, ++parent->children);
    if (unique && memcmp(unique->internal, &id, sizeof id) != 0)
        nccl_die(__func__, "the unique id is not that of ncclCommGetUniqueId");
    parent->id_is_out = false;
    *out = nccl_create(__func__, id, parent->rank, ranks, config, parent->blocking);
    return nccl_start(*out, JOB_INIT, NULL);
}
