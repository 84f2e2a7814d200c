/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine rank for measurements: serves requests that read the weights, and says how long they took.
 *
 *   bench_engine SOCKET LAYOUT RANK RANKS [hz=N] [bytes=N]
 *
 * Told on standard input, line by line; answers on standard output:
 *
 *   check V   pins version V and compares every byte with the pattern    "checked V" or "torn V: TEXT"
 *   begin     forgets what was measured so far                           "measuring"
 *   report    "requests COUNT P50 P99 MAX acquires COUNT P50 P999 MAX": requests in us, acquires in ns
 *
 * With hz=N (rank 0) a request comes every 1/N s, whether or not the one before it has ended, and its latency counts
 * from when it was due. It reads bytes=N (4 MiB) of weights in STEPS steps; each step acquires a pin and releases it, as a
 * decoding step does.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/clock.h"
#include "base/io.h"
#include "refit/engine.h"
#include "tests/system/pattern.h"

#define STEPS 32u
#define SAMPLES_MAX (1u << 21)

/* Of one kind, of the window that is measured; the oldest are kept when it is full. */
struct samples {
    uint32_t *values;
    size_t count;
};

struct server {
    struct refit_engine *engine;
    struct refit_layout *layout;
    uint32_t rank;
    unsigned hz;
    size_t bytes;
    size_t at; /* where the next step reads on */
    uint64_t sum;
    atomic_bool ending;
    pthread_mutex_t lock; /* samples */
    struct samples requests, acquires;
};

static void add(struct samples *samples, int64_t value)
{
    if (samples->count < SAMPLES_MAX)
        samples->values[samples->count++] = value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

static int by_value(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static uint32_t quantile(const struct samples *samples, unsigned per_mille)
{
    if (samples->count == 0)
        return 0;
    size_t at = samples->count * per_mille / 1000;
    return samples->values[at < samples->count ? at : samples->count - 1];
}

/* A step's reading, of the part of the slot where the last one ended. */
static void read_weights(struct server *s, const struct refit_pin *pin)
{
    const uint64_t *words = refit_engine_buffer(s->engine, pin, 0);
    size_t space = (size_t)refit_layout_arena_bytes(s->layout, s->rank), step = s->bytes / STEPS;
    if (step > space)
        step = space;
    if (s->at + step > space)
        s->at = 0;
    uint64_t sum = 0;
    for (size_t i = s->at / sizeof *words; i < (s->at + step) / sizeof *words; i++)
        sum += words[i];
    s->at += step;
    s->sum ^= sum; /* so that nobody leaves it out */
}

static void serve_one(struct server *s, int64_t due_ns, uint32_t *acquired)
{
    struct refit_engine *engine = s->engine;
    for (uint32_t step = 0; step < STEPS; step++) {
        struct refit_pin pin;
        int64_t before = refit_clock_ns();
        enum refit_status status = refit_engine_acquire(engine, REFIT_LATEST, &pin);
        int64_t took = refit_clock_ns() - before;
        acquired[step] = took < UINT32_MAX ? (uint32_t)took : UINT32_MAX;
        if (status != REFIT_OK)
            return;
        read_weights(s, &pin);
        refit_engine_release(engine, &pin);
    }
    int64_t latency = (refit_clock_ns() - due_ns) / 1000;
    pthread_mutex_lock(&s->lock);
    add(&s->requests, latency);
    for (uint32_t step = 0; step < STEPS; step++)
        add(&s->acquires, acquired[step]);
    pthread_mutex_unlock(&s->lock);
}

static void *serve(void *argument)
{
    struct server *s = argument;
    uint32_t acquired[STEPS];
    prctl(PR_SET_TIMERSLACK, 1);
    int64_t due_ns = refit_clock_ns();
    while (!atomic_load_explicit(&s->ending, memory_order_relaxed)) {
        due_ns += 1000000000 / s->hz;
        struct timespec due = {.tv_sec = due_ns / 1000000000, .tv_nsec = due_ns % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
        serve_one(s, due_ns, acquired);
    }
    return NULL;
}

static void check(struct server *s, uint64_t version)
{
    char text[256] = "it is not here";
    struct refit_pin pin;
    int wrong = 1;
    if (refit_engine_acquire(s->engine, version, &pin) == REFIT_OK) {
        wrong = pattern_check(s->layout, s->rank, refit_engine_buffer(s->engine, &pin, 0), version, text, sizeof text);
        refit_engine_release(s->engine, &pin);
    }
    if (wrong)
        printf("torn %llu: %s\n", (unsigned long long)version, text);
    else
        printf("checked %llu\n", (unsigned long long)version);
}

static void begin(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    s->requests.count = s->acquires.count = 0;
    pthread_mutex_unlock(&s->lock);
    printf("measuring\n");
}

static void report(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    struct samples *r = &s->requests, *a = &s->acquires;
    qsort(r->values, r->count, sizeof *r->values, by_value);
    qsort(a->values, a->count, sizeof *a->values, by_value);
    printf("requests %zu %u %u %u acquires %zu %u %u %u\n", r->count, quantile(r, 500), quantile(r, 990),
           quantile(r, 1000), a->count, quantile(a, 500), quantile(a, 999), quantile(a, 1000));
    r->count = a->count = 0;
    pthread_mutex_unlock(&s->lock);
}

static void obey(struct server *s)
{
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "check ", 6) == 0)
            check(s, strtoull(line + 6, NULL, 10));
        else if (strcmp(line, "begin\n") == 0)
            begin(s);
        else if (strcmp(line, "report\n") == 0)
            report(s);
        else
            printf("unknown: %s", line);
        fflush(stdout);
    }
}

static int run(struct server *s)
{
    pthread_t thread;
    bool serving = s->hz > 0;
    pthread_mutex_init(&s->lock, NULL);
    s->requests.values = calloc(SAMPLES_MAX, sizeof(uint32_t));
    s->acquires.values = calloc(SAMPLES_MAX, sizeof(uint32_t));
    if (!s->requests.values || !s->acquires.values || (serving && pthread_create(&thread, NULL, serve, s) != 0))
        return 1;
    obey(s);
    atomic_store_explicit(&s->ending, true, memory_order_relaxed);
    if (serving)
        pthread_join(thread, NULL);
    fprintf(stderr, "read: %llx\n", (unsigned long long)s->sum);
    free(s->requests.values);
    free(s->acquires.values);
    pthread_mutex_destroy(&s->lock);
    return 0;
}

int main(int argc, char **argv)
{
    char *text;
    size_t len;
    struct refit_error err;
    if (argc < 5)
        return 2;
    struct server s = {.rank = (uint32_t)atoi(argv[3]), .bytes = 4u << 20};
    for (int i = 5; i < argc; i++) {
        if (strncmp(argv[i], "hz=", 3) == 0)
            s.hz = (unsigned)atoi(argv[i] + 3);
        else if (strncmp(argv[i], "bytes=", 6) == 0)
            s.bytes = (size_t)atoll(argv[i] + 6);
    }
    if (refit_io_read_file(argv[2], 1 << 24, &text, &len, &err) != REFIT_OK ||
        refit_layout_parse(text, len, argv[2], &s.layout, &err) != REFIT_OK) {
        fprintf(stderr, "bench_engine: %s\n", err.text);
        return 1;
    }
    struct refit_engine_config config = {.socket_path = argv[1], .rank = s.rank, .ranks = (uint32_t)atoi(argv[4]),
                                         .label = "bench", .layout = text, .layout_len = len};
    int rc = 1;
    if (refit_engine_attach(&config, 60000, &s.engine, &err) != REFIT_OK) {
        fprintf(stderr, "bench_engine: %s\n", err.text);
    } else {
        printf("attached\n");
        fflush(stdout);
        rc = run(&s);
        refit_engine_detach(s.engine);
    }
    refit_layout_release(s.layout);
    free(text);
    return rc;
}
