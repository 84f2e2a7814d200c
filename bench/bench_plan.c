/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner's speed and memory: FSDP16 to TP8 of 288 tensors (the 9 of a Llama-3-8B layer, 32 times) for all ranks
 * together, as families and as 288 entries; then mixture-of-experts models of up to 70,000 tensors. Parsing the
 * documents and walking the edge streams are timed apart.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/buf.h"
#include "base/clock.h"
#include "layouts/plan.h"

#define ROUNDS 31
#define LARGE_ROUNDS 3

/* ---- documents ---- */

struct weight {
    const char *name;
    const char *dtype;
    const char *shape;
    const char *source; /* placements */
    const char *destination;
};

#define LAYER(name) "model.layers.{l}." name ".weight"
static const struct weight llama[] = {
    {LAYER("self_attn.q_proj"), "BF16", "[4096,4096]", "[\"Shard(0)\"]", "[\"Shard(0)\"]"},
    {LAYER("self_attn.k_proj"), "BF16", "[1024,4096]", "[\"Shard(0)\"]", "[\"Shard(0)\"]"},
    {LAYER("self_attn.v_proj"), "BF16", "[1024,4096]", "[\"Shard(0)\"]", "[\"Shard(0)\"]"},
    {LAYER("self_attn.o_proj"), "BF16", "[4096,4096]", "[\"Shard(0)\"]", "[\"Shard(1)\"]"},
    {LAYER("mlp.gate_proj"), "BF16", "[14336,4096]", "[\"Shard(0)\"]", "[\"Shard(0)\"]"},
    {LAYER("mlp.up_proj"), "BF16", "[14336,4096]", "[\"Shard(0)\"]", "[\"Shard(0)\"]"},
    {LAYER("mlp.down_proj"), "BF16", "[4096,14336]", "[\"Shard(0)\"]", "[\"Shard(1)\"]"},
    {LAYER("input_layernorm"), "BF16", "[4096]", "[\"Shard(0)\"]", "[\"Replicate\"]"},
    {LAYER("post_attention_layernorm"), "BF16", "[4096]", "[\"Shard(0)\"]", "[\"Replicate\"]"},
};

static void check(enum refit_status status, const struct refit_error *err)
{
    if (status != REFIT_OK) {
        (void)fprintf(stderr, "bench_plan: %s\n", err->text);
        exit(1);
    }
}

static struct refit_layout *parse(struct refit_buf *text, const char *what, double *ms)
{
    struct refit_layout *layout = NULL;
    struct refit_error err = {.text = "the document is too large"};
    const int64_t begin = refit_clock_ns();
    check(text->failed ? REFIT_NO_MEMORY : refit_layout_parse(text->data, text->len, what, &layout, &err), &err);
    *ms += (double)(refit_clock_ns() - begin) / 1e6;
    refit_buf_release(text);
    return layout;
}

/* {l} of a name replaced by a number, for documents without families. */
static void write_name(struct refit_buf *text, const char *name, int layer)
{
    const char *mark = strstr(name, "{l}");
    if (layer < 0 || !mark) {
        refit_buf_printf(text, "%s", name);
    } else {
        refit_buf_printf(text, "%.*s%d%s", (int)(mark - name), name, layer, mark + 3);
    }
}

static void write_weight(struct refit_buf *text, const struct weight *w, bool source, int layer)
{
    refit_buf_printf(text, "{\"tensor\":\"");
    write_name(text, w->name, layer);
    refit_buf_printf(text, "\",\"dtype\":\"%s\",\"shape\":%s,\"mesh\":\"m\",\"placements\":%s", w->dtype, w->shape,
                     source ? w->source : w->destination);
    refit_buf_printf(text, "%s}", layer < 0 ? ",\"for\":{\"l\":[0,32]}" : "");
}

static struct refit_layout *llama_layout(bool source, bool families, double *ms)
{
    struct refit_buf text;
    const int ranks = source ? 16 : 8;
    const char *comma = "";
    refit_buf_init(&text, REFIT_LAYOUT_TEXT_MAX);
    refit_buf_printf(&text, "{\"format\":\"refit-layout/1\",\"ranks\":%d,\"meshes\":{\"m\":{\"axes\":[\"x\"],"
                     "\"shape\":[%d]}},\"entries\":[", ranks, ranks);
    for (int layer = families ? -1 : 0; layer < (families ? 0 : 32); layer++) {
        for (size_t i = 0; i < sizeof(llama) / sizeof(llama[0]); i++, comma = ",") {
            refit_buf_printf(&text, "%s", comma);
            write_weight(&text, &llama[i], source, layer);
        }
    }
    refit_buf_printf(&text, "]}");
    return parse(&text, source ? "FSDP16" : "TP8", ms);
}

/* A mixture-of-experts model: what the planner sees of DeepSeek-V3, Kimi-K2 and the like. */
struct moe {
    const char *name;
    int layers, dense, experts, hidden, expert_width;
    int pp, ep;     /* the source: stages x experts; experts whole */
    int tp;         /* the destination: experts cut along their width */
    const char *dtype;
};

static void write_expert(struct refit_buf *text, const struct moe *m, const char *part, bool source, int rows,
                         int columns, int cut)
{
    refit_buf_printf(text, ",{\"tensor\":\"model.layers.{l}.mlp.experts.{e}.%s.weight\",\"dtype\":\"%s\","
                     "\"shape\":[%d,%d],\"mesh\":\"m\",\"placements\":", part, m->dtype, rows, columns);
    if (source) {
        refit_buf_printf(text, "[\"Replicate\",\"Replicate\"],\"for\":{\"l\":{\"range\":[%d,%d],\"axis\":\"pp\"},"
                         "\"e\":{\"range\":[0,%d],\"axis\":\"ep\"}}}", m->dense, m->layers, m->experts);
    } else {
        refit_buf_printf(text, "[\"Shard(%d)\"],\"buffer\":\"layers.{l}.%s\",\"for\":{\"l\":[%d,%d],\"e\":[0,%d]}}",
                         cut, part, m->dense, m->layers, m->experts);
    }
}

static void write_shared(struct refit_buf *text, const struct moe *m, const char *part, bool source, const char *shape,
                         const char *placement)
{
    refit_buf_printf(text, "%s{\"tensor\":\"model.layers.{l}.%s.weight\",\"dtype\":\"%s\",\"shape\":%s,\"mesh\":\"m\","
                     "\"placements\":", text->data[text->len - 1] == '[' ? "" : ",", part, m->dtype, shape);
    if (source) {
        refit_buf_printf(text, "[\"Replicate\",\"Replicate\"],\"for\":{\"l\":{\"range\":[0,%d],\"axis\":\"pp\"}}}",
                         m->layers);
    } else {
        refit_buf_printf(text, "[\"%s\"],\"for\":{\"l\":[0,%d]}}", placement, m->layers);
    }
}

static struct refit_layout *moe_layout(const struct moe *m, bool source, double *ms)
{
    struct refit_buf text;
    char square[64];
    char norm[64];
    refit_buf_init(&text, REFIT_LAYOUT_TEXT_MAX);
    (void)snprintf(square, sizeof(square), "[%d,%d]", m->hidden, m->hidden);
    (void)snprintf(norm, sizeof(norm), "[%d]", m->hidden);
    if (source) {
        refit_buf_printf(&text, "{\"format\":\"refit-layout/1\",\"ranks\":%d,\"meshes\":{\"m\":{"
                         "\"axes\":[\"pp\",\"ep\"],\"shape\":[%d,%d]}},\"entries\":[", m->pp * m->ep, m->pp, m->ep);
    } else {
        refit_buf_printf(&text, "{\"format\":\"refit-layout/1\",\"ranks\":%d,\"meshes\":{\"m\":{\"axes\":[\"tp\"],"
                         "\"shape\":[%d]}},\"entries\":[", m->tp, m->tp);
    }
    write_shared(&text, m, "input_layernorm", source, norm, "Replicate");
    write_shared(&text, m, "post_attention_layernorm", source, norm, "Replicate");
    write_shared(&text, m, "self_attn.q_proj", source, square, "Shard(0)");
    write_shared(&text, m, "self_attn.o_proj", source, square, "Shard(1)");
    write_expert(&text, m, "gate_proj", source, m->expert_width, m->hidden, 0);
    write_expert(&text, m, "up_proj", source, m->expert_width, m->hidden, 0);
    write_expert(&text, m, "down_proj", source, m->hidden, m->expert_width, 1);
    refit_buf_printf(&text, "]}");
    return parse(&text, m->name, ms);
}

/* ---- measurements ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static long peak_kib(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static void measure(struct refit_layout *source, struct refit_layout *destination, struct refit_plan_scope scope,
                    int rounds, const char *what)
{
    double ms[ROUNDS];
    struct refit_plan *plan = NULL;
    struct refit_error err;
    const long before = peak_kib();
    for (int i = 0; i < rounds; i++) {
        refit_plan_release(plan);
        const int64_t begin = refit_clock_ns();
        check(refit_plan_build(source, destination, scope, &plan, &err), &err);
        ms[i] = (double)(refit_clock_ns() - begin) / 1e6;
    }
    qsort(ms, (size_t)rounds, sizeof(ms[0]), by_value);
    size_t count;
    uint64_t ops = 0;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    for (size_t i = 0; i < count; i++) {
        ops += edges[i].ops;
    }
    printf("  %-32s %8.3f ms (%.3f to %.3f, n=%d)  %8llu ops %6zu edges %9.3f GB  plan %7.2f MiB (%.1f bytes/op)  "
           "peak +%ld KiB\n", what, ms[rounds / 2], ms[0], ms[rounds - 1], rounds, (unsigned long long)ops, count,
           (double)refit_plan_bytes(plan) / 1e9, (double)refit_plan_memory(plan) / 1048576.0,
           ops ? (double)refit_plan_memory(plan) / (double)ops : 0.0, peak_kib() - before);
    refit_plan_release(plan);
}

static const struct refit_plan_scope sources = {.side = REFIT_SOURCE, .rank = REFIT_ALL_RANKS};
static const struct refit_plan_scope destinations = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS};
static const struct refit_plan_scope totals = {.side = REFIT_SOURCE, .rank = REFIT_ALL_RANKS, .totals_only = true};

static uint64_t walk_all(const struct refit_plan *plan)
{
    size_t count;
    uint64_t strips = 0;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    for (size_t i = 0; i < count; i++) {
        const uint32_t rank = refit_plan_group(plan, REFIT_SOURCE, edges[i].source_group).ranks[0];
        for (uint32_t number = 0; number < edges[i].batches; number++) {
            struct refit_walk walk = refit_walk_batch(plan, &edges[i], number, rank);
            struct refit_strip strip;
            while (refit_walk_next(&walk, UINT64_MAX, &strip)) {
                strips++;
            }
        }
    }
    return strips;
}

static void measure_walk(struct refit_layout *source, struct refit_layout *destination)
{
    struct refit_plan *plan = NULL;
    struct refit_error err;
    double ns[ROUNDS];
    uint64_t strips = 0;
    check(refit_plan_build(source, destination, sources, &plan, &err), &err);
    for (int i = 0; i < ROUNDS; i++) {
        const int64_t begin = refit_clock_ns();
        strips = walk_all(plan);
        ns[i] = (double)(refit_clock_ns() - begin);
    }
    qsort(ns, ROUNDS, sizeof(ns[0]), by_value);
    printf("  %-32s %8.3f ms, %llu strips, %.1f ns each\n", "walking all edge streams", ns[ROUNDS / 2] / 1e6,
           (unsigned long long)strips, ns[ROUNDS / 2] / (double)strips);
    refit_plan_release(plan);
}

static void bench_llama(bool families)
{
    const struct refit_plan_scope one = {.side = REFIT_SOURCE, .rank = 3};
    double ms = 0;
    struct refit_layout *source = llama_layout(true, families, &ms);
    struct refit_layout *destination = llama_layout(false, families, &ms);
    printf("FSDP16 to TP8, 288 tensors, %s (both layouts parsed in %.2f ms)\n",
           families ? "9 families" : "288 entries without families", ms);
    measure(source, destination, sources, ROUNDS, "all source ranks");
    measure(source, destination, destinations, ROUNDS, "all destination ranks");
    measure(source, destination, one, ROUNDS, "source rank 3");
    measure(source, destination, totals, ROUNDS, "totals");
    measure_walk(source, destination);
    refit_layout_release(source);
    refit_layout_release(destination);
}

/* A refit in which only one tensor of 64 has changed. */
static void measure_some(struct refit_layout *source, struct refit_layout *destination)
{
    const uint32_t count = refit_layout_tensor_count(destination);
    struct refit_plan_scope some = destinations;
    uint8_t *wanted = calloc(count, 1);
    if (!wanted) {
        return;
    }
    for (uint32_t id = 0; id < count; id += 64) {
        wanted[id] = 1;
    }
    some.wanted = wanted;
    measure(source, destination, some, LARGE_ROUNDS, "the same, one tensor of 64");
    free(wanted);
}

static void bench_moe(const struct moe *m)
{
    const struct refit_plan_scope from = {.side = REFIT_SOURCE, .rank = 1};
    const struct refit_plan_scope to = {
        .side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS, .first_rank = 5, .rank_count = 1};
    double ms = 0;
    struct refit_layout *source = moe_layout(m, true, &ms);
    struct refit_layout *destination = moe_layout(m, false, &ms);
    printf("%s, PP%d x EP%d to TP%d, %u tensors (both layouts parsed in %.2f ms)\n", m->name, m->pp, m->ep, m->tp,
           refit_layout_tensor_count(destination), ms);
    measure(source, destination, from, LARGE_ROUNDS, "source rank 1");
    measure(source, destination, to, LARGE_ROUNDS, "destination rank 5");
    measure(source, destination, totals, LARGE_ROUNDS, "totals");
    measure(source, destination, destinations, LARGE_ROUNDS, "all destination ranks");
    measure_some(source, destination);
    refit_layout_release(source);
    refit_layout_release(destination);
}

int main(void)
{
    static const struct moe models[] = {
        {"Qwen3-30B-A3B", 48, 0, 128, 2048, 768, 2, 8, 8, "BF16"},
        {"Qwen3-235B-A22B", 94, 0, 128, 4096, 1536, 8, 16, 8, "BF16"},
        {"DeepSeek-V3", 61, 3, 256, 7168, 2048, 16, 16, 32, "BF16"},
        {"Kimi-K2", 61, 1, 384, 7168, 2048, 8, 32, 32, "F8_E4M3"},
    };
    bench_llama(true);
    bench_llama(false);
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        bench_moe(&models[i]);
    }
    return 0;
}
