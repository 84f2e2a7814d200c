/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounds: who takes part, how the buffers go round, what comes of it.
 */
#include "sender/broadcast.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/log.h"
#include "base/thread.h"
#include "memory/slot.h"
#include "sender/broadcast_internal.h"
#include "sender/follower.h"
#include "sender/serve.h"

#define GRACE_MS 1000     /* those that have a slot wait so long for the others */
#define CALLED_GRACE_MS 10000 /* the same where there is but one round */
#define STALL_MS 10000    /* a member that takes nothing for so long while others wait for it is dropped */
#define LOOK_MS 500
#define LETTING_GO_MS (REFIT_ABORT_MS + 3000)
#define STOP_MS 10000

static int64_t in_ns(int64_t ms)
{
    return ms * 1000000;
}

/* With the lock held. */
static void wait_until(struct refit_lead *lead, int64_t at_ns)
{
    struct timespec until = refit_deadline_timespec((struct refit_deadline){.at_ns = at_ns});
    if (at_ns == INT64_MAX)
        pthread_cond_wait(&lead->changed, &lead->lock);
    else
        pthread_cond_timedwait(&lead->changed, &lead->lock, &until);
}

/* ---- followers ---- */

static struct refit_feed *feed_of(const struct refit_replica *replica)
{
    struct refit_broadcast *broadcast = replica->lead->broadcast;
    return broadcast && replica->number < broadcast->feed_count ? &broadcast->feeds[replica->number] : NULL;
}

static void expect_served(struct refit_replica *replica)
{
    replica->served = 0;
    replica->sent_bytes = 0;
    replica->served_error = (struct refit_error){0};
    replica->posted = true;
}

static void copy_ticket(struct refit_feed *feed)
{
    const struct refit_replica *replica = feed->replica;
    memcpy(feed->id, replica->ticket.id, sizeof feed->id);
    snprintf(feed->transport_name, sizeof feed->transport_name, "%s", replica->transport);
    json_decref(feed->card);
    feed->card = json_deep_copy(replica->ticket.card);
    if (!refit_serve_read_token(replica->ticket.token, feed->token))
        refit_log_event(REFIT_LOG_WARN, "the token of a replica's refit is not well formed",
                        refit_log_text("replica", replica->control.url.text));
}

void refit_broadcast_join(struct refit_replica *replica)
{
    struct refit_lead *lead = replica->lead;
    struct refit_feed *feed = feed_of(replica);
    pthread_mutex_lock(&lead->lock);
    if (feed && feed->state == REFIT_FEED_AWAY && !lead->broadcast->ending) {
        copy_ticket(feed);
        expect_served(replica);
        feed->state = REFIT_FEED_JOINED;
        if (lead->broadcast->joined_ns == 0)
            lead->broadcast->joined_ns = refit_clock_ns();
        pthread_cond_broadcast(&lead->changed);
    }
    pthread_mutex_unlock(&lead->lock);
}

void refit_feed_conclude(struct refit_feed *feed)
{
    struct refit_replica *replica = feed->replica;
    feed->state = REFIT_FEED_OVER;
    replica->sent_bytes = feed->payload_bytes;
    replica->report.bytes_sent += feed->payload_bytes;
    replica->report.wire_bytes += feed->wire_bytes;
    replica->served_error = feed->error;
    replica->served = replica->lead->rank_count;
    pthread_cond_broadcast(&replica->lead->changed);
}

void refit_broadcast_leave(struct refit_replica *replica)
{
    struct refit_lead *lead = replica->lead;
    struct refit_feed *feed = feed_of(replica);
    if (!feed)
        return;
    refit_feed_stop(feed);
    pthread_mutex_lock(&lead->lock);
    pthread_cond_broadcast(&lead->changed);
    while (feed->state == REFIT_FEED_RUNNING && !feed->ended)
        pthread_cond_wait(&lead->changed, &lead->lock);
    if (feed->state != REFIT_FEED_OVER)
        refit_feed_conclude(feed);
    pthread_mutex_unlock(&lead->lock);
}

/* ---- what ranks say ---- */

void refit_broadcast_on_served(struct refit_broadcast *broadcast, uint32_t rank, const struct refit_served *served,
                               const void *tallies, size_t len)
{
    struct refit_error err;
    struct refit_tally *sent = refit_tally_create(refit_layout_tensor_count(broadcast->dense));
    if (served->attempt == broadcast->attempt && broadcast->running) {
        enum refit_status status = sent && broadcast->again
                                       ? refit_served_add(tallies, len, sent, broadcast->again, &err)
                                       : refit_fail_alloc(&err, "a tally", len);
        if (served->outcome.status != REFIT_OK) {
            err = served->outcome;
            status = err.status;
        }
        if (status != REFIT_OK && broadcast->error.status == REFIT_OK)
            refit_fail(&broadcast->error, status, "rank %" PRIu32 ": %s", rank, err.text);
        broadcast->served++;
        pthread_cond_broadcast(&broadcast->lead->changed);
    }
    refit_tally_destroy(sent);
}

/* ---- a round ---- */

static bool any_unfinished(const struct refit_broadcast *broadcast)
{
    bool unfinished = false;
    for (size_t i = 0; i < broadcast->feed_count; i++)
        unfinished |= broadcast->feeds[i].state == REFIT_FEED_RUNNING && !broadcast->feeds[i].ended;
    return unfinished;
}

static bool any_good(const struct refit_broadcast *broadcast)
{
    bool good = false;
    for (size_t i = 0; i < broadcast->feed_count; i++)
        good |= broadcast->feeds[i].state == REFIT_FEED_RUNNING && broadcast->feeds[i].error.status == REFIT_OK;
    return good;
}

enum refit_status refit_broadcast_check(struct refit_broadcast *broadcast, struct refit_error *err)
{
    const struct refit_lead *lead = broadcast->lead;
    if (broadcast->error.status != REFIT_OK) {
        *err = broadcast->error;
        return err->status;
    }
    if (lead->rank_lost.status != REFIT_OK) {
        *err = lead->rank_lost;
        return err->status;
    }
    if (lead->cancelled || broadcast->ending || !any_good(broadcast))
        return refit_fail(err, REFIT_ABORTED, "nobody is left to broadcast to");
    return refit_deadline_passed(lead->publish.deadline) ? refit_fail(err, REFIT_TIMEOUT, "deadline passed") : REFIT_OK;
}

/* Its buffer is wanted for this bucket, and it has not got yet what is in there. */
static bool is_behind(const struct refit_feed *feed, uint32_t number)
{
    return feed->state == REFIT_FEED_RUNNING && !feed->ended && feed->released + REFIT_BROADCAST_BUFFERS <= number;
}

/* With the lock held. One that takes nothing is no reason to wait while others have what it has not. */
static void drop_stalled(struct refit_broadcast *broadcast, uint32_t number)
{
    size_t waiting = 0;
    for (size_t i = 0; i < broadcast->feed_count; i++)
        waiting += broadcast->feeds[i].state == REFIT_FEED_RUNNING && !is_behind(&broadcast->feeds[i], number);
    for (size_t i = 0; i < broadcast->feed_count; i++) {
        struct refit_feed *feed = &broadcast->feeds[i];
        int64_t now = refit_clock_ns();
        if (feed->state != REFIT_FEED_RUNNING || feed->ended)
            continue;
        uint64_t taken = refit_feed_taken(feed);
        bool moves = taken != feed->mark || !is_behind(feed, number);
        feed->mark = taken;
        if (moves || feed->moved_ns == 0)
            feed->moved_ns = now;
        if (now - feed->moved_ns < in_ns(STALL_MS) || waiting == 0 || feed->error.status != REFIT_OK)
            continue;
        refit_fail(&feed->error, REFIT_TIMEOUT, "took nothing of bucket %" PRIu32 " for %d s while others waited for it",
                   feed->released, STALL_MS / 1000);
        refit_log_event(REFIT_LOG_WARN, "a replica is dropped, others waited for it",
                        refit_log_text("replica", feed->replica->control.url.text), REFIT_LOG_CAUSE(&feed->error));
        refit_feed_stop(feed);
        pthread_cond_broadcast(&broadcast->lead->changed);
    }
}

/* With the lock held: the bucket's buffer is free once all have got what was in it. */
static bool buffer_is_free(const struct refit_broadcast *broadcast, uint32_t number)
{
    for (size_t i = 0; i < broadcast->feed_count; i++)
        if (is_behind(&broadcast->feeds[i], number))
            return false;
    return true;
}

static enum refit_status wait_for_buffer(struct refit_broadcast *broadcast, uint32_t number, struct refit_error *err)
{
    struct refit_lead *lead = broadcast->lead;
    pthread_mutex_lock(&lead->lock);
    enum refit_status status = refit_broadcast_check(broadcast, err);
    while (status == REFIT_OK && !buffer_is_free(broadcast, number)) {
        drop_stalled(broadcast, number);
        wait_until(lead, refit_clock_ns() + in_ns(LOOK_MS));
        status = refit_broadcast_check(broadcast, err);
    }
    pthread_mutex_unlock(&lead->lock);
    return status;
}

/* *next is the first bucket that was not gathered. */
static enum refit_status gather_all(struct refit_broadcast *broadcast, uint32_t *next, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (*next = 0; *next < broadcast->buckets.count && status == REFIT_OK;) {
        status = wait_for_buffer(broadcast, *next, err);
        if (status != REFIT_OK)
            break;
        status = refit_broadcast_gather(broadcast, *next, err);
        *next += status == REFIT_OK;
        pthread_mutex_lock(&broadcast->lead->lock);
        broadcast->gathered += status == REFIT_OK;
        pthread_cond_broadcast(&broadcast->lead->changed);
        pthread_mutex_unlock(&broadcast->lead->lock);
    }
    return status;
}

/* All have been sent all, or nobody is left who could be. */
static enum refit_status wait_for_feeds(struct refit_broadcast *broadcast, struct refit_error *err)
{
    struct refit_lead *lead = broadcast->lead;
    enum refit_status status = REFIT_OK;
    pthread_mutex_lock(&lead->lock);
    while (status == REFIT_OK && any_unfinished(broadcast)) {
        drop_stalled(broadcast, broadcast->buckets.count + REFIT_BROADCAST_BUFFERS - 1);
        wait_until(lead, refit_clock_ns() + in_ns(LOOK_MS));
        status = refit_broadcast_check(broadcast, err);
    }
    pthread_mutex_unlock(&lead->lock);
    return status;
}

static enum refit_status wait_for_ranks(struct refit_broadcast *broadcast, struct refit_error *err)
{
    struct refit_lead *lead = broadcast->lead;
    enum refit_status status = REFIT_OK;
    pthread_mutex_lock(&lead->lock);
    while (status == REFIT_OK && !broadcast->gathering.gather && broadcast->served < lead->rank_count) {
        status = refit_broadcast_check(broadcast, err);
        if (status == REFIT_OK)
            wait_until(lead, refit_clock_ns() + in_ns(LOOK_MS));
    }
    if (status == REFIT_OK && broadcast->error.status != REFIT_OK) {
        *err = broadcast->error;
        status = err->status;
    }
    pthread_mutex_unlock(&lead->lock);
    return status;
}

/* Did the trainer keep still? What its ranks hold now is what was gathered. */
static enum refit_status check_source(const struct refit_broadcast *broadcast, struct refit_error *err)
{
    if (!broadcast->lead->publish.check_source || broadcast->gathering.gather)
        return REFIT_OK;
    for (uint32_t id = 0; id < refit_layout_tensor_count(broadcast->dense); id++) {
        struct refit_tensor tensor;
        if (refit_digest_equal(refit_tally_get(broadcast->tally, id), refit_tally_get(broadcast->again, id)))
            continue;
        refit_layout_tensor(broadcast->dense, id, &tensor);
        return refit_fail(err, REFIT_CORRUPT, "tensor %s was written while it was being published; keep the memory unchanged "
                          "until the sources are free", tensor.name);
    }
    return REFIT_OK;
}

/* With the lock held. */
static enum refit_status start_tallies(struct refit_broadcast *broadcast, struct refit_error *err)
{
    uint32_t tensors = refit_layout_tensor_count(broadcast->dense);
    struct refit_round *round = calloc(1, sizeof *round);
    refit_tally_destroy(broadcast->again);
    broadcast->again = refit_tally_create(tensors);
    broadcast->tally = round ? refit_tally_create(tensors) : NULL;
    if (round) {
        *round = (struct refit_round){.tally = broadcast->tally, .before = broadcast->rounds};
        broadcast->rounds = round;
    }
    return broadcast->tally && broadcast->again ? REFIT_OK : refit_fail_alloc(err, "a tally", tensors);
}

static void forget_rounds(struct refit_broadcast *broadcast)
{
    for (struct refit_round *round = broadcast->rounds, *before; round; round = before) {
        before = round->before;
        refit_tally_destroy(round->tally);
        free(round);
    }
}

/* With the lock held. */
static enum refit_status enter_round(struct refit_broadcast *broadcast, struct refit_error *err)
{
    uint8_t random[REFIT_TOKEN_BYTES];
    refit_io_random(random, sizeof random);
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(broadcast->token + 2 * i, 3, "%02x", random[i]);
    broadcast->attempt = ++broadcast->lead->attempts;
    snprintf(broadcast->id, sizeof broadcast->id, "gather-%.16s-%" PRIu64, broadcast->lead->publish_id, broadcast->attempt);
    broadcast->running = true;
    broadcast->joined_ns = 0;
    broadcast->gathered = broadcast->served = 0;
    broadcast->error = (struct refit_error){0};
    enum refit_status status = start_tallies(broadcast, err);
    for (size_t i = 0; i < broadcast->feed_count; i++) {
        struct refit_feed *feed = &broadcast->feeds[i];
        if (feed->state != REFIT_FEED_JOINED)
            continue;
        feed->state = REFIT_FEED_RUNNING;
        feed->gathered = broadcast->tally;
    }
    return status;
}

static void start_feeds(struct refit_broadcast *broadcast)
{
    struct refit_error err;
    for (size_t i = 0; i < broadcast->feed_count; i++) {
        struct refit_feed *feed = &broadcast->feeds[i];
        if (feed->state != REFIT_FEED_RUNNING)
            continue;
        feed->runs = refit_thread_start(&feed->thread, refit_feed_run, feed, "a thread to send to a replica", &err) ==
                     REFIT_OK;
        if (feed->runs)
            continue;
        pthread_mutex_lock(&broadcast->lead->lock);
        feed->error = err;
        feed->ended = true;
        pthread_mutex_unlock(&broadcast->lead->lock);
    }
}

static enum refit_status move(struct refit_broadcast *broadcast, uint32_t *next, struct refit_error *err)
{
    enum refit_status status = broadcast->gathering.gather ? REFIT_OK : refit_broadcast_order_ranks(broadcast, err);
    if (status == REFIT_OK)
        status = gather_all(broadcast, next, err);
    if (status == REFIT_OK)
        status = wait_for_feeds(broadcast, err);
    if (status == REFIT_OK)
        status = wait_for_ranks(broadcast, err);
    return status == REFIT_OK ? check_source(broadcast, err) : status;
}

/* Ranks that go on serving a round that has failed are told, and waited for. */
static void let_ranks_go(struct refit_broadcast *broadcast)
{
    struct refit_lead *lead = broadcast->lead;
    struct refit_error err;
    uint32_t number = REFIT_SERVE_GATHER;
    if (broadcast->gathering.gather)
        return;
    if (refit_ranks_broadcast(lead->ranks, REFIT_MESSAGE_STOP, &number, sizeof number, refit_deadline_in_ms(STOP_MS), &err) !=
        REFIT_OK)
        refit_log_event(REFIT_LOG_INFO, "a rank was not told that its round has failed", REFIT_LOG_CAUSE(&err));
    struct refit_deadline until = refit_deadline_in_ms(LETTING_GO_MS);
    pthread_mutex_lock(&lead->lock);
    while (broadcast->served < lead->rank_count && lead->rank_lost.status == REFIT_OK && !refit_deadline_passed(until))
        wait_until(lead, until.at_ns);
    pthread_mutex_unlock(&lead->lock);
}

static void fail_round(struct refit_broadcast *broadcast, const struct refit_error *why)
{
    struct refit_lead *lead = broadcast->lead;
    pthread_mutex_lock(&lead->lock);
    if (broadcast->error.status == REFIT_OK)
        broadcast->error = *why;
    pthread_cond_broadcast(&lead->changed);
    for (size_t i = 0; i < broadcast->feed_count; i++) {
        struct refit_feed *feed = &broadcast->feeds[i];
        if (feed->state != REFIT_FEED_RUNNING)
            continue;
        if (feed->error.status == REFIT_OK)
            feed->error = *why;
        refit_feed_stop(feed);
    }
    pthread_cond_broadcast(&lead->changed);
    pthread_mutex_unlock(&lead->lock);
}

static void leave_round(struct refit_broadcast *broadcast)
{
    struct refit_lead *lead = broadcast->lead;
    pthread_mutex_lock(&lead->lock);
    for (size_t i = 0; i < broadcast->feed_count; i++)
        if (broadcast->feeds[i].state == REFIT_FEED_RUNNING)
            refit_feed_conclude(&broadcast->feeds[i]);
    broadcast->running = false;
    pthread_cond_broadcast(&lead->changed);
    pthread_mutex_unlock(&lead->lock);
}

/* The lock is not held. A rank's own word, which is in broadcast->error, counts for more than what came of it here. */
static void run_round(struct refit_broadcast *broadcast, struct refit_error *err)
{
    uint32_t next = 0;
    enum refit_status status = err->status;
    start_feeds(broadcast);
    if (status == REFIT_OK)
        status = move(broadcast, &next, err);
    if (status != REFIT_OK)
        fail_round(broadcast, err);
    if (status != REFIT_OK)
        let_ranks_go(broadcast);
    for (size_t i = 0; i < broadcast->feed_count; i++) {
        struct refit_feed *feed = &broadcast->feeds[i];
        if (feed->runs)
            pthread_join(feed->thread, NULL);
        feed->runs = false;
    }
    if (status != REFIT_OK && broadcast->called)
        refit_broadcast_call_rest(broadcast, next);
    leave_round(broadcast);
}

/* ---- rounds ---- */

/* With the lock held: when the next one begins; INT64_MAX when none is in sight. */
static int64_t round_ns(const struct refit_broadcast *broadcast)
{
    const struct refit_lead *lead = broadcast->lead;
    size_t joined = 0, away = 0;
    for (size_t i = 0; i < broadcast->feed_count; i++) {
        enum refit_feed_state state = broadcast->feeds[i].state;
        joined += state == REFIT_FEED_JOINED;
        away += state == REFIT_FEED_AWAY && lead->replicas[i]->stage < REFIT_REPLICA_STAGED;
    }
    /* A callback is called for nobody, too. */
    if (joined == 0)
        return broadcast->gathering.gather && !broadcast->called && away == 0 ? 0 : INT64_MAX;
    return away == 0 ? 0 : broadcast->joined_ns + in_ns(broadcast->gathering.gather ? CALLED_GRACE_MS : GRACE_MS);
}

/* With the lock held: a callback is called in one round; who comes after it comes too late. */
static void turn_away(struct refit_broadcast *broadcast)
{
    for (size_t i = 0; i < broadcast->feed_count; i++) {
        struct refit_feed *feed = &broadcast->feeds[i];
        if (feed->state != REFIT_FEED_JOINED)
            continue;
        refit_fail(&feed->error, REFIT_ABORTED, "was not ready when the model was gathered; publish again");
        refit_feed_conclude(feed);
    }
    broadcast->joined_ns = 0;
}

static void *run(void *context)
{
    struct refit_broadcast *broadcast = context;
    struct refit_lead *lead = broadcast->lead;
    pthread_mutex_lock(&lead->lock);
    while (!broadcast->ending) {
        int64_t at_ns = round_ns(broadcast);
        if (at_ns > refit_clock_ns()) {
            wait_until(lead, at_ns);
        } else if (broadcast->called) {
            turn_away(broadcast);
        } else {
            struct refit_error err = {.status = REFIT_OK};
            err.status = enter_round(broadcast, &err);
            broadcast->called = broadcast->gathering.gather != NULL;
            pthread_mutex_unlock(&lead->lock);
            run_round(broadcast, &err);
            pthread_mutex_lock(&lead->lock);
        }
    }
    pthread_mutex_unlock(&lead->lock);
    return NULL;
}

/* ---- agreement ---- */

bool refit_broadcast_is_idle(const struct refit_broadcast *broadcast)
{
    return !broadcast->running && (broadcast->called || !broadcast->gathering.gather);
}

/* What was gathered, by the member's tensors; false: not all have the same name there. */
static bool translate(const struct refit_feed *feed, const struct refit_layout *layout, struct refit_tally *out)
{
    for (uint32_t id = 0; id < refit_layout_tensor_count(layout); id++) {
        struct refit_tensor tensor;
        uint32_t there;
        refit_layout_tensor(layout, id, &tensor);
        if (!refit_layout_find(feed->broadcast->dense, tensor.name, &there))
            return false;
        refit_tally_add(out, id, refit_tally_get(feed->gathered, there));
    }
    return true;
}

enum refit_status refit_broadcast_agree(struct refit_replica *replica, struct refit_error *err)
{
    char hex[REFIT_SHA256_HEX_MAX];
    const struct refit_feed *feed = feed_of(replica);
    struct refit_tally *tally = refit_tally_create(refit_layout_tensor_count(replica->layout));
    if (!tally)
        return refit_fail_alloc(err, "a tally", refit_layout_tensor_count(replica->layout));
    enum refit_status status = REFIT_OK;
    if (feed && refit_replica_is_whole(replica) && translate(feed, replica->layout, tally)) {
        status = refit_model_digest(replica->layout, tally, "exact", hex, err);
        if (status == REFIT_OK && strcmp(hex, replica->report.digest) != 0)
            status = refit_fail(err, REFIT_CORRUPT, "%s: what landed has digest %.16s..., what was gathered %.16s...",
                                replica->control.url.text, replica->report.digest, hex);
    }
    refit_tally_destroy(tally);
    return status;
}

/* ---- life ---- */

struct refit_layout *refit_broadcast_layout(const struct refit_broadcast *broadcast)
{
    return broadcast->dense;
}

uint32_t refit_broadcast_buckets(const struct refit_broadcast *broadcast)
{
    return broadcast->buckets.count;
}

/* Past the cgroup's limit there is a kill and no error, so it is asked first. */
static enum refit_status take_memory(struct refit_broadcast *broadcast, struct refit_error *err)
{
    const char *limit = NULL;
    uint64_t left = refit_memory_available(&limit), bytes = broadcast->buckets.bytes_max;
    if (left < REFIT_BROADCAST_BUFFERS * bytes)
        return refit_fail(err, REFIT_NO_MEMORY, "a broadcast needs two buffers of %" PRIu64 " bytes on rank 0, %" PRIu64
                          " are left under %s; raise the limit", bytes, left, limit ? limit : "the memory limit");
    enum refit_status status = REFIT_OK;
    for (int i = 0; i < REFIT_BROADCAST_BUFFERS && status == REFIT_OK; i++)
        status = refit_shared_alloc(&broadcast->shared, bytes ? bytes : 1, &broadcast->memory[i], err);
    return status;
}

static enum refit_status make_feeds(struct refit_broadcast *broadcast, struct refit_error *err)
{
    struct refit_lead *lead = broadcast->lead;
    broadcast->feeds = calloc(lead->replica_count, sizeof *broadcast->feeds);
    if (!broadcast->feeds)
        return refit_fail_alloc(err, "members", lead->replica_count * sizeof *broadcast->feeds);
    for (; broadcast->feed_count < lead->replica_count; broadcast->feed_count++) {
        struct refit_feed *feed = &broadcast->feeds[broadcast->feed_count];
        feed->broadcast = broadcast;
        feed->replica = lead->replicas[broadcast->feed_count];
        pthread_mutex_init(&feed->lock, NULL);
    }
    return REFIT_OK;
}

static enum refit_status open_broadcast(struct refit_broadcast *broadcast, struct refit_error *err)
{
    enum refit_status status = refit_layout_dense(broadcast->lead->source, &broadcast->dense, err);
    if (status == REFIT_OK)
        status = refit_buckets_create(broadcast->dense, &broadcast->buckets, err);
    if (status == REFIT_OK)
        status = take_memory(broadcast, err);
    if (status == REFIT_OK)
        status = make_feeds(broadcast, err);
    if (status == REFIT_OK)
        status = refit_broadcast_open_source(broadcast, err);
    if (status == REFIT_OK)
        status = refit_thread_start(&broadcast->thread, run, broadcast, "the broadcast's thread", err);
    broadcast->thread_runs = status == REFIT_OK;
    return status;
}

enum refit_status refit_broadcast_create(struct refit_lead *lead, struct refit_broadcast **out, struct refit_error *err)
{
    struct refit_broadcast *broadcast = calloc(1, sizeof *broadcast);
    if (!broadcast)
        return refit_fail_alloc(err, "a broadcast", sizeof *broadcast);
    broadcast->lead = lead;
    broadcast->gathering = lead->gathering;
    enum refit_status status = open_broadcast(broadcast, err);
    if (status == REFIT_OK)
        *out = broadcast;
    else
        refit_broadcast_destroy(broadcast);
    return status;
}

static void end(struct refit_broadcast *broadcast)
{
    struct refit_lead *lead = broadcast->lead;
    pthread_mutex_lock(&lead->lock);
    broadcast->ending = true;
    pthread_cond_broadcast(&lead->changed);
    pthread_mutex_unlock(&lead->lock);
    pthread_join(broadcast->thread, NULL);
}

void refit_broadcast_destroy(struct refit_broadcast *broadcast)
{
    if (!broadcast)
        return;
    if (broadcast->thread_runs)
        end(broadcast);
    refit_broadcast_close_source(broadcast);
    for (int i = 0; i < REFIT_BROADCAST_BUFFERS; i++) {
        refit_plan_release(broadcast->slot[i].plan);
        refit_arena_release(broadcast->slot[i].arena);
    }
    for (size_t i = 0; i < broadcast->feed_count; i++) {
        json_decref(broadcast->feeds[i].card);
        pthread_mutex_destroy(&broadcast->feeds[i].lock);
    }
    free(broadcast->feeds);
    forget_rounds(broadcast);
    refit_tally_destroy(broadcast->again);
    refit_shared_free_all(&broadcast->shared);
    refit_buckets_release(&broadcast->buckets);
    refit_layout_release(broadcast->dense);
    free(broadcast);
}
