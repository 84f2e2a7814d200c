/* SPDX-License-Identifier: Apache-2.0
 *
 * Holders beyond the trainer's ranks: relays, chains of them, replicas as sources, many holders at one endpoint; over
 * both transports of the host; and with REFIT_TEST_DEVICES once more, over nccl, and with REFIT_TEST_IN_ENGINE by engines.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "memory/slot.h"
#include "tests/transport/engines.h"
#include "tests/transport/pull.h"

#define RELAY 40 /* the relay's number at its receivers */

/* Those of the host, or nccl: set by main. */
static const struct refit_transport *both[2] = {&refit_transport_tcp, &refit_transport_local};
static int transports = 2;

/* A receiver in a world of its own. */
struct site {
    struct world world;
    const struct refit_transport *transport;
    char directory[32];
    struct refit_listener *listener;
    struct refit_endpoint *receiver;
    json_t *card;
};

static void site_open(struct site *site, const struct refit_transport *transport, const char *source,
                      const char *destination, unsigned streams)
{
    struct refit_error err;
    world_open(&site->world, source, destination, WORLD_SEALED);
    site->transport = transport;
    site->listener = listener_open(site->directory);
    struct refit_endpoint_config config = world_receiver(&site->world, site->listener, streams);
    must(transport->open(&config, &site->receiver, &err), &err);
    must(transport->card(site->receiver, &site->card, &err), &err);
}

static void site_close(struct site *site)
{
    site->transport->close(site->receiver);
    json_decref(site->card);
    listener_close(site->listener, site->directory);
    world_close(&site->world);
}

/* Where engines receive, that a holder has connected is known a moment later. */
static void until_seen(const struct refit_transport *transport, struct refit_endpoint *receiver, uint32_t holder)
{
    struct refit_holder_state seen;
    while (engines_wanted() && (transport->look(receiver, holder, &seen), !seen.connected))
        usleep(1000);
}

static struct refit_endpoint *connect_to(struct site *site, const struct refit_endpoint_config *config)
{
    struct refit_error err;
    struct refit_endpoint *holder;
    must(site->transport->open(config, &holder, &err), &err);
    must(site->transport->connect(holder, site->card, refit_deadline_in_ms(PULL_MS), &err), &err);
    until_seen(site->transport, site->receiver, config->holder);
    return holder;
}

static void connect_sources(struct site *site, struct refit_endpoint **holders)
{
    for (uint32_t i = 0; i < site->world.sources; i++) {
        struct refit_endpoint_config config = world_holder(&site->world, i, 1);
        holders[i] = connect_to(site, &config);
    }
}

static void close_all(struct site *site, struct refit_endpoint **holders, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        site->transport->close(holders[i]);
}

/* ---- relays ---- */

static void a_chain(const struct refit_transport *transport, const char *source, const char *destination,
                    unsigned streams)
{
    struct site a, b, c;
    struct refit_endpoint *sources[WORLD_RANKS_MAX], *at_b, *at_c;
    site_open(&a, transport, source, destination, streams);
    site_open(&b, transport, source, destination, streams);
    site_open(&c, transport, source, destination, streams);
    connect_sources(&a, sources);
    struct refit_endpoint_config config = world_relay(&a.world, &b.world, RELAY, streams);
    at_b = connect_to(&b, &config);
    config = world_relay(&b.world, &c.world, RELAY, streams);
    at_c = connect_to(&c, &config);
    /* C asks first, for what neither B nor A has yet. */
    struct refit_error err;
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(c.world.plan, &count);
    must(transport->post(c.receiver, RELAY, &edges[0], 0, &err), &err);
    struct pull pull = pull_all(transport, a.receiver, &a.world, 0);
    assert_int_equal(pull.ok, plan_batches(a.world.plan));
    pull = pull_from(transport, b.receiver, &b.world, RELAY);
    assert_int_equal(pull.ok, plan_batches(b.world.plan));
    assert_int_equal(world_completion(&c.world).status, REFIT_OK);
    pull = pull_from(transport, c.receiver, &c.world, RELAY);
    assert_int_equal(pull.ok, plan_batches(c.world.plan));
    world_check_landed(&a.world);
    world_check_landed(&b.world);
    world_check_landed(&c.world);
    for (uint32_t id = 0; id < refit_tally_count(a.world.tally); id++) {
        assert_true(refit_digest_equal(refit_tally_get(a.world.tally, id), refit_tally_get(b.world.tally, id)));
        assert_true(refit_digest_equal(refit_tally_get(a.world.tally, id), refit_tally_get(c.world.tally, id)));
    }
    must(transport->finish(c.receiver, refit_deadline_in_ms(PULL_MS), &err), &err);
    must(transport->wait_done(at_c, refit_deadline_in_ms(PULL_MS), &err), &err);
    transport->close(at_c);
    transport->close(at_b);
    close_all(&a, sources, a.world.sources);
    site_close(&c);
    site_close(&b);
    site_close(&a);
}

static void a_chain_of_relays_carries_all_bytes_and_digests(void **state)
{
    for (int i = 0; i < transports; i++) {
        a_chain(both[i], world_rows_source, world_rows_destination, 2);
        a_chain(both[i], world_tiny_source, world_tiny_destination, 1);
    }
}

struct pump {
    struct site site;
    int64_t holder; /* -1: the source ranks by turns */
    size_t edge, edge_count;
    uint32_t batch;
    unsigned landed;
};

/* Posts what has room, takes what has come: how much that is. */
static unsigned pump_once(struct pump *pump)
{
    struct site *site = &pump->site;
    struct refit_transfer_completion done[8];
    struct refit_error err;
    const struct refit_edge *edges = refit_plan_edges(site->world.plan, &pump->edge_count);
    while (pump->edge < pump->edge_count) {
        const struct refit_edge *edge = &edges[pump->edge];
        struct refit_group group = refit_plan_group(site->world.plan, REFIT_SOURCE, edge->source_group);
        uint32_t holder = pump->holder < 0 ? group.ranks[pump->batch % group.count] : (uint32_t)pump->holder;
        enum refit_status status = site->transport->post(site->receiver, holder, edge, pump->batch, &err);
        if (status == REFIT_BUSY)
            break;
        must(status, &err);
        if (++pump->batch == edge->batches) {
            pump->batch = 0;
            pump->edge++;
        }
    }
    size_t count = refit_inbox_take(site->world.inbox, done, 8, refit_deadline_in_ms(1));
    for (size_t i = 0; i < count; i++)
        assert_int_equal(done[i].status, REFIT_OK);
    pump->landed += (unsigned)count;
    return (unsigned)count;
}

/* Every batch goes on to the next as soon as it has landed, and often is asked for before. */
static void a_chain_moves_all_at_once(void **state)
{
    enum { SITES = 4 };
    for (int i = 0; i < transports; i++) {
        struct pump *pumps = calloc(SITES, sizeof *pumps);
        struct refit_endpoint *sources[WORLD_RANKS_MAX], *relays[SITES];
        assert_non_null(pumps);
        for (int s = 0; s < SITES; s++)
            site_open(&pumps[s].site, both[i], world_rows_source, world_rows_destination, 2);
        connect_sources(&pumps[0].site, sources);
        pumps[0].holder = -1;
        for (int s = 1; s < SITES; s++) {
            struct refit_endpoint_config config =
                world_relay(&pumps[s - 1].site.world, &pumps[s].site.world, RELAY, 2);
            relays[s] = connect_to(&pumps[s].site, &config);
            pumps[s].holder = RELAY;
        }
        unsigned total = plan_batches(pumps[0].site.world.plan);
        struct refit_deadline deadline = refit_deadline_in_ms(PULL_MS);
        while (pumps[SITES - 1].landed < total) {
            unsigned moved = 0;
            for (int s = SITES; s-- > 0;)
                moved += pump_once(&pumps[s]);
            if (moved > 0) /* it may take as long as it goes on */
                deadline = refit_deadline_in_ms(PULL_MS);
            assert_false(refit_deadline_passed(deadline));
        }
        for (int s = 0; s < SITES; s++)
            world_check_landed(&pumps[s].site.world);
        for (int s = SITES; s-- > 1;)
            both[i]->close(relays[s]);
        close_all(&pumps[0].site, sources, pumps[0].site.world.sources);
        for (int s = SITES; s-- > 0;)
            site_close(&pumps[s].site);
        free(pumps);
    }
}

/* The relay is asked for two batches; the one that lands first is served first. */
static void a_relay_holds_what_has_not_landed_and_serves_what_has(void **state)
{
    for (int i = 0; i < transports; i++) {
        struct site a, b;
        struct refit_endpoint *sources[WORLD_RANKS_MAX];
        struct refit_error err;
        struct refit_transfer_completion done;
        site_open(&a, both[i], world_rows_source, world_rows_destination, 1);
        site_open(&b, both[i], world_rows_source, world_rows_destination, 1);
        connect_sources(&a, sources);
        struct refit_endpoint_config config = world_relay(&a.world, &b.world, RELAY, 1);
        struct refit_endpoint *relay = connect_to(&b, &config);
        const struct refit_edge *edge = world_edge(&b.world, 1, 1);
        must(both[i]->post(b.receiver, RELAY, edge, 0, &err), &err);
        must(both[i]->post(b.receiver, RELAY, edge, 1, &err), &err);
        /* Signs of life while it has nothing to send. */
        struct refit_holder_state first, now;
        both[i]->look(b.receiver, RELAY, &first);
        assert_true(first.connected && !first.lost && first.owed == 2);
        struct refit_deadline deadline = refit_deadline_in_ms(PULL_MS);
        do {
            assert_false(refit_deadline_passed(deadline));
            assert_int_equal(refit_inbox_take(b.world.inbox, &done, 1, refit_deadline_in_ms(5)), 0);
            both[i]->look(b.receiver, RELAY, &now);
        } while (now.heard_ns < first.heard_ns + 3 * REFIT_ALIVE_MS * INT64_C(1000000));
        must(both[i]->post(a.receiver, 1, world_edge(&a.world, 1, 1), 1, &err), &err);
        assert_int_equal(world_completion(&a.world).status, REFIT_OK);
        done = world_completion(&b.world);
        assert_true(done.status == REFIT_OK && done.batch == 1 && done.edge == edge->digest && done.holder == RELAY);
        must(both[i]->post(a.receiver, 1, world_edge(&a.world, 1, 1), 0, &err), &err);
        assert_int_equal(world_completion(&b.world).batch, 0);
        both[i]->look(b.receiver, RELAY, &now);
        assert_int_equal(now.owed, 0);
        assert_int_equal(now.payload_bytes,
                         refit_batch_bytes(b.world.plan, edge, 0) + refit_batch_bytes(b.world.plan, edge, 1));
        both[i]->close(relay);
        close_all(&a, sources, a.world.sources);
        site_close(&b);
        site_close(&a);
    }
}

static void bytes_spread_to_a_whole_group_with_verification_off(void **state)
{
    for (int i = 0; i < transports; i++) {
        struct world world;
        struct pair pair;
        world_open(&world, world_rows_source, world_rows_destination, WORLD_SEALED);
        assert_true(refit_plan_written_bytes(world.plan) > refit_plan_bytes(world.plan));
        pair_open(&pair, &world, both[i], 1, false);
        assert_int_equal(pull_all(both[i], pair.receiver, &world, 0).ok, plan_batches(world.plan));
        world_check_landed(&world);
        pair_close(&pair);
        world_close(&world);
    }
}

/* A relay whose memory is slots: what is passed on a local connection can't be written through. */
static void a_slot_is_relayed(void **state)
{
    struct site site;
    struct world owner;
    struct refit_error err;
    struct refit_arena *slots[WORLD_RANKS_MAX];
    world_open(&owner, world_rows_source, world_rows_destination, WORLD_HEAP);
    site_open(&site, &refit_transport_local, world_rows_source, world_rows_destination, 2);
    struct refit_endpoint_config config = world_relay(&owner, &site.world, RELAY, 2);
    for (uint32_t i = 0; i < owner.destinations; i++)
        must(refit_slot_create("test", owner.destination_ranks[i].size, REFIT_PROTECT_UID, &slots[i], &err), &err);
    config.arenas = slots;
    /* Filled by a checkpoint-like source in this process. */
    struct refit_plan *plan;
    struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = REFIT_ALL_RANKS};
    must(refit_plan_build(owner.source, owner.destination, scope, &plan, &err), &err);
    struct refit_arena *sources[WORLD_RANKS_MAX];
    for (uint32_t i = 0; i < owner.sources; i++)
        sources[i] = owner.source_ranks[i].arena;
    struct refit_endpoint_config fill = world_receiver(&owner, NULL, 1);
    struct refit_endpoint *filler;
    fill.arenas = slots;
    must(refit_local_open_source(&fill, plan, sources, owner.sources, &filler, &err), &err);
    struct refit_endpoint *relay = connect_to(&site, &config);
    assert_int_equal(pull_from(&refit_transport_local, filler, &owner, 0).ok, plan_batches(owner.plan));
    struct pull pull = pull_from(&refit_transport_local, site.receiver, &site.world, RELAY);
    assert_int_equal(pull.ok, plan_batches(site.world.plan));
    world_check_landed(&site.world);
    struct refit_endpoint_stats stats;
    refit_transport_local.stats(site.receiver, &stats);
    assert_int_equal(stats.copied_bytes, 0);
    refit_transport_local.close(relay);
    refit_transport_local.close(filler);
    for (uint32_t i = 0; i < owner.destinations; i++)
        refit_arena_release(slots[i]);
    refit_plan_release(plan);
    site_close(&site);
    world_close(&owner);
}

/* ---- a replica as a source ---- */

static void a_replica_of_another_layout_is_one_holder_of_all_its_ranks(void **state)
{
    for (int i = 0; i < transports; i++) {
        struct site site;
        struct refit_error err;
        struct refit_plan *plan;
        struct refit_arena *arenas[WORLD_RANKS_MAX];
        site_open(&site, both[i], world_rows_source, world_rows_destination, 2);
        struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = REFIT_ALL_RANKS};
        must(refit_plan_build(site.world.source, site.world.destination, scope, &plan, &err), &err);
        for (uint32_t r = 0; r < site.world.sources; r++)
            arenas[r] = site.world.source_ranks[r].arena;
        struct refit_endpoint_config config = world_holder(&site.world, 0, 2);
        config.holder = 63;
        config.plan = plan;
        config.arenas = arenas;
        config.arena_count = site.world.sources;
        struct refit_endpoint *holder = connect_to(&site, &config);
        struct pull pull = pull_from(both[i], site.receiver, &site.world, 63);
        assert_int_equal(pull.ok, plan_batches(site.world.plan));
        world_check_landed(&site.world);
        both[i]->close(holder);
        config.arena_count = 1;
        assert_int_equal(both[i]->open(&config, &holder, &err), REFIT_INVALID);
        refit_plan_release(plan);
        site_close(&site);
    }
}

/* Only the tensors wanted are planned, and a local holder's memory is read by the same plan. */
static void a_plan_of_some_tensors_is_served(void **state)
{
    for (int i = 0; i < transports; i++) {
        struct world world;
        struct refit_error err;
        struct refit_endpoint *receiver, *holder;
        struct refit_plan *ours, *theirs;
        char directory[32];
        json_t *card;
        world_open(&world, world_rows_source, world_rows_destination, WORLD_SEALED);
        uint8_t wanted[64] = {0};
        wanted[1] = wanted[5] = 1;
        struct refit_plan_scope scope = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS, .wanted = wanted};
        must(refit_plan_build(world.source, world.destination, scope, &ours, &err), &err);
        scope = (struct refit_plan_scope){.side = REFIT_SOURCE, .rank = 0, .wanted = wanted};
        must(refit_plan_build(world.source, world.destination, scope, &theirs, &err), &err);
        struct refit_listener *listener = listener_open(directory);
        struct refit_endpoint_config config = world_receiver(&world, listener, 1);
        config.plan = ours;
        config.landed = NULL;
        must(both[i]->open(&config, &receiver, &err), &err);
        must(both[i]->card(receiver, &card, &err), &err);
        config = world_holder(&world, 0, 1);
        config.plan = theirs;
        must(both[i]->open(&config, &holder, &err), &err);
        must(both[i]->connect(holder, card, refit_deadline_in_ms(PULL_MS), &err), &err);
        until_seen(both[i], receiver, 0);
        size_t count;
        const struct refit_edge *edges = refit_plan_edges(theirs, &count);
        assert_true(count > 0);
        for (size_t e = 0; e < count; e++) {
            must(both[i]->post(receiver, 0, refit_plan_edge(ours, edges[e].digest), 0, &err), &err);
            assert_int_equal(world_completion(&world).status, REFIT_OK);
        }
        struct refit_endpoint_stats stats;
        both[i]->stats(receiver, &stats);
        if (both[i] == &refit_transport_local)
            assert_int_equal(stats.copied_bytes, 0);
        both[i]->close(holder);
        both[i]->close(receiver);
        json_decref(card);
        listener_close(listener, directory);
        refit_plan_release(ours);
        refit_plan_release(theirs);
        world_close(&world);
    }
}

/* ---- many holders ---- */

static void thirty_two_holders_share_one_endpoint(void **state)
{
    enum { HOLDERS = 32 };
    for (int i = 0; i < transports; i++) {
        struct site site;
        struct refit_error err;
        struct refit_endpoint *holders[HOLDERS];
        struct refit_holder_state seen;
        site_open(&site, both[i], world_rows_source, world_rows_destination, 2);
        for (uint32_t h = 0; h < HOLDERS; h++) {
            struct refit_endpoint_config config = world_holder(&site.world, h % site.world.sources, 2);
            config.holder = h;
            config.tally = NULL;
            holders[h] = connect_to(&site, &config);
        }
        /* Every batch once, from the holders of its group by turns. */
        size_t count;
        unsigned total = 0, turn = 0;
        const struct refit_edge *edges = refit_plan_edges(site.world.plan, &count);
        for (size_t e = 0; e < count; e++) {
            struct refit_group group = refit_plan_group(site.world.plan, REFIT_SOURCE, edges[e].source_group);
            for (uint32_t b = 0; b < edges[e].batches; b++) {
                do
                    turn++;
                while (!refit_group_has(group, turn % HOLDERS % site.world.sources));
                enum refit_status status;
                while ((status = both[i]->post(site.receiver, turn % HOLDERS, &edges[e], b, &err)) == REFIT_BUSY) {
                    assert_int_equal(world_completion(&site.world).status, REFIT_OK);
                    total--;
                }
                must(status, &err);
                total++;
            }
        }
        for (; total > 0; total--)
            assert_int_equal(world_completion(&site.world).status, REFIT_OK);
        world_check_landed(&site.world);
        uint64_t bytes = 0;
        for (uint32_t h = 0; h < HOLDERS; h++) {
            both[i]->look(site.receiver, h, &seen);
            assert_true(seen.connected);
            bytes += seen.payload_bytes;
        }
        assert_int_equal(bytes, refit_plan_bytes(site.world.plan));
        both[i]->look(site.receiver, HOLDERS, &seen);
        assert_true(!seen.connected && !seen.lost && seen.heard_ns == 0);
        must(both[i]->finish(site.receiver, refit_deadline_in_ms(PULL_MS), &err), &err);
        close_all(&site, holders, HOLDERS);
        site_close(&site);
    }
}

/* Two of one group, whoever has room is asked: the one that is held to a rate gets less. */
static void a_slow_holder_gets_less(void **state)
{
    struct site site;
    struct refit_error err;
    struct refit_endpoint *holders[2];
    struct refit_holder_state seen[2];
    site_open(&site, &refit_transport_tcp, world_rows_source, world_rows_destination, 1);
    for (uint32_t h = 0; h < 2; h++) {
        struct refit_endpoint_config config = world_holder(&site.world, 0, 1);
        config.holder = h;
        config.rate_bytes_per_s = h == 0 ? 4 << 20 : 0;
        holders[h] = connect_to(&site, &config);
    }
    const struct refit_edge *edge = world_edge(&site.world, 0, 0);
    assert_true(edge->batches >= 16);
    unsigned total = 0;
    for (uint32_t b = 0; b < edge->batches;) {
        enum refit_status status = REFIT_BUSY;
        for (uint32_t h = 0; h < 2 && status == REFIT_BUSY; h++)
            status = refit_transport_tcp.post(site.receiver, h, edge, b, &err);
        if (status == REFIT_BUSY) {
            assert_int_equal(world_completion(&site.world).status, REFIT_OK);
            total--;
            continue;
        }
        must(status, &err);
        total++;
        b++;
    }
    for (; total > 0; total--)
        assert_int_equal(world_completion(&site.world).status, REFIT_OK);
    for (uint32_t h = 0; h < 2; h++)
        refit_transport_tcp.look(site.receiver, h, &seen[h]);
    assert_true(seen[0].payload_bytes > 0);
    assert_true(seen[1].payload_bytes > seen[0].payload_bytes);
    close_all(&site, holders, 2);
    site_close(&site);
}

/* What does not depend on the kind of memory or on sockets. */
static int over_nccl(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_of_relays_carries_all_bytes_and_digests),
        cmocka_unit_test(a_chain_moves_all_at_once),
        cmocka_unit_test(a_relay_holds_what_has_not_landed_and_serves_what_has),
        cmocka_unit_test(bytes_spread_to_a_whole_group_with_verification_off),
        cmocka_unit_test(a_replica_of_another_layout_is_one_holder_of_all_its_ranks),
        cmocka_unit_test(a_plan_of_some_tensors_is_served),
        cmocka_unit_test(thirty_two_holders_share_one_endpoint),
    };
    both[0] = engines_or_nccl();
    transports = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    if (world_on_devices())
        return over_nccl();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_of_relays_carries_all_bytes_and_digests),
        cmocka_unit_test(a_chain_moves_all_at_once),
        cmocka_unit_test(a_relay_holds_what_has_not_landed_and_serves_what_has),
        cmocka_unit_test(bytes_spread_to_a_whole_group_with_verification_off),
        cmocka_unit_test(a_slot_is_relayed),
        cmocka_unit_test(a_replica_of_another_layout_is_one_holder_of_all_its_ranks),
        cmocka_unit_test(a_plan_of_some_tensors_is_served),
        cmocka_unit_test(thirty_two_holders_share_one_endpoint),
        cmocka_unit_test(a_slow_holder_gets_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
