/* SPDX-License-Identifier: Apache-2.0
 *
 * Who can stand in for whom: groups of ranks, and edges that several receivers share.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "layouts/plan.h"
#include "plan_oracle.h"
#include "plan_texts.h"
#include "random_layout.h"

#define RANKS_MAX 12
#ifdef __SANITIZE_THREAD__ /* one thread, twenty times slower: a sample is enough */
#define SEEDS 40
#else
#define SEEDS 400
#endif

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

static void assert_ranks(struct refit_group group, uint32_t count, const uint32_t *ranks)
{
    assert_int_equal(group.count, count);
    assert_memory_equal(group.ranks, ranks, count * sizeof(*ranks));
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

#define SWAPPED \
    "{\"format\":\"refit-layout/1\",\"ranks\":2,\"meshes\":{\"m\":{\"axes\":[\"x\"],\"shape\":[2],\"ranks\":[1,0]}},\"entries\":[" \
    WEIGHT("w", "[16,6]", S0) "]}"

/* The same shards on the ranks the other way round: other edges first, but the same ones. */
static void order_of_ranks_does_not_make_a_class(void **state)
{
    struct refit_layout *source = parse(MESH2(2, "x", 1, "tp", 2) WEIGHT("w", "[16,6]", R "," S1) "]}");
    struct refit_layout *straight = parse(MESH2(2, "x", 1, "tp", 2) WEIGHT("w", "[16,6]", R "," S0) "]}");
    struct refit_layout *swapped = parse(SWAPPED);
    struct refit_plan *one = plan_of(source, straight, 0, 0);
    struct refit_plan *other = plan_of(source, swapped, 0, 0);
    for (size_t i = 0; i < 4; i++) { /* by destination rank, then by source rank */
        assert_ranks(takers_of(one, edge_at(one, i, 4)), 1, (uint32_t[]){(uint32_t)i / 2});
        assert_ranks(senders_of(one, edge_at(one, i, 4)), 1, (uint32_t[]){(uint32_t)i % 2});
        assert_int_equal(edge_at(one, i, 4)->digest, edge_at(other, (i + 2) % 4, 4)->digest);
    }
    assert_int_equal(refit_plan_class(one), refit_plan_class(other));
    refit_plan_release(one);
    refit_plan_release(other);
    one = plan_of(swapped, source, 0, 0); /* the rows of rank 1 come first */
    for (size_t i = 0; i < 4; i++) {
        assert_ranks(senders_of(one, edge_at(one, i, 4)), 1, (uint32_t[]){(uint32_t)i % 2});
    }
    refit_plan_release(one);
    refit_layout_release(source);
    refit_layout_release(straight);
    refit_layout_release(swapped);
}

/* Names, types and shapes are in the digest: equal boxes of other tensors are other edges. */
#define PART(shape) \
    "{\"format\":\"refit-layout/1\",\"ranks\":1,\"excused\":[\"w\"],\"entries\":[{\"rank\":0,\"buffer\":\"b\",\"bytes\":16," \
    "\"dtype\":\"F32\",\"regions\":[{\"tensor\":\"w\",\"shape\":[" shape "],\"start\":[0],\"extent\":[4],\"offset\":0}]}]}"

static void other_tensors_are_other_edges(void **state)
{
    static const char *const texts[] = {
        PART("4"),
        PART("8"), /* the same box */
        MESH2(1, "x", 1, "y", 1) WEIGHT("w", "[4,6]", R "," R) "]}",
        MESH2(1, "x", 1, "y", 1) WEIGHT("v", "[4,6]", R "," R) "]}",
        MESH2(1, "x", 1, "y", 1) WEIGHT("w", "[6,4]", R "," R) "]}",
        MESH2(1, "x", 1, "y", 1) "{\"tensor\":\"w\",\"dtype\":\"I32\",\"shape\":[4,6],\"mesh\":\"m\"}]}",
    };
    uint64_t digests[6];
    for (size_t i = 0; i < 6; i++) {
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(receivers_of_the_same_shards_share_all_edges),
        cmocka_unit_test(equal_digests_mean_equal_streams),
        cmocka_unit_test(replicas_of_the_trainer_are_one_group),
        cmocka_unit_test(replicated_destinations_get_each_byte_once),
        cmocka_unit_test(pods_of_a_replica_share_what_is_replicated),
        cmocka_unit_test(receivers_that_count_other_tensors_share_edges),
        cmocka_unit_test(order_of_ranks_does_not_make_a_class),
        cmocka_unit_test(other_tensors_are_other_edges),
        cmocka_unit_test(partial_overlaps_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
