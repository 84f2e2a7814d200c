/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators: from init to abort.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/standins/cuda_internal.h"
#include "tests/standins/nccl_internal.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *list;

struct ncclComm *nccl_comm(const char *call, ncclComm_t wanted)
{
    pthread_mutex_lock(&list_lock);
    struct ncclComm *comm = list;
    while (comm && comm != wanted)
        comm = comm->next;
    bool alive = comm && !comm->dead;
    pthread_mutex_unlock(&list_lock);
    if (!alive)
        nccl_die(call, "not a live communicator%s", comm ? ": it was destroyed or aborted" : "");
    return comm;
}

struct ncclComm *nccl_ready(const char *call, ncclComm_t wanted, ncclResult_t *error)
{
    struct ncclComm *comm = nccl_comm(call, wanted);
    pthread_mutex_lock(&comm->lock);
    if (comm->state == ncclInProgress && !comm->revoked) /* a revoke comes from any thread, at any time */
        nccl_die(call, "the communicator is in progress: poll ncclCommGetAsyncError first");
    if (comm->finalized)
        nccl_die(call, "the communicator is finalized");
    *error = comm->revoked ? ncclInvalidUsage : comm->state;
    pthread_mutex_unlock(&comm->lock);
    return comm;
}

void nccl_fail(struct ncclComm *comm, ncclResult_t error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&comm->lock);
    /* What a revoke ends is no error, however it ends. */
    if (!comm->revoked && (comm->state == ncclSuccess || comm->state == ncclInProgress)) {
        comm->state = error;
        vsnprintf(comm->last_error, sizeof comm->last_error, format, arguments);
    }
    pthread_mutex_unlock(&comm->lock);
    va_end(arguments);
}

static void wait_until_quiet(struct ncclComm *comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->running)
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

static void perform(struct ncclComm *comm, enum job job, struct group *group)
{
    if (job == JOB_INIT)
        nccl_meet(comm);
    else if (job == JOB_LAUNCH)
        nccl_launch(comm, group);
    else if (job == JOB_FINALIZE)
        nccl_part(comm);
    else
        wait_until_quiet(comm);
}

static void *help(void *context)
{
    struct ncclComm *comm = context;
    pthread_mutex_lock(&comm->lock);
    while (!comm->ending) {
        if (comm->job == JOB_NONE) {
            pthread_cond_wait(&comm->changed, &comm->lock);
            continue;
        }
        pthread_mutex_unlock(&comm->lock);
        perform(comm, comm->job, comm->launching);
        pthread_mutex_lock(&comm->lock);
        comm->job = JOB_NONE;
        if (comm->state == ncclInProgress)
            comm->state = ncclSuccess;
        pthread_cond_broadcast(&comm->changed);
    }
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

static void add_to_list(const char *call, struct ncclComm *comm)
{
    pthread_mutex_lock(&list_lock);
    for (const struct ncclComm *other = list; other; other = other->next)
        if (other->id == comm->id && other->rank == comm->rank)
            nccl_die(call, "the unique id was used for rank %d before", comm->rank);
    comm->next = list;
    list = comm;
    pthread_mutex_unlock(&list_lock);
    nccl_count(1);
}

struct ncclComm *nccl_create(const char *call, uint64_t id, int rank, int ranks, const ncclConfig_t *config,
                             bool blocking)
{
    int device = standin_need_context(call);
    if (config && (config->magic != NCCL_API_MAGIC || config->size != sizeof *config))
        nccl_die(call, "the configuration was not begun with NCCL_CONFIG_INITIALIZER");
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (!comm)
        nccl_die(call, "no memory");
    comm->id = id;
    comm->rank = rank;
    comm->ranks = ranks;
    comm->device = device;
    comm->blocking = config && config->blocking != NCCL_CONFIG_UNDEF_INT ? config->blocking != 0 : blocking;
    comm->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (int i = 0; i < RANKS_MAX; i++)
        comm->fds[i] = -1;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->changed, NULL);
    add_to_list(call, comm);
    if (comm->wake < 0 || pthread_create(&comm->helper, NULL, help, comm) != 0)
        nccl_die(call, "no thread");
    return comm;
}

ncclResult_t nccl_wait(struct ncclComm *comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->job != JOB_NONE)
        pthread_cond_wait(&comm->changed, &comm->lock);
    ncclResult_t state = comm->state;
    pthread_mutex_unlock(&comm->lock);
    return state;
}

/* An error that came in the meantime stays, and nothing is begun; only a revoke heals it. */
ncclResult_t nccl_start(struct ncclComm *comm, enum job job, struct group *group)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->job != JOB_NONE)
        pthread_cond_wait(&comm->changed, &comm->lock);
    ncclResult_t state = comm->state;
    if (state != ncclSuccess && job != JOB_REVOKE) {
        pthread_mutex_unlock(&comm->lock);
        free(group);
        return state;
    }
    comm->job = job;
    comm->launching = group;
    comm->state = ncclInProgress;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    if (nccl_group_holds(comm))
        return ncclSuccess;
    return comm->blocking ? nccl_wait(comm) : ncclInProgress;
}

/* Sets `why`, and ends every wait in helper and stream. */
void nccl_stop(struct ncclComm *comm, bool *why)
{
    const uint64_t one = 1;
    pthread_mutex_lock(&comm->lock);
    *why = true;
    if (write(comm->wake, &one, sizeof one) != (ssize_t)sizeof one)
        nccl_die("eventfd", "write");
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

void nccl_free(struct ncclComm *comm)
{
    pthread_mutex_lock(&list_lock);
    comm->dead = true;
    pthread_mutex_unlock(&list_lock);
    pthread_mutex_lock(&comm->lock);
    while (comm->job != JOB_NONE || comm->running)
        pthread_cond_wait(&comm->changed, &comm->lock);
    comm->ending = true;
    comm->aborted = true; /* for groups that are still queued */
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    pthread_join(comm->helper, NULL);
    while (nccl_landed(comm))
        ;
    for (int i = 0; i < comm->ranks; i++)
        if (comm->fds[i] >= 0)
            close(comm->fds[i]);
    close(comm->wake);
    nccl_count(-1);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId unique, int rank, ncclConfig_t *config)
{
    uint64_t id;
    ENTER();
    if (ranks < 1 || ranks > RANKS_MAX || rank < 0 || rank >= ranks)
        return ncclInvalidArgument;
    memcpy(&id, unique.internal, sizeof id);
    *out = nccl_create(__func__, id, rank, ranks, config, true);
    return nccl_start(*out, JOB_INIT, NULL);
}

ncclResult_t ncclCommFinalize(ncclComm_t handle)
{
    ncclResult_t error;
    ENTER();
    struct ncclComm *comm = nccl_ready(__func__, handle, &error);
    if (error != ncclSuccess)
        return error;
    if (nccl_group_is_open())
        nccl_die(__func__, "a group is open");
    pthread_mutex_lock(&comm->lock);
    comm->finalized = true;
    pthread_mutex_unlock(&comm->lock);
    return nccl_start(comm, JOB_FINALIZE, NULL);
}

ncclResult_t ncclCommDestroy(ncclComm_t handle)
{
    ncclResult_t injected = nccl_enter(__func__), result = ncclSuccess;
    struct ncclComm *comm = nccl_comm(__func__, handle);
    pthread_mutex_lock(&comm->lock);
    if (comm->state == ncclInProgress)
        nccl_die(__func__, "the communicator is in progress: poll ncclCommGetAsyncError first");
    if (comm->state != ncclSuccess)
        nccl_die(__func__, "%s: ncclCommAbort frees a communicator with an error", comm->last_error);
    if (comm->registrations)
        nccl_die(__func__, "a buffer is still registered");
    bool parts = !comm->finalized && !comm->revoked;
    pthread_mutex_unlock(&comm->lock);
    if (nccl_group_is_open())
        nccl_die(__func__, "a group is open");
    if (parts) {
        nccl_start(comm, JOB_FINALIZE, NULL);
        result = nccl_wait(comm);
    }
    nccl_free(comm);
    return injected != ncclSuccess ? injected : result;
}

ncclResult_t ncclCommAbort(ncclComm_t handle)
{
    ncclResult_t injected = nccl_enter(__func__);
    struct ncclComm *comm = nccl_comm(__func__, handle);
    nccl_stop(comm, &comm->aborted);
    nccl_free(comm);
    while (comm->registrations) {
        struct registration *gone = comm->registrations;
        comm->registrations = gone->next;
        free(gone);
        nccl_count(-1);
    }
    return injected;
}

ncclResult_t ncclCommRevoke(ncclComm_t handle, int flags)
{
    ENTER();
    struct ncclComm *comm = nccl_comm(__func__, handle);
    if (flags != NCCL_REVOKE_DEFAULT)
        return ncclInvalidArgument;
    nccl_stop(comm, &comm->revoked);
    return nccl_start(comm, JOB_REVOKE, NULL);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t *out)
{
    ENTER();
    struct ncclComm *comm = nccl_comm(__func__, handle);
    pthread_mutex_lock(&comm->lock);
    *out = comm->state;
    pthread_mutex_unlock(&comm->lock);
    return ncclSuccess;
}

/* A copy of each thread's: the communicator may fail while its text is read. */
const char *ncclGetLastError(ncclComm_t handle)
{
    static _Thread_local char text[256];
    if (!handle)
        return "";
    struct ncclComm *comm = nccl_comm(__func__, handle);
    pthread_mutex_lock(&comm->lock);
    memcpy(text, comm->last_error, sizeof text);
    pthread_mutex_unlock(&comm->lock);
    return text;
}

static ncclResult_t tell(const char *call, ncclComm_t handle, size_t member, int *out)
{
    ncclResult_t error, injected = nccl_enter(call);
    const struct ncclComm *comm = nccl_ready(call, handle, &error);
    if (injected != ncclSuccess || error != ncclSuccess)
        return injected != ncclSuccess ? injected : error;
    memcpy(out, (const char *)comm + member, sizeof *out);
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *out)
{
    return tell(__func__, comm, offsetof(struct ncclComm, ranks), out);
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *out)
{
    return tell(__func__, comm, offsetof(struct ncclComm, rank), out);
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *out)
{
    return tell(__func__, comm, offsetof(struct ncclComm, device), out);
}

ncclResult_t ncclCommRegister(const ncclComm_t handle, void *memory, size_t bytes, void **out)
{
    ncclResult_t error;
    ENTER();
    struct ncclComm *comm = nccl_ready(__func__, handle, &error);
    if (error != ncclSuccess)
        return error;
    standin_touch_on(__func__, comm->device, (uint64_t)(uintptr_t)memory, bytes, false);
    struct registration *added = calloc(1, sizeof *added);
    if (!added)
        return ncclSystemError;
    pthread_mutex_lock(&comm->lock);
    added->next = comm->registrations;
    comm->registrations = added;
    pthread_mutex_unlock(&comm->lock);
    nccl_count(1);
    *out = added;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t handle, void *registration)
{
    ncclResult_t injected = nccl_enter(__func__);
    struct ncclComm *comm = nccl_comm(__func__, handle);
    pthread_mutex_lock(&comm->lock);
    struct registration **at = &comm->registrations;
    while (*at && *at != registration)
        at = &(*at)->next;
    if (!*at)
        nccl_die(__func__, "not a registration of this communicator");
    struct registration *gone = *at;
    *at = gone->next;
    pthread_mutex_unlock(&comm->lock);
    free(gone);
    nccl_count(-1);
    return injected;
}
