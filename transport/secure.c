/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/secure.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define RECORD_MAX (17u << 10) /* with its header and tag */

struct refit_secure {
    struct refit_tls_stream *tls; /* under `lock` */
    pthread_mutex_t lock;
    pthread_mutex_t queue_lock; /* never held while anything is encrypted */
    struct refit_frame queue[REFIT_SECURE_QUEUE];
    unsigned queued;
    bool failed; /* the stream's thread's; `why` is told again */
    struct refit_error why;
    bool kernel_receives;
    atomic_bool waits; /* bytes are inside that the last receive had no room for */
};

enum refit_status refit_secure_open(struct refit_tls *tls, int fd, const char *host, struct refit_secure **out,
                                    struct refit_error *err)
{
    struct refit_secure *secure = calloc(1, sizeof *secure);
    if (!secure)
        return refit_fail_alloc(err, "a TLS stream", sizeof *secure);
    enum refit_status status = refit_tls_stream_open(tls, fd, host, &secure->tls, err);
    if (status != REFIT_OK) {
        free(secure);
        return status;
    }
    pthread_mutex_init(&secure->lock, NULL);
    pthread_mutex_init(&secure->queue_lock, NULL);
    *out = secure;
    return REFIT_OK;
}

void refit_secure_free(struct refit_secure *secure)
{
    if (!secure)
        return;
    refit_tls_stream_free(secure->tls);
    pthread_mutex_destroy(&secure->lock);
    pthread_mutex_destroy(&secure->queue_lock);
    free(secure);
}

enum refit_status refit_secure_handshake(struct refit_secure *secure, struct refit_error *err)
{
    struct refit_tls_stream_info info;
    struct refit_error why = {.status = REFIT_PEER};
    enum refit_tls_step step = refit_tls_stream_handshake(secure->tls, &why);
    if (step == REFIT_TLS_AGAIN)
        return REFIT_BUSY;
    if (step != REFIT_TLS_DONE)
        return refit_fail(err, REFIT_PEER, "%s", step == REFIT_TLS_END ? "TLS handshake: the peer left" : why.text);
    refit_tls_stream_read_info(secure->tls, &info);
    secure->kernel_receives = info.kernel_receives;
    atomic_store_explicit(&secure->waits, refit_tls_stream_holds(secure->tls), memory_order_relaxed);
    return REFIT_OK;
}

/* --- frames of others ------------------------------------------------------------------------------------------- */

/* With `lock` held: all of it is with the kernel, or the connection is broken. */
static bool push(struct refit_secure *secure, const void *data, size_t len)
{
    size_t done;
    struct refit_error err;
    return refit_tls_stream_write(secure->tls, data, len, &done, &err) == REFIT_TLS_DONE && done == len &&
           refit_tls_stream_unsent(secure->tls) == 0;
}

static unsigned take_queue(struct refit_secure *secure, struct refit_frame out[static REFIT_SECURE_QUEUE])
{
    pthread_mutex_lock(&secure->queue_lock);
    unsigned count = secure->queued;
    memcpy(out, secure->queue, count * sizeof *out);
    secure->queued = 0;
    pthread_mutex_unlock(&secure->queue_lock);
    return count;
}

static bool has_queue(struct refit_secure *secure)
{
    pthread_mutex_lock(&secure->queue_lock);
    bool any = secure->queued > 0;
    pthread_mutex_unlock(&secure->queue_lock);
    return any;
}

/* Whoever leaves `lock` calls this: what was queued while it was held found it taken. */
static bool send_queue(struct refit_secure *secure)
{
    struct refit_frame frames[REFIT_SECURE_QUEUE];
    bool good = true;
    while (good && has_queue(secure) && pthread_mutex_trylock(&secure->lock) == 0) {
        unsigned count = take_queue(secure, frames);
        good = count == 0 || push(secure, frames, count * sizeof *frames);
        pthread_mutex_unlock(&secure->lock);
    }
    return good;
}

bool refit_secure_post(struct refit_secure *secure, int fd, const struct refit_frame *frame)
{
    pthread_mutex_lock(&secure->queue_lock);
    bool room = secure->queued < REFIT_SECURE_QUEUE;
    if (room)
        secure->queue[secure->queued++] = *frame;
    pthread_mutex_unlock(&secure->queue_lock);
    if (room && send_queue(secure))
        return true;
    /* Frames that others have queued are lost as well, and so is the connection. */
    shutdown(fd, SHUT_RDWR);
    return false;
}

/* --- the stream's thread ---------------------------------------------------------------------------------------- */

bool refit_secure_try(struct refit_secure *secure, const void *data, size_t len)
{
    pthread_mutex_lock(&secure->lock);
    bool good = push(secure, data, len);
    pthread_mutex_unlock(&secure->lock);
    return send_queue(secure) && good;
}

/* One step: some of iov[first..count) is taken; or, when there is none, all that was taken is with the kernel. */
static enum refit_tls_step write_step(struct refit_secure *secure, const struct iovec *iov, int count, bool more,
                                      size_t *done, short *events, struct refit_error *err)
{
    *done = 0;
    pthread_mutex_lock(&secure->lock);
    enum refit_tls_step step = count > 0
                                   ? refit_tls_stream_writev(secure->tls, iov, (size_t)count, more, done, err)
                                   : refit_tls_stream_flush(secure->tls, err);
    *events = refit_tls_stream_events(secure->tls) & POLLOUT;
    pthread_mutex_unlock(&secure->lock);
    return send_queue(secure) ? step : REFIT_TLS_FAILED;
}

enum refit_status refit_secure_send(struct refit_secure *secure, int fd, struct iovec *iov, int count, int flags,
                                    int wake, struct refit_deadline deadline, struct refit_error *err)
{
    bool more = (flags & MSG_MORE) != 0;
    int first = refit_iov_drop(iov, 0, count, 0);
    for (;;) {
        struct refit_error why = {.text = "the peer closed the connection"};
        size_t done;
        short events;
        bool flush = first == count;
        enum refit_tls_step step = write_step(secure, iov + first, count - first, more, &done, &events, &why);
        if (step == REFIT_TLS_DONE && flush)
            return REFIT_OK;
        if (step == REFIT_TLS_FAILED || step == REFIT_TLS_END)
            return refit_fail(err, REFIT_PEER, "%s", why.text);
        first = refit_iov_drop(iov, first, count, done);
        if (step == REFIT_TLS_DONE)
            continue;
        enum refit_status status = refit_wire_wait(fd, events ? events : POLLOUT, wake, deadline, err);
        if (status != REFIT_OK)
            return status;
    }
}

/* Fills `iov` as far as it goes; how the last read ended. */
static enum refit_tls_step fill(struct refit_secure *secure, const struct iovec *iov, int count, size_t *got,
                                struct refit_error *err)
{
    enum refit_tls_step step = REFIT_TLS_DONE;
    *got = 0;
    for (int i = 0; i < count && step == REFIT_TLS_DONE; i++) {
        for (size_t at = 0, done; at < iov[i].iov_len && step == REFIT_TLS_DONE; at += done, *got += done)
            step = refit_tls_stream_read(secure->tls, (char *)iov[i].iov_base + at, iov[i].iov_len - at, &done, err);
    }
    return step;
}

enum refit_status refit_secure_receive(struct refit_secure *secure, struct iovec *iov, int count, size_t *got,
                                       struct refit_error *err)
{
    *got = 0;
    if (!secure->failed) {
        pthread_mutex_lock(&secure->lock);
        enum refit_tls_step step = fill(secure, iov, count, got, &secure->why);
        bool waits = step == REFIT_TLS_DONE && refit_tls_stream_holds(secure->tls);
        atomic_store_explicit(&secure->waits, waits, memory_order_relaxed);
        pthread_mutex_unlock(&secure->lock);
        if (step == REFIT_TLS_END)
            refit_fail(&secure->why, REFIT_PEER, "the peer closed the connection");
        secure->failed = step == REFIT_TLS_END || step == REFIT_TLS_FAILED;
        if (!send_queue(secure) && !secure->failed) {
            refit_fail(&secure->why, REFIT_PEER, "the peer closed the connection");
            secure->failed = true;
        }
    }
    if (*got > 0)
        return REFIT_OK;
    return secure->failed ? refit_fail(err, REFIT_PEER, "%s", secure->why.text) : REFIT_BUSY;
}

void refit_secure_end(struct refit_secure *secure)
{
    struct refit_error err;
    pthread_mutex_lock(&secure->lock);
    (void)refit_tls_stream_shutdown(secure->tls, &err);
    pthread_mutex_unlock(&secure->lock);
}

/* --- looking ---------------------------------------------------------------------------------------------------- */

bool refit_secure_waits(const struct refit_secure *secure)
{
    return atomic_load_explicit(&secure->waits, memory_order_relaxed);
}

short refit_secure_events(const struct refit_secure *secure)
{
    return (short)(refit_tls_stream_events(secure->tls) | POLLIN);
}

/* Part of a record, which the kernel counts no more. Its own TLS says nothing of what it has. */
uint64_t refit_secure_hidden(const struct refit_secure *secure)
{
    return secure->kernel_receives ? UINT64_MAX : RECORD_MAX;
}
