/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups: what a thread has asked for since ncclGroupStart goes to the helpers of the communicators at its end, and
 * from them into streams.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/standins/cuda_internal.h"
#include "tests/standins/nccl_internal.h"

#define COMMS_MAX 64

struct open_group {
    int depth;
    ncclResult_t error;
    size_t count;
    struct op ops[STANDIN_NCCL_GROUP_MAX];
    struct ncclComm *comm_of[STANDIN_NCCL_GROUP_MAX];
    struct ncclComm *begun[COMMS_MAX]; /* came up or were finalized within the group */
    size_t begun_count;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t id; /* whose groups are in flight */
    int in_flight;
} devices[STANDIN_DEVICES_MAX];

static void end_thread(void *context)
{
    const struct open_group *open = context;
    if (open->depth > 0)
        nccl_die("ncclGroupStart", "the thread ended and the group is open");
    free(context);
}

static void make_key(void)
{
    pthread_key_create(&key, end_thread);
}

static struct open_group *mine(void)
{
    pthread_once(&once, make_key);
    struct open_group *open = pthread_getspecific(key);
    if (!open) {
        open = calloc(1, sizeof *open);
        if (!open || pthread_setspecific(key, open) != 0)
            nccl_die("ncclGroupStart", "no memory");
    }
    return open;
}

bool nccl_group_is_open(void)
{
    return mine()->depth > 0;
}

bool nccl_group_holds(struct ncclComm *comm)
{
    struct open_group *open = mine();
    if (open->depth == 0)
        return false;
    if (open->begun_count == COMMS_MAX)
        nccl_die("ncclGroupStart", "more than %d communicators", COMMS_MAX);
    open->begun[open->begun_count++] = comm;
    return true;
}

ncclResult_t ncclGroupStart(void)
{
    ENTER();
    mine()->depth++;
    return ncclSuccess;
}

/* Sends to itself are matched within the group, or never. */
static void match_own(const struct open_group *open, const struct ncclComm *comm)
{
    size_t recv = 0;
    for (size_t send = 0; send < open->count; send++) {
        const struct op *op = &open->ops[send];
        if (open->comm_of[send] != comm || op->peer != comm->rank || !op->sends)
            continue;
        while (recv < open->count &&
               (open->comm_of[recv] != comm || open->ops[recv].peer != comm->rank || open->ops[recv].sends))
            recv++;
        if (recv == open->count || open->ops[recv].bytes != op->bytes)
            nccl_die("ncclGroupEnd", "%llu bytes to itself are unmatched", (unsigned long long)op->bytes);
        recv++;
    }
    for (; recv < open->count; recv++)
        if (open->comm_of[recv] == comm && open->ops[recv].peer == comm->rank && !open->ops[recv].sends)
            nccl_die("ncclGroupEnd", "a receive from itself is unmatched");
}

static struct group *take_group(const struct open_group *open, struct ncclComm *comm)
{
    struct group *group = malloc(sizeof *group + open->count * sizeof *group->ops);
    if (!group)
        nccl_die("ncclGroupEnd", "no memory");
    group->comm = comm;
    group->count = 0;
    for (size_t i = 0; i < open->count; i++)
        if (open->comm_of[i] == comm)
            group->ops[group->count++] = open->ops[i];
    group->ticket = comm->tickets++;
    return group;
}

static bool is_first(const struct open_group *open, size_t i)
{
    for (size_t before = 0; before < i; before++)
        if (open->comm_of[before] == open->comm_of[i])
            return false;
    return true;
}

static ncclResult_t give_up(struct open_group *open)
{
    ncclResult_t error = open->error;
    for (size_t i = 0; i < open->count; i++)
        nccl_fail(open->comm_of[i], error, "a call of the group failed");
    open->count = 0;
    open->begun_count = 0;
    open->error = ncclSuccess;
    return error;
}

static ncclResult_t wait_for_all(struct open_group *open)
{
    ncclResult_t result = ncclSuccess;
    for (size_t i = 0; i < open->begun_count; i++) {
        ncclResult_t one = open->begun[i]->blocking ? nccl_wait(open->begun[i]) : ncclInProgress;
        if (result == ncclSuccess || (result == ncclInProgress && one != ncclSuccess))
            result = one;
    }
    open->begun_count = 0;
    return result;
}

static ncclResult_t launch_all(const struct open_group *open)
{
    ncclResult_t lost = ncclSuccess;
    for (size_t i = 0; i < open->count; i++) {
        if (!is_first(open, i))
            continue;
        struct ncclComm *comm = nccl_comm("ncclGroupEnd", open->comm_of[i]);
        match_own(open, comm);
        ncclResult_t result = nccl_start(comm, JOB_LAUNCH, take_group(open, comm));
        lost = lost == ncclSuccess ? result : lost;
    }
    return lost;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t injected = nccl_enter(__func__);
    struct open_group *open = mine();
    if (open->depth == 0)
        nccl_die(__func__, "no group is open");
    if (injected != ncclSuccess && open->error == ncclSuccess)
        open->error = injected;
    if (open->depth > 1) {
        open->depth--;
        return open->error;
    }
    if (open->error != ncclSuccess) {
        open->depth = 0;
        return give_up(open);
    }
    ncclResult_t lost = launch_all(open);
    open->count = 0;
    open->depth = 0;
    ncclResult_t result = wait_for_all(open);
    return lost != ncclSuccess ? lost : result;
}

static uint64_t size_of(ncclDataType_t type)
{
    static const uint8_t sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return (unsigned)type < ncclNumTypes ? sizes[type] : 0;
}

static ncclResult_t check_op(const struct ncclComm *comm, const struct op *op, size_t count)
{
    if (op->peer < 0 || op->peer >= comm->ranks || size_of(op->type) == 0 || (count > 0 && !op->buffer))
        return ncclInvalidArgument;
    int device = standin_stream_device(op->call, (CUstream)op->stream);
    if (device != comm->device)
        nccl_die(op->call, "a stream of device %d, and the communicator is on device %d", device, comm->device);
    return ncclSuccess;
}

static void keep_op(struct open_group *open, struct ncclComm *comm, const struct op *op)
{
    if (open->count == STANDIN_NCCL_GROUP_MAX)
        nccl_die(op->call, "more than %d operations in a group", STANDIN_NCCL_GROUP_MAX);
    for (size_t i = 0; i < open->count; i++)
        if (open->comm_of[i] == comm && open->ops[i].stream != op->stream)
            nccl_die(op->call, "a second stream in the group");
    open->comm_of[open->count] = comm;
    open->ops[open->count++] = *op;
}

static ncclResult_t add_op(ncclResult_t injected, struct op op, size_t count, ncclComm_t handle)
{
    ncclResult_t error;
    struct open_group *open = mine();
    bool alone = open->depth == 0;
    struct ncclComm *comm = nccl_ready(op.call, handle, &error);
    if (injected != ncclSuccess)
        error = injected;
    if (error == ncclSuccess)
        error = check_op(comm, &op, count);
    op.bytes = count * size_of(op.type);
    if (alone)
        open->depth = 1;
    if (error == ncclSuccess)
        keep_op(open, comm, &op);
    else if (open->error == ncclSuccess)
        open->error = error;
    if (error != ncclSuccess)
        nccl_fail(comm, error, "%s failed", op.call);
    if (!alone)
        return error;
    return ncclGroupEnd();
}

ncclResult_t ncclSend(const void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add_op(nccl_enter(__func__),
                  (struct op){.call = __func__, .sends = true, .peer = peer, .type = type, .stream = stream,
                              .buffer = (uint8_t *)(uintptr_t)buffer},
                  count, comm);
}

ncclResult_t ncclRecv(void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return add_op(nccl_enter(__func__),
                  (struct op){.call = __func__, .peer = peer, .type = type, .stream = stream, .buffer = buffer}, count,
                  comm);
}

void nccl_launch(struct ncclComm *comm, struct group *group)
{
    pthread_mutex_lock(&device_lock);
    if (devices[comm->device].in_flight > 0 && devices[comm->device].id != comm->id)
        nccl_die("ncclGroupEnd", "another communicator has operations in flight on device %d", comm->device);
    devices[comm->device].id = comm->id;
    devices[comm->device].in_flight++;
    pthread_mutex_unlock(&device_lock);
    pthread_mutex_lock(&comm->lock);
    comm->in_flight++;
    pthread_mutex_unlock(&comm->lock);
    standin_enqueue("ncclGroupEnd", (CUstream)group->ops[0].stream, nccl_carry_out, group);
}

bool nccl_landed(struct ncclComm *comm)
{
    pthread_mutex_lock(&comm->lock);
    bool counted = comm->in_flight > 0; /* an abort has taken them all back */
    comm->in_flight -= counted ? 1 : 0;
    pthread_mutex_unlock(&comm->lock);
    pthread_mutex_lock(&device_lock);
    devices[comm->device].in_flight -= counted ? 1 : 0;
    pthread_mutex_unlock(&device_lock);
    return counted;
}
