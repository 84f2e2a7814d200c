/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>

#include "checkpoint/checkpoint.h"
#include "memory/ops.h"

/* Large tensors are shared by the threads, in slices. */
#define SLICE_BYTES (16u << 20)

struct slice {
    uint32_t tensor;
    uint64_t offset;        /* in the arena */
    uint64_t tensor_offset;
    uint64_t bytes;
};

struct job {
    const struct refit_layout *layout;
    const struct refit_arena *arena;
    struct refit_tally *tally;
    pthread_mutex_t lock;
    uint32_t next_tensor;
    struct slice rest;      /* of the tensor being handed out */
    enum refit_status status;
    struct refit_error err; /* the first one */
};

static bool take_region(void *ctx, const struct refit_region *region)
{
    struct slice *rest = ctx;
    rest->offset = region->offset;
    return false;
}

/* The next tensor that has bytes: it has one region, dense. */
static bool next_tensor(struct job *job)
{
    while (job->next_tensor < refit_layout_tensor_count(job->layout)) {
        struct refit_tensor tensor;
        uint32_t id = job->next_tensor++;
        refit_layout_tensor(job->layout, id, &tensor);
        job->rest = (struct slice){.tensor = id, .bytes = tensor.bytes};
        if (tensor.bytes > 0 && !refit_layout_regions(job->layout, id, 0, take_region, &job->rest))
            return true;
    }
    return false;
}

static bool take_slice(struct job *job, struct slice *out)
{
    pthread_mutex_lock(&job->lock);
    bool more = job->status == REFIT_OK && (job->rest.bytes > 0 || next_tensor(job));
    if (more) {
        *out = job->rest;
        if (out->bytes > SLICE_BYTES)
            out->bytes = SLICE_BYTES;
        job->rest.offset += out->bytes;
        job->rest.tensor_offset += out->bytes;
        job->rest.bytes -= out->bytes;
    }
    pthread_mutex_unlock(&job->lock);
    return more;
}

static void fail(struct job *job, const struct refit_error *err)
{
    pthread_mutex_lock(&job->lock);
    if (job->status == REFIT_OK) {
        job->status = err->status;
        job->err = *err;
    }
    pthread_mutex_unlock(&job->lock);
}

static void *run(void *ctx)
{
    struct job *job = ctx;
    struct slice slice;
    while (take_slice(job, &slice)) {
        struct refit_digest digest = {{0, 0}};
        struct refit_error err;
        if (refit_memory_digest_range(job->arena, slice.offset, slice.bytes, slice.tensor_offset, &digest, &err) !=
            REFIT_OK) {
            fail(job, &err);
            break;
        }
        refit_tally_add(job->tally, slice.tensor, digest);
    }
    return NULL;
}

/* The caller is one of the threads; when others can't be had, it does the work of all. */
static void run_all(struct job *job, unsigned threads)
{
    pthread_t *others = threads > 1 ? calloc(threads - 1, sizeof *others) : NULL;
    unsigned started = 0;
    while (others && started < threads - 1 && pthread_create(&others[started], NULL, run, job) == 0)
        started++;
    run(job);
    for (unsigned i = 0; i < started; i++)
        pthread_join(others[i], NULL);
    free(others);
}

enum refit_status refit_checkpoint_digest(const struct refit_checkpoint *checkpoint, unsigned threads,
                                          struct refit_tally **tally, char model_hex[static REFIT_SHA256_HEX_MAX],
                                          struct refit_error *err)
{
    struct job job = {
        .layout = refit_checkpoint_layout(checkpoint),
        .arena = refit_checkpoint_arena(checkpoint),
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .status = REFIT_OK,
    };
    job.tally = refit_tally_create(refit_layout_tensor_count(job.layout));
    if (!job.tally)
        return refit_fail_alloc(err, "digests", sizeof(struct refit_digest) * refit_layout_tensor_count(job.layout));
    run_all(&job, threads);
    enum refit_status status = job.status;
    if (status != REFIT_OK)
        refit_fail(err, status, "%s", job.err.text);
    else
        status = refit_model_digest(job.layout, job.tally, "exact", model_hex, err);
    pthread_mutex_destroy(&job.lock);
    if (status != REFIT_OK) {
        refit_tally_destroy(job.tally);
        return status;
    }
    *tally = job.tally;
    return REFIT_OK;
}
