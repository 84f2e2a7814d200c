/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/transport/relay.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/io.h"

#define LINKS_MAX 64
#define SEND_MS 20000

struct link {
    int holder, receiver;
    uint64_t up;
};

struct relay {
    int listening, wake[2];
    uint16_t port, target;
    relay_hook hook;
    void *ctx;
    pthread_t thread;
    struct link links[LINKS_MAX];
    size_t count;
    uint64_t up, down;
};

static struct sockaddr_in loopback(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void link_close(struct link *link)
{
    refit_io_close(&link->holder);
    refit_io_close(&link->receiver);
}

static void link_open(struct relay *relay)
{
    struct sockaddr_in address = loopback(relay->target);
    struct link link = {.holder = accept(relay->listening, NULL, NULL),
                        .receiver = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (link.holder < 0 || relay->count == LINKS_MAX ||
        connect(link.receiver, (struct sockaddr *)&address, sizeof address) != 0)
        link_close(&link);
    else
        relay->links[relay->count++] = link;
}

/* False when the direction has ended. */
static bool pass(int from, int to, relay_hook hook, void *ctx, uint64_t *total)
{
    static uint8_t data[65536];
    struct refit_error err;
    ssize_t n = recv(from, data, sizeof data, MSG_DONTWAIT);
    if (n <= 0)
        return false;
    size_t len = hook ? hook(ctx, *total, data, (size_t)n) : (size_t)n;
    *total += len;
    return refit_io_send_full(to, data, len, refit_deadline_in_ms(SEND_MS), "relay", &err) == REFIT_OK &&
           len == (size_t)n;
}

static void link_ready(struct relay *relay, struct link *link, const struct pollfd *fds)
{
    uint64_t up = link->up;
    bool alive = true;
    if (fds[0].revents)
        alive = pass(link->holder, link->receiver, relay->hook, relay->ctx, &link->up);
    relay->up += link->up - up;
    if (alive && fds[1].revents)
        alive = pass(link->receiver, link->holder, NULL, NULL, &relay->down);
    if (!alive)
        link_close(link);
}

static void *relay_run(void *arg)
{
    struct relay *relay = arg;
    for (;;) {
        struct pollfd fds[2 + 2 * LINKS_MAX];
        size_t count = relay->count;
        fds[0] = (struct pollfd){.fd = relay->wake[0], .events = POLLIN};
        fds[1] = (struct pollfd){.fd = relay->listening, .events = POLLIN};
        for (size_t i = 0; i < count; i++) {
            fds[2 + 2 * i] = (struct pollfd){.fd = relay->links[i].holder, .events = POLLIN};
            fds[3 + 2 * i] = (struct pollfd){.fd = relay->links[i].receiver, .events = POLLIN};
        }
        poll(fds, 2 + 2 * count, -1);
        if (fds[0].revents)
            return NULL;
        for (size_t i = 0; i < count; i++)
            if (relay->links[i].holder >= 0)
                link_ready(relay, &relay->links[i], &fds[2 + 2 * i]);
        if (fds[1].revents)
            link_open(relay);
    }
}

struct relay *relay_start(uint16_t port, relay_hook hook, void *ctx)
{
    struct relay *relay = calloc(1, sizeof *relay);
    assert_non_null(relay);
    relay->target = port;
    relay->hook = hook;
    relay->ctx = ctx;
    struct sockaddr_in address = loopback(0);
    socklen_t len = sizeof address;
    relay->listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(relay->listening, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(relay->listening, 64), 0);
    assert_int_equal(getsockname(relay->listening, (struct sockaddr *)&address, &len), 0);
    relay->port = ntohs(address.sin_port);
    assert_int_equal(pipe(relay->wake), 0);
    assert_int_equal(pthread_create(&relay->thread, NULL, relay_run, relay), 0);
    return relay;
}

json_t *relay_card(const struct relay *relay)
{
    return json_pack("{s:s, s:s, s:i}", "transport", "tcp", "address", "127.0.0.1", "port", (int)relay->port);
}

void relay_stop(struct relay *relay, uint64_t *up, uint64_t *down)
{
    assert_int_equal(write(relay->wake[1], "", 1), 1);
    pthread_join(relay->thread, NULL);
    for (size_t i = 0; i < relay->count; i++)
        link_close(&relay->links[i]);
    close(relay->listening);
    close(relay->wake[0]);
    close(relay->wake[1]);
    *up = relay->up;
    *down = relay->down;
    free(relay);
}
