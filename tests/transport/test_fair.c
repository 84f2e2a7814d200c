/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may send next to whom: by a clock of the test's own, and over sockets.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/transport/pull.h"
#include "transport/fair.h"

#define MS INT64_C(1000000)
#define BEGIN (INT64_C(1000) * MS)
#define PIECE 100u
#define LEAD (4 * PIECE)
#define MEMBERS 3
#define ROUNDS 8

struct fair_world {
    struct refit_fair *fair;
    struct refit_fair_member member[MEMBERS];
    struct refit_fair_place place[MEMBERS]; /* a connection each */
};

static void open_world(struct fair_world *w)
{
    struct refit_error err;
    assert_int_equal(refit_fair_create(&w->fair, &err), REFIT_OK);
    for (int i = 0; i < MEMBERS; i++) {
        int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        assert_true(fd >= 0);
        refit_fair_join(&w->member[i], w->fair, LEAD);
        refit_fair_open(&w->place[i], &w->member[i], fd);
    }
}

static void close_world(struct fair_world *w)
{
    for (int i = 0; i < MEMBERS; i++) {
        refit_fair_close(&w->place[i]);
        refit_fair_leave(&w->member[i]);
        close(w->place[i].fd);
    }
    refit_fair_destroy(w->fair);
}

static bool is_woken(const struct refit_fair_place *place)
{
    eventfd_t count;
    return eventfd_read(place->fd, &count) == 0;
}

/* Sends pieces for as long as it may, at one moment. */
static unsigned send_all(struct refit_fair_place *place, int64_t now)
{
    unsigned sent = 0;
    while (sent < 1000 && refit_fair_may_send(place, now)) {
        refit_fair_sent(place, PIECE, now);
        sent++;
    }
    return sent;
}

/* --- by a clock of our own --- */

static void nobody_gets_further_ahead_than_the_lead(void **state)
{
    struct fair_world w;
    open_world(&w);
    assert_true(refit_fair_may_send(&w.place[0], BEGIN));
    assert_true(refit_fair_may_send(&w.place[1], BEGIN));
    assert_int_equal(send_all(&w.place[1], BEGIN), LEAD / PIECE + 1);
    assert_false(is_woken(&w.place[1]));
    /* One further for one that the last has got. */
    refit_fair_sent(&w.place[0], PIECE, BEGIN);
    assert_true(is_woken(&w.place[1]));
    assert_int_equal(send_all(&w.place[1], BEGIN), 1);
    close_world(&w);
}

static void who_has_nothing_to_send_is_not_waited_for(void **state)
{
    struct fair_world w;
    open_world(&w);
    assert_true(refit_fair_may_send(&w.place[0], BEGIN));
    assert_true(refit_fair_may_send(&w.place[1], BEGIN));
    assert_int_equal(send_all(&w.place[1], BEGIN), LEAD / PIECE + 1);
    refit_fair_rest(&w.place[0], BEGIN);
    assert_true(is_woken(&w.place[1]));
    assert_int_equal(send_all(&w.place[1], BEGIN), 1000);
    close_world(&w);
}

static void who_leaves_is_not_waited_for(void **state)
{
    struct fair_world w;
    open_world(&w);
    assert_true(refit_fair_may_send(&w.place[0], BEGIN));
    assert_int_equal(send_all(&w.place[1], BEGIN), LEAD / PIECE + 1);
    refit_fair_close(&w.place[0]);
    assert_true(is_woken(&w.place[1]));
    refit_fair_open(&w.place[0], &w.member[0], w.place[0].fd);
    close_world(&w);
}

static void a_connection_that_takes_nothing_is_not_waited_for_long(void **state)
{
    struct fair_world w;
    open_world(&w);
    assert_true(refit_fair_may_send(&w.place[0], BEGIN));
    assert_int_equal(send_all(&w.place[1], BEGIN), LEAD / PIECE + 1);
    assert_int_equal(send_all(&w.place[1], BEGIN + 100 * MS), 0);
    assert_int_equal(send_all(&w.place[1], BEGIN + 300 * MS), 1000);
    close_world(&w);
}

static void who_was_not_waited_for_comes_back_a_lead_behind(void **state)
{
    struct fair_world w;
    open_world(&w);
    assert_true(refit_fair_may_send(&w.place[0], BEGIN));
    assert_int_equal(send_all(&w.place[1], BEGIN + 300 * MS), 1000);
    refit_fair_sent(&w.place[0], PIECE, BEGIN + 301 * MS);
    assert_int_equal(w.member[0].sent, w.member[1].sent - LEAD);
    /* And is waited for from then on. */
    assert_int_equal(send_all(&w.place[1], BEGIN + 302 * MS), 1);
    close_world(&w);
}

/* Two that could take ten pieces each 10 ms, and one whose own path takes one: in step with it, all get little. */
static unsigned seconds_of(struct fair_world *w, int64_t from, int64_t seconds, bool slow_there)
{
    unsigned sent = 0;
    for (int64_t now = from; now < from + seconds * 1000 * MS; now += 10 * MS) {
        for (int i = 1; i < MEMBERS; i++)
            for (int k = 0; k < 10 && refit_fair_may_send(&w->place[i], now); k++, sent++)
                refit_fair_sent(&w->place[i], PIECE, now);
        if (slow_there && refit_fair_may_send(&w->place[0], now))
            refit_fair_sent(&w->place[0], PIECE, now);
    }
    return sent;
}

static void a_slow_path_does_not_slow_down_the_others_for_long(void **state)
{
    struct fair_world w;
    open_world(&w);
    const unsigned full = 100 * 2 * 10; /* in a second */
    assert_in_range(seconds_of(&w, BEGIN, 4, false), 4 * full * 9 / 10, 4 * full);
    assert_in_range(seconds_of(&w, BEGIN + 4000 * MS, 20, true), 20 * full * 8 / 10, 20 * full);
    close_world(&w);
}

static void without_any_all_may_send(void **state)
{
    struct refit_fair_member member;
    struct refit_fair_place place;
    refit_fair_join(&member, NULL, LEAD);
    refit_fair_open(&place, &member, -1);
    assert_int_equal(send_all(&place, BEGIN), 1000);
    refit_fair_rest(&place, BEGIN);
    refit_fair_close(&place);
    refit_fair_leave(&member);
}

/* --- over sockets --- */

struct receiver {
    struct world world;
    char directory[32];
    struct refit_listener *listener;
    struct refit_endpoint *endpoint, *holder;
    pthread_t thread;
    unsigned landed;
};

static void receiver_open(struct receiver *r, struct refit_fair *fair)
{
    struct refit_error err;
    json_t *card;
    world_open(&r->world, world_rows_source, world_rows_destination, WORLD_HEAP);
    r->listener = listener_open(r->directory);
    struct refit_endpoint_config config = world_receiver(&r->world, r->listener, 2);
    must(refit_transport_tcp.open(&config, &r->endpoint, &err), &err);
    must(refit_transport_tcp.card(r->endpoint, &card, &err), &err);
    struct refit_endpoint_config holder = world_holder(&r->world, 0, 2);
    holder.fair = fair;
    must(refit_transport_tcp.open(&holder, &r->holder, &err), &err);
    must(refit_transport_tcp.connect(r->holder, card, refit_deadline_in_ms(PULL_MS), &err), &err);
    json_decref(card);
}

static void receiver_close(struct receiver *r)
{
    refit_transport_tcp.close(r->holder);
    refit_transport_tcp.close(r->endpoint);
    listener_close(r->listener, r->directory);
    world_close(&r->world);
}

static bool is_landed(struct receiver *r)
{
    struct refit_deadline deadline = refit_deadline_in_ms(PULL_MS);
    struct refit_transfer_completion done = {.status = REFIT_TIMEOUT};
    while (refit_inbox_take(r->world.inbox, &done, 1, deadline) != 1 && !refit_deadline_passed(deadline))
        continue; /* woken by a connection that began */
    return done.status == REFIT_OK;
}

/* Every batch of one edge, again and again: more than the lead. */
static void *pull_thread(void *arg)
{
    struct receiver *r = arg;
    const struct refit_edge *edge = world_edge(&r->world, 0, 0);
    struct refit_error err;
    for (unsigned round = 0; round < ROUNDS; round++)
        for (uint32_t batch = 0; batch < edge->batches; batch++)
            r->landed += refit_transport_tcp.post(r->endpoint, 0, edge, batch, &err) == REFIT_OK && is_landed(r);
    return NULL;
}

static void replicas_that_pull_at_once_all_get_what_they_ask_for(void **state)
{
    static struct receiver r[2];
    struct refit_fair *fair;
    struct refit_error err;
    must(refit_fair_create(&fair, &err), &err);
    for (int i = 0; i < 2; i++) {
        r[i] = (struct receiver){.directory = ""};
        receiver_open(&r[i], fair);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&r[i].thread, NULL, pull_thread, &r[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(r[i].thread, NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[i].landed, ROUNDS * world_edge(&r[i].world, 0, 0)->batches);
        receiver_close(&r[i]);
    }
    refit_fair_destroy(fair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_gets_further_ahead_than_the_lead),
        cmocka_unit_test(who_has_nothing_to_send_is_not_waited_for),
        cmocka_unit_test(who_leaves_is_not_waited_for),
        cmocka_unit_test(a_connection_that_takes_nothing_is_not_waited_for_long),
        cmocka_unit_test(who_was_not_waited_for_comes_back_a_lead_behind),
        cmocka_unit_test(a_slow_path_does_not_slow_down_the_others_for_long),
        cmocka_unit_test(without_any_all_may_send),
        cmocka_unit_test(replicas_that_pull_at_once_all_get_what_they_ask_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
