/* SPDX-License-Identifier: Apache-2.0
 *
 * Layout pairs from published refit measurements, at their real sizes: the bytes of the plan are those that
 * the destination's regions hold, each of them once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "layouts/plan.h"

/* A mesh of up to three axes; unused ones have size 1. */
struct mesh {
    uint32_t size[3];
    const char *axis[3];
};

struct weight {
    const char *name;
    const char *dtype;
    const char *shape;
    const char *source_for; /* members of "for"; NULL: none */
    const char *source;     /* placements */
    const char *destination_for;
    const char *destination;
};

struct pair {
    const char *name;
    struct mesh source, destination;
    const struct weight *weights;
    size_t count;
    uint64_t model_bytes;
};

static struct refit_layout *layout_of(const struct pair *pair, bool source)
{
    const struct mesh *m = source ? &pair->source : &pair->destination;
    struct refit_layout *layout = NULL;
    struct refit_error err = {.text = "out of memory"};
    struct refit_buf text;
    refit_buf_init(&text, 1 << 20);
    refit_buf_printf(&text, "{\"format\":\"refit-layout/1\",\"ranks\":%u,\"meshes\":{\"m\":{",
                     m->size[0] * m->size[1] * m->size[2]);
    refit_buf_printf(&text, "\"axes\":[\"%s\",\"%s\",\"%s\"],\"shape\":[%u,%u,%u]}},\"entries\":[", m->axis[0],
                     m->axis[1], m->axis[2], m->size[0], m->size[1], m->size[2]);
    for (size_t i = 0; i < pair->count; i++) {
        const struct weight *w = &pair->weights[i];
        const char *family = source ? w->source_for : w->destination_for;
        refit_buf_printf(&text, "%s{\"tensor\":\"%s\",\"dtype\":\"%s\",\"shape\":%s,\"mesh\":\"m\",\"placements\":[%s]",
                         i ? "," : "", w->name, w->dtype, w->shape, source ? w->source : w->destination);
        refit_buf_printf(&text, "%s%s%s}", family ? ",\"for\":{" : "", family ? family : "", family ? "}" : "");
    }
    refit_buf_printf(&text, "]}");
    if (refit_layout_parse(text.data, text.len, pair->name, &layout, &err) != REFIT_OK) {
        print_error("%s: %s\n", pair->name, err.text);
    }
    refit_buf_release(&text);
    assert_non_null(layout);
    return layout;
}

struct sum {
    uint64_t bytes;
    uint32_t unit_bytes;
};

static bool add_region(void *ctx, const struct refit_region *region)
{
    struct sum *sum = ctx;
    sum->bytes += refit_box_volume(&region->box) * sum->unit_bytes;
    return true;
}

static uint64_t bytes_held(const struct refit_layout *layout, uint32_t rank)
{
    struct sum sum = {.bytes = 0};
    for (uint32_t id = 0; id < refit_layout_tensor_count(layout); id++) {
        struct refit_tensor tensor;
        refit_layout_tensor(layout, id, &tensor);
        sum.unit_bytes = tensor.unit_bytes;
        refit_layout_regions(layout, id, rank, add_region, &sum);
    }
    return sum.bytes;
}

static struct refit_plan *build(struct refit_layout *source, struct refit_layout *destination,
                                struct refit_plan_scope scope)
{
    struct refit_plan *plan = NULL;
    struct refit_error err = {.text = ""};
    if (refit_plan_build(source, destination, scope, &plan, &err) != REFIT_OK) {
        print_error("%s\n", err.text);
        fail();
    }
    return plan;
}

/* Each unit that some rank holds, once: the sum of all plans' bytes, which have each unit once themselves. */
static void check_whole(struct refit_layout *source, struct refit_layout *destination, uint64_t model_bytes)
{
    struct refit_plan *whole = build(source, destination, (struct refit_plan_scope){.side = REFIT_SOURCE,
                                                                                    .rank = REFIT_ALL_RANKS,
                                                                                    .totals_only = true});
    assert_int_equal(refit_plan_bytes(whole), model_bytes);
    assert_int_equal(refit_plan_written_bytes(whole), bytes_held(destination, REFIT_ALL_RANKS));
    refit_plan_release(whole);
}

/* All source ranks and all destination ranks as one receiver: the same edges on both sides. */
static void check_both_sides(struct refit_layout *source, struct refit_layout *destination)
{
    struct refit_plan *from = build(source, destination, (struct refit_plan_scope){.side = REFIT_SOURCE,
                                                                                   .rank = REFIT_ALL_RANKS});
    struct refit_plan *to = build(source, destination, (struct refit_plan_scope){.side = REFIT_DESTINATION,
                                                                                 .rank = REFIT_ALL_RANKS});
    size_t count;
    size_t to_count;
    const struct refit_edge *edges = refit_plan_edges(from, &count);
    const struct refit_edge *to_edges = refit_plan_edges(to, &to_count);
    assert_int_equal(count, to_count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(edges[i].digest, to_edges[i].digest);
        assert_int_equal(edges[i].batches, to_edges[i].batches);
    }
    assert_int_equal(refit_plan_class(from), refit_plan_class(to));
    refit_plan_release(from);
    refit_plan_release(to);
}

/* A source rank and a receiver of one rank find the edges between them in their own plans, and alike. */
static void check_two_ranks(struct refit_layout *source, struct refit_layout *destination, uint32_t source_rank,
                            uint32_t destination_rank)
{
    struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = source_rank, .first_rank = destination_rank,
                                     .rank_count = 1};
    struct refit_plan *from = build(source, destination, scope);
    scope.side = REFIT_DESTINATION;
    scope.rank = REFIT_ALL_RANKS;
    struct refit_plan *to = build(source, destination, scope);
    size_t count;
    size_t found = 0;
    const struct refit_edge *edges = refit_plan_edges(to, &count);
    for (size_t i = 0; i < count; i++) {
        const struct refit_edge *edge = refit_plan_edge(from, edges[i].digest);
        const bool sends = refit_group_has(refit_plan_group(to, REFIT_SOURCE, edges[i].source_group), source_rank);
        assert_int_equal(edge != NULL, sends);
        if (edge) {
            assert_int_equal(edge->bytes, edges[i].bytes);
            found++;
        }
    }
    (void)refit_plan_edges(from, &count);
    assert_int_equal(found, count);
    assert_int_equal(refit_plan_bytes(to), bytes_held(destination, destination_rank));
    assert_true(refit_plan_memory(from) < (size_t)8 << 20);
    assert_true(refit_plan_memory(to) < (size_t)8 << 20);
    refit_plan_release(from);
    refit_plan_release(to);
}

#define EDGES_BOTH 100u
#define EDGES_MAX 30000u /* more of them are planned for two ranks only, to keep the test short */

static void check_pair(const struct pair *pair)
{
    struct refit_layout *source = layout_of(pair, true);
    struct refit_layout *destination = layout_of(pair, false);
    assert_int_equal(refit_layout_model_bytes(source), pair->model_bytes);
    assert_int_equal(refit_layout_model_bytes(destination), pair->model_bytes);
    if (refit_layout_ranks(source) * refit_layout_ranks(destination) < EDGES_MAX) {
        check_whole(source, destination, pair->model_bytes);
    }
    if (refit_layout_ranks(source) * refit_layout_ranks(destination) < EDGES_BOTH) {
        check_both_sides(source, destination);
    }
    check_two_ranks(source, destination, refit_layout_ranks(source) - 1, refit_layout_ranks(destination) / 2);
    refit_layout_release(source);
    refit_layout_release(destination);
}

#define R "\"Replicate\""
#define S0 "\"Shard(0)\""
#define S1 "\"Shard(1)\""
#define CHECK(title, source_mesh, destination_mesh, bytes, ...) \
    do { \
        static const struct weight weights[] = {__VA_ARGS__}; \
        const struct pair pair = {.name = title, .source = source_mesh, .destination = destination_mesh, \
                                  .weights = weights, .count = sizeof(weights) / sizeof(weights[0]), \
                                  .model_bytes = bytes}; \
        check_pair(&pair); \
    } while (0)
#define MESH(a, n, b, m, c, k) ((struct mesh){.size = {n, m, k}, .axis = {a, b, c}})

#define L(lo, hi) "\"l\":[" #lo "," #hi "]"
#define L_PP(lo, hi) "\"l\":{\"range\":[" #lo "," #hi "],\"axis\":\"pp\"}"
#define E(n) "\"e\":[0," #n "]"
#define E_EP(n) "\"e\":{\"range\":[0," #n "],\"axis\":\"ep\"}"

static void small_matrices(void **state)
{
    CHECK("8x8, 2 row shards to 4 column shards", MESH("tp", 2, "b", 1, "c", 1), MESH("tp", 4, "b", 1, "c", 1),
          8 * 8 * 4,
          {"w", "F32", "[8,8]", NULL, S0 "," R "," R, NULL, S1 "," R "," R});
    CHECK("TP4 to DP4", MESH("tp", 4, "b", 1, "c", 1), MESH("dp", 4, "b", 1, "c", 1), 64 * 48 * 2,
          {"w", "BF16", "[64,48]", NULL, S0 "," R "," R, NULL, R "," R "," R});
    CHECK("TP4 to TP2 x DP2", MESH("tp", 4, "b", 1, "c", 1), MESH("dp", 2, "tp", 2, "c", 1), 64 * 48 * 2,
          {"w", "BF16", "[64,48]", NULL, S1 "," R "," R, NULL, R "," S0 "," R});
    CHECK("FSDP8 to TP4 x DP2", MESH("fsdp", 8, "b", 1, "c", 1), MESH("dp", 2, "tp", 4, "c", 1), 64 * 48 * 2 + 48 * 2,
          {"w", "BF16", "[64,48]", NULL, S0 "," R "," R, NULL, R "," S1 "," R},
          {"n", "BF16", "[48]", NULL, S0 "," R "," R, NULL, R "," R "," R});
    CHECK("HSDP 2 x 4 to TP2 x DP4", MESH("dp", 2, "fsdp", 4, "c", 1), MESH("dp", 4, "tp", 2, "c", 1), 64 * 48 * 2,
          {"w", "BF16", "[64,48]", NULL, R "," S0 "," R, NULL, R "," S1 "," R});
    CHECK("FSDP2 inside TP2 in 2 replicas to TP4", MESH("dp", 2, "fsdp", 2, "tp", 2), MESH("tp", 4, "b", 1, "c", 1),
          64 * 48 * 2,
          {"w", "BF16", "[64,48]", NULL, R ",\"_StridedShard(0, split_factor=2)\"," S0, NULL, S1 "," R "," R});
}

static void dense_models(void **state)
{
    CHECK("Qwen3-4B, DP8 to TP8", MESH("dp", 8, "b", 1, "c", 1), MESH("tp", 8, "b", 1, "c", 1),
          (uint64_t)2 * (151936 * 2560 + 36 * (2 * 2560 + (uint64_t)2 * 4096 * 2560 + 3 * (uint64_t)9728 * 2560)),
          {"embed", "BF16", "[151936,2560]", NULL, R "," R "," R, NULL, S0 "," R "," R},
          {"l.{l}.norm1", "BF16", "[2560]", L(0, 36), R "," R "," R, L(0, 36), R "," R "," R},
          {"l.{l}.norm2", "BF16", "[2560]", L(0, 36), R "," R "," R, L(0, 36), R "," R "," R},
          {"l.{l}.q", "BF16", "[4096,2560]", L(0, 36), R "," R "," R, L(0, 36), S0 "," R "," R},
          {"l.{l}.o", "BF16", "[2560,4096]", L(0, 36), R "," R "," R, L(0, 36), S1 "," R "," R},
          {"l.{l}.gate", "BF16", "[9728,2560]", L(0, 36), R "," R "," R, L(0, 36), S0 "," R "," R},
          {"l.{l}.up", "BF16", "[9728,2560]", L(0, 36), R "," R "," R, L(0, 36), S0 "," R "," R},
          {"l.{l}.down", "BF16", "[2560,9728]", L(0, 36), R "," R "," R, L(0, 36), S1 "," R "," R});
    CHECK("FSDP4 x TP2 to TP3, uneven", MESH("fsdp", 4, "tp", 2, "c", 1), MESH("tp", 3, "b", 1, "c", 1),
          (uint64_t)4 * 8 * (9 * 10 + 10 * 7),
          {"l.{l}.a", "F32", "[9,10]", L(0, 8), "\"_StridedShard(0, split_factor=2)\"," S0 "," R, L(0, 8),
           S1 "," R "," R},
          {"l.{l}.b", "F32", "[10,7]", L(0, 8), S0 "," S1 "," R, L(0, 8), S0 "," R "," R});
}

static void expert_models(void **state)
{
    CHECK("Qwen3-30B-A3B, EP8 x PP2 to TP8 x DP2", MESH("pp", 2, "ep", 8, "c", 1), MESH("dp", 2, "tp", 8, "c", 1),
          (uint64_t)2 * 48 * (2048 + 2 * (uint64_t)4096 * 2048 + 128 * 2 * (uint64_t)768 * 2048),
          {"l.{l}.norm", "BF16", "[2048]", L_PP(0, 48), R "," R "," R, L(0, 48), R "," R "," R},
          {"l.{l}.q", "BF16", "[4096,2048]", L_PP(0, 48), R "," R "," R, L(0, 48), R "," S0 "," R},
          {"l.{l}.o", "BF16", "[2048,4096]", L_PP(0, 48), R "," R "," R, L(0, 48), R "," S1 "," R},
          {"l.{l}.e.{e}.gate", "BF16", "[768,2048]", L_PP(0, 48) "," E_EP(128), R "," R "," R, L(0, 48) "," E(128),
           R "," S0 "," R},
          {"l.{l}.e.{e}.down", "BF16", "[2048,768]", L_PP(0, 48) "," E_EP(128), R "," R "," R, L(0, 48) "," E(128),
           R "," S1 "," R});
    CHECK("Qwen3-235B, TP4 x PP8 x EP16 to TP8 x DP16", MESH("pp", 8, "ep", 16, "tp", 4),
          MESH("dp", 16, "tp", 8, "c", 1),
          (uint64_t)2 * 94 * ((uint64_t)8192 * 4096 + 128 * (uint64_t)1536 * 4096),
          {"l.{l}.q", "BF16", "[8192,4096]", L_PP(0, 94), R "," R "," S0, L(0, 94), R "," S0 "," R},
          {"l.{l}.e.{e}.down", "BF16", "[4096,1536]", L_PP(0, 94) "," E_EP(128), R "," R "," R, L(0, 94) "," E(128),
           R "," S1 "," R});
    CHECK("Nemotron Ultra, TP8 x EP32 x PP2 to TP8 x DP8", MESH("pp", 2, "ep", 32, "tp", 8),
          MESH("dp", 8, "tp", 8, "c", 1),
          (uint64_t)2 * 100 * ((uint64_t)8192 * 8192 + 64 * (uint64_t)2048 * 8192),
          {"l.{l}.q", "BF16", "[8192,8192]", L_PP(0, 100), R "," R "," S0, L(0, 100), R "," S0 "," R},
          {"l.{l}.e.{e}.up", "BF16", "[2048,8192]", L_PP(0, 100) "," E_EP(64), R "," R "," S0, L(0, 100) "," E(64),
           R "," S0 "," R});
}

static void largest_models(void **state)
{
#ifdef __SANITIZE_THREAD__
    print_message("one thread only, and a minute long under ThreadSanitizer: left to the other builds\n");
    skip();
#endif
    CHECK("DeepSeek-V3, PP16 x EP16 to TP32 x DP8", MESH("pp", 16, "ep", 16, "c", 1), MESH("dp", 8, "tp", 32, "c", 1),
          (uint64_t)2 * 58 * (7168 + 256 * (uint64_t)2048 * 7168),
          {"l.{l}.norm", "BF16", "[7168]", L_PP(3, 61), R "," R "," R, L(3, 61), R "," R "," R},
          {"l.{l}.e.{e}.down", "BF16", "[7168,2048]", L_PP(3, 61) "," E_EP(256), R "," R "," R, L(3, 61) "," E(256),
           R "," S1 "," R});
    CHECK("Kimi-K2, 256 ranks to 128", MESH("pp", 8, "ep", 32, "c", 1), MESH("ep", 16, "tp", 8, "c", 1),
          (uint64_t)60 * 384 * 2048 * 7168,
          {"l.{l}.e.{e}.gate", "F8_E4M3", "[2048,7168]", L_PP(1, 61) "," E_EP(384), R "," R "," R,
           L(1, 61) "," E_EP(384), R "," S0 "," R});
    CHECK("2,048 ranks to 2,048 ranks", MESH("pp", 16, "ep", 128, "c", 1), MESH("dp", 64, "tp", 32, "c", 1),
          (uint64_t)2 * 16 * (8192 + 128 * (uint64_t)4096 * 8192),
          {"l.{l}.norm", "BF16", "[8192]", L_PP(0, 16), R "," R "," R, L(0, 16), R "," R "," R},
          {"l.{l}.e.{e}.up", "BF16", "[4096,8192]", L_PP(0, 16) "," E_EP(128), R "," R "," R, L(0, 16) "," E(128),
           R "," S0 "," R});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_matrices),
        cmocka_unit_test(dense_models),
        cmocka_unit_test(expert_models),
        cmocka_unit_test(largest_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
