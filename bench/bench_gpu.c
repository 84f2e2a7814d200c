/* SPDX-License-Identifier: Apache-2.0
 *
 * What one GPU does for a refit, against what it can do: pack, scatter and digest on a stream against a copy within the
 * device, storing and loading against plain copies over the bus, a refit of what is dense from slot to slot (to the next
 * device, where that reads this one's) against a plain copy there, and an exchange of slots. Medians of rounds that take
 * turns. Before that every byte that was packed and scattered is digested again and compared, or the figures would mean
 * nothing.
 *
 *   bench_gpu [--mib N] [--rounds N] [--device N]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "layouts/layout.h"
#include "memory/cuda_driver.h"
#include "memory/cuda_stream.h"
#include "memory/exchange.h"

#define COLUMNS 4096 /* of bf16, cut into two halves: rows of 4 KiB */
#define ROUNDS_MAX 101
#define PATIENCE_MS 60000
#define SKIPPED 77
#define EXCHANGE_MS 30.0 /* for 16 GB */

struct bench {
    int device, rounds;
    uint64_t bytes; /* of one half of the columns */
    struct refit_layout *whole, *halves;
    struct refit_plan *from, *to;
    const struct refit_edge *edge_from, *edge_to;
    struct refit_arena *source, *destination;
    struct refit_arena *far; /* as the destination; on the next device, where that reads this one's */
    struct refit_cuda_stream *far_stream;
    struct refit_cuda_stream *stream;
    struct refit_cuda_buffer *staging, *other;
    void *pinned;
    const struct refit_cuda_driver *driver;
    struct refit_completion *completions;
    struct refit_segments *segments; /* of each batch */
};

typedef void work_fn(struct bench *b);

static void must(enum refit_status status, const struct refit_error *err)
{
    if (status == REFIT_OK)
        return;
    fprintf(stderr, "bench_gpu: %s\n", err->text);
    exit(1);
}

static struct refit_layout *layout(unsigned ranks, const char *placement, uint64_t rows)
{
    char text[512];
    struct refit_error err;
    struct refit_layout *out;
    int n = snprintf(text, sizeof text,
                     "{\"format\":\"refit-layout/1\",\"ranks\":%u,\"meshes\":{\"m\":{\"axes\":[\"t\"],\"shape\":[%u]}},"
                     "\"entries\":[{\"tensor\":\"weight\",\"dtype\":\"BF16\",\"shape\":[%llu,%d],\"mesh\":\"m\","
                     "\"placements\":[\"%s\"]}]}",
                     ranks, ranks, (unsigned long long)rows, COLUMNS, placement);
    must(refit_layout_parse(text, (size_t)n, "bench layout", &out, &err), &err);
    return out;
}

/* Rank 0 of the halves takes its columns from the one rank of the whole: strided there, dense here. */
static void plan(struct bench *b, uint64_t rows)
{
    struct refit_error err;
    size_t count;
    struct refit_plan_scope source = {.side = REFIT_SOURCE, .rank = 0, .rank_count = 1};
    struct refit_plan_scope destination = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS, .rank_count = 1};
    b->whole = layout(1, "Replicate", rows);
    b->halves = layout(2, "Shard(1)", rows);
    must(refit_plan_build(b->whole, b->halves, source, &b->from, &err), &err);
    must(refit_plan_build(b->whole, b->halves, destination, &b->to, &err), &err);
    b->edge_to = refit_plan_edges(b->to, &count);
    b->edge_from = refit_plan_edge(b->from, b->edge_to->digest);
    b->bytes = refit_plan_bytes(b->to);
}

static void allocate(struct bench *b)
{
    struct refit_error err;
    uint32_t batches = b->edge_to->batches;
    must(refit_cuda_slot_create(b->device, refit_layout_arena_bytes(b->whole, 0), &b->source, &err), &err);
    must(refit_cuda_slot_create(b->device, refit_layout_arena_bytes(b->halves, 0), &b->destination, &err), &err);
    must(refit_cuda_stream_create(b->device, REFIT_CUDA_PRIORITY_DEFAULT, &b->stream, &err), &err);
    int far = refit_cuda_peers(b->device + 1, b->device, &err) == REFIT_OK ? b->device + 1 : b->device;
    must(refit_cuda_slot_create(far, refit_layout_arena_bytes(b->halves, 0), &b->far, &err), &err);
    must(refit_cuda_stream_create(far, REFIT_CUDA_PRIORITY_DEFAULT, &b->far_stream, &err), &err);
    if (!refit_memory_reaches(b->far, b->destination))
        exit(1);
    must(refit_cuda_buffer_create(b->device, b->bytes, &b->staging, &err), &err);
    must(refit_cuda_buffer_create(b->device, b->bytes, &b->other, &err), &err);
    must(refit_cuda_driver(&b->driver, &err), &err);
    must(refit_cuda_stream_enter(b->stream, &err), &err);
    must(CUDA(b->driver, &err, cuMemHostAlloc, &b->pinned, b->bytes, 0), &err);
    b->completions = calloc(batches, sizeof *b->completions);
    b->segments = calloc(batches, sizeof *b->segments);
    if (!b->completions || !b->segments)
        exit(1);
    for (uint32_t i = 0; i < batches; i++)
        refit_segments_init(&b->segments[i], true);
}

static void wait_for_all(struct bench *b, uint32_t count)
{
    struct refit_error err;
    for (uint32_t i = 0; i < count; i++)
        must(refit_completion_wait(&b->completions[i], refit_deadline_in_ms(PATIENCE_MS), &err), &err);
    must(refit_cuda_stream_wait(b->stream, refit_deadline_in_ms(PATIENCE_MS), &err), &err);
}

/* ---- what the device can do ---- */

static CUstream stream_of(const struct bench *b)
{
    return (CUstream)refit_cuda_stream_handle(b->stream);
}

static void copy_within(struct bench *b)
{
    struct refit_error err;
    must(CUDA(b->driver, &err, cuMemcpyDtoDAsync, refit_cuda_buffer_address(b->other),
              refit_cuda_buffer_address(b->staging), b->bytes, stream_of(b)),
         &err);
    wait_for_all(b, 0);
}

static void copy_up(struct bench *b)
{
    struct refit_error err;
    must(CUDA(b->driver, &err, cuMemcpyHtoDAsync, refit_cuda_buffer_address(b->other), b->pinned, b->bytes,
              stream_of(b)),
         &err);
    wait_for_all(b, 0);
}

static void copy_down(struct bench *b)
{
    struct refit_error err;
    must(CUDA(b->driver, &err, cuMemcpyDtoHAsync, b->pinned, refit_cuda_buffer_address(b->staging), b->bytes,
              stream_of(b)),
         &err);
    wait_for_all(b, 0);
}

/* From slot to slot, by the device that gets it. */
static void copy_far(struct bench *b)
{
    struct refit_error err;
    must(refit_cuda_stream_enter(b->far_stream, &err), &err);
    must(CUDA(b->driver, &err, cuMemcpyDtoDAsync, refit_arena_device_address(b->far, 0, b->bytes),
              refit_arena_device_address(b->destination, 0, b->bytes), b->bytes,
              (CUstream)refit_cuda_stream_handle(b->far_stream)),
         &err);
    refit_cuda_stream_leave(b->far_stream);
    must(refit_cuda_stream_wait(b->far_stream, refit_deadline_in_ms(PATIENCE_MS), &err), &err);
}

/* ---- what a refit does ---- */

enum step { STEP_PACK, STEP_SPREAD, STEP_SCATTER, STEP_DIGEST };

/* All batches of the edge, queued one after the other and waited for at the end. Between the strided side and staging
 * (pack, spread), or between staging and the dense side (scatter). */
static void run_step(struct bench *b, enum step step, bool digesting)
{
    struct refit_error err;
    enum refit_status status;
    uint64_t at = refit_cuda_buffer_address(b->staging);
    for (uint32_t i = 0; i < b->edge_to->batches; i++) {
        struct refit_walk strided = refit_walk_batch(b->from, b->edge_from, i, 0);
        struct refit_walk dense = refit_walk_batch(b->to, b->edge_to, i, 0);
        struct refit_segments *segments = &b->segments[i];
        struct refit_completion *completion = &b->completions[i];
        segments->digesting = digesting;
        if (step == STEP_PACK)
            status = refit_cuda_pack(b->stream, b->source, strided, at, segments, completion, &err);
        else if (step == STEP_SPREAD)
            status = refit_cuda_scatter(b->stream, b->source, strided, at, segments, completion, &err);
        else if (step == STEP_SCATTER)
            status = refit_cuda_scatter(b->stream, b->destination, dense, at, segments, completion, &err);
        else
            status = refit_cuda_digest(b->stream, b->destination, dense, segments, completion, &err);
        must(status, &err);
        at += refit_batch_bytes(b->to, b->edge_to, i);
    }
    wait_for_all(b, b->edge_to->batches);
}

static void pack(struct bench *b)
{
    run_step(b, STEP_PACK, true);
}

static void pack_only(struct bench *b)
{
    run_step(b, STEP_PACK, false);
}

static void spread(struct bench *b)
{
    run_step(b, STEP_SPREAD, true);
}

static void scatter(struct bench *b)
{
    run_step(b, STEP_SCATTER, true);
}

static void digest(struct bench *b)
{
    run_step(b, STEP_DIGEST, true);
}

/* The same, digested: batch by batch. */
static void refit_far(struct bench *b)
{
    struct refit_error err;
    for (uint32_t i = 0; i < b->edge_to->batches; i++) {
        struct refit_walk walk = refit_walk_batch(b->to, b->edge_to, i, 0);
        b->segments[i].digesting = true;
        must(refit_memory_copy(b->far, walk, b->destination, walk, &b->segments[i], &b->completions[i], &err), &err);
    }
    wait_for_all(b, b->edge_to->batches);
}

/* Messages in pageable memory, as tcp has them, into the dense side and out of it. */
static void through_host(struct bench *b, bool stores)
{
    struct refit_error err;
    uint8_t *at = b->pinned;
    for (uint32_t i = 0; i < b->edge_to->batches; i++) {
        struct refit_walk walk = refit_walk_batch(b->to, b->edge_to, i, 0);
        b->segments[i].digesting = true;
        must(stores ? refit_memory_scatter(b->destination, walk, at, &b->segments[i], &b->completions[i], &err)
                    : refit_memory_pack(b->destination, walk, at, &b->segments[i], &b->completions[i], &err),
             &err);
        at += refit_batch_bytes(b->to, b->edge_to, i);
    }
    wait_for_all(b, b->edge_to->batches);
}

static void store(struct bench *b)
{
    through_host(b, true);
}

static void load(struct bench *b)
{
    through_host(b, false);
}

static struct refit_digest sum(const struct bench *b)
{
    struct refit_digest all = {{0}};
    for (uint32_t i = 0; i < b->edge_to->batches; i++)
        for (size_t n = 0; n < b->segments[i].count; n++)
            refit_digest_merge(&all, b->segments[i].items[n].digest);
    return all;
}

/* ---- proof, then figures ---- */

static void fill_source(struct bench *b)
{
    struct refit_error err;
    uint64_t word = 0x9E3779B97F4A7C15u;
    uint8_t *at = b->pinned;
    for (uint64_t i = 0; i + sizeof word <= b->bytes; i += sizeof word) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        memcpy(at + i, &word, sizeof word);
    }
    for (uint32_t i = 0; i < b->edge_to->batches; i++) {
        struct refit_walk walk = refit_walk_batch(b->from, b->edge_from, i, 0);
        b->segments[i].digesting = true;
        must(refit_memory_scatter(b->source, walk, at, &b->segments[i], &b->completions[i], &err), &err);
        at += refit_batch_bytes(b->to, b->edge_to, i);
    }
    wait_for_all(b, b->edge_to->batches);
}

static void expect(struct bench *b, struct refit_digest wanted, const char *what)
{
    if (refit_digest_equal(sum(b), wanted))
        return;
    fprintf(stderr, "bench_gpu: the digest after %s is not that of the source\n", what);
    exit(1);
}

static struct refit_digest prove(struct bench *b)
{
    fill_source(b);
    struct refit_digest wanted = sum(b);
    pack(b);
    expect(b, wanted, "packing");
    scatter(b);
    expect(b, wanted, "scattering");
    digest(b);
    expect(b, wanted, "digesting in place");
    refit_far(b);
    expect(b, wanted, "copying from slot to slot");
    memset(b->pinned, 0, b->bytes);
    load(b);
    expect(b, wanted, "loading");
    spread(b);
    expect(b, wanted, "scattering into rows");
    store(b);
    expect(b, wanted, "storing what was loaded");
    return wanted;
}

enum { WITHIN, UP, DOWN, FAR, PACKED = 4, REFITTED = 11 };

static const struct {
    const char *name, *against;
    work_fn *work;
    int limit; /* index of what it is compared with */
} works[] = {
    [WITHIN] = {"copy within the device", "", copy_within, WITHIN},
    [UP] = {"copy to the device, pinned", "", copy_up, UP},
    [DOWN] = {"copy from the device, pinned", "", copy_down, DOWN},
    [FAR] = {"copy from slot to slot", "", copy_far, FAR},
    [PACKED] = {"pack rows, digest", "of the copy within", pack, WITHIN},
    {"pack rows", "of the copy within", pack_only, WITHIN},
    {"scatter into rows, digest", "of the copy within", spread, WITHIN},
    {"scatter, dense, digest", "of the copy within", scatter, WITHIN},
    {"digest in place", "of the copy within", digest, WITHIN},
    {"store from host, digest", "of the copy to the device", store, UP},
    {"load to host, digest", "of the copy from the device", load, DOWN},
    [REFITTED] = {"refit from slot to slot, digest", "of the copy from slot to slot", refit_far, FAR},
};
#define WORKS (sizeof works / sizeof *works)

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(struct bench *b, double gb_per_s[WORKS])
{
    static double seconds[WORKS][ROUNDS_MAX];
    for (int round = -1; round < b->rounds; round++) { /* one for warmth */
        for (size_t i = 0; i < WORKS; i++) {
            int64_t begin = refit_clock_ns();
            works[i].work(b);
            if (round >= 0)
                seconds[i][round] = (double)(refit_clock_ns() - begin) / 1e9;
        }
    }
    for (size_t i = 0; i < WORKS; i++) {
        qsort(seconds[i], (size_t)b->rounds, sizeof **seconds, by_size);
        gb_per_s[i] = (double)b->bytes / seconds[i][b->rounds / 2] / 1e9;
    }
}

/* One line each: the figure, its limit, their ratio and what that should be. */
static void figure(const char *name, double value, const char *unit, double limit, const char *of_what, double wanted,
                   bool at_least)
{
    double ratio = value / limit;
    printf("figure: %-30s %9.2f %-4s of %9.2f (%s): %.2f, %s %.2f wanted: %s\n", name, value, unit, limit, of_what, ratio,
           at_least ? "at least" : "at most", wanted, (at_least ? ratio >= wanted : ratio <= wanted) ? "met" : "NOT met");
}

/* As the driver tells: two transfers a clock. */
static double memory_gb_per_s(const struct bench *b)
{
    struct refit_error err;
    int khz = 0, bits = 0;
    must(CUDA(b->driver, &err, cuDeviceGetAttribute, &khz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, b->device), &err);
    must(CUDA(b->driver, &err, cuDeviceGetAttribute, &bits, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, b->device), &err);
    return 2.0 * khz * 1e3 * bits / 8 / 1e9;
}

static void report(struct bench *b)
{
    double gb_per_s[WORKS];
    char text[REFIT_CUDA_DESCRIPTION_MAX];
    refit_cuda_describe(text, sizeof text);
    measure(b, gb_per_s);
    printf("cuda: %s\n%.1f MiB in rows of %d bytes, %u batches, medians of %d rounds, GB/s of bytes moved once\n", text,
           (double)b->bytes / 1048576, COLUMNS, b->edge_to->batches, b->rounds);
    for (size_t i = 0; i < WORKS; i++) {
        printf("%-32s %9.2f", works[i].name, gb_per_s[i]);
        if (works[i].limit != (int)i)
            printf("   %.2f %s", gb_per_s[i] / gb_per_s[works[i].limit], works[i].against);
        putchar('\n');
    }
    bool link = refit_arena_device(b->far) != b->device;
    figure("contiguous refit", gb_per_s[REFITTED], "GB/s", gb_per_s[FAR], link ? "the link" : "a copy within the device", 0.9,
           true);
    figure("packing, read and written", 2 * gb_per_s[PACKED], "GB/s", memory_gb_per_s(b), "the memory", 0.8, true);
}

/* What mode `copy` does in the engine's pause. Both slots are found where the other was. */
static void exchange(struct bench *b, struct refit_digest wanted)
{
    struct refit_error err;
    struct refit_exchange *exchange;
    struct refit_exchanged done;
    struct refit_arena *other;
    double seconds[ROUNDS_MAX + 1];
    uint64_t bytes = refit_layout_arena_bytes(b->halves, 0);
    must(refit_cuda_slot_create(b->device, bytes, &other, &err), &err);
    if (refit_exchange_create(b->destination, other, &exchange, &err) != REFIT_OK) {
        printf("exchange of two slots: none: %s\n", err.text);
        refit_arena_release(other);
        return;
    }
    for (int round = 0; round <= b->rounds; round++) { /* one for warmth */
        int64_t begin = refit_clock_ns();
        must(refit_exchange_run(exchange, b->destination, other, bytes, refit_deadline_in_ms(PATIENCE_MS), &done, &err),
             &err);
        seconds[round] = (double)(refit_clock_ns() - begin) / 1e9;
        struct refit_arena *there = b->destination; /* the weights are in the other one now */
        b->destination = other;
        other = there;
        digest(b);
        expect(b, wanted, "an exchange");
    }
    qsort(seconds + 1, (size_t)b->rounds, sizeof *seconds, by_size);
    double median = seconds[1 + b->rounds / 2];
    printf("exchange of two slots: %.3f ms, which is %.1f ms for 16 GB\n", median * 1e3,
           median * 1e3 * 16e9 / (double)bytes);
    figure("exchange of 16 GB", median * 1e3 * 16e9 / (double)bytes, "ms", EXCHANGE_MS, "an H100-class GPU", 1.0, false);
    refit_exchange_destroy(exchange);
    refit_arena_release(other);
}

static void release(struct bench *b)
{
    struct refit_error err;
    for (uint32_t i = 0; i < b->edge_to->batches; i++)
        refit_segments_release(&b->segments[i]);
    free(b->segments);
    free(b->completions);
    must(CUDA(b->driver, &err, cuMemFreeHost, b->pinned), &err);
    refit_cuda_stream_leave(b->stream);
    refit_cuda_buffer_destroy(b->other);
    refit_cuda_buffer_destroy(b->staging);
    refit_cuda_stream_destroy(b->stream);
    refit_cuda_stream_destroy(b->far_stream);
    refit_arena_release(b->far);
    refit_arena_release(b->destination);
    refit_arena_release(b->source);
    refit_plan_release(b->to);
    refit_plan_release(b->from);
    refit_layout_release(b->halves);
    refit_layout_release(b->whole);
}

static long option(int argc, char **argv, const char *name, long otherwise, long most, long least)
{
    for (int i = 1; i + 1 < argc; i += 2)
        if (strcmp(argv[i], name) == 0)
            otherwise = strtol(argv[i + 1], NULL, 10);
    if (otherwise < least || otherwise > most) {
        fprintf(stderr, "bench_gpu: %s: from %ld to %ld\n", name, least, most);
        exit(2);
    }
    return otherwise;
}

int main(int argc, char **argv)
{
    struct refit_error err;
    long mib = option(argc, argv, "--mib", 1024, 1 << 20, 1);
    struct bench b = {
        .device = (int)option(argc, argv, "--device", 0, 63, 0),
        .rounds = (int)option(argc, argv, "--rounds", 15, ROUNDS_MAX, 0),
    };
    if (refit_cuda_probe(&err) != REFIT_OK) {
        printf("skipped: %s\n", err.text);
        return SKIPPED;
    }
    plan(&b, (uint64_t)mib * (1 << 20) / COLUMNS);
    allocate(&b);
    struct refit_digest wanted = prove(&b);
    if (b.rounds > 0) {
        report(&b);
        exchange(&b, wanted);
    }
    release(&b);
    return 0;
}
