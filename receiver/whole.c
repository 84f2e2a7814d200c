/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/whole.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/io.h"
#include "base/thread.h"
#include "memory/ops.h"

/* The tensors that each batch of a plan touches, by ids of the layout that is filled here. */
struct touches {
    struct refit_plan *plan; /* owned */
    const struct refit_edge *edges;
    size_t edge_count;
    uint32_t batches;
    uint32_t *first;   /* by batch, into `tensors`; one more entry: the end */
    uint32_t *tensors;
    size_t count, capacity;
    bool *done;        /* by batch */
    uint32_t *prefix;  /* by edge: all batches before it are done */
    uint32_t left;
};

struct refit_whole {
    struct touches filling, serving;
    struct refit_landed *landed, *marked; /* owned */
    uint32_t *missing; /* by tensor: batches of `filling` that have not landed */
    int wake;
    atomic_bool stopping;
    bool runs;
    pthread_t thread;
};

/* --- building --------------------------------------------------------------------------------------------------- */

static bool add(struct touches *t, uint32_t tensor)
{
    if (t->count == t->capacity) {
        size_t capacity = t->capacity ? 2 * t->capacity : 1024;
        uint32_t *grown = capacity > UINT32_MAX ? NULL : realloc(t->tensors, capacity * sizeof *grown);
        if (!grown)
            return false;
        t->tensors = grown;
        t->capacity = capacity;
    }
    t->tensors[t->count++] = tensor;
    return true;
}

/* Another layout numbers its tensors otherwise, and may know one by an alias. */
static enum refit_status translate(const struct refit_layout *from, uint32_t id, const struct refit_layout *to,
                                   uint32_t *out, struct refit_error *err)
{
    struct refit_tensor tensor;
    if (from == to) {
        *out = id;
        return REFIT_OK;
    }
    refit_layout_tensor(from, id, &tensor);
    if (refit_layout_find(to, tensor.name, out))
        return REFIT_OK;
    return refit_fail(err, REFIT_MISMATCH, "tensor \"%s\" is not in the layout served here", tensor.name);
}

static enum refit_status add_batch(struct touches *t, struct refit_segments *segments, struct refit_walk walk,
                                   const struct refit_layout *own, struct refit_error *err)
{
    const struct refit_layout *layout = refit_plan_destination(t->plan);
    size_t first = t->count;
    enum refit_status status = refit_segments_of(segments, walk, err);
    for (size_t i = 0; i < segments->count && status == REFIT_OK; i++) {
        uint32_t tensor = 0;
        status = translate(layout, segments->items[i].tensor, own, &tensor, err);
        /* A tensor may come twice in a batch, then next to itself but for those that interleave: counted as often. */
        if (status == REFIT_OK && (t->count == first || t->tensors[t->count - 1] != tensor) && !add(t, tensor))
            status = refit_fail_alloc(err, "the tensors that a plan touches", t->count * sizeof *t->tensors);
    }
    return status;
}

static enum refit_status touches_init(struct touches *t, struct refit_plan *plan, enum refit_side side,
                                      const struct refit_layout *own, struct refit_error *err)
{
    t->plan = refit_plan_retain(plan);
    t->edges = refit_plan_edges(plan, &t->edge_count);
    for (size_t i = 0; i < t->edge_count; i++)
        if (__builtin_add_overflow(t->batches, t->edges[i].batches, &t->batches))
            return refit_fail(err, REFIT_UNSUPPORTED, "a plan of more than %" PRIu32 " batches", UINT32_MAX);
    t->left = t->batches;
    t->first = calloc((size_t)t->batches + 1, sizeof *t->first);
    t->done = calloc((size_t)t->batches + 1, sizeof *t->done);
    t->prefix = calloc(t->edge_count + 1, sizeof *t->prefix);
    if (!t->first || !t->done || !t->prefix)
        return refit_fail_alloc(err, "the tensors that a plan touches", t->batches * sizeof *t->first);
    struct refit_segments segments;
    refit_segments_init(&segments, false);
    enum refit_status status = REFIT_OK;
    uint32_t at = 0;
    for (size_t i = 0; i < t->edge_count && status == REFIT_OK; i++) {
        const struct refit_edge *edge = &t->edges[i];
        uint32_t group = side == REFIT_SOURCE ? edge->source_group : edge->destination_group;
        uint32_t rank = refit_plan_group(plan, side, group).ranks[0];
        for (uint32_t k = 0; k < edge->batches && status == REFIT_OK; k++) {
            status = add_batch(t, &segments, refit_walk_batch(plan, edge, k, rank), own, err);
            t->first[++at] = (uint32_t)t->count;
        }
    }
    refit_segments_release(&segments);
    return status;
}

static void touches_release(struct touches *t)
{
    refit_plan_release(t->plan);
    free(t->first);
    free(t->tensors);
    free(t->done);
    free(t->prefix);
}

/* --- following -------------------------------------------------------------------------------------------------- */

/* A pass over what is not done yet. `is_done` may have effects; it is asked once more for each batch until it is
 * true. */
static void pass(struct refit_whole *whole, struct touches *t,
                 bool (*is_done)(struct refit_whole *whole, const struct refit_edge *edge, uint32_t k, uint32_t batch))
{
    uint32_t base = 0;
    for (size_t i = 0; i < t->edge_count; base += t->edges[i++].batches)
        for (uint32_t k = t->prefix[i]; k < t->edges[i].batches; k++) {
            if (!t->done[base + k] && is_done(whole, &t->edges[i], k, base + k)) {
                t->done[base + k] = true;
                t->left--;
            }
            t->prefix[i] += t->done[base + k] && t->prefix[i] == k;
        }
}

static bool has_landed(struct refit_whole *whole, const struct refit_edge *edge, uint32_t k, uint32_t batch)
{
    const struct touches *t = &whole->filling;
    if (!refit_landed_has(whole->landed, edge, k))
        return false;
    for (uint32_t n = t->first[batch]; n < t->first[batch + 1]; n++)
        whole->missing[t->tensors[n]]--;
    return true;
}

static bool is_whole(struct refit_whole *whole, const struct refit_edge *edge, uint32_t k, uint32_t batch)
{
    const struct touches *t = &whole->serving;
    for (uint32_t n = t->first[batch]; n < t->first[batch + 1]; n++)
        if (whole->missing[t->tensors[n]] > 0)
            return false;
    refit_landed_mark(whole->marked, edge, k);
    return true;
}

static void *follow(void *arg)
{
    struct refit_whole *whole = arg;
    while (!atomic_load_explicit(&whole->stopping, memory_order_acquire) && whole->serving.left > 0) {
        eventfd_t ignored;
        struct pollfd wait = {.fd = whole->wake, .events = POLLIN};
        eventfd_read(whole->wake, &ignored); /* before the look, so that nothing is missed */
        pass(whole, &whole->filling, has_landed);
        pass(whole, &whole->serving, is_whole);
        if (whole->serving.left > 0)
            poll(&wait, 1, -1);
    }
    return NULL;
}

static enum refit_status begin(struct refit_whole *whole, struct refit_landed *landed, struct refit_error *err)
{
    const struct refit_layout *own = refit_plan_destination(whole->filling.plan);
    whole->missing = calloc((size_t)refit_layout_tensor_count(own) + 1, sizeof *whole->missing);
    if (!whole->missing)
        return refit_fail_alloc(err, "the tensors of a slot", refit_layout_tensor_count(own));
    for (size_t i = 0; i < whole->filling.count; i++)
        whole->missing[whole->filling.tensors[i]]++;
    whole->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (whole->wake < 0)
        return refit_fail_errno(err, errno, "eventfd");
    enum refit_status status = refit_landed_create(whole->serving.plan, &whole->marked, err);
    if (status == REFIT_OK)
        status = refit_landed_subscribe(landed, whole->wake, err);
    if (status != REFIT_OK)
        return status;
    whole->landed = refit_landed_retain(landed);
    status = refit_thread_start(&whole->thread, follow, whole, "the thread that follows a slot", err);
    whole->runs = status == REFIT_OK;
    return status;
}

enum refit_status refit_whole_start(struct refit_plan *filling, struct refit_landed *landed, struct refit_plan *serving,
                                    struct refit_whole **out, struct refit_error *err)
{
    struct refit_whole *whole = calloc(1, sizeof *whole);
    if (!whole)
        return refit_fail_alloc(err, "the tensors of a slot", sizeof *whole);
    whole->wake = -1;
    const struct refit_layout *own = refit_plan_destination(filling);
    enum refit_status status = touches_init(&whole->filling, filling, REFIT_DESTINATION, own, err);
    if (status == REFIT_OK)
        status = touches_init(&whole->serving, serving, REFIT_SOURCE, own, err);
    if (status == REFIT_OK)
        status = begin(whole, landed, err);
    if (status == REFIT_OK)
        *out = whole;
    else
        refit_whole_stop(whole);
    return status;
}

struct refit_landed *refit_whole_landed(const struct refit_whole *whole)
{
    return whole->marked;
}

void refit_whole_stop(struct refit_whole *whole)
{
    if (!whole)
        return;
    atomic_store_explicit(&whole->stopping, true, memory_order_release);
    if (whole->wake >= 0)
        eventfd_write(whole->wake, 1);
    if (whole->runs)
        pthread_join(whole->thread, NULL);
    if (whole->landed)
        refit_landed_unsubscribe(whole->landed, whole->wake);
    refit_landed_release(whole->landed);
    refit_landed_release(whole->marked);
    touches_release(&whole->filling);
    touches_release(&whole->serving);
    refit_io_close(&whole->wake);
    free(whole->missing);
    free(whole);
}
