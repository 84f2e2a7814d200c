/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "base/socket.h"
#include "transport/address.h"
#include "transport/nccl.h"

#define GREETING_MS 5000
#define DRAIN_MS 1000
#define PENDING_MAX 2048      /* connections whose greeting is being read or parked; the oldest makes room */
#define SHAKING_MAX 256       /* of them, those in the middle of a TLS handshake, which costs some 100 KB each */
#define STEPS_MAX 64          /* with one connection, before the next has its turn */
#define TLS_HANDSHAKE 0x16    /* the first byte of a TLS connection */
#define CONNECTIONS_MAX 4096
#define ACCEPT_PAUSE_MS 100
#define OFFERED_MAX (64u << 20) /* bytes of edges of all greetings that are being read */
#define FIXED_FDS 3           /* wake, tcp, local */
#define RETIRED_MAX 64        /* refits whose endpoint has closed: who comes late to one is told at once */

enum phase {
    HELLO,  /* TLS: nothing has come yet, and nothing is kept */
    SHAKE,  /* TLS: the handshake */
    HEAD,   /* the fixed part is due */
    PARKED, /* its endpoint is not open yet; nothing is read meanwhile */
    EDGES,  /* the token is proven, the edges are due */
    DRAIN,  /* refused: bytes are read away until it closes, lest a reset overtake the reason */
};

/* A connection that is not admitted yet. */
struct pending {
    struct refit_stream stream;
    bool local;
    enum phase phase;
    struct refit_deadline deadline;
    size_t head_len;
    uint8_t head[REFIT_GREETING_HEAD_BYTES];
    struct refit_greeting greeting;
    struct refit_buf edges;
};

struct refit_listener {
    struct refit_listener_config config;
    char *tcp_address, *advertise, *local_path, *tls_name; /* owned copies */
    int wake, tcp, local;
    uint16_t tcp_port;
    pthread_t thread;
    atomic_bool stopping;
    pthread_mutex_t lock; /* gates; held while one admits */
    struct refit_gate *gates;
    char retired[RETIRED_MAX][REFIT_WIRE_ID_MAX + 1]; /* a ring; empty: unused */
    size_t retired_next;
    atomic_uint connections; /* admitted and not closed yet */
    struct pending *pending[PENDING_MAX]; /* the thread's own; oldest first */
    size_t pending_count, shaking;
    size_t offered;                       /* bytes of edges announced by those that proved their token */
    struct refit_deadline accept_again; /* out of descriptors: not before then */
};

static void offer_release(struct refit_listener *listener, struct pending *p)
{
    listener->offered -= p->edges.max_bytes;
    refit_buf_release(&p->edges);
    refit_buf_init(&p->edges, 0);
}

static void pending_close(struct refit_listener *listener, size_t index)
{
    struct pending *p = listener->pending[index];
    refit_stream_close(&p->stream);
    offer_release(listener, p);
    listener->shaking -= p->phase == SHAKE;
    free(p);
    listener->pending_count--;
    memmove(listener->pending + index, listener->pending + index + 1,
            (listener->pending_count - index) * sizeof *listener->pending);
}

static void pending_refuse(struct refit_listener *listener, struct pending *p, const struct refit_error *why)
{
    refit_log_limited(REFIT_LOG_WARN, "bulk connection refused", REFIT_LOG_CAUSE(why));
    if (p->phase != SHAKE)
        refit_greeting_refuse(&p->stream, why);
    refit_stream_end(&p->stream);
    listener->shaking -= p->phase == SHAKE;
    offer_release(listener, p);
    p->phase = DRAIN;
    p->deadline = refit_deadline_in_ms(DRAIN_MS);
}

static bool is_retired(const struct refit_listener *listener, const char *refit_id)
{
    for (size_t i = 0; i < RETIRED_MAX; i++)
        if (strcmp(listener->retired[i], refit_id) == 0)
            return true;
    return false;
}

static enum refit_gate_kind kind_of(const struct pending *p)
{
    return p->local ? REFIT_GATE_LOCAL : p->greeting.nccl ? REFIT_GATE_NCCL : REFIT_GATE_TCP;
}

static const char *name_of(enum refit_gate_kind kind)
{
    static const char *const names[] = {"tcp", "local", "nccl"};
    return names[kind];
}

/* The lock is held. *stranger: the refit is known, but not with this token, or not any more. */
static struct refit_gate *find_gate(struct refit_listener *listener, const struct pending *p, bool *stranger)
{
    struct refit_gate *found = NULL;
    *stranger = is_retired(listener, p->greeting.refit_id);
    for (struct refit_gate *gate = listener->gates; gate; gate = gate->next) {
        if (gate->kind != kind_of(p) || strcmp(gate->config->refit_id, p->greeting.refit_id) != 0)
            continue;
        if (refit_token_equal(gate->config->token, p->greeting.token))
            found = gate;
        else
            *stranger = true;
    }
    return found;
}

static enum refit_status no_such_refit(const struct pending *p, struct refit_error *err)
{
    /* Which of the two was wrong is not for a stranger to know. */
    return refit_fail(err, REFIT_NOT_FOUND, "no refit with this id and token receives here over %s (holder %u)",
                      name_of(kind_of(p)), p->greeting.holder);
}

/* The endpoint may have gone since the head was read, so it is looked up again under the lock that it leaves with. */
static enum refit_status admit(struct refit_listener *listener, struct pending *p, struct refit_error *err)
{
    bool stranger;
    if (atomic_load_explicit(&listener->connections, memory_order_relaxed) >= listener->config.connections_max)
        return refit_fail(err, REFIT_BUSY, "%u bulk connections are open, the most allowed",
                          listener->config.connections_max);
    pthread_mutex_lock(&listener->lock);
    struct refit_gate *gate = find_gate(listener, p, &stranger);
    enum refit_status status =
        gate ? gate->admit(gate, &p->greeting, p->edges.data, &p->stream, err) : no_such_refit(p, err);
    if (status == REFIT_OK) {
        /* Counted before the lock is dropped; the endpoint forgets it later, and only once. */
        atomic_fetch_add_explicit(&listener->connections, 1, memory_order_relaxed);
        p->stream = (struct refit_stream){.fd = -1};
    }
    pthread_mutex_unlock(&listener->lock);
    return status;
}

enum refit_status refit_listener_hand_over(struct refit_listener *listener, const struct refit_greeting *greeting,
                                           uint8_t *edges, const struct refit_stream *stream, struct refit_error *err)
{
    struct pending p = {.stream = *stream, .greeting = *greeting, .edges.data = edges};
    return admit(listener, &p, err);
}

/* REFIT_BUSY: more bytes are due, or the endpoint. */
static enum refit_status prove_token(struct refit_listener *listener, struct pending *p, struct refit_error *err)
{
    bool stranger;
    pthread_mutex_lock(&listener->lock);
    bool known = find_gate(listener, p, &stranger) != NULL;
    pthread_mutex_unlock(&listener->lock);
    if (stranger && !known)
        return no_such_refit(p, err);
    p->phase = known ? EDGES : PARKED;
    if (!known)
        return REFIT_BUSY;
    size_t bytes = (size_t)p->greeting.edges * REFIT_GREETING_EDGE_BYTES;
    if (bytes > OFFERED_MAX - listener->offered)
        return refit_fail(err, REFIT_BUSY, "%zu bytes of offered edges are being read, the most allowed is %u; retry",
                          listener->offered, OFFERED_MAX);
    refit_buf_init(&p->edges, bytes);
    listener->offered += bytes;
    return p->edges.max_bytes == 0 ? admit(listener, p, err) : REFIT_BUSY;
}

static enum refit_status take_bytes(struct refit_listener *listener, struct pending *p, const uint8_t *data, size_t len,
                                    struct refit_error *err)
{
    if (p->phase == EDGES) {
        if (!refit_buf_append(&p->edges, data, len))
            return refit_fail(err, REFIT_INVALID, "bytes beyond the %u edges announced", p->greeting.edges);
        return p->edges.len == p->edges.max_bytes ? admit(listener, p, err) : REFIT_BUSY;
    }
    memcpy(p->head + p->head_len, data, len);
    p->head_len += len;
    if (p->head_len < sizeof p->head)
        return REFIT_BUSY;
    enum refit_status status = refit_greeting_decode(p->head, &p->greeting, err);
    if (status == REFIT_INVALID && p->head[0] == TLS_HANDSHAKE && !p->stream.secure)
        return refit_fail(err, status, "TLS came in, and this port has none");
    return status == REFIT_OK ? prove_token(listener, p, err) : status;
}

/* What may be read now, never beyond the greeting. */
static size_t bytes_due(const struct pending *p, size_t room)
{
    size_t due = p->phase == HEAD ? sizeof p->head - p->head_len : room;
    if (p->phase == EDGES && !p->local)
        due = p->edges.max_bytes - p->edges.len;
    return due < room ? due : room;
}

static void settle(struct refit_listener *listener, size_t index, enum refit_status status,
                   const struct refit_error *err)
{
    if (status == REFIT_OK)
        pending_close(listener, index);
    else if (status != REFIT_BUSY || err->status == REFIT_BUSY)
        pending_refuse(listener, listener->pending[index], err);
}

/* ---- TLS ---- */

/* Whoever has begun first and not finished makes room. */
static void make_shaking_room(struct refit_listener *listener)
{
    for (size_t i = 0; i < listener->pending_count && listener->shaking >= SHAKING_MAX; i++) {
        if (listener->pending[i]->phase == SHAKE) {
            struct refit_error why;
            refit_fail(&why, REFIT_BUSY, "more than %d TLS handshakes at once", SHAKING_MAX);
            pending_refuse(listener, listener->pending[i], &why);
        }
    }
}

/* What came of one step with a connection. */
enum turn {
    LATER, /* poll for more */
    AGAIN, /* there may be more to do */
    GONE,  /* it has closed */
    JUDGED /* admitted, or *err says why not */
};

/* The first byte, which stays in the socket, tells what is spoken. */
static enum turn hello(struct refit_listener *listener, struct pending *p, enum refit_status *status,
                       struct refit_error *err)
{
    uint8_t first;
    ssize_t n = recv(p->stream.fd, &first, 1, MSG_DONTWAIT | MSG_PEEK);
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR) ? LATER : GONE;
    if (first != TLS_HANDSHAKE) {
        *status = refit_fail(err, REFIT_UNSUPPORTED, "this port demands TLS, and what came in is plain");
        return JUDGED;
    }
    make_shaking_room(listener);
    *status = refit_stream_secure(&p->stream, listener->config.tls, NULL, err);
    if (*status != REFIT_OK)
        return JUDGED;
    p->phase = SHAKE;
    listener->shaking++;
    return AGAIN;
}

static enum turn shake(struct refit_listener *listener, struct pending *p, enum refit_status *status,
                       struct refit_error *err)
{
    *status = refit_stream_handshake(&p->stream, err);
    if (*status != REFIT_OK)
        return *status == REFIT_BUSY ? LATER : JUDGED;
    p->phase = HEAD;
    listener->shaking--;
    return AGAIN;
}

/* ---- a turn ---- */

static enum turn read_greeting(struct refit_listener *listener, struct pending *p, enum refit_status *status,
                               struct refit_error *err)
{
    uint8_t data[16384];
    struct iovec iov = {.iov_base = data, .iov_len = bytes_due(p, sizeof data)};
    size_t got;
    *status = refit_stream_receive(&p->stream, &iov, 1, &got, err);
    if (*status != REFIT_OK)
        return *status == REFIT_BUSY ? LATER : GONE;
    *status = take_bytes(listener, p, data, got, err);
    if (*status != REFIT_BUSY || err->status == REFIT_BUSY)
        return JUDGED;
    return p->phase == PARKED ? LATER : AGAIN;
}

/* What is sent to one that is refused is read away. */
static enum turn drain(const struct pending *p)
{
    uint8_t data[16384];
    ssize_t n = recv(p->stream.fd, data, sizeof data, MSG_DONTWAIT);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)) ? LATER : GONE;
}

static void pending_ready(struct refit_listener *listener, size_t index)
{
    struct pending *p = listener->pending[index];
    struct refit_error err = {.status = REFIT_OK};
    enum refit_status status = REFIT_OK;
    enum turn turn = AGAIN;
    for (int i = 0; i < STEPS_MAX && turn == AGAIN; i++) {
        switch (p->phase) {
        case HELLO: turn = hello(listener, p, &status, &err); break;
        case SHAKE: turn = shake(listener, p, &status, &err); break;
        case PARKED: turn = GONE; break; /* polled for hang-ups only */
        case DRAIN: turn = drain(p); break;
        case HEAD:
        case EDGES: turn = read_greeting(listener, p, &status, &err); break;
        }
    }
    if (turn == GONE)
        pending_close(listener, index);
    else if (turn == JUDGED)
        settle(listener, index, status, &err);
}

/* An endpoint has been opened: is it the one that a parked connection waits for? */
static void look_at_parked(struct refit_listener *listener)
{
    for (size_t i = listener->pending_count; i-- > 0;) {
        struct pending *p = listener->pending[i];
        struct refit_error err = {.status = REFIT_OK};
        if (p->phase == PARKED) {
            enum refit_status status = prove_token(listener, p, &err);
            settle(listener, i, status, &err);
        }
    }
}

static void accept_one(struct refit_listener *listener, int from, bool local)
{
    int fd = accept4(from, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        /* Gone again; or out of descriptors or memory, and then poll would say at once that it waits still. */
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            listener->accept_again = refit_deadline_in_ms(ACCEPT_PAUSE_MS);
        return;
    }
    struct pending *p = calloc(1, sizeof *p);
    if (!p) {
        refit_io_close(&fd);
        return;
    }
    if (!local)
        refit_socket_tune(fd);
    p->stream.fd = fd;
    p->local = local;
    p->phase = listener->config.tls && !local ? HELLO : HEAD;
    p->deadline = refit_deadline_in_ms(GREETING_MS);
    refit_buf_init(&p->edges, 0);
    if (listener->pending_count == PENDING_MAX)
        pending_close(listener, 0);
    listener->pending[listener->pending_count++] = p;
}

static void close_late(struct refit_listener *listener)
{
    for (size_t i = listener->pending_count; i-- > 0;) {
        struct pending *p = listener->pending[i];
        if (!refit_deadline_passed(p->deadline))
            continue;
        if (p->phase == DRAIN) {
            pending_close(listener, i);
            continue;
        }
        struct refit_error err;
        if (p->phase == PARKED)
            no_such_refit(p, &err);
        else if (p->phase == SHAKE)
            refit_fail(&err, REFIT_TIMEOUT, "no whole TLS handshake within %d ms", GREETING_MS);
        else
            refit_fail(&err, REFIT_INVALID, "no whole greeting within %d ms", GREETING_MS);
        pending_refuse(listener, p, &err);
    }
}

static int poll_timeout(const struct refit_listener *listener)
{
    struct refit_deadline first = {.at_ns = INT64_MAX};
    if (!refit_deadline_passed(listener->accept_again))
        first = listener->accept_again;
    for (size_t i = 0; i < listener->pending_count; i++)
        first = refit_deadline_earlier(first, listener->pending[i]->deadline);
    return first.at_ns == INT64_MAX ? -1 : refit_deadline_left_ms(first);
}

static short pending_events(const struct pending *p)
{
    return p->phase == PARKED ? POLLRDHUP : p->phase == DRAIN ? POLLIN : refit_stream_events(&p->stream);
}

static void *listen_thread(void *arg)
{
    struct refit_listener *listener = arg;
    struct pollfd fds[FIXED_FDS + PENDING_MAX];
    while (!atomic_load_explicit(&listener->stopping, memory_order_acquire)) {
        size_t count = listener->pending_count;
        fds[0] = (struct pollfd){.fd = listener->wake, .events = POLLIN};
        bool accepting = refit_deadline_passed(listener->accept_again);
        fds[1] = (struct pollfd){.fd = accepting ? listener->tcp : -1, .events = POLLIN};
        fds[2] = (struct pollfd){.fd = accepting ? listener->local : -1, .events = POLLIN};
        for (size_t i = 0; i < count; i++)
            fds[FIXED_FDS + i] = (struct pollfd){
                .fd = listener->pending[i]->stream.fd,
                .events = pending_events(listener->pending[i]),
            };
        if (poll(fds, FIXED_FDS + count, poll_timeout(listener)) < 0)
            continue;
        for (size_t i = count; i-- > 0;)
            if (fds[FIXED_FDS + i].revents)
                pending_ready(listener, i);
        close_late(listener);
        if (fds[0].revents) {
            eventfd_t ignored;
            eventfd_read(listener->wake, &ignored);
            look_at_parked(listener);
        }
        if (fds[1].revents)
            accept_one(listener, listener->tcp, false);
        if (fds[2].revents)
            accept_one(listener, listener->local, true);
    }
    while (listener->pending_count > 0)
        pending_close(listener, 0);
    return NULL;
}

static enum refit_status open_tcp(struct refit_listener *listener, struct refit_error *err)
{
    const struct refit_listener_config *config = &listener->config;
    struct refit_address address;
    enum refit_status status = refit_address_parse(config->tcp_address, config->tcp_port, &address, err);
    if (status != REFIT_OK)
        return status;
    int on = 1;
    listener->tcp = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->tcp < 0 || setsockopt(listener->tcp, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(listener->tcp, &address.any, address.len) != 0 || listen(listener->tcp, SOMAXCONN) != 0 ||
        getsockname(listener->tcp, &address.any, &address.len) != 0)
        return refit_fail_errno(err, errno, "bulk listener on %s port %u", config->tcp_address, config->tcp_port);
    listener->tcp_port = refit_address_port(&address);
    return REFIT_OK;
}

static bool copy_text(const char *from, char **to)
{
    return !from || (*to = strdup(from)) != NULL;
}

static enum refit_status copy_config(struct refit_listener *listener, const struct refit_listener_config *config,
                                     struct refit_error *err)
{
    const char *advertise = config->advertise ? config->advertise : config->tcp_address;
    if (!copy_text(config->tcp_address, &listener->tcp_address) || !copy_text(advertise, &listener->advertise) ||
        !copy_text(config->local_path, &listener->local_path) || !copy_text(config->tls_name, &listener->tls_name))
        return refit_fail_alloc(err, "a listener", sizeof *listener);
    listener->config = (struct refit_listener_config){
        .tcp_address = listener->tcp_address,
        .tcp_port = config->tcp_port,
        .advertise = listener->advertise,
        .local_path = listener->local_path,
        .tls = config->tls,
        .tls_name = listener->tls_name,
        .nccl = config->nccl,
        .nccl_elsewhere = config->nccl_elsewhere,
        .connections_max = config->connections_max ? config->connections_max : CONNECTIONS_MAX,
    };
    return REFIT_OK;
}

static void listener_free(struct refit_listener *listener)
{
    if (listener->local >= 0)
        unlink(listener->local_path);
    refit_io_close(&listener->tcp);
    refit_io_close(&listener->local);
    refit_io_close(&listener->wake);
    pthread_mutex_destroy(&listener->lock);
    free(listener->tcp_address);
    free(listener->advertise);
    free(listener->local_path);
    free(listener->tls_name);
    free(listener);
}

enum refit_status refit_listener_start(const struct refit_listener_config *config, struct refit_listener **out,
                                       struct refit_error *err)
{
    struct refit_listener *listener = calloc(1, sizeof *listener);
    if (!listener)
        return refit_fail_alloc(err, "a listener", sizeof *listener);
    listener->tcp = listener->local = -1;
    pthread_mutex_init(&listener->lock, NULL);
    listener->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum refit_status status =
        listener->wake < 0 ? refit_fail_errno(err, errno, "listener: eventfd") : copy_config(listener, config, err);
    if (status == REFIT_OK && config->tcp_address)
        status = open_tcp(listener, err);
    if (status == REFIT_OK && config->local_path)
        status = refit_socket_listen(listener->local_path, 0, &listener->local, err);
    if (status == REFIT_OK)
        status = refit_bulk_thread_start(&listener->thread, listen_thread, listener, err);
    if (status != REFIT_OK) {
        listener_free(listener);
        return status;
    }
    *out = listener;
    return REFIT_OK;
}

/* What tells holders to use TLS comes over the control connection, so nobody on the way of bulk bytes can take it away. */
static json_t *tcp_card(const struct refit_listener *listener, const char *transport)
{
    json_t *card = json_pack("{s:s, s:s, s:i}", "transport", transport, "address", listener->advertise, "port",
                             (int)listener->tcp_port);
    if (!card || !listener->config.tls)
        return card;
    int failed = json_object_set_new(card, "tls", json_true());
    if (listener->tls_name)
        failed |= json_object_set_new(card, "name", json_string(listener->tls_name));
    if (failed)
        json_decref(card);
    return failed ? NULL : card;
}

/* NCCL does not encrypt, and nothing takes back silently what the operator has asked for. */
static enum refit_status check_plain(const struct refit_listener *listener, struct refit_error *err)
{
    if (!listener->config.tls)
        return REFIT_OK;
    return refit_fail(err, REFIT_UNSUPPORTED, "transport \"nccl\": bulk bytes are to go over TLS here, and NCCL does not "
                      "encrypt; use tcp, or serve bulk bytes without TLS");
}

/* The version, so that one that differs is known before anybody dials. */
static enum refit_status nccl_card(const struct refit_listener *listener, json_t **out, struct refit_error *err)
{
    int version = 0;
    bool here = !listener->config.nccl_elsewhere;
    enum refit_status status = check_plain(listener, err);
    if (status == REFIT_OK && here)
        status = refit_nccl_version(&version, err);
    if (status != REFIT_OK)
        return status;
    *out = tcp_card(listener, "nccl");
    if (*out && here && json_object_set_new(*out, "version", json_integer(version)) != 0) {
        json_decref(*out);
        *out = NULL;
    }
    const char *reshard = here ? refit_nccl_reshard_id() : NULL;
    if (*out && reshard && json_object_set_new(*out, "reshard", json_string(reshard)) != 0) {
        json_decref(*out);
        *out = NULL;
    }
    return *out ? REFIT_OK : refit_fail_alloc(err, "a card", REFIT_CARD_MAX);
}

enum refit_status refit_listener_card(const struct refit_listener *listener, const char *transport, json_t **out,
                                      struct refit_error *err)
{
    json_t *card = NULL;
    if (strcmp(transport, "nccl") == 0 && listener->tcp >= 0 && listener->config.nccl)
        return nccl_card(listener, out, err);
    if (strcmp(transport, "tcp") == 0 && listener->tcp >= 0)
        card = tcp_card(listener, transport);
    else if (strcmp(transport, "local") == 0 && listener->local >= 0)
        card = json_pack("{s:s, s:s}", "transport", transport, "path", listener->local_path);
    else
        return refit_fail(err, REFIT_UNSUPPORTED, "this listener has no address for transport \"%s\"", transport);
    if (!card)
        return refit_fail_alloc(err, "a card", REFIT_CARD_MAX);
    *out = card;
    return REFIT_OK;
}

uint16_t refit_listener_tcp_port(const struct refit_listener *listener)
{
    return listener->tcp_port;
}

void refit_listener_stop(struct refit_listener *listener)
{
    if (!listener)
        return;
    atomic_store_explicit(&listener->stopping, true, memory_order_release);
    eventfd_write(listener->wake, 1);
    pthread_join(listener->thread, NULL);
    listener_free(listener);
}

enum refit_status refit_listener_register(struct refit_listener *listener, struct refit_gate *gate,
                                          struct refit_error *err)
{
    enum refit_status status = gate->kind == REFIT_GATE_NCCL ? check_plain(listener, err) : REFIT_OK;
    pthread_mutex_lock(&listener->lock);
    for (struct refit_gate *other = listener->gates; other; other = other->next)
        if (other->kind == gate->kind && strcmp(other->config->refit_id, gate->config->refit_id) == 0)
            status = refit_fail(err, REFIT_CONFLICT, "refit %s already has a receiver here", gate->config->refit_id);
    if (status == REFIT_OK) {
        gate->next = listener->gates;
        listener->gates = gate;
    }
    pthread_mutex_unlock(&listener->lock);
    eventfd_write(listener->wake, 1);
    return status;
}

void refit_listener_unregister(struct refit_listener *listener, struct refit_gate *gate)
{
    pthread_mutex_lock(&listener->lock);
    for (struct refit_gate **at = &listener->gates; *at; at = &(*at)->next) {
        if (*at == gate) {
            *at = gate->next;
            char *retired = listener->retired[listener->retired_next++ % RETIRED_MAX];
            snprintf(retired, sizeof listener->retired[0], "%s", gate->config->refit_id);
            break;
        }
    }
    pthread_mutex_unlock(&listener->lock);
}

void refit_listener_forget(struct refit_listener *listener)
{
    atomic_fetch_sub_explicit(&listener->connections, 1, memory_order_relaxed);
}
