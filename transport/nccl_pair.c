/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nccl_pair.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

_Static_assert(sizeof(ncclUniqueId) == REFIT_NCCL_UNIQUE_BYTES, "a unique id travels as its bytes");

/* Thread blocks of a communicator's kernels: what a link needs, and few of what the engine would use. NCCL_MAX_CTAS
 * overrides. */
#define CTAS_MAX 16

static bool is_good(const struct refit_nccl_device *device, const struct refit_nccl_pair *pair)
{
    struct refit_error err;
    return refit_nccl_pair_poll(device, pair, &err) == REFIT_OK;
}

/* An error may have come to it since: its peer may have ended. */
static struct refit_nccl_pair *use(struct refit_nccl_device *device, struct refit_nccl_pair *pair)
{
    if (!pair)
        return NULL;
    if (!is_good(device, pair)) {
        refit_nccl_pair_abort(device, pair);
        return NULL;
    }
    pair->used_ns = refit_clock_ns();
    return pair;
}

static struct refit_nccl_pair *find(struct refit_nccl_device *device, bool receiving,
                                    const struct refit_nccl_id *process, const struct refit_nccl_id *peer)
{
    struct refit_nccl_pair *pair = device->pairs;
    while (pair && !(pair->receiving == receiving && refit_nccl_id_equal(&pair->process, process) &&
                     refit_nccl_id_equal(&pair->peer, peer)))
        pair = pair->next;
    return pair;
}

struct refit_nccl_pair *refit_nccl_pair_to(struct refit_nccl_device *device, const struct refit_nccl_id *process,
                                           const struct refit_nccl_id *peer)
{
    return use(device, find(device, true, process, peer));
}

struct refit_nccl_pair *refit_nccl_pair_tagged(struct refit_nccl_device *device, uint64_t tag)
{
    struct refit_nccl_pair *pair = device->pairs;
    while (pair && (pair->receiving || pair->tag != tag))
        pair = pair->next;
    return use(device, pair);
}

/* ---- making ---- */

enum refit_status refit_nccl_unique(const struct refit_nccl_device *device, uint8_t unique[REFIT_NCCL_UNIQUE_BYTES],
                                    struct refit_error *err)
{
    ncclUniqueId id;
    enum refit_status status = NCCL(device->nccl, NULL, err, ncclGetUniqueId, &id);
    if (status == REFIT_OK)
        memcpy(unique, &id, sizeof id);
    return status;
}

static struct refit_nccl_pair *oldest(const struct refit_nccl_device *device)
{
    struct refit_nccl_pair *found = device->pairs;
    for (struct refit_nccl_pair *pair = found; pair; pair = pair->next)
        if (pair->used_ns < found->used_ns)
            found = pair;
    return found;
}

static void make_room(struct refit_nccl_device *device, const struct refit_nccl_pair *like)
{
    struct refit_nccl_pair *old = find(device, like->receiving, &like->process, &like->peer);
    if (!old && device->pair_count >= REFIT_NCCL_PAIRS_MAX)
        old = oldest(device);
    if (old)
        refit_nccl_pair_abort(device, old);
}

static enum refit_status init(const struct refit_nccl_device *device, struct refit_nccl_pair *pair,
                              const uint8_t unique[REFIT_NCCL_UNIQUE_BYTES], struct refit_error *err)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    memcpy(&id, unique, sizeof id);
    config.blocking = 0;
    config.minCTAs = 1;
    config.maxCTAs = CTAS_MAX;
    enum refit_status status = refit_cuda_stream_enter(device->wire, err); /* NCCL takes the thread's device */
    if (status != REFIT_OK)
        return status;
    status = NCCL(device->nccl, NULL, err, ncclCommInitRankConfig, &pair->comm, 2, id, pair->receiving ? 0 : 1, &config);
    refit_cuda_stream_leave(device->wire);
    return status;
}

enum refit_status refit_nccl_pair_begin(struct refit_nccl_device *device, const struct refit_nccl_pair *like,
                                        const uint8_t unique[REFIT_NCCL_UNIQUE_BYTES], struct refit_nccl_pair **out,
                                        struct refit_error *err)
{
    make_room(device, like);
    struct refit_nccl_pair *pair = malloc(sizeof *pair);
    if (!pair)
        return refit_fail_alloc(err, "a communicator", sizeof *pair);
    *pair = *like;
    pair->comm = NULL;
    pair->used_ns = refit_clock_ns();
    pair->next = device->pairs;
    device->pairs = pair;
    device->pair_count++;
    enum refit_status status = init(device, pair, unique, err);
    if (status != REFIT_OK)
        refit_nccl_pair_abort(device, pair);
    else
        *out = pair;
    return status;
}

enum refit_status refit_nccl_pair_poll(const struct refit_nccl_device *device, const struct refit_nccl_pair *pair,
                                       struct refit_error *err)
{
    ncclResult_t state = ncclSuccess;
    enum refit_status status = NCCL(device->nccl, pair->comm, err, ncclCommGetAsyncError, pair->comm, &state);
    if (status != REFIT_OK)
        return status;
    return state == ncclInProgress ? REFIT_BUSY : refit_nccl_check(device->nccl, pair->comm, state, "NCCL", err);
}

void refit_nccl_pair_abort(struct refit_nccl_device *device, struct refit_nccl_pair *pair)
{
    for (struct refit_nccl_pair **at = &device->pairs; *at; at = &(*at)->next) {
        if (*at == pair) {
            *at = pair->next;
            device->pair_count--;
            break;
        }
    }
    struct refit_error err;
    if (pair->comm && NCCL(device->nccl, NULL, &err, ncclCommAbort, pair->comm) != REFIT_OK)
        refit_log_limited(REFIT_LOG_WARN, "a communicator did not abort cleanly",
                          refit_log_i64("device", device->ordinal), REFIT_LOG_CAUSE(&err));
    free(pair);
}
