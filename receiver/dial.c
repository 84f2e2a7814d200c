/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/dial.h"

#define PAUSE_MS 50     /* before the first attempt is repeated; doubled up to the next */
#define PAUSE_MAX_MS 1000
#define CONNECT_MS 6000 /* longer than a connection is parked where its endpoint is not open yet */

enum refit_status refit_dial_init(struct refit_dial *dial, struct refit_error *err)
{
    int errnum = refit_cond_init(&dial->changed);
    if (errnum)
        return refit_fail_errno(err, errnum, "the condition of a dialled connection");
    errnum = pthread_mutex_init(&dial->lock, NULL);
    if (errnum == 0)
        return REFIT_OK;
    pthread_cond_destroy(&dial->changed);
    return refit_fail_errno(err, errnum, "the lock of a dialled connection");
}

void refit_dial_release(struct refit_dial *dial)
{
    pthread_cond_destroy(&dial->changed);
    pthread_mutex_destroy(&dial->lock);
}

/* False: stopped, or the deadline has passed. */
static bool pause_for(struct refit_dial *dial, int64_t ms)
{
    struct refit_deadline until = refit_deadline_earlier(dial->deadline, refit_deadline_in_ms(ms));
    struct timespec at = refit_deadline_timespec(until);
    pthread_mutex_lock(&dial->lock);
    while (!dial->stopping && !refit_deadline_passed(until))
        pthread_cond_timedwait(&dial->changed, &dial->lock, &at);
    bool go_on = !dial->stopping && !refit_deadline_passed(dial->deadline);
    pthread_mutex_unlock(&dial->lock);
    return go_on;
}

static void close_endpoint(struct refit_dial *dial)
{
    struct refit_endpoint_stats stats = {0};
    pthread_mutex_lock(&dial->lock);
    struct refit_endpoint *endpoint = dial->endpoint;
    dial->endpoint = NULL;
    dial->connected = false;
    if (endpoint)
        dial->transport->stats(endpoint, &stats);
    dial->sent_bytes += stats.payload_bytes;
    pthread_mutex_unlock(&dial->lock);
    if (endpoint)
        dial->transport->close(endpoint);
}

static enum refit_status open_endpoint(struct refit_dial *dial, const struct refit_transport *transport,
                                       struct refit_error *err)
{
    struct refit_endpoint *endpoint;
    enum refit_status status = transport->open(&dial->config, &endpoint, err);
    if (status != REFIT_OK)
        return status;
    pthread_mutex_lock(&dial->lock);
    bool stopping = dial->stopping;
    if (!stopping) {
        dial->endpoint = endpoint;
        dial->transport = transport;
    }
    pthread_mutex_unlock(&dial->lock);
    if (stopping)
        transport->close(endpoint);
    return stopping ? refit_fail(err, REFIT_ABORTED, "stopped") : REFIT_OK;
}

static void set_connected(struct refit_dial *dial, bool connected)
{
    pthread_mutex_lock(&dial->lock);
    dial->connected = connected;
    pthread_mutex_unlock(&dial->lock);
}

/* One connection from dialling to its end. */
static enum refit_status serve_once(struct refit_dial *dial, const struct refit_dial_path *path, bool *connected,
                                    struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    *connected = false;
    if (!dial->endpoint || dial->transport != path->transport) {
        close_endpoint(dial);
        status = open_endpoint(dial, path->transport, err);
    }
    if (status == REFIT_OK)
        status = path->transport->connect(dial->endpoint, path->card,
                                          refit_deadline_earlier(dial->deadline, refit_deadline_in_ms(CONNECT_MS)),
                                          err);
    if (status != REFIT_OK)
        return status;
    *connected = true;
    set_connected(dial, true);
    status = path->transport->wait_done(dial->endpoint, dial->deadline, err);
    set_connected(dial, false);
    return status;
}

static enum refit_status serve(struct refit_dial *dial, struct refit_error *err)
{
    size_t at = 0;
    bool was_connected = false;
    int64_t pause = PAUSE_MS;
    while (dial->paths > 0 && pause_for(dial, 0)) {
        bool connected;
        enum refit_status status = serve_once(dial, &dial->path[at], &connected, err);
        /* A receiver that was there and knows nothing of the refit any more has ended it. */
        if (status == REFIT_OK || (status == REFIT_NOT_FOUND && was_connected))
            return REFIT_OK;
        /* NOT_FOUND: the path is good, its refit has not begun there. */
        if (!connected && status != REFIT_NOT_FOUND)
            at = (at + 1) % dial->paths;
        was_connected |= connected;
        pause = connected ? PAUSE_MS : pause * 2 < PAUSE_MAX_MS ? pause * 2 : PAUSE_MAX_MS;
        if (!pause_for(dial, pause))
            break;
    }
    if (refit_deadline_passed(dial->deadline))
        return refit_fail(err, REFIT_TIMEOUT, "deadline passed before the receiver had all");
    return refit_fail(err, REFIT_ABORTED, "stopped");
}

enum refit_status refit_dial_run(struct refit_dial *dial, struct refit_error *err)
{
    enum refit_status status = serve(dial, err);
    close_endpoint(dial);
    return status;
}

void refit_dial_stop(struct refit_dial *dial)
{
    pthread_mutex_lock(&dial->lock);
    dial->stopping = true;
    /* Under the lock, so that its thread does not close the endpoint meanwhile. */
    if (dial->endpoint)
        dial->transport->abort(dial->endpoint);
    pthread_cond_broadcast(&dial->changed);
    pthread_mutex_unlock(&dial->lock);
}

bool refit_dial_is_connected(struct refit_dial *dial)
{
    pthread_mutex_lock(&dial->lock);
    bool connected = dial->connected;
    pthread_mutex_unlock(&dial->lock);
    return connected;
}

uint64_t refit_dial_sent(struct refit_dial *dial)
{
    struct refit_endpoint_stats stats = {0};
    pthread_mutex_lock(&dial->lock);
    if (dial->endpoint)
        dial->transport->stats(dial->endpoint, &stats);
    uint64_t sent = dial->sent_bytes + stats.payload_bytes;
    pthread_mutex_unlock(&dial->lock);
    return sent;
}
