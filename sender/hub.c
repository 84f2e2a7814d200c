/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/hub.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cursor.h"
#include "base/io.h"
#include "base/log.h"
#include "base/thread.h"
#include "sender/rank_wire.h"

#define FRAME_LENGTH 4
#define FRAME_HEADER 9 /* behind the length: type and turn */
#define READ_BYTES (64 * 1024)
#define ACCEPT_PAUSE_MS 100

enum link_state { LINK_NONE, LINK_STRANGER, LINK_TRUSTED, LINK_LOST };

/* A trusted link's slot is used once: its descriptor stays open until the hub stops, so that a late sender never writes
 * to another. Nobody sends to strangers but the hub's thread, and their slots are used again. */
struct link {
    _Atomic(enum link_state) state;
    struct refit_rank_wire wire;
    struct refit_deadline greet_by; /* strangers */
    struct refit_buf in;            /* the frame being assembled, with its header */
    bool sending;                   /* under the hub's lock: somebody writes a frame */
};

struct refit_hub {
    struct refit_hub_config config;
    struct link *links;
    struct pollfd *polls;
    size_t link_capacity;
    pthread_mutex_t lock;     /* adding links, turns to send */
    pthread_cond_t turn_over; /* somebody has written its frame */
    atomic_size_t count;
    size_t strangers; /* the hub's thread only, as the next */
    struct refit_deadline accept_again; /* out of descriptors: not before then */
    int wakeup;
    atomic_bool stopping, deaf;
    pthread_t thread;
};

static void wake(struct refit_hub *hub)
{
    uint64_t one = 1;
    /* A full counter means that a wake-up is due anyway. */
    ssize_t n = write(hub->wakeup, &one, sizeof one);
    (void)n;
}

static bool is_live(const struct link *link)
{
    enum link_state state = atomic_load_explicit(&link->state, memory_order_acquire);
    return state == LINK_STRANGER || state == LINK_TRUSTED;
}

static void lose(struct refit_hub *hub, size_t index, const struct refit_error *why)
{
    struct link *link = &hub->links[index];
    refit_buf_release(&link->in);
    if (atomic_load_explicit(&link->state, memory_order_relaxed) == LINK_STRANGER) {
        hub->strangers--;
        refit_log_limited(REFIT_LOG_DEBUG, "a connection to the ranks' port was dropped", REFIT_LOG_CAUSE(why));
        refit_rank_wire_close(&link->wire);
        atomic_store_explicit(&link->state, LINK_NONE, memory_order_release);
        return;
    }
    atomic_store_explicit(&link->state, LINK_LOST, memory_order_release);
    shutdown(link->wire.fd, SHUT_RDWR);
    hub->config.lost(hub->config.context, index, why);
}

static void lose_with(struct refit_hub *hub, size_t index, enum refit_status status, const char *text)
{
    struct refit_error why;
    refit_fail(&why, status, "%s", text);
    lose(hub, index, &why);
}

static void tune(int fd)
{
    /* A host that vanishes sends no end of file; with these the kernel notices in about half a minute. */
    int on = 1, idle_s = 10, interval_s = 5, probes = 4;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/* Takes the wire when there is room. */
static bool add_link(struct refit_hub *hub, struct refit_rank_wire *wire, enum link_state state, size_t *out)
{
    pthread_mutex_lock(&hub->lock);
    size_t count = atomic_load_explicit(&hub->count, memory_order_relaxed), index = 0;
    while (index < count && atomic_load_explicit(&hub->links[index].state, memory_order_relaxed) != LINK_NONE)
        index++;
    bool room = index < hub->link_capacity;
    if (room) {
        struct link *link = &hub->links[index];
        tune(wire->fd);
        refit_rank_wire_move(&link->wire, wire);
        link->greet_by = refit_deadline_in_ms(REFIT_HUB_GREETING_MS);
        refit_buf_init(&link->in, FRAME_LENGTH + (state == LINK_TRUSTED ? hub->config.frame_max
                                                                       : REFIT_HUB_GREETING_BYTES));
        atomic_store_explicit(&link->state, state, memory_order_release);
        if (index == count)
            atomic_store_explicit(&hub->count, count + 1, memory_order_release);
        *out = index;
    }
    pthread_mutex_unlock(&hub->lock);
    return room;
}

static void accept_all(struct refit_hub *hub)
{
    for (;;) {
        int fd = accept4(hub->config.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            /* None waits; or descriptors or memory are out, and then poll would say at once that one waits still. */
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                hub->accept_again = refit_deadline_in_ms(ACCEPT_PAUSE_MS);
            return;
        }
        size_t index;
        struct refit_rank_wire wire;
        struct refit_error ignored;
        if (refit_rank_wire_open(&wire, fd, hub->config.tls, &ignored) != REFIT_OK)
            continue;
        if (hub->strangers < REFIT_HUB_STRANGERS && add_link(hub, &wire, LINK_STRANGER, &index))
            hub->strangers++;
        else
            refit_rank_wire_close(&wire);
    }
}

/* How many bytes the frame being assembled still lacks, header first; false: its length is not acceptable. */
static bool bytes_lacking(const struct refit_hub *hub, const struct link *link, size_t *lacking)
{
    if (link->in.len < FRAME_LENGTH) {
        *lacking = FRAME_LENGTH - link->in.len;
        return true;
    }
    bool stranger = atomic_load_explicit(&link->state, memory_order_relaxed) == LINK_STRANGER;
    struct refit_cursor cursor = refit_cursor_over(link->in.data, link->in.len);
    size_t len = refit_cursor_u32(&cursor);
    *lacking = FRAME_LENGTH + len - link->in.len;
    return len >= FRAME_HEADER && len <= (stranger ? REFIT_HUB_GREETING_BYTES : hub->config.frame_max);
}

static bool deliver(struct refit_hub *hub, size_t index)
{
    struct link *link = &hub->links[index];
    struct refit_error why = {.status = REFIT_PEER, .text = "dropped"};
    struct refit_cursor cursor = refit_cursor_over(link->in.data + FRAME_LENGTH, link->in.len - FRAME_LENGTH);
    struct refit_frame frame = {.type = refit_cursor_u8(&cursor)};
    frame.turn = refit_cursor_u64(&cursor);
    frame.len = refit_cursor_left(&cursor);
    frame.body = cursor.at;
    if (!hub->config.frame(hub->config.context, index, &frame, &why)) {
        lose(hub, index, &why);
        return false;
    }
    /* Large frames are rare; their memory is not kept. */
    if (link->in.capacity > READ_BYTES)
        refit_buf_release(&link->in);
    else
        refit_buf_clear(&link->in);
    return true;
}

/* One read; false when there is nothing more to do on this link now. */
static bool read_some(struct refit_hub *hub, size_t index)
{
    struct link *link = &hub->links[index];
    size_t lacking;
    if (!bytes_lacking(hub, link, &lacking)) {
        lose_with(hub, index, REFIT_PEER, "sent a frame of a length that is not acceptable");
        return false;
    }
    if (lacking == 0)
        return deliver(hub, index);
    /* Memory grows with what has come, not with what a header announces. */
    size_t step = lacking < READ_BYTES ? lacking : READ_BYTES;
    void *room = refit_buf_reserve(&link->in, step);
    if (!room) {
        lose_with(hub, index, REFIT_NO_MEMORY, "out of memory for a frame");
        return false;
    }
    struct refit_error why;
    size_t done;
    enum refit_rank_wire_step how = refit_rank_wire_read(&link->wire, room, step, &done, &why);
    link->in.len += done;
    if (how == REFIT_RANK_WIRE_ENDED)
        lose(hub, index, &why);
    return how == REFIT_RANK_WIRE_READ;
}

static int poll_timeout_ms(struct refit_hub *hub)
{
    struct refit_deadline first = {.at_ns = INT64_MAX};
    if (!refit_deadline_passed(hub->accept_again))
        first = hub->accept_again;
    size_t count = atomic_load_explicit(&hub->count, memory_order_acquire);
    for (size_t i = 0; hub->strangers > 0 && i < count; i++)
        if (atomic_load_explicit(&hub->links[i].state, memory_order_relaxed) == LINK_STRANGER)
            first = refit_deadline_earlier(first, hub->links[i].greet_by);
    return first.at_ns == INT64_MAX ? -1 : refit_deadline_left_ms(first);
}

static size_t fill_polls(struct refit_hub *hub, size_t count)
{
    bool deaf = atomic_load_explicit(&hub->deaf, memory_order_acquire) || !refit_deadline_passed(hub->accept_again);
    hub->polls[0] = (struct pollfd){.fd = hub->wakeup, .events = POLLIN};
    hub->polls[1] = (struct pollfd){.fd = deaf ? -1 : hub->config.listener, .events = POLLIN};
    for (size_t i = 0; i < count; i++)
        hub->polls[i + 2] = is_live(&hub->links[i])
                                ? (struct pollfd){.fd = hub->links[i].wire.fd,
                                                  .events = refit_rank_wire_events(&hub->links[i].wire)}
                                : (struct pollfd){.fd = -1};
    return count + 2;
}

static void serve_links(struct refit_hub *hub, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct link *link = &hub->links[i];
        if (hub->polls[i + 2].revents != 0)
            while (is_live(link) && read_some(hub, i))
                ;
        if (atomic_load_explicit(&link->state, memory_order_relaxed) == LINK_STRANGER &&
            refit_deadline_passed(link->greet_by))
            lose_with(hub, i, REFIT_TIMEOUT, "did not say who it is");
    }
}

static void *run(void *context)
{
    struct refit_hub *hub = context;
    while (!atomic_load_explicit(&hub->stopping, memory_order_acquire)) {
        size_t count = atomic_load_explicit(&hub->count, memory_order_acquire);
        size_t polled = fill_polls(hub, count);
        if (poll(hub->polls, polled, poll_timeout_ms(hub)) < 0)
            continue;
        uint64_t wakeups;
        if (hub->polls[0].revents != 0 && read(hub->wakeup, &wakeups, sizeof wakeups) < 0)
            continue;
        if (hub->polls[1].revents != 0)
            accept_all(hub);
        serve_links(hub, count);
    }
    return NULL;
}

static void release(struct refit_hub *hub)
{
    size_t count = atomic_load_explicit(&hub->count, memory_order_relaxed);
    for (size_t i = 0; hub->links && i < hub->link_capacity; i++) {
        if (i < count) {
            refit_rank_wire_close(&hub->links[i].wire);
            refit_buf_release(&hub->links[i].in);
        }
    }
    refit_io_close(&hub->wakeup);
    refit_io_close(&hub->config.listener);
    pthread_cond_destroy(&hub->turn_over);
    pthread_mutex_destroy(&hub->lock);
    free(hub->links);
    free(hub->polls);
    free(hub);
}

enum refit_status refit_hub_start(const struct refit_hub_config *config, struct refit_hub **out,
                                  struct refit_error *err)
{
    int listener = config->listener;
    struct refit_hub *hub = calloc(1, sizeof *hub);
    if (!hub) {
        refit_io_close(&listener);
        if (config->first)
            refit_rank_wire_close(config->first);
        return refit_fail_alloc(err, "a hub", sizeof *hub);
    }
    hub->config = *config;
    pthread_mutex_init(&hub->lock, NULL);
    refit_cond_init(&hub->turn_over);
    hub->link_capacity = config->links_max + (listener >= 0 ? REFIT_HUB_STRANGERS : 0);
    hub->wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    hub->links = calloc(hub->link_capacity, sizeof *hub->links);
    hub->polls = calloc(hub->link_capacity + 2, sizeof *hub->polls);
    *out = hub; /* before the thread starts: the first frame may come at once, and its handler needs the hub */
    size_t number;
    bool made = hub->wakeup >= 0 && hub->links && hub->polls;
    if (config->first && !(made && add_link(hub, config->first, LINK_TRUSTED, &number)))
        refit_rank_wire_close(config->first);
    enum refit_status status = !made
                                   ? refit_fail(err, REFIT_NO_MEMORY, "no memory or no descriptor for a hub of %zu links",
                                                config->links_max)
                                   : refit_thread_start(&hub->thread, run, hub, "the thread of a hub", err);
    if (status != REFIT_OK) {
        release(hub);
        *out = NULL;
    }
    return status;
}

void refit_hub_stop(struct refit_hub *hub)
{
    if (!hub)
        return;
    atomic_store_explicit(&hub->stopping, true, memory_order_release);
    wake(hub);
    pthread_join(hub->thread, NULL);
    release(hub);
}

void refit_hub_trust(struct refit_hub *hub, size_t index)
{
    struct link *link = &hub->links[index];
    if (atomic_load_explicit(&link->state, memory_order_relaxed) != LINK_STRANGER)
        return; /* rank 0's link to itself was trusted from the start */
    link->in.max_bytes = FRAME_LENGTH + hub->config.frame_max;
    atomic_store_explicit(&link->state, LINK_TRUSTED, memory_order_release);
    hub->strangers--;
}

/* Each waits for its turn by its own deadline, not by that of whoever writes now. */
static bool take_turn(struct refit_hub *hub, struct link *link, struct refit_deadline deadline)
{
    struct timespec until = refit_deadline_timespec(deadline);
    bool late = false;
    pthread_mutex_lock(&hub->lock);
    while (link->sending && !late)
        late = pthread_cond_timedwait(&hub->turn_over, &hub->lock, &until) != 0;
    bool mine = !link->sending;
    link->sending = true;
    pthread_mutex_unlock(&hub->lock);
    return mine;
}

static void end_turn(struct refit_hub *hub, struct link *link)
{
    pthread_mutex_lock(&hub->lock);
    link->sending = false;
    pthread_cond_broadcast(&hub->turn_over);
    pthread_mutex_unlock(&hub->lock);
}

enum refit_status refit_hub_send(struct refit_hub *hub, size_t index, const struct refit_frame *frame,
                                 struct refit_deadline deadline, struct refit_error *err)
{
    struct link *link = &hub->links[index];
    uint8_t header[FRAME_LENGTH + FRAME_HEADER];
    if (!is_live(link))
        return refit_fail(err, REFIT_PEER, "the connection is gone");
    if (frame->len > hub->config.frame_max - FRAME_HEADER)
        return refit_fail(err, REFIT_INVALID, "a message of %zu bytes, at most %zu", frame->len,
                          hub->config.frame_max - FRAME_HEADER);
    uint32_t announced = (uint32_t)(frame->len + FRAME_HEADER);
    memcpy(header, &announced, sizeof announced);
    header[FRAME_LENGTH] = frame->type;
    memcpy(header + FRAME_LENGTH + 1, &frame->turn, sizeof frame->turn);
    if (!take_turn(hub, link, deadline))
        return refit_fail(err, REFIT_TIMEOUT, "another message to it has not gone out");
    enum refit_status status = refit_rank_wire_send(&link->wire, header, sizeof header, deadline, err);
    if (status == REFIT_OK)
        status = refit_rank_wire_send(&link->wire, frame->body, frame->len, deadline, err);
    /* Half a frame went out: nothing after it would be understood. */
    if (status != REFIT_OK)
        shutdown(link->wire.fd, SHUT_RDWR);
    end_turn(hub, link);
    return status;
}

void refit_hub_close_listener(struct refit_hub *hub)
{
    atomic_store_explicit(&hub->deaf, true, memory_order_release);
    if (hub->config.listener >= 0)
        shutdown(hub->config.listener, SHUT_RDWR);
    wake(hub);
}
