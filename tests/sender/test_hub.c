/* SPDX-License-Identifier: Apache-2.0
 *
 * Framed connections: who waits for whom.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/io.h"
#include "sender/hub.h"
#include "sender/rank_wire.h"
#include "tests/support/receive.h"

#define LONG_MS 30000
#define SHORT_MS 50
#define LARGE (16u << 20) /* more than a socket takes */

static struct refit_hub *hub;
static size_t link_number;
static int peer = -1;
static uint8_t *large, *taken;

static bool ignore_frame(void *context, size_t of, const struct refit_frame *frame, struct refit_error *why)
{
    return true;
}

static void ignore_loss(void *context, size_t of, const struct refit_error *why)
{
}

static int setup(void **state)
{
    int pair[2];
    struct refit_rank_wire wire;
    struct refit_hub_config config = {.listener = -1, .first = &wire, .links_max = 1, .frame_max = 2 * LARGE,
                                      .frame = ignore_frame, .lost = ignore_loss};
    large = calloc(1, LARGE);
    taken = malloc(LARGE);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    peer = pair[1];
    assert_int_equal(refit_rank_wire_open(&wire, pair[0], NULL, NULL), REFIT_OK);
    assert_int_equal(refit_hub_start(&config, &hub, NULL), REFIT_OK);
    return 0;
}

static int teardown(void **state)
{
    refit_hub_stop(hub);
    refit_io_close(&peer);
    free(large);
    free(taken);
    return 0;
}

static atomic_bool sent;
static enum refit_status sent_status;

static void *send_large(void *context)
{
    struct refit_frame frame = {.type = 1, .body = large, .len = LARGE};
    sent_status = refit_hub_send(hub, link_number, &frame, refit_deadline_in_ms(LONG_MS), NULL);
    atomic_store(&sent, true);
    return NULL;
}

static void wait_readable(void)
{
    struct pollfd readable = {.fd = peer, .events = POLLIN};
    assert_int_equal(poll(&readable, 1, LONG_MS), 1);
}

/* A peer that does not read holds up the one who writes to it, and the next only for as long as that one has. */
static void a_sender_waits_for_its_turn_by_its_own_deadline(void **state)
{
    struct refit_error err;
    struct refit_frame small = {.type = 2, .body = "x", .len = 1};
    pthread_t thread;
    atomic_store(&sent, false);
    assert_int_equal(pthread_create(&thread, NULL, send_large, NULL), 0);
    wait_readable(); /* the large one has begun */
    assert_int_equal(refit_hub_send(hub, link_number, &small, refit_deadline_in_ms(SHORT_MS), &err), REFIT_TIMEOUT);
    assert_false(atomic_load(&sent));
    uint8_t head[13], tail[1];
    struct refit_deadline deadline = refit_deadline_in_ms(LONG_MS);
    assert_true(receive_full(peer, head, sizeof head, deadline));
    assert_true(receive_full(peer, taken, LARGE, deadline));
    pthread_join(thread, NULL);
    assert_int_equal(sent_status, REFIT_OK);
    /* The one that gave up has left nothing behind, and the connection goes on. */
    assert_int_equal(refit_hub_send(hub, link_number, &small, refit_deadline_in_ms(LONG_MS), &err), REFIT_OK);
    assert_true(receive_full(peer, head, sizeof head, deadline));
    assert_int_equal(head[4], 2);
    assert_true(receive_full(peer, tail, 1, deadline));
    assert_int_equal(tail[0], 'x');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_sender_waits_for_its_turn_by_its_own_deadline, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
