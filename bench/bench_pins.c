/* SPDX-License-Identifier: Apache-2.0
 *
 * What a pin costs: acquire and release through the library's functions on a claim page, by one thread and by two, and while a
 * writer flips. Medians over rounds.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

#define ROUNDS 21
#define PINS 2000000

struct bench {
    struct refit_engine engine;
    struct refit_claim *claim;
    uint64_t version;
    atomic_bool flipping;
};

static double measure(struct bench *b)
{
    int64_t begin = refit_clock_ns();
    for (int i = 0; i < PINS; i++) {
        struct refit_pin pin;
        if (refit_engine_acquire(&b->engine, b->version, &pin) == REFIT_OK)
            refit_engine_release(&b->engine, &pin);
    }
    return (double)(refit_clock_ns() - begin) / PINS;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void run(struct bench *b, const char *name)
{
    double ns[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        ns[i] = measure(b);
    qsort(ns, ROUNDS, sizeof ns[0], by_value);
    printf("%-44s %6.1f ns (%.1f to %.1f)\n", name, ns[ROUNDS / 2], ns[0], ns[ROUNDS - 1]);
}

static void *another_reader(void *argument)
{
    struct bench *b = argument;
    while (atomic_load_explicit(&b->flipping, memory_order_relaxed))
        (void)measure(b);
    return NULL;
}

static void *flip(void *argument)
{
    struct bench *b = argument;
    for (uint32_t at = 0; atomic_load_explicit(&b->flipping, memory_order_relaxed); at ^= 1)
        refit_claim_flip(b->claim, at, at ^ 1);
    return NULL;
}

static void run_beside(struct bench *b, void *(*other)(void *), const char *name)
{
    pthread_t thread;
    atomic_store(&b->flipping, true);
    if (pthread_create(&thread, NULL, other, b) != 0)
        return;
    run(b, name);
    atomic_store(&b->flipping, false);
    pthread_join(thread, NULL);
}

int main(void)
{
    static struct bench b;
    void *at = mmap(NULL, REFIT_CLAIM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    b.claim = at;
    refit_claim_init(b.claim, 2);
    refit_claim_show(b.claim, 0, &(struct refit_version){.version = 7});
    refit_claim_show(b.claim, 1, &(struct refit_version){.version = 8});
    refit_claim_flip(b.claim, REFIT_SLOT_NONE, 0);
    atomic_store(&b.engine.claim, b.claim);

    run(&b, "acquire(latest) + release");
    b.version = 7;
    run(&b, "acquire(version) + release");
    b.version = REFIT_LATEST;
    run_beside(&b, another_reader, "acquire(latest) + release, two readers");
    run_beside(&b, flip, "acquire(latest) + release, flips without end");
    return 0;
}
