/* SPDX-License-Identifier: Apache-2.0
 *
 * A look-alike of libnccl_m2n.so over that of libnccl.so.2: ncclReshard as sends and receives of rows, in groups of one
 * pair of ranks at a time. As in the real library the end of a group waits for all ranks, which here compare what they
 * describe. Calls are counted and made to fail with those of NCCL (standin_nccl.h). What ends the process: docs/gpu.md.
 */
#include <nccl_m2n.h>

#include <cuda.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/standins/standin_nccl.h"

#define ENTRIES_MAX 256
#define DIMS NCCL_RESHARD_MAX_TENSOR_DIMS
#define AXES NCCL_RESHARD_MAX_MESH_DIMS
#define COMMS_MAX 64

/* nccl.h leaves out the void. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

struct ncclM2nHandle {
    struct ncclM2nHandle *next;
};

struct side {
    uint8_t *data;
    int start, axes, mesh[AXES], placement[AXES];
    size_t shape[DIMS];
};

struct entry {
    ncclComm_t comm;
    cudaStream_t stream;
    int dims;
    struct side sides[2]; /* source, destination */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ncclM2nHandle *handles;
static ncclComm_t comms[COMMS_MAX]; /* seen since the first handle */
static size_t comm_count;
static _Thread_local struct {
    int depth;
    size_t count;
    struct entry entries[ENTRIES_MAX];
} group;
static _Thread_local char last_error[256];

static _Noreturn void die(const char *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void die(const char *call, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "stand-in libnccl_m2n: %s: ", call);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

static ncclResult_t fail(ncclResult_t result, const char *what)
{
    snprintf(last_error, sizeof last_error, "%s", what);
    return result;
}

#define ENTER()                                                        \
    do {                                                               \
        ncclResult_t injected = (ncclResult_t)standin_nccl_enter(__func__); \
        if (injected != ncclSuccess)                                   \
            return fail(injected, "injected");                         \
    } while (0)

/* ---- handles ---- */

ncclResult_t ncclM2nInit(ncclM2nHandle_t *out, const ncclM2nConfig_t *config)
{
    ENTER();
    if (config && (config->magic != NCCL_M2N_API_MAGIC || config->size != sizeof *config ||
                   config->version != NCCL_M2N_API_VERSION))
        die(__func__, "the configuration was not begun with NCCL_M2N_CONFIG_INITIALIZER");
    struct ncclM2nHandle *handle = calloc(1, sizeof *handle);
    if (!handle)
        die(__func__, "no memory");
    pthread_mutex_lock(&lock);
    handle->next = handles;
    handles = handle;
    pthread_mutex_unlock(&lock);
    standin_nccl_count(1);
    *out = handle;
    return ncclSuccess;
}

ncclResult_t ncclM2nFinalize(ncclM2nHandle_t gone)
{
    int injected = standin_nccl_enter(__func__);
    if (group.depth > 0)
        die(__func__, "a group is open");
    pthread_mutex_lock(&lock);
    struct ncclM2nHandle **at = &handles;
    while (*at && *at != gone)
        at = &(*at)->next;
    if (!*at)
        die(__func__, "not a live handle");
    *at = gone->next;
    /* What belongs to them is given back now. */
    for (size_t i = 0; !handles && i < comm_count; i++) {
        ncclResult_t state;
        if (ncclCommGetAsyncError(comms[i], &state) == ncclInvalidArgument)
            die(__func__, "a communicator is gone before this");
    }
    comm_count = handles ? comm_count : 0;
    pthread_mutex_unlock(&lock);
    free(gone);
    standin_nccl_count(-1);
    return (ncclResult_t)injected;
}

const char *ncclM2nGetLastError(void)
{
    return last_error;
}

static void see(const char *call, ncclM2nHandle_t handle, ncclComm_t comm)
{
    size_t i = 0;
    pthread_mutex_lock(&lock);
    const struct ncclM2nHandle *found = handles;
    while (found && found != handle)
        found = found->next;
    if (!found)
        die(call, "not a live handle");
    while (i < comm_count && comms[i] != comm)
        i++;
    if (i == COMMS_MAX)
        die(call, "more than %d communicators", COMMS_MAX);
    comms[i] = comm;
    comm_count = i == comm_count ? i + 1 : comm_count;
    pthread_mutex_unlock(&lock);
}

/* ---- what is described ---- */

static int ranks_of(const struct side *side)
{
    return side->mesh[0] * (side->axes == 2 ? side->mesh[1] : 1);
}

/* The dimension that is cut; -1: none. */
static int cut_of(const struct side *side, int *shards)
{
    *shards = 1;
    for (int axis = 0; axis < side->axes; axis++) {
        if (side->placement[axis] == NCCL_RESHARD_REPLICATE)
            continue;
        *shards = side->mesh[axis];
        return side->placement[axis];
    }
    return -1;
}

static int shard_of(const struct side *side, int index)
{
    int at[AXES] = {side->axes == 1 ? index : index / side->mesh[1], side->axes == 1 ? 0 : index % side->mesh[1]};
    for (int axis = 0; axis < side->axes; axis++)
        if (side->placement[axis] != NCCL_RESHARD_REPLICATE)
            return at[axis];
    return 0;
}

static void take_side(const char *call, const ncclDistTensor_t *tensor, int rank, int ranks, struct side *side)
{
    int shards = 0;
    if (!tensor || !tensor->mesh || tensor->size != sizeof *tensor || tensor->mesh->size != sizeof *tensor->mesh ||
        tensor->version != NCCL_M2N_API_VERSION || tensor->mesh->version != NCCL_M2N_API_VERSION)
        die(call, "a descriptor that was not begun with its initializer");
    if (tensor->mesh->ndims < 1 || tensor->mesh->ndims > AXES || tensor->ndims < 1 || tensor->ndims > DIMS)
        die(call, "%d axes, %d dimensions", tensor->mesh->ndims, tensor->ndims);
    if (tensor->dtype != ncclUint8)
        die(call, "a type that Refit does not use");
    *side = (struct side){.data = tensor->dataPtr, .start = tensor->mesh->startRank, .axes = tensor->mesh->ndims};
    for (int axis = 0; axis < side->axes; axis++) {
        side->mesh[axis] = tensor->mesh->dims[axis];
        side->placement[axis] = tensor->placements[axis];
        shards += side->placement[axis] != NCCL_RESHARD_REPLICATE;
        if (side->mesh[axis] < 1 || side->placement[axis] < -1 || side->placement[axis] >= tensor->ndims)
            die(call, "axis %d of %d ranks cuts dimension %d", axis, side->mesh[axis], side->placement[axis]);
    }
    if (shards > 1 || side->start < 0 || side->start + ranks_of(side) > ranks)
        die(call, "%d axes cut, ranks %d to %d of %d", shards, side->start, side->start + ranks_of(side), ranks);
    memcpy(side->shape, tensor->localShape, (size_t)tensor->ndims * sizeof *side->shape);
    bool active = rank >= side->start && rank < side->start + ranks_of(side);
    if (active != (side->data != NULL))
        die(call, "rank %d is %s of the mesh and has %s", rank, active ? "" : "not", side->data ? "memory" : "none");
}

static size_t whole_of(const struct side *side, int dim)
{
    int shards, cut = cut_of(side, &shards);
    return side->shape[dim] * (size_t)(cut == dim ? shards : 1);
}

static void check_entry(const char *call, const struct entry *entry)
{
    const struct side *from = &entry->sides[0], *to = &entry->sides[1];
    if (from->start + ranks_of(from) > to->start && to->start + ranks_of(to) > from->start)
        die(call, "the two meshes share ranks");
    for (int d = 0; d < entry->dims; d++)
        if (whole_of(from, d) != whole_of(to, d))
            die(call, "dimension %d is %zu at the source and %zu at the destination", d, whole_of(from, d),
                whole_of(to, d));
}

/* ---- moving ---- */

/* Until it takes calls again. */
static ncclResult_t settle(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        if (ncclCommGetAsyncError(comm, &state) != ncclSuccess)
            return fail(ncclInternalError, "ncclCommGetAsyncError");
        usleep(100);
    }
    return state == ncclSuccess ? state : fail(state, "the communicator has an error");
}

static ncclResult_t end_group(ncclResult_t result, ncclComm_t comm)
{
    ncclResult_t ended = ncclGroupEnd();
    if (result != ncclSuccess)
        return result;
    return ended == ncclSuccess || ended == ncclInProgress ? settle(comm) : fail(ended, "ncclGroupEnd");
}

/* Where box and shard meet, in one side's memory. */
struct overlap {
    size_t start[DIMS], count[DIMS]; /* of the whole tensor */
};

static bool meet(const struct entry *entry, int from, int to, struct overlap *out)
{
    const struct side *sides = entry->sides;
    int indexes[2] = {from, to};
    for (int d = 0; d < entry->dims; d++) {
        size_t first = 0, end = SIZE_MAX;
        for (int s = 0; s < 2; s++) {
            int shards, cut = cut_of(&sides[s], &shards);
            size_t start = cut == d ? (size_t)shard_of(&sides[s], indexes[s]) * sides[s].shape[d] : 0;
            first = start > first ? start : first;
            end = start + sides[s].shape[d] < end ? start + sides[s].shape[d] : end;
        }
        if (first >= end)
            return false;
        out->start[d] = first;
        out->count[d] = end - first;
    }
    return true;
}

static uint8_t *row_at(const struct entry *entry, const struct side *side, int index, const struct overlap *overlap,
                       size_t row)
{
    size_t at[DIMS], offset = 0;
    int shards, cut = cut_of(side, &shards);
    for (int d = entry->dims - 1; d >= 0; d--) {
        size_t count = d == entry->dims - 1 ? 1 : overlap->count[d];
        at[d] = overlap->start[d] + row % count;
        row /= count;
    }
    for (int d = 0; d < entry->dims; d++)
        offset = offset * side->shape[d] + at[d] - (cut == d ? (size_t)shard_of(side, index) * side->shape[d] : 0);
    return side->data + offset;
}

static ncclResult_t move_rows(const struct entry *entry, bool sends, int index, int peer, const struct overlap *overlap)
{
    const struct side *mine = &entry->sides[sends ? 0 : 1];
    size_t rows = 1, bytes = overlap->count[entry->dims - 1];
    for (int d = 0; d < entry->dims - 1; d++)
        rows *= overlap->count[d];
    if (rows > STANDIN_NCCL_GROUP_MAX)
        die("ncclReshard", "%zu rows between two ranks: too many for a test", rows);
    ncclResult_t result = ncclGroupStart();
    if (result != ncclSuccess)
        return fail(result, "ncclGroupStart");
    for (size_t row = 0; row < rows && result == ncclSuccess; row++) {
        uint8_t *at = row_at(entry, mine, index, overlap, row);
        result = sends ? ncclSend(at, bytes, ncclUint8, peer, entry->comm, entry->stream)
                       : ncclRecv(at, bytes, ncclUint8, peer, entry->comm, entry->stream);
    }
    return end_group(result, entry->comm);
}

/* Replicas of a shard at the source serve destinations by turns. */
static bool is_sender(const struct entry *entry, int from, int to)
{
    const struct side *side = &entry->sides[0];
    int replica = 0, replicas = 0, shard = shard_of(side, from);
    for (int i = 0; i < ranks_of(side); i++) {
        if (shard_of(side, i) != shard)
            continue;
        replica = i == from ? replicas : replica;
        replicas++;
    }
    return to % replicas == replica;
}

/* Every rank goes through all pairs in one order, so that none waits for one that waits for it. */
static ncclResult_t move(const struct entry *entry, int rank)
{
    const struct side *from = &entry->sides[0], *to = &entry->sides[1];
    ncclResult_t result = ncclSuccess;
    for (int f = 0; f < ranks_of(from); f++) {
        for (int t = 0; t < ranks_of(to) && result == ncclSuccess; t++) {
            struct overlap overlap = {.start = {0}};
            bool sends = from->start + f == rank, receives = to->start + t == rank;
            if ((!sends && !receives) || !is_sender(entry, f, t) || !meet(entry, f, t, &overlap))
                continue;
            result = move_rows(entry, sends, sends ? f : t, sends ? to->start + t : from->start + f, &overlap);
        }
    }
    return result;
}

/* ---- all ranks describe the same ---- */

static void mix(uint64_t *hash, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        *hash = (*hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
}

static uint64_t hash_of_group(void)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < group.count; i++) {
        struct entry entry = group.entries[i];
        mix(&hash, &entry.dims, sizeof entry.dims);
        for (int s = 0; s < 2; s++) {
            const struct side *side = &entry.sides[s];
            mix(&hash, &side->start, sizeof side->start);
            mix(&hash, side->mesh, (size_t)side->axes * sizeof *side->mesh);
            mix(&hash, side->placement, (size_t)side->axes * sizeof *side->placement);
            mix(&hash, side->shape, (size_t)entry.dims * sizeof *side->shape);
        }
    }
    return hash;
}

static ncclResult_t exchange(uint64_t *hashes, int rank, int ranks, ncclComm_t comm, cudaStream_t stream)
{
    ncclResult_t result = ncclGroupStart();
    if (result != ncclSuccess)
        return fail(result, "ncclGroupStart");
    for (int i = 0; i < ranks && result == ncclSuccess; i++) {
        if (i == rank)
            continue;
        result = ncclSend(&hashes[ranks], sizeof *hashes, ncclUint8, i, comm, stream);
        if (result == ncclSuccess)
            result = ncclRecv(&hashes[i], sizeof *hashes, ncclUint8, i, comm, stream);
    }
    result = end_group(result, comm);
    /* What an error ends leaves the stream, too. */
    while (cuStreamQuery((CUstream)stream) == CUDA_ERROR_NOT_READY)
        usleep(100);
    return result == ncclSuccess ? settle(comm) : result;
}

static ncclResult_t agree(int rank, int ranks, ncclComm_t comm, cudaStream_t stream)
{
    void *memory;
    uint64_t hash = hash_of_group();
    ncclResult_t result = ncclMemAlloc(&memory, (size_t)(ranks + 1) * sizeof hash);
    if (result != ncclSuccess)
        return fail(result, "ncclMemAlloc");
    uint64_t *hashes = memory;
    for (int i = 0; i <= ranks; i++)
        hashes[i] = hash;
    result = exchange(hashes, rank, ranks, comm, stream);
    for (int i = 0; i < ranks && result == ncclSuccess; i++)
        if (hashes[i] != hash)
            die("ncclReshard", "rank %d describes other tensors than rank %d, or in another order", i, rank);
    ncclResult_t freed = ncclMemFree(memory);
    return result != ncclSuccess ? result : freed != ncclSuccess ? fail(freed, "ncclMemFree") : ncclSuccess;
}

/* ---- calls ---- */

static ncclResult_t issue(void)
{
    int rank, ranks;
    const struct entry *first = &group.entries[0];
    if (group.count == 0)
        return ncclSuccess;
    ncclResult_t result = settle(first->comm);
    if (result == ncclSuccess && (ncclCommUserRank(first->comm, &rank) != ncclSuccess ||
                                  ncclCommCount(first->comm, &ranks) != ncclSuccess))
        result = fail(ncclInternalError, "ncclCommUserRank, ncclCommCount");
    if (result == ncclSuccess)
        result = agree(rank, ranks, first->comm, first->stream);
    for (size_t i = 0; i < group.count && result == ncclSuccess; i++)
        result = move(&group.entries[i], rank);
    return result;
}

ncclResult_t ncclM2nGroupStart(void)
{
    ENTER();
    if (group.depth++ == 0)
        group.count = 0;
    return ncclSuccess;
}

ncclResult_t ncclM2nGroupEnd(void)
{
    int injected = standin_nccl_enter(__func__);
    if (group.depth == 0)
        die(__func__, "no group is open");
    if (--group.depth > 0 || injected != ncclSuccess)
        return fail((ncclResult_t)injected, "injected");
    return issue();
}

ncclResult_t ncclM2nGroupAbort(void)
{
    int injected = standin_nccl_enter(__func__);
    group.depth = 0;
    return (ncclResult_t)injected;
}

ncclResult_t ncclReshard(ncclM2nHandle_t handle, ncclComm_t comm, const ncclDistTensor_t *src,
                         const ncclDistTensor_t *dst, cudaStream_t stream)
{
    int rank, ranks;
    ENTER();
    see(__func__, handle, comm);
    if (group.depth == 0)
        die(__func__, "outside a group, as Refit does not call it");
    if (group.count == ENTRIES_MAX)
        die(__func__, "more than %d tensors in a group", ENTRIES_MAX);
    ncclResult_t result = settle(comm);
    if (result != ncclSuccess)
        return result;
    if (ncclCommUserRank(comm, &rank) != ncclSuccess || ncclCommCount(comm, &ranks) != ncclSuccess)
        return fail(ncclInternalError, "ncclCommUserRank, ncclCommCount");
    struct entry *entry = &group.entries[group.count++];
    *entry = (struct entry){.comm = comm, .stream = stream};
    take_side(__func__, src, rank, ranks, &entry->sides[0]);
    take_side(__func__, dst, rank, ranks, &entry->sides[1]);
    if (src->ndims != dst->ndims || comm != group.entries[0].comm || stream != group.entries[0].stream)
        die(__func__, "%d and %d dimensions, or another communicator or stream in the group", src->ndims, dst->ndims);
    entry->dims = src->ndims;
    check_entry(__func__, entry);
    return ncclSuccess;
}

ncclResult_t ncclReshardWithWindow(ncclM2nHandle_t handle, ncclComm_t comm, ncclWindow_t window,
                                   const ncclDistTensor_t *src, const ncclDistTensor_t *dst, cudaStream_t stream)
{
    (void)handle, (void)comm, (void)window, (void)src, (void)dst, (void)stream;
    die(__func__, "not used by Refit");
}
