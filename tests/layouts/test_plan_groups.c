/* SPDX-License-Identifier: Apache-2.0
 *
 * Who can stand in for whom: groups of ranks, edges that several receivers share, where batches land.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "layouts/plan_json.h"
#include "plan_oracle.h"
#include "random_layout.h"

#define RANKS_MAX 12
#ifdef __SANITIZE_THREAD__ /* one thread, twenty times slower: a sample is enough */
#define SEEDS 40
#else
#define SEEDS 400
#endif

static struct refit_layout *parse(const char *text)
{
    struct refit_layout *layout = NULL;
    struct refit_error err = {.text = ""};
    if (refit_layout_parse(text, strlen(text), "a test layout", &layout, &err) != REFIT_OK) {
        print_error("%s\n%s\n", err.text, text);
        fail();
    }
    return layout;
}

static struct refit_plan *plan_of(struct refit_layout *source, struct refit_layout *destination, uint32_t first,
                                  uint32_t count)
{
    struct refit_plan *plan = NULL;
    struct refit_error err;
    const struct refit_plan_scope scope = {
        .side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS, .first_rank = first, .rank_count = count};
    if (refit_plan_build(source, destination, scope, &plan, &err) != REFIT_OK) {
        print_error("%s\n", err.text);
        fail();
    }
    return plan;
}

static struct refit_group takers_of(const struct refit_plan *plan, const struct refit_edge *edge)
{
    return refit_plan_group(plan, REFIT_DESTINATION, edge->destination_group);
}

static struct refit_group senders_of(const struct refit_plan *plan, const struct refit_edge *edge)
{
    return refit_plan_group(plan, REFIT_SOURCE, edge->source_group);
}

/* ---- layouts of several receivers ---- */

/* A copy of the entry that lives on the ranks `shift` further. */
static void append_shifted(json_t *entries, json_t *entry, uint32_t shift)
{
    json_t *copy = json_deep_copy(entry);
    const json_t *rank = json_object_get(copy, "rank");
    if (rank) {
        json_object_set_new(copy, "rank", json_integer(json_integer_value(rank) + shift));
    } else {
        char name[128];
        (void)snprintf(name, sizeof(name), "%s_%u", json_string_value(json_object_get(copy, "mesh")), shift);
        json_object_set_new(copy, "mesh", json_string(name));
    }
    json_array_append_new(entries, copy);
}

static void add_shifted_mesh(json_t *meshes, const char *name, json_t *mesh, uint32_t shift)
{
    char shifted[128];
    json_t *copy = json_deep_copy(mesh);
    json_t *ranks = json_object_get(copy, "ranks");
    (void)snprintf(shifted, sizeof(shifted), "%s_%u", name, shift);
    if (!ranks) {
        size_t i;
        json_t *size;
        json_int_t cells = 1;
        json_array_foreach(json_object_get(copy, "shape"), i, size) {
            cells *= json_integer_value(size);
        }
        ranks = json_array();
        for (json_int_t rank = 0; rank < cells; rank++) {
            json_array_append_new(ranks, json_integer(rank));
        }
        json_object_set_new(copy, "ranks", ranks);
    }
    for (size_t i = 0; i < json_array_size(ranks); i++) {
        json_array_set_new(ranks, i, json_integer(json_integer_value(json_array_get(ranks, i)) + shift));
    }
    json_object_set_new(meshes, shifted, copy);
}

/* Twice the layout, on the ranks after its own a second time. */
static struct refit_layout *twice(const struct refit_layout *layout)
{
    const uint32_t ranks = refit_layout_ranks(layout);
    struct refit_layout *out = NULL;
    struct refit_error err;
    json_t *document = json_loads(refit_layout_text(layout, NULL), 0, NULL);
    assert_non_null(document);
    json_t *entries = json_object_get(document, "entries");
    json_t *meshes = json_object_get(document, "meshes");
    const size_t count = json_array_size(entries);
    for (size_t i = 0; i < count; i++) {
        append_shifted(entries, json_array_get(entries, i), ranks);
    }
    if (meshes) {
        json_t *all = json_object();
        const char *name;
        json_t *mesh;
        json_object_foreach(meshes, name, mesh) {
            json_object_set(all, name, mesh);
            add_shifted_mesh(all, name, mesh, ranks);
        }
        json_object_set_new(document, "meshes", all);
    }
    json_object_set_new(document, "ranks", json_integer(2 * (json_int_t)ranks));
    if (refit_layout_from_json(document, "two receivers", &out, &err) != REFIT_OK) {
        print_error("%s\n", err.text);
        fail();
    }
    json_decref(document);
    return out;
}

/* ---- equal edges ---- */

/* The same stream, cut into the same segments; in memory alike, if the ranks' memory is. */
static void assert_same_stream(const struct refit_plan *a, const struct refit_edge *x, const struct refit_plan *b,
                               const struct refit_edge *y)
{
    struct refit_strip p = {.count = 0};
    struct refit_strip q = {.count = 0};
    assert_int_equal(x->bytes, y->bytes);
    assert_int_equal(x->ops, y->ops);
    assert_int_equal(x->batches, y->batches);
    for (uint32_t number = 0; number < x->batches; number++) {
        struct refit_walk u = refit_walk_batch(a, x, number, takers_of(a, x).ranks[0]);
        struct refit_walk v = refit_walk_batch(b, y, number, takers_of(b, y).ranks[0]);
        struct refit_strip p_before = p;
        struct refit_strip q_before = q;
        for (uint64_t strips = 0; refit_walk_next(&u, 1, &p); strips++) {
            assert_true(refit_walk_next(&v, 1, &q));
            assert_int_equal(p.tensor, q.tensor);
            assert_int_equal(p.tensor_offset, q.tensor_offset);
            if (strips > 0) {
                assert_int_equal(p.tensor != p_before.tensor || p.counted != p_before.counted,
                                 q.tensor != q_before.tensor || q.counted != q_before.counted);
            }
            p_before = p;
            q_before = q;
        }
        assert_false(refit_walk_next(&v, 1, &q));
    }
}

/* Edges of b by those of a; returns how many there are. b's ranks are `shift` further. */
static size_t check_shared(const struct refit_plan *a, const struct refit_plan *b, uint32_t shift)
{
    size_t count;
    size_t shared = 0;
    const struct refit_edge *edges = refit_plan_edges(a, &count);
    for (size_t i = 0; i < count; i++) {
        const struct refit_edge *other = refit_plan_edge(b, edges[i].digest);
        if (!other) {
            continue;
        }
        const struct refit_group here = takers_of(a, &edges[i]);
        const struct refit_group there = takers_of(b, other);
        assert_int_equal(here.count, there.count);
        for (uint32_t k = 0; k < here.count; k++) {
            assert_int_equal(here.ranks[k] + shift, there.ranks[k]);
        }
        assert_int_equal(senders_of(a, &edges[i]).count, senders_of(b, other).count);
        assert_same_stream(a, &edges[i], b, other);
        shared++;
    }
    return shared;
}

static size_t edge_count(const struct refit_plan *plan)
{
    size_t count;
    (void)refit_plan_edges(plan, &count);
    return count;
}

static void receivers_of_the_same_shards_share_all_edges(void **state)
{
    uint32_t checked = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct random r = {.state = seed * 48271};
        const struct model model = random_model(&r);
        struct refit_layout *source = random_layout(&r, &model, RANKS_MAX, seed % 2);
        struct refit_layout *one = random_layout(&r, &model, RANKS_MAX, seed % 3 == 0);
        struct refit_layout *two = twice(one);
        const uint32_t ranks = refit_layout_ranks(one);
        struct refit_plan *alone = plan_of(source, one, 0, 0);
        struct refit_plan *first = plan_of(source, two, 0, ranks);
        struct refit_plan *second = plan_of(source, two, ranks, ranks);
        struct holders holders = holders_create(source, one);
        const size_t count = edge_count(alone);
        assert_int_equal(check_shared(alone, first, 0), count);
        assert_int_equal(refit_plan_class(alone), refit_plan_class(first));
        const size_t shared = check_shared(first, second, ranks);
        if (!holders_have_copies(&holders)) {
            assert_int_equal(shared, count);
            assert_int_equal(refit_plan_class(first), refit_plan_class(second));
            checked++;
        }
        assert_int_equal(edge_count(second), count);
        holders_destroy(&holders);
        refit_plan_release(alone);
        refit_plan_release(first);
        refit_plan_release(second);
        refit_layout_release(source);
        refit_layout_release(one);
        refit_layout_release(two);
    }
    assert_true(checked > SEEDS / 4);
}

/* Parts of one replica and of another: whatever they share by digest must be the same stream in the same segments. */
static void equal_digests_mean_equal_streams(void **state)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct random r = {.state = seed * 69621};
        const struct model model = random_model(&r);
        struct refit_layout *source = random_layout(&r, &model, RANKS_MAX, seed % 2);
        struct refit_layout *one = random_layout(&r, &model, RANKS_MAX, seed % 2);
        struct refit_layout *two = twice(one);
        const uint32_t ranks = refit_layout_ranks(one);
        const uint32_t from = random_below(&r, ranks);
        const uint32_t count = 1 + random_below(&r, ranks - from);
        struct refit_plan *first = plan_of(source, two, from, count);
        struct refit_plan *second = plan_of(source, two, ranks + from, count);
        (void)check_shared(first, second, ranks);
        refit_plan_release(first);
        refit_plan_release(second);
        refit_layout_release(source);
        refit_layout_release(one);
        refit_layout_release(two);
    }
}

/* ---- by hand ---- */

#define MESH2(ranks, a, n, b, m) \
    "{\"format\":\"refit-layout/1\",\"ranks\":" #ranks ",\"meshes\":{\"m\":{\"axes\":[\"" a "\",\"" b \
    "\"],\"shape\":[" #n "," #m "]}},\"entries\":["
#define WEIGHT(name, shape, placements) \
    "{\"tensor\":\"" name "\",\"dtype\":\"F32\",\"shape\":" shape ",\"mesh\":\"m\",\"placements\":[" placements "]}"
#define R "\"Replicate\""
#define S0 "\"Shard(0)\""
#define S1 "\"Shard(1)\""

static void assert_ranks(struct refit_group group, uint32_t count, const uint32_t *ranks)
{
    assert_int_equal(group.count, count);
    assert_memory_equal(group.ranks, ranks, count * sizeof(*ranks));
}

static const struct refit_edge *edge_at(const struct refit_plan *plan, size_t at, size_t expected)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    assert_int_equal(count, expected);
    return &edges[at];
}

static void replicas_of_the_trainer_are_one_group(void **state)
{
    /* HSDP: 2 replicas of 4 shards; to TP2, in row shards. */
    struct refit_layout *source = parse(MESH2(8, "dp", 2, "fsdp", 4) WEIGHT("w", "[16,6]", R "," S0) "]}");
    struct refit_layout *destination = parse(MESH2(2, "x", 1, "tp", 2) WEIGHT("w", "[16,6]", R "," S0) "]}");
    struct refit_plan *plan = plan_of(source, destination, 0, 0);
    for (uint32_t i = 0; i < 4; i++) {
        const struct refit_edge *edge = edge_at(plan, i, 4);
        assert_ranks(senders_of(plan, edge), 2, (uint32_t[]){i, i + 4});
        assert_ranks(takers_of(plan, edge), 1, (uint32_t[]){i / 2});
        assert_int_equal(edge->bytes, 4 * 6 * 4);
    }
    refit_plan_release(plan);
    refit_layout_release(source);
    refit_layout_release(destination);
}

static void replicated_destinations_get_each_byte_once(void **state)
{
    struct refit_layout *source = parse(MESH2(4, "x", 1, "tp", 4) WEIGHT("w", "[16,6]", R "," S0) "]}");
    struct refit_layout *copies = parse(MESH2(4, "dp", 4, "x", 1) WEIGHT("w", "[16,6]", R "," R) "]}");
    struct refit_layout *halves = parse(MESH2(4, "dp", 2, "tp", 2) WEIGHT("w", "[16,6]", R "," S0) "]}");
    struct refit_plan *plan = plan_of(source, copies, 0, 0);
    for (uint32_t i = 0; i < 4; i++) {
        assert_ranks(senders_of(plan, edge_at(plan, i, 4)), 1, (uint32_t[]){i});
        assert_ranks(takers_of(plan, edge_at(plan, i, 4)), 4, (uint32_t[]){0, 1, 2, 3});
    }
    assert_int_equal(refit_plan_bytes(plan), 16 * 6 * 4);
    assert_int_equal(refit_plan_written_bytes(plan), 4 * 16 * 6 * 4);
    refit_plan_release(plan);
    plan = plan_of(source, halves, 0, 0);
    for (uint32_t i = 0; i < 4; i++) {
        assert_ranks(takers_of(plan, edge_at(plan, i, 4)), 2, (uint32_t[]){i / 2, i / 2 + 2});
    }
    assert_int_equal(refit_plan_bytes(plan), 16 * 6 * 4);
    assert_int_equal(refit_plan_written_bytes(plan), 2 * 16 * 6 * 4);
    refit_plan_release(plan);
    refit_layout_release(source);
    refit_layout_release(copies);
    refit_layout_release(halves);
}

/* A replica of four ranks in two pods: the parts differ in ranks only where their shards do. */
static void pods_of_a_replica_share_what_is_replicated(void **state)
{
    struct refit_layout *source = parse(MESH2(1, "x", 1, "y", 1) WEIGHT("w", "[16,6]", R "," R) ","
                                        WEIGHT("n", "[7]", R "," R) "]}");
    struct refit_layout *destination = parse(MESH2(4, "x", 1, "tp", 4) WEIGHT("w", "[16,6]", R "," S0) ","
                                             WEIGHT("n", "[7]", R "," R) "]}");
    struct refit_plan *first = plan_of(source, destination, 0, 2);
    struct refit_plan *second = plan_of(source, destination, 2, 2);
    assert_int_equal(edge_count(first), 3);
    assert_int_equal(edge_count(second), 3);
    assert_int_equal(check_shared(first, second, 2), 1); /* n */
    assert_int_equal(refit_plan_bytes(first), 2 * 4 * 6 * 4 + 7 * 4);
    assert_true(refit_plan_class(first) != refit_plan_class(second));
    refit_plan_release(first);
    refit_plan_release(second);
    refit_layout_release(source);
    refit_layout_release(destination);
}

/* Of three receivers the first lacks a tensor, so the second counts that and not the other; the third counts none. */
static void receivers_that_count_other_tensors_share_edges(void **state)
{
    static const char three[] =
        "{\"format\":\"refit-layout/1\",\"ranks\":6,\"meshes\":{\"all\":{\"axes\":[\"x\"],\"shape\":[6]},"
        "\"late\":{\"axes\":[\"x\"],\"shape\":[4],\"ranks\":[2,3,4,5]}},\"entries\":["
        "{\"tensor\":\"w\",\"dtype\":\"F32\",\"shape\":[16,6],\"mesh\":\"late\"},"
        "{\"tensor\":\"n\",\"dtype\":\"F32\",\"shape\":[7],\"mesh\":\"all\"}]}";
    struct refit_layout *source = parse(MESH2(1, "x", 1, "y", 1) WEIGHT("w", "[16,6]", R "," R) ","
                                        WEIGHT("n", "[7]", R "," R) "]}");
    struct refit_layout *destination = parse(three);
    struct refit_plan *second = plan_of(source, destination, 2, 2);
    struct refit_plan *third = plan_of(source, destination, 4, 2);
    assert_int_equal(edge_at(second, 0, 1)->ops, 2);
    assert_int_equal(check_shared(second, third, 2), 1);
    refit_plan_release(second);
    refit_plan_release(third);
    refit_layout_release(source);
    refit_layout_release(destination);
}

/* Names, types and shapes are in the digest: equal boxes of other tensors are other edges. */
static void other_tensors_are_other_edges(void **state)
{
    static const char *const texts[] = {
        MESH2(1, "x", 1, "y", 1) WEIGHT("w", "[4,6]", R "," R) "]}",
        MESH2(1, "x", 1, "y", 1) WEIGHT("v", "[4,6]", R "," R) "]}",
        MESH2(1, "x", 1, "y", 1) WEIGHT("w", "[6,4]", R "," R) "]}",
        MESH2(1, "x", 1, "y", 1) "{\"tensor\":\"w\",\"dtype\":\"I32\",\"shape\":[4,6],\"mesh\":\"m\"}]}",
    };
    uint64_t digests[4];
    for (size_t i = 0; i < 4; i++) {
        struct refit_layout *layout = parse(texts[i]);
        struct refit_plan *plan = plan_of(layout, layout, 0, 0);
        digests[i] = edge_at(plan, 0, 1)->digest;
        for (size_t k = 0; k < i; k++) {
            assert_true(digests[k] != digests[i]);
        }
        refit_plan_release(plan);
        refit_layout_release(layout);
    }
}

/* Rows of the trainer's ranks overlap, and so do those of the receiver's: cut where the holders change. */
static void partial_overlaps_are_cut(void **state)
{
    static const char source[] =
        "{\"format\":\"refit-layout/1\",\"ranks\":2,\"entries\":["
        "{\"rank\":0,\"buffer\":\"b\",\"bytes\":24,\"dtype\":\"F32\",\"regions\":[{\"tensor\":\"w\",\"shape\":[10],"
        "\"start\":[0],\"extent\":[6],\"offset\":0}]},"
        "{\"rank\":1,\"buffer\":\"b\",\"bytes\":24,\"dtype\":\"F32\",\"regions\":[{\"tensor\":\"w\",\"shape\":[10],"
        "\"start\":[4],\"extent\":[6],\"offset\":0}]}]}";
    static const char destination[] =
        "{\"format\":\"refit-layout/1\",\"ranks\":2,\"entries\":["
        "{\"rank\":0,\"buffer\":\"b\",\"bytes\":32,\"dtype\":\"F32\",\"regions\":[{\"tensor\":\"w\",\"shape\":[10],"
        "\"start\":[0],\"extent\":[8],\"offset\":0}]},"
        "{\"rank\":1,\"buffer\":\"b\",\"bytes\":32,\"dtype\":\"F32\",\"regions\":[{\"tensor\":\"w\",\"shape\":[10],"
        "\"start\":[2],\"extent\":[8],\"offset\":0}]}]}";
    /* By element: source {0} to 4, {0, 1} to 6, {1} to 10; destination {0} to 2, {0, 1} to 8, {1} to 10. */
    static const struct {
        uint32_t senders, takers; /* bits */
        uint64_t bytes;
    } expected[] = {{1, 1, 8}, {1, 3, 8}, {3, 3, 8}, {2, 3, 8}, {2, 2, 8}};
    struct refit_layout *from = parse(source);
    struct refit_layout *to = parse(destination);
    struct refit_plan *plan = plan_of(from, to, 0, 0);
    for (size_t i = 0; i < 5; i++) {
        const struct refit_edge *edge = edge_at(plan, i, 5);
        const struct refit_group senders = senders_of(plan, edge);
        const struct refit_group takers = takers_of(plan, edge);
        assert_int_equal(senders.count == 2 ? 3 : 1u << senders.ranks[0], expected[i].senders);
        assert_int_equal(takers.count == 2 ? 3 : 1u << takers.ranks[0], expected[i].takers);
        assert_int_equal(edge->bytes, expected[i].bytes);
        assert_int_equal(edge->ops, 1);
    }
    assert_int_equal(refit_plan_bytes(plan), 40);
    assert_int_equal(refit_plan_written_bytes(plan), 64);
    refit_plan_release(plan);
    refit_layout_release(from);
    refit_layout_release(to);
}

/* ---- batches ---- */

/* A model of `rows` x 256 KiB. */
static struct refit_plan *plan_of_rows(const char *source, const char *destination, uint32_t ranks, uint32_t rows)
{
    char text[2][512];
    struct refit_layout *layouts[2];
    const char *placements[] = {source, destination};
    for (int i = 0; i < 2; i++) {
        (void)snprintf(text[i], sizeof(text[i]),
                       "{\"format\":\"refit-layout/1\",\"ranks\":%u,\"meshes\":{\"m\":{\"axes\":[\"x\"],"
                       "\"shape\":[%u]}},\"entries\":[{\"tensor\":\"w\",\"dtype\":\"U8\",\"shape\":[%u,262144],\"mesh\":\"m\","
                       "\"placements\":[%s]}]}", ranks, ranks, rows, placements[i]);
        layouts[i] = parse(text[i]);
    }
    struct refit_plan *plan = plan_of(layouts[0], layouts[1], 0, 0);
    refit_layout_release(layouts[0]);
    refit_layout_release(layouts[1]);
    return plan;
}

static void batches_grow_with_what_is_held(void **state)
{
    static const struct {
        uint32_t rows, batch_bytes;
    } expected[] = {{1, 256 << 10},   {511, 256 << 10}, {512, 512 << 10},   {1023, 512 << 10},
                    {1024, 1 << 20},  {2048, 2 << 20},  {4095, 2 << 20},    {4096, 4 << 20},
                    {1 << 20, 4 << 20}};
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        struct refit_plan *plan = plan_of_rows(R, R, 1, expected[i].rows);
        assert_int_equal(refit_plan_batch_bytes(plan), expected[i].batch_bytes);
        refit_plan_release(plan);
    }
}

/* Two copies of a unit on one rank are one unit that is held. */
static void copies_do_not_make_batches_larger(void **state)
{
    struct refit_layout *source = parse(MESH2(1, "x", 1, "y", 1) WEIGHT("w", "[400,65536]", R "," R) "]}");
    struct refit_layout *destination = parse(
        MESH2(1, "x", 1, "y", 1) WEIGHT("w", "[400,65536]", R "," R)
        ",{\"buffer\":\"again\",\"tensor\":\"w\",\"dtype\":\"F32\",\"shape\":[400,65536],\"mesh\":\"m\"}]}");
    struct refit_plan *plan = plan_of(source, destination, 0, 0);
    const struct refit_edge *edge = edge_at(plan, 0, 1);
    assert_int_equal(edge->ops, 2);
    assert_int_equal(edge->bytes, 2 * 400 * 65536 * 4);
    assert_int_equal(refit_plan_batch_bytes(plan), 256 << 10);
    refit_plan_release(plan);
    refit_layout_release(source);
    refit_layout_release(destination);
}

/* What each rank takes from the network, over all edges: even to one batch; and in each edge, by number, to one. */
static void check_landing(const struct refit_plan *plan, uint32_t ranks)
{
    uint64_t bytes[16] = {0};
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    for (size_t i = 0; i < count; i++) {
        uint32_t numbers[16] = {0};
        const struct refit_group group = takers_of(plan, &edges[i]);
        for (uint32_t number = 0; number < edges[i].batches; number++) {
            const uint32_t rank = refit_plan_landing_rank(plan, &edges[i], number);
            assert_true(refit_group_has(group, rank));
            numbers[rank]++;
            bytes[rank] += refit_batch_bytes(plan, &edges[i], number);
        }
        for (uint32_t k = 0; k < group.count; k++) {
            assert_in_range(numbers[group.ranks[k]], edges[i].batches / group.count,
                            (edges[i].batches + group.count - 1) / group.count);
        }
    }
    for (uint32_t a = 0; a < ranks; a++) {
        for (uint32_t b = 0; b < ranks; b++) {
            assert_true(bytes[a] <= bytes[b] + refit_plan_batch_bytes(plan));
        }
    }
}

static void what_comes_over_the_network_is_shared_evenly(void **state)
{
    for (uint32_t ranks = 1; ranks <= 9; ranks++) {
        for (uint32_t rows = 1; rows < 3000; rows += 1 + rows / 3) {
            struct refit_plan *plan = plan_of_rows(S0, R, ranks, rows);
            check_landing(plan, ranks);
            refit_plan_release(plan);
            plan = plan_of_rows(S1, R, ranks, rows);
            check_landing(plan, ranks);
            refit_plan_release(plan);
        }
    }
}

/* ---- text ---- */

static void check_text(uint32_t count, const uint32_t *ranks, size_t len, const char *expected)
{
    char text[64];
    assert_string_equal(refit_group_format((struct refit_group){.ranks = ranks, .count = count}, text, len), expected);
}

static void groups_are_shown_as_ranges(void **state)
{
    const uint32_t ranks[] = {0, 1, 2, 3, 8, 10, 11, 4000000000u};
    check_text(1, ranks, 64, "0");
    check_text(2, ranks, 64, "0-1");
    check_text(8, ranks, 64, "0-3,8,10-11,4000000000");
    check_text(8, ranks, 12, "0-3,8,...");
    check_text(7, ranks, 8, "0-3,...");
    check_text(7, ranks, 7, "...");
}

static void plan_is_shown_as_json(void **state)
{
    struct refit_layout *source = parse(MESH2(4, "dp", 2, "tp", 2) WEIGHT("w", "[16,6]", R "," S0) "]}");
    struct refit_layout *destination = parse(MESH2(2, "dp", 2, "x", 1) WEIGHT("w", "[16,6]", R "," R) "]}");
    struct refit_plan *plan = plan_of(source, destination, 0, 0);
    json_t *json = refit_plan_json(plan);
    json_int_t senders[2];
    json_int_t takers[2];
    json_int_t bytes;
    const char *digest;
    assert_int_equal(json_unpack(json, "{s:[{s:[I,I!], s:[I,I!], s:I, s:s}]}", "edges", "source_ranks", &senders[0],
                                 &senders[1], "destination_ranks", &takers[0], &takers[1], "bytes", &bytes, "digest",
                                 &digest), 0);
    assert_true(senders[0] == 0 && senders[1] == 2 && takers[0] == 0 && takers[1] == 1);
    assert_int_equal(bytes, 8 * 6 * 4);
    assert_ptr_equal(refit_plan_edge(plan, strtoull(digest, NULL, 16)), edge_at(plan, 0, 2));
    assert_int_equal(json_integer_value(json_object_get(json, "bytes")), 16 * 6 * 4);
    assert_int_equal(json_integer_value(json_object_get(json, "written_bytes")), 2 * 16 * 6 * 4);
    assert_string_equal(json_string_value(json_object_get(json, "source")), refit_layout_digest(source));
    json_decref(json);
    refit_plan_release(plan);
    refit_layout_release(source);
    refit_layout_release(destination);
}

/* ---- limits ---- */

/* n boxes in each of three dimensions, every two of them crossing: n^3 cells and more. */
static void boxes_that_cross_too_often_are_refused(void **state)
{
    static char text[1 << 20];
    const int n = 110;
    size_t at = (size_t)snprintf(text, sizeof(text), "{\"format\":\"refit-layout/1\",\"ranks\":1,\"entries\":[");
    for (int i = 0; i < n; i++) {
        for (int d = 0; d < 3; d++) {
            int extent[3] = {2 * n, 2 * n, 2 * n};
            extent[d] = n + i;
            at += (size_t)snprintf(text + at, sizeof(text) - at,
                                   "%s{\"rank\":0,\"buffer\":\"b.%d\",\"bytes\":%lld,\"dtype\":\"U8\",\"regions\":["
                                   "{\"tensor\":\"w\",\"shape\":[220,220,220],\"start\":[0,0,0],"
                                   "\"extent\":[%d,%d,%d],\"offset\":0}]}",
                                   i + d ? "," : "", 3 * i + d, (long long)extent[0] * extent[1] * extent[2], extent[0],
                                   extent[1], extent[2]);
            assert_true(at < sizeof(text));
        }
    }
    (void)snprintf(text + at, sizeof(text) - at, "]}");
    struct refit_layout *layout = parse(text);
    struct refit_plan *plan = NULL;
    struct refit_error err = {.text = ""};
    const struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = 0};
    assert_int_equal(refit_plan_build(layout, layout, scope, &plan, &err), REFIT_UNSUPPORTED);
    assert_null(plan);
    assert_non_null(strstr(err.text, "\"w\""));
    refit_layout_release(layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(receivers_of_the_same_shards_share_all_edges),
        cmocka_unit_test(equal_digests_mean_equal_streams),
        cmocka_unit_test(replicas_of_the_trainer_are_one_group),
        cmocka_unit_test(replicated_destinations_get_each_byte_once),
        cmocka_unit_test(pods_of_a_replica_share_what_is_replicated),
        cmocka_unit_test(receivers_that_count_other_tensors_share_edges),
        cmocka_unit_test(other_tensors_are_other_edges),
        cmocka_unit_test(partial_overlaps_are_cut),
        cmocka_unit_test(batches_grow_with_what_is_held),
        cmocka_unit_test(copies_do_not_make_batches_larger),
        cmocka_unit_test(what_comes_over_the_network_is_shared_evenly),
        cmocka_unit_test(groups_are_shown_as_ranges),
        cmocka_unit_test(plan_is_shown_as_json),
        cmocka_unit_test(boxes_that_cross_too_often_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
