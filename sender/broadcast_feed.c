/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "sender/broadcast_internal.h"
#include "sender/credentials.h"

#define DIAL_AGAIN_MS 100
#define DIALS_MAX 20 /* of one bucket, beyond the first, by a member that lost the connection */

/* --- stopping ----------------------------------------------------------------------------------------------------- */

void refit_feed_stop(struct refit_feed *feed)
{
    pthread_mutex_lock(&feed->lock);
    feed->stopped = true;
    /* Under the lock, so that its thread does not close the endpoint meanwhile. */
    if (feed->endpoint)
        feed->transport->abort(feed->endpoint);
    pthread_mutex_unlock(&feed->lock);
}

static bool is_stopped(struct refit_feed *feed)
{
    pthread_mutex_lock(&feed->lock);
    bool stopped = feed->stopped;
    pthread_mutex_unlock(&feed->lock);
    return stopped;
}

/* From here on it can be stopped; REFIT_ABORTED: it was already. */
static enum refit_status set_endpoint(struct refit_feed *feed, struct refit_endpoint *endpoint, struct refit_error *err)
{
    pthread_mutex_lock(&feed->lock);
    feed->endpoint = endpoint;
    bool stopped = feed->stopped;
    pthread_mutex_unlock(&feed->lock);
    return stopped ? refit_fail(err, REFIT_ABORTED, "the broadcast was stopped") : REFIT_OK;
}

static void close_endpoint(struct refit_feed *feed, struct refit_endpoint *endpoint)
{
    struct refit_endpoint_stats stats = {0};
    pthread_mutex_lock(&feed->replica->lead->lock);
    pthread_mutex_lock(&feed->lock);
    feed->endpoint = NULL;
    pthread_mutex_unlock(&feed->lock);
    feed->transport->stats(endpoint, &stats);
    feed->payload_bytes += stats.payload_bytes;
    feed->wire_bytes += stats.wire_bytes;
    pthread_mutex_unlock(&feed->replica->lead->lock);
    feed->transport->close(endpoint);
}

uint64_t refit_feed_taken(struct refit_feed *feed)
{
    struct refit_endpoint_stats stats = {0};
    pthread_mutex_lock(&feed->lock);
    if (feed->endpoint)
        feed->transport->stats(feed->endpoint, &stats);
    pthread_mutex_unlock(&feed->lock);
    return feed->payload_bytes + stats.payload_bytes;
}

/* --- one bucket --------------------------------------------------------------------------------------------------- */

/* False: stopped, or the time is over. */
static bool pause_feed(struct refit_feed *feed)
{
    struct refit_lead *lead = feed->replica->lead;
    struct refit_deadline until = refit_deadline_in_ms(DIAL_AGAIN_MS);
    struct timespec at = refit_deadline_timespec(until);
    pthread_mutex_lock(&lead->lock);
    while (!is_stopped(feed) && !refit_deadline_passed(until))
        pthread_cond_timedwait(&lead->changed, &lead->lock, &at);
    pthread_mutex_unlock(&lead->lock);
    return !is_stopped(feed) && !refit_deadline_passed(lead->publish.deadline);
}

/* A member that still scatters the bucket before parks a connection for some seconds, and then answers REFIT_NOT_FOUND. */
static enum refit_status connect_endpoint(struct refit_feed *feed, struct refit_error *err)
{
    enum refit_status status;
    do
        status = feed->transport->connect(feed->endpoint, feed->card, feed->replica->lead->publish.deadline, err);
    while (status == REFIT_NOT_FOUND && pause_feed(feed));
    return status;
}

static enum refit_status serve_until_done(struct refit_feed *feed, struct refit_error *err)
{
    struct refit_deadline deadline = feed->replica->lead->publish.deadline;
    struct refit_error refused;
    enum refit_status status = connect_endpoint(feed, err);
    for (unsigned dials = 0; status == REFIT_OK; dials++) {
        status = feed->transport->wait_done(feed->endpoint, deadline, err);
        if (status != REFIT_PEER || dials == DIALS_MAX || !pause_feed(feed))
            break;
        if (feed->transport->connect(feed->endpoint, feed->card, deadline, &refused) != REFIT_OK)
            break;
        status = REFIT_OK;
    }
    return status;
}

/* Only where the member demands it are there certificates to be read. */
static enum refit_status find_tls(const struct refit_feed *feed, struct refit_tls **out, struct refit_error *err)
{
    *out = NULL;
    bool wanted = json_is_true(json_object_get(feed->card, "tls"));
    return wanted ? refit_credentials_data_tls(feed->replica->lead->credentials, out, err) : REFIT_OK;
}

static enum refit_status serve_bucket(struct refit_feed *feed, uint32_t number, struct refit_error *err)
{
    const struct refit_gathered *gathered = &feed->broadcast->slot[number % REFIT_BROADCAST_BUFFERS];
    struct refit_endpoint *endpoint = NULL;
    char id[REFIT_ID_MAX + 12];
    size_t edges = 0;
    refit_plan_edges(gathered->plan, &edges);
    if (edges == 0)
        return REFIT_OK;
    snprintf(id, sizeof id, "%s/%" PRIu32, feed->id, number);
    struct refit_endpoint_config config = {.role = REFIT_HOLDER, .refit_id = id, .plan = gathered->plan, .holder = 0,
                                           .arenas = &gathered->arena, .arena_count = 1, .verify = true,
                                           .streams = REFIT_BROADCAST_STREAMS};
    memcpy(config.token, feed->token, sizeof config.token);
    enum refit_status status = find_tls(feed, &config.tls, err);
    if (status == REFIT_OK)
        status = feed->transport->open(&config, &endpoint, err);
    if (status != REFIT_OK)
        return status;
    status = set_endpoint(feed, endpoint, err);
    if (status == REFIT_OK)
        status = serve_until_done(feed, err);
    close_endpoint(feed, endpoint);
    return status;
}

/* --- all ---------------------------------------------------------------------------------------------------------- */

/* REFIT_ABORTED: the round has failed, which is told to all of it. */
static enum refit_status wait_for_bucket(struct refit_feed *feed, uint32_t number, struct refit_error *err)
{
    struct refit_broadcast *broadcast = feed->broadcast;
    struct refit_lead *lead = broadcast->lead;
    pthread_mutex_lock(&lead->lock);
    while (broadcast->gathered <= number && broadcast->error.status == REFIT_OK && !is_stopped(feed))
        pthread_cond_wait(&lead->changed, &lead->lock);
    bool there = broadcast->gathered > number && broadcast->error.status == REFIT_OK && !is_stopped(feed);
    if (!there && broadcast->error.status != REFIT_OK)
        *err = broadcast->error;
    else if (!there)
        refit_fail(err, REFIT_ABORTED, "the broadcast was stopped");
    pthread_mutex_unlock(&lead->lock);
    return there ? REFIT_OK : err->status;
}

void *refit_feed_run(void *context)
{
    struct refit_feed *feed = context;
    struct refit_lead *lead = feed->replica->lead;
    struct refit_error err = {.status = REFIT_OK};
    feed->transport = refit_transport_find(feed->transport_name);
    for (uint32_t number = 0; number < feed->broadcast->buckets.count && err.status == REFIT_OK; number++) {
        err.status = wait_for_bucket(feed, number, &err);
        if (err.status == REFIT_OK)
            err.status = serve_bucket(feed, number, &err);
        pthread_mutex_lock(&lead->lock);
        feed->released += err.status == REFIT_OK;
        pthread_cond_broadcast(&lead->changed);
        pthread_mutex_unlock(&lead->lock);
    }
    pthread_mutex_lock(&lead->lock);
    /* A reason that was there before is why it was stopped. */
    if (feed->error.status == REFIT_OK)
        feed->error = err;
    feed->ended = true;
    if (feed->error.status != REFIT_OK)
        refit_feed_conclude(feed);
    pthread_cond_broadcast(&lead->changed);
    pthread_mutex_unlock(&lead->lock);
    return NULL;
}
