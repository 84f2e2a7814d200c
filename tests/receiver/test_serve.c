/* SPDX-License-Identifier: Apache-2.0
 *
 * A replica as the source of one with another layout: from the slot that is served, and from one that is being filled.
 */
#include "world.h"

#include <pthread.h>
#include <stdio.h>

#include "receiver/fleet.h"

#define ROWS 4096
#define TOKEN "00112233445566778899aabbccddeeff"

static struct world a, b;
static struct holder trainers[WORLD_RANKS];

/* The same tensors, one rank more, cut along other dimensions. */
static const char other_layout[] =
    "{\"format\":\"refit-layout/1\",\"ranks\":2,\"meshes\":{\"m\":{\"axes\":[\"tp\"],\"shape\":[2]}},\"entries\":["
    "{\"tensor\":\"w\",\"dtype\":\"F32\",\"shape\":[4096,256],\"mesh\":\"m\",\"placements\":[\"Shard(1)\"]},"
    "{\"tensor\":\"b\",\"dtype\":\"F32\",\"shape\":[300],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"]},"
    "{\"tensor\":\"e\",\"dtype\":\"BF16\",\"shape\":[130,32],\"mesh\":\"m\",\"placements\":[\"Replicate\"]}]}";

static int open_worlds(void **state)
{
    memset(trainers, 0, sizeof trainers);
    world_init(&a, ROWS);
    world_init(&b, ROWS);
    a.config.bank.slots = b.config.bank.slots = 2;
    a.config.streams = 1;
    /* What b is fed from is a's layout. */
    refit_layout_release(b.source);
    b.source = refit_layout_retain(a.destination);
    refit_layout_release(b.destination);
    b.destination = world_layout(other_layout);
    b.config.bank.layout = b.destination;
    return 0;
}

static int close_worlds(void **state)
{
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_stop(&trainers[rank]);
    world_close(&a);
    world_close(&b);
    return 0;
}

static struct refit_fleet *fleet_of_one(const char *id)
{
    struct refit_fleet *fleet;
    json_t *json = json_pack("{s:s, s:s, s:i, s:i, s:[{s:s, s:s}]}", "id", id, "token", TOKEN, "self", 0, "sources", 1,
                             "members", "name", "b", "domain", "host-b");
    assert_int_equal(refit_fleet_from_json(json, &fleet, NULL), REFIT_OK);
    json_decref(json);
    return fleet;
}

static struct refit_ticket begin_b(uint64_t version, const char *id)
{
    world_lead(&b);
    world_put_source(&b);
    struct refit_request request = world_request(&b, version, id);
    request.fleet = fleet_of_one(id);
    struct refit_ticket ticket = world_begin(&b, &request);
    refit_fleet_release(request.fleet);
    return ticket;
}

static struct refit_serve_request serve_request(uint64_t version, const char *id)
{
    struct refit_serve_request request = {.version = version, .holder = WORLD_RANKS + 1, .deadline_ms = WORLD_WAIT_MS};
    size_t len;
    const char *text = refit_layout_text(b.destination, &len);
    const char *digest = refit_layout_digest(b.destination);
    assert_int_equal(refit_receiver_put_source(a.receiver, digest, text, len, NULL), REFIT_OK);
    snprintf(request.refit, sizeof request.refit, "%s", id);
    snprintf(request.transport, sizeof request.transport, "tcp");
    snprintf(request.layout, sizeof request.layout, "%s", digest);
    assert_true(refit_token_parse(TOKEN, request.token));
    json_t *card;
    assert_int_equal(refit_receiver_card(b.receiver, "tcp", &card, NULL), REFIT_OK);
    request.card = card;
    return request;
}

static void release_request(struct refit_serve_request *request)
{
    json_decref((json_t *)(uintptr_t)request->card);
}

static void commit_b(struct refit_ticket *ticket, uint64_t version, uint64_t seed)
{
    char digest[REFIT_SHA256_HEX_MAX];
    struct refit_session_snapshot now = world_wait_phase(&b, ticket->id, REFIT_PHASE_STAGED);
    assert_int_equal(now.bytes_done, now.bytes_due);
    world_digest(&b, seed, digest);
    assert_int_equal(refit_receiver_commit(b.receiver, ticket->id, version, digest, NULL), REFIT_OK);
    world_wait_phase(&b, ticket->id, REFIT_PHASE_COMMITTED);
    b.served_version = version;
    b.served_seed = seed;
    world_assert_served(&b);
    ticket_release(ticket);
}

static void active_version_is_served_to_another_layout(void **state)
{
    char id[REFIT_REFIT_ID_MAX], again[REFIT_REFIT_ID_MAX];
    struct refit_error err;
    world_start(&a);
    world_start(&b);
    world_publish(&a, 7, 3, "tcp");
    struct refit_ticket ticket = begin_b(7, "to-b");
    struct refit_serve_request request = serve_request(7, "to-b");
    if (refit_receiver_serve(a.receiver, &request, id, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    enum refit_status status = refit_receiver_serve(a.receiver, &request, again, &err);
    assert_int_equal(status, REFIT_OK);
    commit_b(&ticket, 7, 3);
    struct refit_serve_snapshot serves[REFIT_SERVES_SHOWN];
    uint32_t count = refit_receiver_serves(a.receiver, serves);
    assert_in_range(count, 1, 2);
    assert_true(serves[0].bytes > ROWS * 1024);
    assert_string_equal(serves[0].id, id);
    release_request(&request);
}

#define AT_ONCE 8

struct asker {
    const struct refit_serve_request *request;
    pthread_barrier_t *together;
    char id[REFIT_REFIT_ID_MAX];
    enum refit_status status;
};

static void *ask_to_serve(void *context)
{
    struct asker *asker = context;
    pthread_barrier_wait(asker->together);
    asker->status = refit_receiver_serve(a.receiver, asker->request, asker->id, NULL);
    return NULL;
}

static void equal_requests_at_once_are_one(void **state)
{
    struct refit_serve_snapshot serves[REFIT_SERVES_SHOWN];
    struct asker askers[AT_ONCE];
    pthread_t threads[AT_ONCE];
    pthread_barrier_t together;
    world_start(&a);
    world_start(&b);
    world_publish(&a, 7, 3, "tcp");
    struct refit_serve_request request = serve_request(7, "to-b");
    pthread_barrier_init(&together, NULL, AT_ONCE);
    for (int i = 0; i < AT_ONCE; i++) {
        askers[i] = (struct asker){.request = &request, .together = &together};
        assert_int_equal(pthread_create(&threads[i], NULL, ask_to_serve, &askers[i]), 0);
    }
    for (int i = 0; i < AT_ONCE; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&together);
    for (int i = 0; i < AT_ONCE; i++) {
        assert_int_equal(askers[i].status, REFIT_OK);
        assert_string_equal(askers[i].id, askers[0].id);
    }
    assert_int_equal(refit_receiver_serves(a.receiver, serves), 1);
    release_request(&request);
}

static void version_that_is_not_here_is_refused(void **state)
{
    char id[REFIT_REFIT_ID_MAX];
    struct refit_error err;
    world_start(&a);
    world_start(&b);
    world_publish(&a, 7, 3, "tcp");
    struct refit_serve_request request = serve_request(8, "to-b");
    assert_int_equal(refit_receiver_serve(a.receiver, &request, id, &err), REFIT_NOT_FOUND);
    assert_non_null(strstr(err.text, "version 8"));
    request.version = 7;
    request.layout[0] ^= 1;
    assert_int_equal(refit_receiver_serve(a.receiver, &request, id, &err), REFIT_NOT_FOUND);
    assert_non_null(strstr(err.text, "put it"));
    release_request(&request);
}

/* The trainer sends once, to a; b gets each tensor from a as soon as it is whole there. */
static void version_that_is_being_filled_is_served(void **state)
{
    char id[REFIT_REFIT_ID_MAX];
    struct refit_error err;
    enum refit_status status;
    a.config.rate_bytes_per_s = 4 << 20;
    world_start(&a);
    world_start(&b);
    world_lead(&a);
    world_put_source(&a);
    struct refit_request first = world_request(&a, 7, "to-a");
    struct refit_ticket ticket_a = world_begin(&a, &first), ticket = begin_b(7, "to-b");
    struct refit_serve_request request = serve_request(7, "to-b");
    while ((status = refit_receiver_serve(a.receiver, &request, id, &err)) == REFIT_NOT_FOUND)
        sched_yield(); /* it has not begun to be filled */
    if (status != REFIT_OK)
        fail_msg("%s", err.text);
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_start(&trainers[rank], &a, &ticket_a, "tcp", rank, 3);
    commit_b(&ticket, 7, 3);
    world_wait_phase(&a, ticket_a.id, REFIT_PHASE_STAGED);
    ticket_release(&ticket_a);
    release_request(&request);
}

static void replica_that_never_serves_is_named(void **state)
{
    b.config.deadline_ms = 500;
    world_start(&b);
    struct refit_ticket ticket = begin_b(7, "to-b");
    struct refit_session_snapshot end = world_wait_aborted(&b, ticket.id, REFIT_TIMEOUT);
    assert_non_null(strstr(end.error.text, "serving replica 0 never connected"));
    ticket_release(&ticket);
}

/* What is given up takes along who is served from it. */
static void aborted_refit_ends_who_is_served_from_it(void **state)
{
    char id[REFIT_REFIT_ID_MAX];
    struct refit_error err;
    enum refit_status status;
    world_start(&a);
    world_start(&b);
    world_lead(&a);
    world_put_source(&a);
    struct refit_request first = world_request(&a, 7, "to-a");
    struct refit_ticket ticket_a = world_begin(&a, &first), ticket = begin_b(7, "to-b");
    struct refit_serve_request request = serve_request(7, "to-b");
    while ((status = refit_receiver_serve(a.receiver, &request, id, &err)) == REFIT_NOT_FOUND)
        sched_yield();
    assert_int_equal(status, REFIT_OK);
    assert_int_equal(refit_receiver_abort(a.receiver, ticket_a.id, "a test", &err), REFIT_OK);
    world_wait_aborted(&a, ticket_a.id, REFIT_ABORTED);
    struct refit_serve_snapshot serves[REFIT_SERVES_SHOWN];
    assert_int_equal(refit_receiver_serves(a.receiver, serves), 0);
    assert_int_equal(refit_receiver_abort(b.receiver, ticket.id, "a test", &err), REFIT_OK);
    ticket_release(&ticket_a);
    ticket_release(&ticket);
    release_request(&request);
    world_assert_survives(&a);
}

static bool waits_for_who_is_served(const struct refit_session_snapshot *snapshot, void *context)
{
    return snapshot->phase == REFIT_PHASE_WAITING_FOR_READERS && snapshot->waiting.version == 6 &&
           strstr(snapshot->waiting.label, "served");
}

static void served_slot_is_not_given_up(void **state)
{
    char id[REFIT_REFIT_ID_MAX];
    struct refit_error err;
    world_start(&a);
    world_start(&b);
    world_publish(&a, 6, 2, "tcp");
    world_publish(&a, 7, 3, "tcp");
    struct refit_serve_request request = serve_request(6, "never-begins");
    assert_int_equal(refit_receiver_serve(a.receiver, &request, id, &err), REFIT_OK);
    world_lead(&a);
    struct refit_request next = world_request(&a, 8, "next");
    struct refit_ticket ticket = world_begin(&a, &next);
    world_wait(&a, ticket.id, waits_for_who_is_served, NULL);
    assert_int_equal(refit_receiver_serve_end(a.receiver, id, &err), REFIT_OK);
    assert_int_equal(refit_receiver_serve_end(a.receiver, id, &err), REFIT_NOT_FOUND);
    world_wait_phase(&a, ticket.id, REFIT_PHASE_TRANSFER);
    assert_int_equal(refit_receiver_abort(a.receiver, ticket.id, "a test", &err), REFIT_OK);
    world_wait_aborted(&a, ticket.id, REFIT_ABORTED);
    ticket_release(&ticket);
    release_request(&request);
    world_assert_survives(&a);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_worlds, close_worlds)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(active_version_is_served_to_another_layout),
        TEST(equal_requests_at_once_are_one),
        TEST(version_that_is_not_here_is_refused),
        TEST(version_that_is_being_filled_is_served),
        TEST(replica_that_never_serves_is_named),
        TEST(aborted_refit_ends_who_is_served_from_it),
        TEST(served_slot_is_not_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
