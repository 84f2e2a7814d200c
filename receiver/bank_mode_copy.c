/* SPDX-License-Identifier: Apache-2.0
 *
 * Mode copy: engines read one slot for ever, and versions come to it. The bytes of the staged slot and of the live one change
 * places, on all ranks at once; then the staged one holds the version before, and going back is the same exchange.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/thread.h"
#include "receiver/bank_internal.h"

#define THREADS_MAX 64
#define WAIT_MS 20
#define EXCHANGE_MS 60000 /* a device that takes longer than this is lost, and with it what it holds */

/* --- what it needs ----------------------------------------------------------------------------------------- */

static enum refit_status make_one(struct refit_bank *bank, uint32_t slot, uint32_t rank, struct refit_error *err)
{
    struct refit_arena *live = bank->slot[bank->live].arena[rank], *other = bank->slot[slot].arena[rank];
    if (bank->exchange[rank])
        return refit_exchange_prepare(bank->exchange[rank], other, err);
    return refit_exchange_create(live, other, &bank->exchange[rank], err);
}

enum refit_status refit_bank_make_exchange(struct refit_bank *bank, uint32_t slot, struct refit_error *err)
{
    if (bank->swap != REFIT_SWAP_COPY || slot == bank->live)
        return REFIT_OK;
    if (!bank->exchange)
        bank->exchange = calloc(bank->ranks, sizeof(*bank->exchange));
    if (!bank->exchange)
        return refit_fail_alloc(err, "the table of exchanges", bank->ranks * sizeof(*bank->exchange));
    for (uint32_t rank = 0; rank < bank->ranks; rank++) {
        enum refit_status status = make_one(bank, slot, rank, err);
        if (status != REFIT_OK)
            return refit_error_prefix(err, status, "rank %u", refit_bank_rank_number(bank, rank));
    }
    return REFIT_OK;
}

enum refit_status refit_bank_reserve_exchange(struct refit_bank *bank, uint32_t slot, struct refit_deadline deadline,
                                              struct refit_error *err)
{
    while (bank->allocating) {
        enum refit_status status = refit_bank_pause(bank, deadline, NULL, WAIT_MS);
        if (status != REFIT_OK)
            return refit_bank_wait_failed(status, "waiting for slots that are being made", err);
    }
    bank->allocating = true;
    refit_bank_unlock(bank);
    enum refit_status status = refit_bank_make_exchange(bank, slot, err);
    refit_bank_lock(bank);
    bank->allocating = false;
    refit_bank_changed(bank);
    return status;
}

void refit_bank_release_exchange(struct refit_bank *bank)
{
    for (uint32_t rank = 0; bank->exchange && rank < bank->ranks; rank++)
        refit_exchange_destroy(bank->exchange[rank]);
    free(bank->exchange);
}

/* --- all ranks at once ------------------------------------------------------------------------------------- */

struct job {
    struct refit_bank *bank;
    uint32_t rank;
    uint32_t to;
    uint64_t bytes;
    struct refit_exchanged done;
    enum refit_status status;
    struct refit_error error;
};

struct crew {
    struct job *jobs;
    uint32_t count;
    atomic_uint next;
};

static void run_job(struct job *job)
{
    struct refit_bank *bank = job->bank;
    job->status = refit_exchange_run(bank->exchange[job->rank], bank->slot[bank->live].arena[job->rank],
                                     bank->slot[job->to].arena[job->rank], job->bytes,
                                     refit_deadline_in_ms(EXCHANGE_MS), &job->done, &job->error);
}

static void *work(void *context)
{
    struct crew *crew = context;
    for (;;) {
        unsigned at = atomic_fetch_add_explicit(&crew->next, 1, memory_order_relaxed);
        if (at >= crew->count)
            return NULL;
        run_job(&crew->jobs[at]);
    }
}

/* Without a thread more, those that there are do all: it takes longer, and that is all. */
static void run_all(struct job *jobs, uint32_t count)
{
    struct crew crew = {.jobs = jobs, .count = count};
    pthread_t thread[THREADS_MAX];
    uint32_t started = 0;
    while (started + 1 < count && started < THREADS_MAX &&
           refit_thread_start(&thread[started], work, &crew, "a thread that exchanges", NULL) == REFIT_OK)
        started++;
    (void)work(&crew);
    while (started > 0)
        pthread_join(thread[--started], NULL);
}

static const struct job *first_failed(const struct job *jobs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (jobs[i].status != REFIT_OK)
            return &jobs[i];
    }
    return NULL;
}

/* What has changed places changes back. False: some of it can't. */
static bool undo(struct job *jobs, uint32_t count)
{
    bool torn = false;
    for (uint32_t i = 0; i < count; i++) {
        jobs[i].bytes = jobs[i].done.bytes;
        torn = torn || jobs[i].done.torn;
    }
    if (torn)
        return false;
    run_all(jobs, count);
    return !first_failed(jobs, count);
}

static struct job *make_jobs(struct refit_bank *bank, uint32_t to)
{
    struct job *jobs = calloc(bank->ranks, sizeof *jobs);
    for (uint32_t rank = 0; jobs && rank < bank->ranks; rank++) {
        uint64_t bytes = refit_arena_bytes(bank->slot[to].arena[rank]);
        uint64_t used = bank->layout ? refit_layout_arena_bytes(bank->layout, refit_bank_rank_number(bank, rank)) : bytes;
        jobs[rank] = (struct job){.bank = bank, .rank = rank, .to = to, .bytes = used < bytes ? used : bytes};
    }
    return jobs;
}

/* Without the lock. *torn: not all of it could be undone. */
static enum refit_status exchange_all(struct refit_bank *bank, uint32_t to, bool *torn, struct refit_error *err)
{
    *torn = false;
    struct job *jobs = make_jobs(bank, to);
    if (!jobs)
        return refit_fail_alloc(err, "the exchange of slots", bank->ranks * sizeof *jobs);
    run_all(jobs, bank->ranks);
    const struct job *failed = first_failed(jobs, bank->ranks);
    enum refit_status status = REFIT_OK;
    if (failed) {
        status = refit_fail(err, failed->status, "rank %u: %s", refit_bank_rank_number(bank, failed->rank),
                            failed->error.text);
        *torn = !undo(jobs, bank->ranks);
    }
    free(jobs);
    return status;
}

/* --- records ----------------------------------------------------------------------------------------------- */

#define EXCHANGE(x, y)          \
    do {                        \
        __typeof__(x) kept = x; \
        x = y;                  \
        y = kept;               \
    } while (0)

/* The versions have changed places, and with them all that is known of them. Memory and who reads it have not. */
static void exchange_records(struct refit_bank *bank, uint32_t to)
{
    struct refit_slot *live = &bank->slot[bank->live], *other = &bank->slot[to];
    EXCHANGE(live->state, other->state);
    EXCHANGE(live->version, other->version);
    EXCHANGE(live->serial, other->serial);
    EXCHANGE(live->retired_order, other->retired_order);
    EXCHANGE(live->retired_ns, other->retired_ns);
    EXCHANGE(live->since_ms, other->since_ms);
    if (bank->active == bank->live)
        bank->active = to;
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        EXCHANGE(r->prepared[bank->live], r->prepared[to]);
        EXCHANGE(r->asked[bank->live], r->asked[to]);
        EXCHANGE(r->refused[bank->live], r->refused[to]);
        r->shown[bank->live] = r->shown[to] = 0; /* both are hidden */
    }
}

enum refit_status refit_bank_exchange(struct refit_bank *bank, uint32_t to, struct refit_error *err)
{
    bool torn = false;
    bank->swap_to = to;
    bank->exchanging = true;
    refit_bank_unlock(bank);
    /* A restart in the middle must find this, or it would serve a mixture. */
    enum refit_status status = refit_bank_try_save(bank, err);
    if (status == REFIT_OK)
        status = exchange_all(bank, to, &torn, err);
    refit_bank_lock(bank);
    if (status == REFIT_OK) {
        exchange_records(bank, to);
    } else if (torn) {
        refit_bank_set_state(bank, to, REFIT_SLOT_FREE);
        refit_bank_tear(bank);
    }
    bank->exchanging = false;
    return status;
}
