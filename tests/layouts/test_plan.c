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
#include "random_layout.h"

#define RANKS_MAX 12
#ifdef __SANITIZE_THREAD__ /* one thread, twenty times slower: a sample is enough */
#define SEEDS 120
#define SCOPE_SEEDS 15
#else
#define SEEDS 2000
#define SCOPE_SEEDS 200
#endif

/* All is owned here, so that a failing assertion leaks nothing but memory of a process that ends. */
struct pair {
    struct refit_layout *source;
    struct refit_layout *destination;
    struct refit_plan *at_source;
    struct refit_plan *at_destination;
};

static struct refit_plan *build(const struct pair *pair, enum refit_side side, uint32_t rank)
{
    struct refit_plan *plan = NULL;
    struct refit_error err;
    const struct refit_plan_scope scope = {.side = side, .rank = rank};
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

static void release(struct pair *pair)
{
    refit_plan_release(pair->at_source);
    refit_plan_release(pair->at_destination);
    refit_layout_release(pair->source);
    refit_layout_release(pair->destination);
}

static struct pair random_pair(struct random *r, bool overlaps)
{
    const struct model model = random_model(r);
    struct pair pair = {.source = random_layout(r, &model, RANKS_MAX, overlaps),
                        .destination = random_layout(r, &model, RANKS_MAX, overlaps)};
    assert_true(pair.source && pair.destination);
    build_both(&pair);
    return pair;
}

static struct refit_layout *parse(const char *text)
{
    struct refit_layout *layout = NULL;
    struct refit_error err = {.text = ""};
    if (refit_layout_parse(text, strlen(text), "a test layout", &layout, &err) != REFIT_OK) {
        print_error("%s\n", err.text);
        fail();
    }
    return layout;
}

/* ---- applying a plan ---- */

static void assert_same_edges(const struct refit_edge *a, const struct refit_edge *b)
{
    assert_int_equal(a->source_rank, b->source_rank);
    assert_int_equal(a->destination_rank, b->destination_rank);
    assert_int_equal(a->bytes, b->bytes);
    assert_int_equal(a->ops, b->ops);
    assert_int_equal(a->batches, b->batches);
    assert_int_equal(a->digest, b->digest);
}

static uint64_t some_bytes(struct random *r)
{
    return random_below(r, 2) ? UINT64_MAX : 1 + random_below(r, 50);
}

/* Moves one batch as two ranks would: each derives its own strips, cut where it likes. */
static void move_batch(const struct pair *pair, const struct refit_edge *edge, uint32_t number, struct random *r,
                       const struct memory *from, struct memory *to, struct refit_tally *sent,
                       struct refit_tally *received)
{
    static uint8_t stream[REFIT_BATCH_BYTES];
    const uint64_t bytes = refit_batch_bytes(edge, number);
    struct refit_strip strip;
    uint64_t done = 0;
    struct refit_walk walk = refit_walk_batch(pair->at_source, refit_plan_edge(pair->at_source, edge->source_rank,
                                                                               edge->destination_rank), number);
    for (uint64_t most = some_bytes(r); refit_walk_next(&walk, most, &strip); most = some_bytes(r)) {
        assert_true(strip.run_bytes * strip.count <= most);
        strip_read(from, edge->source_rank, &strip, stream + done);
        strip_tally(from, edge->source_rank, &strip, sent);
        done += strip.run_bytes * strip.count;
    }
    assert_int_equal(done, bytes);
    walk = refit_walk_batch(pair->at_destination, edge, number);
    done = 0;
    for (uint64_t most = some_bytes(r); refit_walk_next(&walk, most, &strip); most = some_bytes(r)) {
        strip_write(to, edge->destination_rank, &strip, stream + done);
        strip_tally(to, edge->destination_rank, &strip, received);
        done += strip.run_bytes * strip.count;
    }
    assert_int_equal(done, bytes);
}

static void check_pair(const struct pair *pair, struct random *r)
{
    struct memory from = memory_create(pair->source);
    struct memory to = memory_create(pair->destination);
    const uint32_t tensors = refit_layout_tensor_count(pair->destination);
    struct refit_tally *sent = refit_tally_create(tensors);
    struct refit_tally *received = refit_tally_create(tensors);
    size_t count;
    size_t source_count;
    const struct refit_edge *edges = refit_plan_edges(pair->at_destination, &count);
    const struct refit_edge *source_edges = refit_plan_edges(pair->at_source, &source_count);
    memory_fill(&from);
    assert_int_equal(count, source_count);
    for (size_t i = 0; i < count; i++) {
        assert_same_edges(&edges[i], &source_edges[i]);
        for (uint32_t number = 0; number < edges[i].batches; number++) {
            move_batch(pair, &edges[i], number, r, &from, &to, sent, received);
        }
    }
    memory_check_filled_once(&to);
    for (uint32_t id = 0; id < tensors; id++) {
        /* Counted exactly once per byte, on both sides, or this sum would differ. */
        assert_true(refit_digest_equal(refit_tally_get(sent, id), content_digest(pair->destination, id)));
        assert_true(refit_digest_equal(refit_tally_get(received, id), content_digest(pair->destination, id)));
    }
    refit_tally_destroy(sent);
    refit_tally_destroy(received);
    memory_destroy(&from);
    memory_destroy(&to);
}

static void random_layouts_move_every_byte_exactly_once(void **state)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct random r = {.state = seed};
        struct pair pair = random_pair(&r, seed % 4 == 0);
        check_pair(&pair, &r);
        release(&pair);
    }
}

/* A rank's own plan has the edges of the whole plan that are its own, and the same strips. */
static void check_rank(const struct pair *pair, const struct refit_plan *whole, enum refit_side side, uint32_t rank)
{
    struct refit_plan *own = build(pair, side, rank);
    size_t count;
    size_t own_count;
    const struct refit_edge *edges = refit_plan_edges(whole, &count);
    const struct refit_edge *own_edges = refit_plan_edges(own, &own_count);
    size_t at = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        struct refit_strip a;
        struct refit_strip b;
        if ((side == REFIT_SOURCE ? edges[i].source_rank : edges[i].destination_rank) != rank) {
            continue;
        }
        assert_true(at < own_count);
        assert_same_edges(&edges[i], &own_edges[at]);
        struct refit_walk walk = refit_walk_batch(whole, &edges[i], 0);
        struct refit_walk own_walk = refit_walk_batch(own, &own_edges[at], 0);
        while (refit_walk_next(&walk, UINT64_MAX, &a)) {
            assert_true(refit_walk_next(&own_walk, UINT64_MAX, &b));
            assert_int_equal(a.offset, b.offset);
            assert_int_equal(a.stride, b.stride);
            assert_int_equal(a.tensor_offset, b.tensor_offset);
            assert_int_equal(a.tensor_stride, b.tensor_stride);
            assert_int_equal(a.run_bytes, b.run_bytes);
            assert_int_equal(a.count, b.count);
            assert_int_equal(a.tensor, b.tensor);
            assert_int_equal(a.counted, b.counted);
        }
        assert_false(refit_walk_next(&own_walk, UINT64_MAX, &b));
        bytes += edges[i].bytes;
        at++;
    }
    assert_int_equal(at, own_count);
    assert_int_equal(bytes, refit_plan_bytes(own));
    refit_plan_release(own);
}

static void every_scope_gives_the_same_edges(void **state)
{
    for (uint64_t seed = 1; seed <= SCOPE_SEEDS; seed++) {
        struct random r = {.state = seed * 7919};
        struct pair pair = random_pair(&r, seed % 3 == 0);
        for (uint32_t rank = 0; rank < refit_layout_ranks(pair.source); rank++) {
            check_rank(&pair, pair.at_source, REFIT_SOURCE, rank);
        }
        for (uint32_t rank = 0; rank < refit_layout_ranks(pair.destination); rank++) {
            check_rank(&pair, pair.at_destination, REFIT_DESTINATION, rank);
        }
        release(&pair);
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
        assert_same_edges(&edges[i], &whole[i]);
        struct refit_walk walk = refit_walk_batch(totals, &edges[i], 0);
        assert_false(refit_walk_next(&walk, UINT64_MAX, &strip));
    }
    assert_true(refit_plan_memory(totals) < refit_plan_memory(pair.at_source));
    refit_plan_release(totals);
    release(&pair);
}

/* ---- sharing ---- */

#define SHARED(placement) \
    "{\"format\":\"refit-layout/1\",\"ranks\":%u,\"meshes\":{\"m\":{\"axes\":[\"x\"],\"shape\":[%u]}},\"entries\":[" \
    "{\"tensor\":\"l.{i}.w\",\"for\":{\"i\":[0,40]},\"dtype\":\"BF16\",\"shape\":[64,48],\"mesh\":\"m\"," \
    "\"placements\":[\"" placement "\"]},{\"tensor\":\"n\",\"dtype\":\"F32\",\"shape\":[7],\"mesh\":\"m\"," \
    "\"placements\":[\"" placement "\"]}]}"

/* Every edge's bytes by the rule itself: the least loaded source, the lowest among equals, tensor by tensor. */
static void check_shares(uint32_t sources, uint32_t destinations)
{
    char text[512];
    struct pair pair;
    uint64_t sent[64] = {0};
    uint64_t expected[64] = {0};
    size_t count;
    (void)snprintf(text, sizeof(text), SHARED("Replicate"), sources, sources);
    pair.source = parse(text);
    (void)snprintf(text, sizeof(text), SHARED("Shard(0)"), destinations, destinations);
    pair.destination = parse(text);
    build_both(&pair);
    const struct refit_edge *edges = refit_plan_edges(pair.at_source, &count);
    for (size_t i = 0; i < count; i++) {
        sent[edges[i].source_rank] += edges[i].bytes;
    }
    for (uint32_t id = 0; id < 41; id++) {
        const uint64_t rows = id < 40 ? 64 : 7;
        const uint64_t row_bytes = id < 40 ? 48 * 2 : 4;
        const uint64_t chunk = (rows + destinations - 1) / destinations;
        for (uint64_t at = 0; at < rows; at += chunk) {
            uint32_t least = 0;
            for (uint32_t s = 1; s < sources; s++) {
                least = expected[s] < expected[least] ? s : least;
            }
            expected[least] += (rows - at < chunk ? rows - at : chunk) * row_bytes;
        }
    }
    for (uint32_t s = 0; s < sources; s++) {
        assert_int_equal(sent[s], expected[s]);
    }
    release(&pair);
}

static void replicated_sources_share_by_bytes(void **state)
{
    check_shares(1, 3);
    check_shares(5, 3);
    check_shares(8, 8);
    check_shares(9, 2); /* from here on in a heap */
    check_shares(23, 7);
    check_shares(64, 5);
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
            ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[6,4]") "]}", "\"w\"", "[0:4, 0:6]", "[0:6, 0:4]");
    REFUSED(ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4]") "]}",
            ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4,1]") "]}", "\"w\"", "[0:4]", "[0:4, 0:1]");
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

static void scope_outside_the_mesh_is_refused(void **state)
{
    struct pair pair = {.source = parse(ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4]") "]}"),
                        .destination = parse(ONE_RANK "\"entries\":[" TENSOR("w", "F32", "[4]") "]}")};
    const struct refit_plan_scope scope = {.side = REFIT_DESTINATION, .rank = 1};
    struct refit_plan *plan = NULL;
    struct refit_error err;
    assert_int_equal(refit_plan_build(pair.source, pair.destination, scope, &plan, &err), REFIT_INVALID);
    assert_non_null(strstr(err.text, "destination rank 1"));
    release(&pair);
}

static void edges_are_found_by_ranks(void **state)
{
    struct random r = {.state = 4};
    struct pair pair = random_pair(&r, false);
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(pair.at_source, &count);
    for (size_t i = 0; i < count; i++) {
        assert_ptr_equal(refit_plan_edge(pair.at_source, edges[i].source_rank, edges[i].destination_rank), &edges[i]);
        assert_true(edges[i].bytes > 0);
    }
    assert_null(refit_plan_edge(pair.at_source, 1000, 0));
    assert_ptr_equal(refit_plan_source(pair.at_source), pair.source);
    assert_ptr_equal(refit_plan_destination(pair.at_source), pair.destination);
    struct refit_plan *again = refit_plan_retain(pair.at_source);
    refit_plan_release(again);
    release(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_layouts_move_every_byte_exactly_once),
        cmocka_unit_test(every_scope_gives_the_same_edges),
        cmocka_unit_test(totals_have_edges_and_no_strips),
        cmocka_unit_test(replicated_sources_share_by_bytes),
        cmocka_unit_test(aliases_are_found_both_ways),
        cmocka_unit_test(excused_names_may_be_left_out),
        cmocka_unit_test(what_does_not_fit_is_named),
        cmocka_unit_test(missing_boxes_are_named_with_their_rank),
        cmocka_unit_test(scope_outside_the_mesh_is_refused),
        cmocka_unit_test(edges_are_found_by_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
