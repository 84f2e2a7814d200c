/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/serve.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/log.h"
#include "base/thread.h"
#include "receiver/dial.h"
#include "receiver/receiver_internal.h"
#include "receiver/whole.h"

struct refit_serve {
    struct refit_receiver *receiver;
    char id[REFIT_REFIT_ID_MAX];
    struct refit_serve_request request;
    json_t *card;            /* owned */
    struct refit_plan *plan; /* owned; from our layout to the receiver's */
    struct refit_arena **arenas; /* by rank of our layout; NULL: another part of the replica has it */
    struct refit_whole *whole; /* owned; NULL: the slot is whole */
    uint32_t slot;
    bool pinned, runs, ended; /* `ended` under the receiver's lock, as the next */
    struct refit_error error;
    pthread_t thread;
    struct refit_dial dial;
};

const char *refit_serve_state_name(enum refit_serve_state state)
{
    switch (state) {
    case REFIT_SERVE_DIALLING: return "dialling";
    case REFIT_SERVE_SERVING: return "serving";
    case REFIT_SERVE_DONE: return "done";
    case REFIT_SERVE_FAILED: return "failed";
    }
    return "unknown";
}

/* --- the list, under the lock ----------------------------------------------------------------------------------- */

uint32_t refit_serves_running(const struct refit_serves *serves)
{
    uint32_t running = 0;
    for (uint32_t i = 0; i < serves->count; i++)
        running += !serves->items[i]->ended;
    return running;
}

static struct refit_serve *take(struct refit_serves *serves, uint32_t index)
{
    struct refit_serve *serve = serves->items[index];
    serves->count--;
    memmove(&serves->items[index], &serves->items[index + 1], (serves->count - index) * sizeof serves->items[0]);
    return serve;
}

/* *out is one that has ended, to be destroyed without the lock, when there is no room. */
static enum refit_status make_room(struct refit_serves *serves, struct refit_serve **out, struct refit_error *err)
{
    *out = NULL;
    for (uint32_t i = 0; i < serves->count && serves->count == REFIT_SERVES_MAX; i++)
        if (serves->items[i]->ended)
            *out = take(serves, i);
    return serves->count < REFIT_SERVES_MAX
               ? REFIT_OK
               : refit_fail(err, REFIT_BUSY, "%d receivers are being served already; retry", REFIT_SERVES_MAX);
}

static bool is_same(const struct refit_serve *serve, const struct refit_serve_request *request)
{
    const struct refit_serve_request *own = &serve->request;
    return !serve->ended && own->version == request->version && own->holder == request->holder &&
           strcmp(own->refit, request->refit) == 0 && strcmp(own->layout, request->layout) == 0 &&
           own->first_rank == request->first_rank && own->rank_count == request->rank_count &&
           memcmp(own->token, request->token, sizeof own->token) == 0 && json_equal(serve->card, request->card);
}

/* --- one -------------------------------------------------------------------------------------------------------- */

/* One that has ended is remembered, by what look() needs. Its thread's, as soon as nothing reads the slot. */
static void release_means(struct refit_serve *serve)
{
    refit_whole_stop(serve->whole);
    refit_plan_release(serve->plan);
    free(serve->arenas);
    serve->whole = NULL;
    serve->plan = NULL;
    serve->arenas = NULL;
}

static void destroy(struct refit_serve *serve)
{
    if (!serve)
        return;
    refit_dial_stop(&serve->dial);
    if (serve->runs)
        pthread_join(serve->thread, NULL);
    refit_dial_release(&serve->dial);
    release_means(serve);
    if (serve->pinned)
        refit_bank_unpin(serve->receiver->bank, serve->slot);
    json_decref(serve->card);
    free(serve);
}

static void *serve_thread(void *arg)
{
    struct refit_serve *serve = arg;
    struct refit_receiver *receiver = serve->receiver;
    struct refit_error err = {.status = REFIT_OK};
    refit_log_context(serve->request.refit, serve->request.version);
    enum refit_status status = refit_dial_run(&serve->dial, &err);
    release_means(serve);
    refit_receiver_lock(receiver);
    bool pinned = serve->pinned;
    serve->pinned = false;
    serve->ended = true;
    if (status != REFIT_OK)
        serve->error = err;
    receiver->serves.bytes += refit_dial_sent(&serve->dial);
    refit_receiver_unlock(receiver);
    if (pinned)
        refit_bank_unpin(receiver->bank, serve->slot);
    refit_log_event(REFIT_LOG_INFO, "served another replica", refit_log_text("serve", serve->id),
                    refit_log_u64("bytes", refit_dial_sent(&serve->dial)), refit_log_text("status", refit_status_name(status)),
                    refit_log_text("reason", err.text));
    refit_receiver_changed(receiver);
    return NULL;
}

static enum refit_status create(struct refit_receiver *receiver, const struct refit_serve_request *request,
                                struct refit_plan *plan, struct refit_serve **out, struct refit_error *err)
{
    struct refit_serve *serve = calloc(1, sizeof *serve);
    uint64_t random;
    if (!serve) {
        refit_fail_alloc(err, "a request to serve", sizeof *serve);
        return REFIT_NO_MEMORY; /* known to the compiler: it is never OK without a serve */
    }
    enum refit_status status = refit_dial_init(&serve->dial, err);
    if (status != REFIT_OK) {
        free(serve);
        return status;
    }
    serve->receiver = receiver;
    serve->request = *request;
    serve->plan = refit_plan_retain(plan);
    serve->card = json_deep_copy(request->card);
    serve->arenas = calloc(refit_layout_ranks(refit_plan_source(plan)), sizeof *serve->arenas);
    refit_io_random(&random, sizeof random);
    snprintf(serve->id, sizeof serve->id, "s%" PRIu64 "-%016" PRIx64, request->version, random);
    *out = serve;
    return serve->card && serve->arenas ? REFIT_OK : refit_fail_alloc(err, "a request to serve", sizeof *serve);
}

/* The slot with this version, kept from now on. */
static enum refit_status find_slot(struct refit_serve *serve, struct refit_error *err)
{
    struct refit_receiver *receiver = serve->receiver;
    refit_receiver_lock(receiver);
    struct refit_filling filling = receiver->filling;
    bool found = filling.plan && filling.version == serve->request.version;
    struct refit_plan *plan = found ? refit_plan_retain(filling.plan) : NULL;
    struct refit_landed *landed = found ? refit_landed_retain(filling.landed) : NULL;
    if (found)
        refit_bank_pin_slot(receiver->bank, filling.slot);
    refit_receiver_unlock(receiver);
    enum refit_status status;
    if (found) {
        serve->slot = filling.slot;
        serve->pinned = true;
        status = refit_whole_start(plan, landed, serve->plan, &serve->whole, err);
    } else {
        status = refit_bank_pin(receiver->bank, serve->request.version, &serve->slot, err);
        serve->pinned = status == REFIT_OK;
    }
    refit_plan_release(plan);
    refit_landed_release(landed);
    return status;
}

static void set_endpoint(struct refit_serve *serve)
{
    const struct refit_receiver_config *config = &serve->receiver->config;
    struct refit_dial *dial = &serve->dial;
    memcpy(serve->arenas + config->bank.first_rank, refit_bank_arenas(serve->receiver->bank, serve->slot),
           config->bank.ranks * sizeof *serve->arenas);
    dial->config = (struct refit_endpoint_config){
        .role = REFIT_HOLDER,
        .refit_id = serve->request.refit,
        .plan = serve->plan,
        .holder = serve->request.holder,
        .arenas = serve->arenas,
        .arena_count = refit_layout_ranks(refit_plan_source(serve->plan)),
        .landed = serve->whole ? refit_whole_landed(serve->whole) : NULL,
        .tls = config->tls,
        .verify = config->verify,
        .streams = config->streams,
        .rate_bytes_per_s = config->rate_bytes_per_s,
        .nice = config->nice,
    };
    memcpy(dial->config.token, serve->request.token, sizeof dial->config.token);
    dial->path[0] = (struct refit_dial_path){refit_transport_find(serve->request.transport), serve->card};
    dial->paths = 1;
    dial->deadline = refit_deadline_in_ms(serve->request.deadline_ms);
}

/* Under the lock: found by the refit that fills its slot from here on. */
static enum refit_status enlist(struct refit_serve *serve, struct refit_serve **old, struct refit_error *err)
{
    struct refit_receiver *receiver = serve->receiver;
    if (receiver->closing)
        return refit_fail(err, REFIT_ABORTED, "refitd is shutting down");
    if (serve->whole && (!receiver->filling.plan || receiver->filling.version != serve->request.version ||
                         receiver->filling.slot != serve->slot))
        return refit_fail(err, REFIT_BUSY, "version %" PRIu64 " stopped being filled meanwhile; retry",
                          serve->request.version);
    enum refit_status status = make_room(&receiver->serves, old, err);
    if (status == REFIT_OK)
        status = refit_thread_start(&serve->thread, serve_thread, serve, "the thread that serves a replica", err);
    if (status != REFIT_OK)
        return status;
    serve->runs = true;
    receiver->serves.items[receiver->serves.count++] = serve;
    return REFIT_OK;
}

/* --- public ----------------------------------------------------------------------------------------------------- */

static enum refit_status check(const struct refit_receiver *receiver, struct refit_serve_request *request,
                               struct refit_error *err)
{
    const struct refit_receiver_config *config = &receiver->config;
    if (!refit_transport_find(request->transport))
        return refit_fail(err, REFIT_INVALID, "serve: transport '%.15s' is not known; use tcp or local",
                          request->transport);
    if (request->holder >= REFIT_HOLDERS_MAX)
        return refit_fail(err, REFIT_INVALID, "serve: holder %" PRIu32 ", at most %u are possible", request->holder,
                          REFIT_HOLDERS_MAX - 1);
    if (request->deadline_ms == 0)
        request->deadline_ms = config->deadline_ms;
    if (request->deadline_ms > 0 && request->deadline_ms <= config->deadline_max_ms)
        return REFIT_OK;
    return refit_fail(err, REFIT_INVALID, "serve: 'deadline_ms' must be 1 to %" PRId64 ", found %" PRId64,
                      config->deadline_max_ms, request->deadline_ms);
}

static enum refit_status make_plan(struct refit_receiver *receiver, const struct refit_serve_request *request,
                                   struct refit_plan **out, struct refit_error *err)
{
    struct refit_layout *own = refit_bank_layout(receiver->bank);
    refit_receiver_lock(receiver);
    struct refit_layout *theirs = refit_sources_find(&receiver->sources, request->layout);
    if (theirs)
        refit_layout_retain(theirs);
    refit_receiver_unlock(receiver);
    const struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = REFIT_ALL_RANKS,
                                           .first_rank = request->first_rank, .rank_count = request->rank_count};
    enum refit_status status;
    if (!own)
        status = refit_fail(err, REFIT_NOT_FOUND, "no engine has attached yet, so no version is here");
    else if (theirs)
        status = refit_plan_build(own, theirs, scope, out, err);
    else
        status = refit_fail(err, REFIT_NOT_FOUND, "layout %.64s is not known here; put it, then retry",
                            request->layout);
    refit_layout_release(own);
    refit_layout_release(theirs);
    return status;
}

/* Under the lock. */
static bool find_same(const struct refit_receiver *receiver, const struct refit_serve_request *request,
                      char id[static REFIT_REFIT_ID_MAX])
{
    bool found = false;
    for (uint32_t i = 0; i < receiver->serves.count && !found; i++) {
        found = is_same(receiver->serves.items[i], request);
        if (found)
            memcpy(id, receiver->serves.items[i]->id, REFIT_REFIT_ID_MAX);
    }
    return found;
}

static bool find_running(struct refit_receiver *receiver, const struct refit_serve_request *request,
                         char id[static REFIT_REFIT_ID_MAX])
{
    refit_receiver_lock(receiver);
    bool found = find_same(receiver, request, id);
    refit_receiver_unlock(receiver);
    return found;
}

enum refit_status refit_receiver_serve(struct refit_receiver *receiver, const struct refit_serve_request *in,
                                       char id[static REFIT_REFIT_ID_MAX], struct refit_error *err)
{
    struct refit_serve_request request = *in;
    struct refit_plan *plan = NULL;
    struct refit_serve *serve = NULL, *old = NULL;
    if (find_running(receiver, &request, id))
        return REFIT_OK;
    enum refit_status status = check(receiver, &request, err);
    if (status == REFIT_OK)
        status = make_plan(receiver, &request, &plan, err);
    if (status == REFIT_OK)
        status = create(receiver, &request, plan, &serve, err);
    if (status == REFIT_OK)
        status = find_slot(serve, err);
    bool came_second = false;
    if (status == REFIT_OK) {
        set_endpoint(serve);
        refit_receiver_lock(receiver);
        came_second = find_same(receiver, &serve->request, id); /* the same request, while the plan was made */
        if (!came_second) {
            memcpy(id, serve->id, REFIT_REFIT_ID_MAX);
            status = enlist(serve, &old, err);
        }
        refit_receiver_unlock(receiver);
    }
    refit_plan_release(plan);
    destroy(old);
    if (status != REFIT_OK || came_second)
        destroy(serve);
    return status;
}

static void look(struct refit_serve *serve, struct refit_serve_snapshot *out)
{
    *out = (struct refit_serve_snapshot){.version = serve->request.version, .slot = serve->slot,
                                         .error = serve->error, .bytes = refit_dial_sent(&serve->dial)};
    memcpy(out->id, serve->id, sizeof out->id);
    memcpy(out->refit, serve->request.refit, sizeof out->refit);
    if (serve->ended)
        out->state = serve->error.status == REFIT_OK ? REFIT_SERVE_DONE : REFIT_SERVE_FAILED;
    else
        out->state = refit_dial_is_connected(&serve->dial) ? REFIT_SERVE_SERVING : REFIT_SERVE_DIALLING;
}

uint32_t refit_receiver_serves(struct refit_receiver *receiver, struct refit_serve_snapshot *out)
{
    refit_receiver_lock(receiver);
    uint32_t count = receiver->serves.count;
    for (uint32_t i = 0; i < count; i++)
        look(receiver->serves.items[i], &out[i]);
    refit_receiver_unlock(receiver);
    return count;
}

enum refit_status refit_receiver_serve_end(struct refit_receiver *receiver, const char *id, struct refit_error *err)
{
    struct refit_serve *found = NULL;
    refit_receiver_lock(receiver);
    for (uint32_t i = 0; i < receiver->serves.count && !found; i++)
        if (strcmp(receiver->serves.items[i]->id, id) == 0)
            found = take(&receiver->serves, i);
    refit_receiver_unlock(receiver);
    destroy(found);
    return found ? REFIT_OK : refit_fail(err, REFIT_NOT_FOUND, "nothing is served here as '%.63s'", id);
}

static bool reads_slot(const struct refit_serve *serve, uint64_t slot)
{
    return serve->slot == slot && !serve->ended;
}

static bool reads_version(const struct refit_serve *serve, uint64_t version)
{
    return serve->request.version == version && !serve->ended;
}

static bool exists(const struct refit_serve *serve, uint64_t unused)
{
    (void)unused;
    return serve != NULL;
}

static void end_those(struct refit_receiver *receiver, bool (*wanted)(const struct refit_serve *serve, uint64_t what),
                      uint64_t what)
{
    struct refit_serve *found;
    do {
        found = NULL;
        refit_receiver_lock(receiver);
        for (uint32_t i = 0; i < receiver->serves.count && !found; i++)
            if (wanted(receiver->serves.items[i], what))
                found = take(&receiver->serves, i);
        refit_receiver_unlock(receiver);
        destroy(found);
    } while (found);
}

void refit_serves_end_slot(struct refit_receiver *receiver, uint32_t slot)
{
    end_those(receiver, reads_slot, slot);
}

void refit_serves_end_version(struct refit_receiver *receiver, uint64_t version)
{
    end_those(receiver, reads_version, version);
}

void refit_serves_close(struct refit_receiver *receiver)
{
    end_those(receiver, exists, 0);
}
