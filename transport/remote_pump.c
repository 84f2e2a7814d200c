/* SPDX-License-Identifier: Apache-2.0
 *
 * What an engine that receives says to refitd.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "transport/remote_executor.h"

#define NS_PER_MS INT64_C(1000000)
#define LOOK_MS 20 /* between two looks at all holders, unless something happened */
#define COMPLETIONS 64
#define EVERYBODY UINT32_MAX

static bool ends(const struct refit_remote_executor *executor)
{
    return atomic_load_explicit(&executor->pump_ends, memory_order_acquire);
}

enum refit_status refit_remote_say(struct refit_remote_executor *executor, const struct refit_remote_message *message,
                                   const void *payload, size_t len, struct refit_error *err)
{
    enum refit_status status;
    while ((status = refit_remote_send(executor->sock, message, payload, len, NULL, 0, err)) == REFIT_BUSY) {
        status = refit_wire_wait(executor->sock, POLLOUT, executor->wake, REFIT_FOREVER, err);
        if (status != REFIT_OK)
            return status;
    }
    return status;
}

/* ---- holders ---- */

static struct refit_remote_message state_of(struct refit_remote_executor *executor, uint32_t number, bool *owes)
{
    struct refit_holder_state state = {.owed = 0};
    refit_transport_nccl.look(executor->endpoint, number, &state);
    *owes = state.owed > 0;
    int64_t ago = state.heard_ns ? refit_clock_ns() - state.heard_ns : INT64_MAX;
    return (struct refit_remote_message){.type = REFIT_REMOTE_STATE, .holder = number,
                                         .argument = state.connected ? REFIT_REMOTE_CONNECTED : 0,
                                         .value[0] = (uint64_t)ago};
}

/* Told when it changes, and while it owes: refitd judges its silence. */
static bool is_news(struct refit_remote_executor *executor, size_t i, const struct refit_remote_message *m, bool owes)
{
    int64_t now = refit_clock_ns();
    pthread_mutex_lock(&executor->small);
    struct refit_remote_holder *holder = &executor->holders[i];
    bool dropped = holder->dropped; /* DROPPED comes first */
    bool news = !dropped && (holder->told != m->argument || (owes && now - holder->told_ns >= REFIT_ALIVE_MS * NS_PER_MS));
    if (news) {
        holder->told = m->argument;
        holder->told_ns = now;
    }
    pthread_mutex_unlock(&executor->small);
    return news;
}

static size_t count_holders(struct refit_remote_executor *executor)
{
    pthread_mutex_lock(&executor->small);
    size_t count = executor->holder_count;
    pthread_mutex_unlock(&executor->small);
    return count;
}

static uint32_t holder_at(struct refit_remote_executor *executor, size_t i)
{
    pthread_mutex_lock(&executor->small);
    uint32_t number = executor->holders[i].number;
    pthread_mutex_unlock(&executor->small);
    return number;
}

static enum refit_status say_alive(struct refit_remote_executor *executor, struct refit_error *err)
{
    struct refit_endpoint_stats stats;
    executor->alive_ns = refit_clock_ns();
    refit_transport_nccl.stats(executor->endpoint, &stats);
    const struct refit_remote_message m = {.type = REFIT_REMOTE_ALIVE,
                                           .value = {stats.payload_bytes, stats.wire_bytes, stats.copied_bytes}};
    return refit_remote_say(executor, &m, NULL, 0, err);
}

/* Of one holder, or of EVERYBODY. */
static enum refit_status say_states(struct refit_remote_executor *executor, uint32_t number, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    size_t count = count_holders(executor);
    for (size_t i = 0; i < count && status == REFIT_OK; i++) {
        bool owes;
        uint32_t holder = holder_at(executor, i);
        if (number != EVERYBODY && number != holder)
            continue;
        const struct refit_remote_message m = state_of(executor, holder, &owes);
        if (!is_news(executor, i, &m, owes))
            continue;
        /* Who waits for the last of its holders to leave reads what has come of them then. */
        if (!(m.argument & REFIT_REMOTE_CONNECTED))
            status = say_alive(executor, err);
        if (status == REFIT_OK)
            status = refit_remote_say(executor, &m, NULL, 0, err);
    }
    return status;
}

/* ---- batches ---- */

void refit_remote_note_landed(void *context, const struct refit_edge *edge, uint32_t batch,
                              const struct refit_segments *segments)
{
    struct refit_remote_executor *executor = context;
    size_t count = executor->open.verify ? segments->count : 0;
    struct refit_remote_landed *landed = malloc(sizeof *landed + count * REFIT_DIGEST_BYTES);
    if (!landed)
        return; /* refitd takes a batch without its digests for one that has not landed */
    *landed = (struct refit_remote_landed){.edge = edge->digest, .batch = batch, .count = count};
    refit_digests_encode(segments, 0, count, landed->digests);
    pthread_mutex_lock(&executor->small);
    landed->next = executor->landed;
    executor->landed = landed;
    pthread_mutex_unlock(&executor->small);
}

static struct refit_remote_landed *take_landed(struct refit_remote_executor *executor,
                                               const struct refit_transfer_completion *done)
{
    struct refit_remote_landed *found = NULL;
    pthread_mutex_lock(&executor->small);
    for (struct refit_remote_landed **at = &executor->landed; *at; at = &(*at)->next) {
        if ((*at)->edge == done->edge && (*at)->batch == done->batch) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&executor->small);
    return found;
}

static enum refit_status say_digests(struct refit_remote_executor *executor, const struct refit_remote_landed *landed,
                                     struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (size_t first = 0; first < landed->count && status == REFIT_OK; first += REFIT_REMOTE_DIGESTS_MAX) {
        size_t count = landed->count - first;
        count = count < REFIT_REMOTE_DIGESTS_MAX ? count : REFIT_REMOTE_DIGESTS_MAX;
        const struct refit_remote_message m = {.type = REFIT_REMOTE_DIGESTS, .edge = landed->edge,
                                               .batch = landed->batch, .argument = (uint32_t)first};
        status = refit_remote_say(executor, &m, landed->digests + first * REFIT_DIGEST_BYTES, count * REFIT_DIGEST_BYTES,
                                  err);
    }
    return status;
}

static enum refit_status say_ended(struct refit_remote_executor *executor, const struct refit_transfer_completion *done,
                                   struct refit_error *err)
{
    struct refit_remote_landed *landed = done->status == REFIT_OK ? take_landed(executor, done) : NULL;
    struct refit_remote_message m = {.type = REFIT_REMOTE_ENDED, .holder = done->holder, .edge = done->edge,
                                     .batch = done->batch, .argument = (uint32_t)done->status};
    if (done->status == REFIT_OK && !landed)
        m.argument = REFIT_CORRUPT;
    /* One whose connection has ended is not asked again at once, so that is said first. */
    enum refit_status status = landed ? say_digests(executor, landed, err) : say_states(executor, done->holder, err);
    free(landed);
    return status == REFIT_OK ? refit_remote_say(executor, &m, NULL, 0, err) : status;
}

static enum refit_status say_all_ended(struct refit_remote_executor *executor, struct refit_deadline deadline, size_t *count,
                                       struct refit_error *err)
{
    struct refit_transfer_completion done[COMPLETIONS];
    enum refit_status status = REFIT_OK;
    *count = refit_inbox_take(executor->inbox, done, COMPLETIONS, deadline);
    for (size_t i = 0; i < *count && status == REFIT_OK; i++)
        status = say_ended(executor, &done[i], err);
    return status;
}

/* ---- holders that were dropped ---- */

/* One whose DROPPED is due; what it owed was put into the inbox before. */
static bool take_dropped(struct refit_remote_executor *executor, uint32_t *number)
{
    bool found = false;
    pthread_mutex_lock(&executor->small);
    for (size_t i = 0; i < executor->holder_count && !found; i++) {
        struct refit_remote_holder *holder = &executor->holders[i];
        found = holder->dropped;
        holder->dropped = false;
        if (!found)
            continue;
        *number = holder->number;
        holder->told = UINT32_MAX; /* it is told of anew, if it has come back */
    }
    pthread_mutex_unlock(&executor->small);
    return found;
}

static enum refit_status say_dropped(struct refit_remote_executor *executor, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    uint32_t number;
    while (status == REFIT_OK && take_dropped(executor, &number)) {
        size_t count = COMPLETIONS;
        while (status == REFIT_OK && count == COMPLETIONS)
            status = say_all_ended(executor, refit_deadline_in_ms(0), &count, err);
        const struct refit_remote_message m = {.type = REFIT_REMOTE_DROPPED, .holder = number};
        if (status == REFIT_OK)
            status = refit_remote_say(executor, &m, NULL, 0, err);
    }
    return status;
}

/* ---- the thread ---- */

static enum refit_status turn(struct refit_remote_executor *executor, struct refit_error *err)
{
    size_t count;
    enum refit_status status = say_all_ended(executor, refit_deadline_in_ms(REFIT_ALIVE_MS), &count, err);
    if (status == REFIT_OK)
        status = say_dropped(executor, err);
    if (status == REFIT_OK && (count == 0 || refit_clock_ns() - executor->looked_ns > LOOK_MS * NS_PER_MS)) {
        status = say_states(executor, EVERYBODY, err);
        executor->looked_ns = refit_clock_ns();
    }
    if (status == REFIT_OK && refit_clock_ns() - executor->alive_ns >= REFIT_ALIVE_MS * NS_PER_MS)
        status = say_alive(executor, err);
    return status;
}

void *refit_remote_pump_run(void *arg)
{
    struct refit_remote_executor *executor = arg;
    struct refit_error err;
    while (!ends(executor) && turn(executor, &err) == REFIT_OK)
        continue;
    return NULL;
}
