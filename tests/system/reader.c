/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine rank that checks every byte of every version it is given, step after step.
 *
 *   reader SOCKET LAYOUT RANK RANKS STEPS_FILE [prepare-ms=N] [prepare-file=PATH] [hold=N] [refuse=V] [trust] [hold-file=PATH] [cuda]
 *
 * Ranks of a replica meet in STEPS_FILE, a shared page: the leader names the version of a step, the followers pin it and say so, the
 * leader checks and releases. Prints one line per change: "step VERSION DIGEST LABEL". A byte that is not as the version has it
 * ends the process with status 3 and a line "torn ...". Ends with status 0 on SIGTERM; the leader then prints
 * "steps N missed M": in M of them a follower did not have the version that the leader named.
 *
 *   prepare-ms=N  the prepare hook takes so long      refuse=V  the prepare hook refuses version V
 *   hold=N        keeps each pin for N ms             trust     does not look at the bytes
 *   prepare-file=P  the prepare hook takes as long as P exists
 *   hold-file=P   keeps each pin while P exists, and prints "holding VERSION" the first time
 *   stable        has addresses baked in: that one of them changes is "torn", too
 *   cuda          takes slots on a device, and no others
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/io.h"
#include "refit/engine.h"
#include "tests/system/device.h"
#include "tests/system/pattern.h"

#define RANKS_MAX 8

struct steps {
    _Atomic uint64_t number; /* of the step the leader has opened */
    _Atomic uint64_t version;
    _Atomic uint64_t pinned[RANKS_MAX]; /* step number each follower answered */
    _Atomic uint32_t result[RANKS_MAX]; /* enum refit_status of its acquire */
};

struct reader {
    struct refit_engine *engine;
    struct refit_layout *layout;
    struct steps *steps;
    uint32_t rank, ranks;
    long prepare_ms, hold_ms;
    unsigned long long refuse;
    const char *hold_file, *prepare_file;
    uint64_t held;
    bool trust, stable, cuda;
    const void *const *table; /* of the first pin, when stable */
    const void *buffer;
    uint64_t last;
    uint64_t taken, missed; /* steps, of the leader */
};

static volatile sig_atomic_t ending;

static void on_term(int number)
{
    (void)number;
    ending = 1;
}

static void pause_ms(long ms)
{
    if (ms > 0)
        poll(NULL, 0, (int)ms);
}

/* New: of a slot on a device, which is copied from there; the hook and the steps are in threads of their own. NULL: of one
 * in host memory. */
static uint8_t *copy_of(const struct reader *r, struct refit_engine *engine, const struct refit_pin *pin)
{
    size_t bytes = (size_t)refit_layout_arena_bytes(r->layout, r->rank);
    if (r->trust || !r->cuda || refit_engine_pin_memory(engine, pin) != REFIT_MEMORY_CUDA)
        return NULL;
    uint8_t *copy = malloc(bytes + 1);
    if (copy)
        device_read(copy, (uint64_t)(uintptr_t)refit_engine_buffer(engine, pin, 0), bytes);
    return copy;
}

static int check(struct reader *r, struct refit_engine *engine, const struct refit_pin *pin, const char *when)
{
    char text[256];
    uint8_t *copy = copy_of(r, engine, pin);
    /* The arena space starts at buffer 0: buffers are packed from offset 0 on. */
    const uint8_t *space = copy ? copy : refit_engine_buffer(engine, pin, 0);
    int differs = r->trust ? 0 : pattern_check(r->layout, r->rank, space, pin->version, text, sizeof text);
    free(copy);
    if (differs == 0)
        return 0;
    printf("torn rank %u %s: %s\n", r->rank, when, text);
    fflush(stdout);
    return 3;
}

static int on_prepare(void *context, struct refit_engine *engine, const struct refit_version *version,
                      const struct refit_pin *pin, char *reason)
{
    struct reader *r = context;
    pause_ms(r->prepare_ms);
    while (r->prepare_file && access(r->prepare_file, F_OK) == 0 && !ending)
        pause_ms(1);
    if (version->version == r->refuse) {
        snprintf(reason, 256, "told to refuse version %llu", r->refuse);
        return 1;
    }
    return check(r, engine, pin, "in prepare"); /* before attach has returned, too: r->engine may be unset */
}

static void hold(struct reader *r, const struct refit_pin *pin)
{
    pause_ms(r->hold_ms);
    while (r->hold_file && access(r->hold_file, F_OK) == 0 && !ending) {
        if (r->held != pin->version) {
            printf("holding %llu\n", (unsigned long long)pin->version);
            fflush(stdout);
        }
        r->held = pin->version;
        pause_ms(1);
    }
}

static int check_addresses(struct reader *r, const struct refit_pin *pin)
{
    const void *const *table = refit_engine_table(r->engine, pin);
    const void *buffer = refit_engine_buffer(r->engine, pin, 0);
    r->table = r->table ? r->table : table;
    r->buffer = r->buffer ? r->buffer : buffer;
    if (!r->stable || (r->table == table && r->buffer == buffer && table[0] == buffer))
        return 0;
    printf("torn rank %u: version %llu is at another address\n", r->rank, (unsigned long long)pin->version);
    fflush(stdout);
    return 3;
}

static int report(struct reader *r, const struct refit_pin *pin)
{
    if (pin->version != r->last) {
        struct refit_version version;
        refit_engine_version(r->engine, pin, &version);
        printf("step %llu %s %s\n", (unsigned long long)version.version, version.digest, version.label);
        fflush(stdout);
        r->last = pin->version;
    }
    hold(r, pin);
    if (check_addresses(r, pin) != 0)
        return 3;
    return check(r, r->engine, pin, "in a step");
}

static int wait_followers(struct reader *r, uint64_t step)
{
    int stale = 0;
    for (uint32_t f = 1; f < r->ranks; f++) {
        while (atomic_load_explicit(&r->steps->pinned[f], memory_order_acquire) != step && !ending)
            pause_ms(1);
        stale |= atomic_load_explicit(&r->steps->result[f], memory_order_relaxed) != REFIT_OK;
    }
    return stale;
}

static int lead(struct reader *r)
{
    int rc = 0;
    for (uint64_t step = atomic_load(&r->steps->number) + 1; rc == 0 && !ending; step++) {
        struct refit_pin pin;
        if (refit_engine_acquire(r->engine, REFIT_LATEST, &pin) != REFIT_OK) {
            pause_ms(1);
            continue;
        }
        atomic_store_explicit(&r->steps->version, pin.version, memory_order_relaxed);
        atomic_store_explicit(&r->steps->number, step, memory_order_release);
        r->missed += wait_followers(r, step) && !ending;
        r->taken++;
        rc = report(r, &pin);
        refit_engine_release(r->engine, &pin);
    }
    return rc;
}

static int follow(struct reader *r)
{
    int rc = 0;
    uint64_t done = atomic_load(&r->steps->pinned[r->rank]); /* a restarted rank answers the step its leader waits for */
    while (rc == 0 && !ending) {
        uint64_t step = atomic_load_explicit(&r->steps->number, memory_order_acquire);
        if (step == done) {
            pause_ms(1);
            continue;
        }
        struct refit_pin pin;
        uint64_t version = atomic_load_explicit(&r->steps->version, memory_order_relaxed);
        enum refit_status status = refit_engine_acquire(r->engine, version, &pin);
        if (status == REFIT_OK && pin.version != version) {
            printf("torn rank %u: has version %llu in a step of %llu\n", r->rank, (unsigned long long)pin.version,
                   (unsigned long long)version);
            return 3;
        }
        atomic_store_explicit(&r->steps->result[r->rank], (uint32_t)status, memory_order_relaxed);
        atomic_store_explicit(&r->steps->pinned[r->rank], step, memory_order_release);
        done = step;
        if (status == REFIT_OK) {
            rc = report(r, &pin);
            refit_engine_release(r->engine, &pin);
        }
    }
    return rc;
}

static struct steps *map_steps(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct steps)) != 0)
        return NULL;
    void *at = mmap(NULL, sizeof(struct steps), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

static void read_option(struct reader *r, const char *option)
{
    if (strncmp(option, "prepare-ms=", 11) == 0)
        r->prepare_ms = atol(option + 11);
    else if (strncmp(option, "hold=", 5) == 0)
        r->hold_ms = atol(option + 5);
    else if (strncmp(option, "prepare-file=", 13) == 0)
        r->prepare_file = option + 13;
    else if (strncmp(option, "hold-file=", 10) == 0)
        r->hold_file = option + 10;
    else if (strncmp(option, "refuse=", 7) == 0)
        r->refuse = strtoull(option + 7, NULL, 10);
    else if (strcmp(option, "trust") == 0)
        r->trust = true;
    else if (strcmp(option, "stable") == 0)
        r->stable = true;
    else if (strcmp(option, "cuda") == 0)
        r->cuda = true;
}

int main(int argc, char **argv)
{
    if (argc < 6)
        return 2;
    char *text;
    size_t len;
    struct refit_error err;
    struct reader r = {.rank = (uint32_t)atoi(argv[3]), .ranks = (uint32_t)atoi(argv[4]), .steps = map_steps(argv[5])};
    for (int i = 6; i < argc; i++)
        read_option(&r, argv[i]);
    signal(SIGTERM, on_term);
    if (!r.steps || refit_io_read_file(argv[2], 1 << 24, &text, &len, &err) != REFIT_OK ||
        refit_layout_parse(text, len, argv[2], &r.layout, &err) != REFIT_OK) {
        fprintf(stderr, "reader: %s\n", r.steps ? err.text : "no steps file");
        return 1;
    }
    struct refit_engine_config config = {.socket_path = argv[1], .rank = r.rank, .ranks = r.ranks, .label = "reader",
                                         .layout = text, .layout_len = len, .prepare = on_prepare, .context = &r,
                                         .stable_addresses = r.stable,
                                         .memory = r.cuda ? REFIT_MEMORY_CUDA : REFIT_MEMORY_HOST};
    struct refit_engine *engine;
    if (refit_engine_attach(&config, 30000, &engine, &err) != REFIT_OK) {
        fprintf(stderr, "reader: %s\n", err.text);
        return 1;
    }
    r.engine = engine;
    printf("attached\n");
    fflush(stdout);
    int rc = r.rank == 0 ? lead(&r) : follow(&r);
    if (r.rank == 0) {
        printf("steps %llu missed %llu\n", (unsigned long long)r.taken, (unsigned long long)r.missed);
        fflush(stdout);
    }
    refit_engine_detach(engine);
    refit_layout_release(r.layout);
    free(text);
    return rc;
}
