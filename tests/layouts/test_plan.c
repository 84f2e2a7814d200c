/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layouts/plan.h"
#include "plan_oracle.h"
#include "plan_texts.h"
#include "random_layout.h"

#define RANKS_MAX 12
#ifdef __SANITIZE_THREAD__ /* one thread, twenty times slower: a sample is enough */
#define SEEDS 40
#define SCOPE_SEEDS 15
#else
#define SEEDS 400
#define SCOPE_SEEDS 200
#endif

/* All is owned here, so that a failing assertion leaks nothing but memory of a process that ends. */
struct pair {
    struct refit_layout *source;
    struct refit_layout *destination;
    struct refit_plan_scope scope; /* ranks planned for, and tensors wanted */
    struct refit_plan *at_source;
    struct refit_plan *at_destination;
};

static struct refit_plan *build(const struct pair *pair, enum refit_side side, uint32_t rank)
{
    struct refit_plan *plan = NULL;
    struct refit_error err;
    struct refit_plan_scope scope = pair->scope;
    scope.side = side;
    scope.rank = rank;
    if (refit_plan_build(pair->source, pair->destination, scope, &plan, &err) != REFIT_OK) {
        print_error("%s\n%s\n%s\n", err.text, refit_layout_text(pair->source, NULL),
                    refit_layout_text(pair->destination, NULL));
        fail();
    }
    return plan;
}

static void build_both(struct pair *pair)
{
    pair->at_source = build(pair, REFIT_SOURCE, REFIT_ALL_RANKS);
    pair->at_destination = build(pair, REFIT_DESTINATION, REFIT_ALL_RANKS);
}

static void release_plans(struct pair *pair)
{
    refit_plan_release(pair->at_source);
    refit_plan_release(pair->at_destination);
    pair->at_source = pair->at_destination = NULL;
}

static void release(struct pair *pair)
{
    release_plans(pair);
    refit_layout_release(pair->source);
    refit_layout_release(pair->destination);
}

static struct pair random_layouts(struct random *r, bool overlaps)
{
    const struct model model = random_model(r);
    struct pair pair = {.source = random_layout(r, &model, RANKS_MAX, overlaps),
                        .destination = random_layout(r, &model, RANKS_MAX, overlaps)};
    assert_true(pair.source && pair.destination);
    return pair;
}

static struct pair random_pair(struct random *r, bool overlaps)
{
    struct pair pair = random_layouts(r, overlaps);
    build_both(&pair);
    return pair;
}

/* Some tensors wanted, or NULL: all. New. */
static uint8_t *random_mask(struct random *r, const struct refit_layout *destination)
{
    const uint32_t count = refit_layout_tensor_count(destination);
    uint8_t *wanted = malloc(count + 1);
    const uint32_t of = 1 + random_below(r, 4);
    assert_non_null(wanted);
    for (uint32_t id = 0; id < count; id++) {
        wanted[id] = random_below(r, of) == 0;
    }
    return wanted;
}

/* ---- applying a plan ---- */

static struct refit_group group_of(const struct refit_plan *plan, enum refit_side side, const struct refit_edge *edge)
{
    return refit_plan_group(plan, side, side == REFIT_SOURCE ? edge->source_group : edge->destination_group);
}

static void assert_same_edges(const struct refit_plan *plan, const struct refit_edge *a,
                              const struct refit_plan *other, const struct refit_edge *b)
{
    for (int side = REFIT_SOURCE; side <= REFIT_DESTINATION; side++) {
        const struct refit_group x = group_of(plan, (enum refit_side)side, a);
        const struct refit_group y = group_of(other, (enum refit_side)side, b);
        assert_int_equal(x.count, y.count);
        assert_memory_equal(x.ranks, y.ranks, x.count * sizeof(*x.ranks));
    }
    assert_int_equal(a->bytes, b->bytes);
    assert_int_equal(a->ops, b->ops);
    assert_int_equal(a->batches, b->batches);
    assert_int_equal(a->digest, b->digest);
    assert_int_equal(refit_plan_batch_bytes(plan), refit_plan_batch_bytes(other));
}

static uint64_t some_bytes(struct random *r)
{
    return random_below(r, 2) ? UINT64_MAX : 1 + random_below(r, 50);
}

/* What moving needs beside the plans. */
struct world {
    struct memory from, to;
    struct holders holders;
    struct refit_tally *sent, *received;
    struct random *r;
};

static uint8_t stream[REFIT_BATCH_BYTES_MAX];

/* The batch as a rank of the source group has it; all have the same. */
static void send_batch(const struct pair *pair, const struct refit_edge *edge, uint32_t number, uint32_t place,
                       struct world *w)
{
    static uint8_t other[REFIT_BATCH_BYTES_MAX];
    const uint32_t rank = group_of(pair->at_source, REFIT_SOURCE, edge).ranks[place];
    struct refit_walk walk = refit_walk_batch(pair->at_source, edge, number, rank);
    struct refit_strip strip;
    uint64_t done = 0;
    for (uint64_t most = some_bytes(w->r); refit_walk_next(&walk, most, &strip); most = some_bytes(w->r)) {
        assert_true(strip.run_bytes * strip.count <= most);
        strip_read(&w->from, rank, &strip, (place == 0 ? stream : other) + done);
        if (place == 0) {
            strip_tally(&w->from, rank, &strip, w->sent);
        }
        done += strip.run_bytes * strip.count;
    }
    assert_int_equal(done, refit_batch_bytes(pair->at_source, edge, number));
    if (place > 0) {
        assert_memory_equal(stream, other, done);
    }
}

static void take_batch(const struct pair *pair, const struct refit_edge *edge, uint32_t number, uint32_t place,
                       struct world *w)
{
    const uint32_t rank = group_of(pair->at_destination, REFIT_DESTINATION, edge).ranks[place];
    struct refit_walk walk = refit_walk_batch(pair->at_destination, edge, number, rank);
    struct refit_strip strip;
    uint64_t done = 0;
    for (uint64_t most = some_bytes(w->r); refit_walk_next(&walk, most, &strip); most = some_bytes(w->r)) {
        strip_write(&w->to, rank, &strip, stream + done);
        if (place == 0) {
            strip_tally(&w->to, rank, &strip, w->received);
            holders_check_strip(&w->holders, pair->at_destination, edge, &strip);
        }
        done += strip.run_bytes * strip.count;
    }
    assert_int_equal(done, refit_batch_bytes(pair->at_destination, edge, number));
}

/* Moves everything as ranks would: each derives its own strips, cut where it likes. */
static void move_all(const struct pair *pair, struct world *w)
{
    size_t count;
    size_t source_count;
    uint64_t bytes = 0;
    uint64_t written = 0;
    const struct refit_edge *edges = refit_plan_edges(pair->at_destination, &count);
    const struct refit_edge *source_edges = refit_plan_edges(pair->at_source, &source_count);
    assert_int_equal(count, source_count);
    for (size_t i = 0; i < count; i++) {
        const uint32_t senders = group_of(pair->at_source, REFIT_SOURCE, &source_edges[i]).count;
        const uint32_t takers = group_of(pair->at_destination, REFIT_DESTINATION, &edges[i]).count;
        assert_same_edges(pair->at_destination, &edges[i], pair->at_source, &source_edges[i]);
        assert_true(edges[i].bytes > 0);
        for (uint32_t number = 0; number < edges[i].batches; number++) {
            for (uint32_t place = 0; place < senders; place++) {
                send_batch(pair, &source_edges[i], number, place, w);
            }
            for (uint32_t place = 0; place < takers; place++) {
                take_batch(pair, &edges[i], number, place, w);
            }
        }
        bytes += edges[i].bytes;
        written += edges[i].bytes * takers;
    }
    assert_int_equal(refit_plan_bytes(pair->at_destination), bytes);
    assert_int_equal(refit_plan_written_bytes(pair->at_destination), written);
    holders_check_all_seen(&w->holders, pair->at_destination, pair->scope.wanted);
}

/* Counted exactly once per byte over all parts, on both sides, or these sums would differ. */
static void check_tallies(const struct pair *pair, const struct world *w)
{
    for (uint32_t id = 0; id < refit_layout_tensor_count(pair->destination); id++) {
        struct refit_digest expected = {{0, 0}};
        if (!pair->scope.wanted || pair->scope.wanted[id]) {
            expected = content_digest(pair->destination, id);
        }
        assert_true(refit_digest_equal(refit_tally_get(w->sent, id), expected));
        assert_true(refit_digest_equal(refit_tally_get(w->received, id), expected));
    }
}

/* Plans the destination in parts of at most part_ranks ranks, and moves all of them. */
static void check_pair(struct pair *pair, uint32_t part_ranks, struct random *r)
{
    const uint32_t tensors = refit_layout_tensor_count(pair->destination);
    const uint32_t ranks = refit_layout_ranks(pair->destination);
    struct world w = {.from = memory_create(pair->source), .to = memory_create(pair->destination), .r = r};
    w.holders = holders_create(pair->source, pair->destination);
    w.sent = refit_tally_create(tensors);
    w.received = refit_tally_create(tensors);
    memory_fill(&w.from);
    for (uint32_t first = 0; first < ranks; first += pair->scope.rank_count) {
        const uint32_t most = part_ranks < ranks - first ? part_ranks : ranks - first;
        pair->scope.first_rank = first;
        pair->scope.rank_count = most == ranks ? ranks : 1 + random_below(r, most);
        build_both(pair);
        move_all(pair, &w);
        release_plans(pair);
    }
    memory_check_filled_once(&w.to, pair->scope.wanted);
    check_tallies(pair, &w);
    refit_tally_destroy(w.sent);
    refit_tally_destroy(w.received);
    holders_destroy(&w.holders);
    memory_destroy(&w.from);
    memory_destroy(&w.to);
}

static void random_layouts_move_every_byte_exactly_once(void **state)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct random r = {.state = seed};
        struct pair pair = random_layouts(&r, seed % 2 == 0);
        check_pair(&pair, UINT32_MAX, &r);
        release(&pair);
    }
}

static void parts_of_a_replica_add_up(void **state)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct random r = {.state = seed * 104729};
        struct pair pair = random_layouts(&r, seed % 2 == 0);
        check_pair(&pair, 1 + random_below(&r, 4), &r);
        release(&pair);
    }
}

static void only_wanted_tensors_move(void **state)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct random r = {.state = seed * 15485863};
        struct pair pair = random_layouts(&r, seed % 3 == 0);
        uint8_t *wanted = random_mask(&r, pair.destination);
        pair.scope.wanted = wanted;
        check_pair(&pair, seed % 2 ? UINT32_MAX : 2, &r);
        release(&pair);
        free(wanted);
    }
}

static void assert_same_strips(const struct refit_plan *plan, const struct refit_edge *edge,
                               const struct refit_plan *other, const struct refit_edge *other_edge, uint32_t rank)
{
    struct refit_strip a;
    struct refit_strip b;
    struct refit_walk walk = refit_walk_batch(plan, edge, 0, rank);
    struct refit_walk other_walk = refit_walk_batch(other, other_edge, 0, rank);
    while (refit_walk_next(&walk, UINT64_MAX, &a)) {
        assert_true(refit_walk_next(&other_walk, UINT64_MAX, &b));
        assert_int_equal(a.offset, b.offset);
        assert_int_equal(a.stride, b.stride);
        assert_int_equal(a.tensor_offset, b.tensor_offset);
        assert_int_equal(a.tensor_stride, b.tensor_stride);
        assert_int_equal(a.run_bytes, b.run_bytes);
        assert_int_equal(a.count, b.count);
        assert_int_equal(a.tensor, b.tensor);
        assert_int_equal(a.counted, b.counted);
    }
    assert_false(refit_walk_next(&other_walk, UINT64_MAX, &b));
}

/* A source rank's own plan has the edges of the whole plan that it can send, and the same strips. */
static void check_rank(const struct pair *pair, uint32_t rank)
{
    struct refit_plan *own = build(pair, REFIT_SOURCE, rank);
    size_t count;
    size_t own_count;
    const struct refit_edge *edges = refit_plan_edges(pair->at_source, &count);
    const struct refit_edge *own_edges = refit_plan_edges(own, &own_count);
    size_t at = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (!refit_group_has(group_of(pair->at_source, REFIT_SOURCE, &edges[i]), rank)) {
            continue;
        }
        assert_true(at < own_count);
        assert_same_edges(pair->at_source, &edges[i], own, &own_edges[at]);
        assert_ptr_equal(refit_plan_edge(own, edges[i].digest), &own_edges[at]);
        assert_same_strips(pair->at_source, &edges[i], own, &own_edges[at], rank);
        bytes += edges[i].bytes;
        at++;
    }
    assert_int_equal(at, own_count);
    struct refit_strip strip;
    for (size_t i = 0; i < own_count; i++) { /* nothing is known of another rank's memory */
        struct refit_walk walk = refit_walk_batch(own, &own_edges[i], 0, rank + 1);
        assert_false(refit_walk_next(&walk, UINT64_MAX, &strip));
    }
    assert_int_equal(bytes, refit_plan_bytes(own));
    refit_plan_release(own);
}

static void every_source_rank_has_the_edges_it_can_send(void **state)
{
    for (uint64_t seed = 1; seed <= SCOPE_SEEDS; seed++) {
        struct random r = {.state = seed * 7919};
        struct pair pair = random_layouts(&r, seed % 3 == 0);
        uint8_t *wanted = random_mask(&r, pair.destination);
        pair.scope.wanted = seed % 2 ? wanted : NULL;
        pair.scope.first_rank = random_below(&r, refit_layout_ranks(pair.destination));
        pair.scope.rank_count = 1 + random_below(&r, refit_layout_ranks(pair.destination) - pair.scope.first_rank);
        build_both(&pair);
        for (uint32_t rank = 0; rank < refit_layout_ranks(pair.source); rank++) {
            check_rank(&pair, rank);
        }
        release(&pair);
        free(wanted);
    }
}

static void totals_have_edges_and_no_strips(void **state)
{
    struct random r = {.state = 99};
    struct pair pair = random_pair(&r, false);
    const struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = REFIT_ALL_RANKS, .totals_only = true};
    struct refit_plan *totals = NULL;
    struct refit_strip strip;
    size_t count;
    size_t whole_count;
    assert_int_equal(refit_plan_build(pair.source, pair.destination, scope, &totals, NULL), REFIT_OK);
    const struct refit_edge *edges = refit_plan_edges(totals, &count);
    const struct refit_edge *whole = refit_plan_edges(pair.at_source, &whole_count);
    assert_int_equal(count, whole_count);
    for (size_t i = 0; i < count; i++) {
        assert_same_edges(totals, &edges[i], pair.at_source, &whole[i]);
        struct refit_walk walk =
            refit_walk_batch(totals, &edges[i], 0, group_of(totals, REFIT_SOURCE, &edges[i]).ranks[0]);
        assert_false(refit_walk_next(&walk, UINT64_MAX, &strip));
    }
    assert_true(refit_plan_memory(totals) < refit_plan_memory(pair.at_source));
    refit_plan_release(totals);
    release(&pair);
}

/* ---- names ---- */

#define ONE_RANK "{\"format\":\"refit-layout/1\",\"ranks\":1,\"meshes\":{\"m\":{\"axes\":[\"x\"],\"shape\":[1]}},"
#define TENSOR(name, dtype, shape) \
    "{\"tensor\":\"" name "\",\"dtype\":\"" dtype "\",\"shape\":" shape ",\"mesh\":\"m\"," \
    "\"placements\":[\"Replicate\"]}"

static void expect_plan(const char *source, const char *destination, uint64_t bytes)
{
    struct pair pair = {.source = parse(source), .destination = parse(destination)};
    build_both(&pair);
    assert_int_equal(refit_plan_bytes(pair.at_source), bytes);
    release(&pair);
}

static void expect_refusal(const char *source, const char *destination, const char *const *words)
{
    struct pair pair = {.source = parse(source), .destination = parse(destination)};
    const struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = REFIT_ALL_RANKS};
    struct refit_plan *plan = NULL;
    struct refit_error err = {.text = ""};
    assert_int_equal(refit_plan_build(pair.source, pair.destination, scope, &plan, &err), REFIT_MISMATCH);
    assert_null(plan);
    assert_int_equal(err.status, REFIT_MISMATCH);
    for (; *words; words++) {
        if (!strstr(err.text, *words)) {
            print_error("\"%s\" lacks \"%s\"\n", err.text, *words);
            fail();
        }
    }
    release(&pair);
}

#define REFUSED(source, destination, ...) \
    expect_refusal(source, destination, (const char *const[]){__VA_ARGS__, NULL})

static void aliases_are_found_both_ways(void **state)
{
    /* The source ties, the destination has two copies. */
    expect_plan(ONE_RANK "\"entries\":[" TENSOR("embed", "F32", "[4,2]") "],\"aliases\":{\"head\":\"embed\"}}",
                ONE_RANK "\"entries\":[" TENSOR("embed", "F32", "[4,2]") "," TENSOR("head", "F32", "[4,2]") "]}", 64);
    /* The destination ties, the source sends both names: one of them is enough. */
    expect_plan(ONE_RANK "\"entries\":[" TENSOR("embed", "F32", "[4,2]") "," TENSOR("head", "F32", "[4,2]") "]}",
                ONE_RANK "\"entries\":[" TENSOR("embed", "F32", "[4,2]") "],\"aliases\":{\"head\":\"embed\"}}", 32);
    /* Each ties under the other's name. */
    expect_plan(ONE_RANK "\"entries\":[" TENSOR("head", "F32", "[4,2]") "]}",
                ONE_RANK "\"entries\":[" TENSOR("embed", "F32", "[4,2]") "],\"aliases\":{\"head\":\"embed\"}}", 32);
}

static void excused_names_may_be_left_out(void **state)
{
    expect_plan(ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4]") "," TENSOR("debug.x", "F32", "[4]") "]}",
                ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4]") "],\"excused\":[\"debug.*\"]}", 16);
    expect_plan(ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4]") "," TENSOR("y", "F32", "[4]")
                "],\"excused\":[\"y\"]}",
                ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4]") "]}", 16);
}

static void what_does_not_fit_is_named(void **state)
{
    REFUSED(ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4]") "]}",
            ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4]") "," TENSOR("v", "F32", "[4]") "]}", "\"v\"", "source");
    REFUSED(ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4]") "," TENSOR("v", "F32", "[4]") "]}",
            ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4]") "]}", "\"v\"", "excuse");
    REFUSED(ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4]") "]}",
            ONE_RANK "\"entries\":[" TENSOR("w", "BF16", "[4]") "]}", "\"w\"", "F32", "BF16");
    REFUSED(ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4,6]") "]}",
            ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[6,4]") "]}", "\"w\"", "[4, 6]", "[6, 4]");
    REFUSED(ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4]") "]}",
            ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4,1]") "]}", "\"w\"", "[4]", "[4, 1]");
}

static void missing_boxes_are_named_with_their_rank(void **state)
{
    /* The source lacks the last row of a matrix. */
    static const char source[] =
        "{\"format\":\"refit-layout/1\",\"ranks\":1,\"entries\":[{\"rank\":0,\"buffer\":\"b\",\"bytes\":40,"
        "\"dtype\":\"F32\",\"regions\":[{\"tensor\":\"w\",\"shape\":[6,2],\"start\":[0,0],\"extent\":[5,2],"
        "\"offset\":0}]}]}";
    static const char halves[] =
        "{\"format\":\"refit-layout/1\",\"ranks\":2,\"meshes\":{\"m\":{\"axes\":[\"x\"],\"shape\":[2]}},\"entries\":["
        "{\"tensor\":\"w\",\"dtype\":\"F32\",\"shape\":[6,2],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"]}]}";
    REFUSED(source, halves, "\"w\"", "[5:6, 0:2]", "rank 1");
    /* The destination lacks it: a source byte that nobody wants. */
    REFUSED(halves, source, "\"w\"", "[5:6, 0:2]", "excuse");
}

static void refuse_scope(struct refit_plan_scope scope, const char *words)
{
    struct pair pair = {.source = parse(ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4]") "]}"),
                        .destination = parse(ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4]") "]}")};
    struct refit_plan *plan = NULL;
    struct refit_error err;
    assert_int_equal(refit_plan_build(pair.source, pair.destination, scope, &plan, &err), REFIT_INVALID);
    assert_null(plan);
    assert_non_null(strstr(err.text, words));
    release(&pair);
}

static void scope_outside_the_ranks_is_refused(void **state)
{
    refuse_scope((struct refit_plan_scope){.side = REFIT_SOURCE, .rank = 1}, "source rank 1");
    refuse_scope((struct refit_plan_scope){.side = REFIT_DESTINATION, .rank = 0}, "destination rank 0");
    refuse_scope((struct refit_plan_scope){.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS, .rank_count = 2},
                 "2 destination ranks");
    refuse_scope((struct refit_plan_scope){.side = REFIT_SOURCE, .rank = 0, .first_rank = 1, .rank_count = 1},
                 "from 1 on");
    refuse_scope((struct refit_plan_scope){.side = REFIT_SOURCE, .rank = 0, .first_rank = 1}, "from 1 on");
}

static void edges_are_in_order_and_found_by_digest(void **state)
{
    for (uint64_t seed = 1; seed <= SCOPE_SEEDS; seed++) {
        struct random r = {.state = seed * 31};
        struct pair pair = random_pair(&r, seed % 2);
        size_t count;
        const struct refit_edge *edges = refit_plan_edges(pair.at_source, &count);
        for (size_t i = 0; i < count; i++) {
            assert_ptr_equal(refit_plan_edge(pair.at_source, edges[i].digest), &edges[i]);
            assert_null(refit_plan_edge(pair.at_source, edges[i].digest + 1));
            const struct refit_group group = group_of(pair.at_source, REFIT_DESTINATION, &edges[i]);
            const struct refit_group before = group_of(pair.at_source, REFIT_DESTINATION, &edges[i ? i - 1 : 0]);
            assert_true(before.ranks[0] <= group.ranks[0]);
        }
        release(&pair);
    }
}

static void plan_keeps_its_layouts(void **state)
{
    struct random r = {.state = 4};
    struct pair pair = random_pair(&r, false);
    assert_ptr_equal(refit_plan_source(pair.at_source), pair.source);
    assert_ptr_equal(refit_plan_destination(pair.at_source), pair.destination);
    assert_int_equal(refit_plan_first_rank(pair.at_source), 0);
    assert_int_equal(refit_plan_rank_count(pair.at_source), refit_layout_ranks(pair.destination));
    struct refit_plan *again = refit_plan_retain(pair.at_source);
    refit_plan_release(again);
    release(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_layouts_move_every_byte_exactly_once),
        cmocka_unit_test(parts_of_a_replica_add_up),
        cmocka_unit_test(only_wanted_tensors_move),
        cmocka_unit_test(every_source_rank_has_the_edges_it_can_send),
        cmocka_unit_test(totals_have_edges_and_no_strips),
        cmocka_unit_test(aliases_are_found_both_ways),
        cmocka_unit_test(excused_names_may_be_left_out),
        cmocka_unit_test(what_does_not_fit_is_named),
        cmocka_unit_test(missing_boxes_are_named_with_their_rank),
        cmocka_unit_test(scope_outside_the_ranks_is_refused),
        cmocka_unit_test(edges_are_in_order_and_found_by_digest),
        cmocka_unit_test(plan_keeps_its_layouts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
