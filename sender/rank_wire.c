/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/rank_wire.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/io.h"

enum refit_status refit_rank_wire_open(struct refit_rank_wire *wire, int fd, struct refit_tls *tls,
                                       struct refit_error *err)
{
    *wire = (struct refit_rank_wire){.fd = fd, .shaking = tls != NULL};
    pthread_mutex_init(&wire->lock, NULL);
    enum refit_status status = tls ? refit_tls_stream_open(tls, fd, NULL, &wire->tls, err) : REFIT_OK;
    if (status != REFIT_OK)
        refit_rank_wire_close(wire);
    return status;
}

void refit_rank_wire_move(struct refit_rank_wire *to, struct refit_rank_wire *from)
{
    to->fd = from->fd;
    to->tls = from->tls;
    to->shaking = from->shaking;
    pthread_mutex_init(&to->lock, NULL);
    pthread_mutex_destroy(&from->lock);
    from->tls = NULL;
    from->fd = -1;
}

void refit_rank_wire_close(struct refit_rank_wire *wire)
{
    if (wire->fd < 0)
        return;
    refit_tls_stream_free(wire->tls);
    wire->tls = NULL;
    refit_io_close(&wire->fd);
    pthread_mutex_destroy(&wire->lock);
}

short refit_rank_wire_events(struct refit_rank_wire *wire)
{
    short events = POLLIN;
    if (!wire->tls || !wire->shaking)
        return events;
    pthread_mutex_lock(&wire->lock);
    events |= refit_tls_stream_events(wire->tls); /* none, before the first step */
    pthread_mutex_unlock(&wire->lock);
    return events;
}

static enum refit_tls_step shake(struct refit_rank_wire *wire, struct refit_error *err)
{
    pthread_mutex_lock(&wire->lock);
    enum refit_tls_step step = refit_tls_stream_handshake(wire->tls, err);
    pthread_mutex_unlock(&wire->lock);
    wire->shaking = step != REFIT_TLS_DONE;
    return step;
}

enum refit_status refit_rank_wire_shake(struct refit_rank_wire *wire, struct refit_deadline deadline,
                                        struct refit_error *err)
{
    while (wire->shaking) {
        enum refit_tls_step step = shake(wire, err);
        struct pollfd wait = {.fd = wire->fd, .events = refit_rank_wire_events(wire)};
        if (step == REFIT_TLS_FAILED || step == REFIT_TLS_END)
            return step == REFIT_TLS_END ? refit_fail(err, REFIT_PEER, "closed the connection") : err->status;
        if (step == REFIT_TLS_AGAIN && poll(&wait, 1, refit_deadline_left_ms(deadline)) == 0)
            return refit_fail(err, REFIT_TIMEOUT, "no TLS handshake in time");
    }
    return REFIT_OK;
}

static enum refit_rank_wire_step read_plain(struct refit_rank_wire *wire, void *data, size_t len, size_t *done,
                                            struct refit_error *err)
{
    ssize_t n = recv(wire->fd, data, len, MSG_DONTWAIT);
    *done = n > 0 ? (size_t)n : 0;
    if (n > 0)
        return REFIT_RANK_WIRE_READ;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return REFIT_RANK_WIRE_AGAIN;
    refit_fail(err, REFIT_PEER, n == 0 ? "closed the connection" : "the connection was reset");
    return REFIT_RANK_WIRE_ENDED;
}

static enum refit_rank_wire_step map(enum refit_tls_step step, struct refit_error *err)
{
    switch (step) {
    case REFIT_TLS_DONE: return REFIT_RANK_WIRE_READ;
    case REFIT_TLS_AGAIN: return REFIT_RANK_WIRE_AGAIN;
    case REFIT_TLS_END: refit_fail(err, REFIT_PEER, "closed the connection"); return REFIT_RANK_WIRE_ENDED;
    case REFIT_TLS_FAILED: break;
    }
    return REFIT_RANK_WIRE_ENDED;
}

enum refit_rank_wire_step refit_rank_wire_read(struct refit_rank_wire *wire, void *data, size_t len, size_t *done,
                                               struct refit_error *err)
{
    *done = 0;
    if (!wire->tls)
        return read_plain(wire, data, len, done, err);
    if (wire->shaking)
        return map(shake(wire, err), err);
    pthread_mutex_lock(&wire->lock);
    enum refit_tls_step step = refit_tls_stream_read(wire->tls, data, len, done, err);
    pthread_mutex_unlock(&wire->lock);
    return map(step, err);
}

/* Takes what there is room for; AGAIN: *events to poll for. */
static enum refit_tls_step push(struct refit_rank_wire *wire, const void *data, size_t len, size_t *done, short *events,
                                struct refit_error *err)
{
    pthread_mutex_lock(&wire->lock);
    *done = 0;
    enum refit_tls_step step = len > 0 ? refit_tls_stream_write(wire->tls, data, len, done, err)
                                       : refit_tls_stream_flush(wire->tls, err);
    *events = refit_tls_stream_events(wire->tls);
    pthread_mutex_unlock(&wire->lock);
    return step;
}

static enum refit_status send_tls(struct refit_rank_wire *wire, const uint8_t *data, size_t len,
                                  struct refit_deadline deadline,
                                  struct refit_error *err)
{
    for (;;) {
        size_t done;
        short events;
        enum refit_tls_step step = push(wire, data, len, &done, &events, err);
        if (step == REFIT_TLS_FAILED)
            return err->status;
        if (step == REFIT_TLS_DONE && len == 0)
            return REFIT_OK;
        data += done;
        len -= done;
        if (step == REFIT_TLS_DONE)
            continue;
        struct pollfd wait = {.fd = wire->fd, .events = events | POLLOUT};
        if (poll(&wait, 1, refit_deadline_left_ms(deadline)) == 0 && refit_deadline_passed(deadline))
            return refit_fail(err, REFIT_TIMEOUT, "message to a rank: not taken in time");
    }
}

enum refit_status refit_rank_wire_send(struct refit_rank_wire *wire, const void *data, size_t len,
                                       struct refit_deadline deadline,
                                  struct refit_error *err)
{
    struct refit_error ignored;
    if (wire->tls)
        return send_tls(wire, data, len, deadline, err ? err : &ignored);
    return refit_io_send_full(wire->fd, data, len, deadline, "message to a rank", err);
}
