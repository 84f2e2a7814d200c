/* SPDX-License-Identifier: Apache-2.0
 *
 * A process of the bank's tests: a rank of a replica, or a bank of its own (so that it can be killed). It takes one
 * command per message on descriptor 0 and answers each with one message that begins with a status.
 *
 *     bank_process rank SOCKET RANK RANKS BYTES NAME [STEP-FD]
 *     bank_process bank SOCKET RANKS SLOTS uid|seal|cuda|cuda-staged ADOPT-MS SWAP
 *
 * A rank takes the memory that BANK_MEMORY names: host, cuda; else any.
 *
 * Linked so that the chunks of an exchange and the mappings of a window pass through here first, and can be made to fail.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <refit/engine.h>

#include "memory/exchange_internal.h"
#include "memory/window.h"
#include "memory/cuda_stream.h"
#include "tests/receiver/bank_model.h"

#define PINS_MAX 16

/* --- faults ------------------------------------------------------------------------------------------------ */

/* At the nth chunk from now on, counted down: this many fail, or the process dies or stops. */
static atomic_int chunk_at, chunk_fails;
static atomic_int chunk_signal;
static atomic_int map_fails;

/* REFIT_OK: go on. */
static enum refit_status fault(struct refit_error *err)
{
    if (atomic_load(&chunk_at) > 0 && atomic_fetch_sub(&chunk_at, 1) == 1 && atomic_load(&chunk_signal))
        kill(getpid(), atomic_load(&chunk_signal));
    if (atomic_load(&chunk_at) != 0 || atomic_load(&chunk_fails) <= 0)
        return REFIT_OK;
    atomic_fetch_sub(&chunk_fails, 1);
    return refit_fail(err, REFIT_SYSTEM, "a chunk that fails");
}

enum refit_status __real_refit_exchange_host_chunk(uint8_t *a, uint8_t *b, uint64_t bytes, uint8_t *bounce,
                                                   struct refit_error *err);
enum refit_status __wrap_refit_exchange_host_chunk(uint8_t *a, uint8_t *b, uint64_t bytes, uint8_t *bounce,
                                                   struct refit_error *err);
enum refit_status __wrap_refit_exchange_host_chunk(uint8_t *a, uint8_t *b, uint64_t bytes, uint8_t *bounce,
                                                   struct refit_error *err)
{
    enum refit_status status = fault(err);
    if (status != REFIT_OK)
        return status;
    return __real_refit_exchange_host_chunk(a, b, bytes, bounce, err);
}

/* Of a rank on a device: half of it is done when the process dies or stops, and all of it when it fails. */
enum refit_status __real_refit_cuda_exchange_run(struct refit_cuda_exchange *exchange, struct refit_arena *a,
                                                 struct refit_arena *b, uint64_t bytes, struct refit_deadline deadline,
                                                 struct refit_exchanged *done, struct refit_error *err);
enum refit_status __wrap_refit_cuda_exchange_run(struct refit_cuda_exchange *exchange, struct refit_arena *a,
                                                 struct refit_arena *b, uint64_t bytes, struct refit_deadline deadline,
                                                 struct refit_exchanged *done, struct refit_error *err);
enum refit_status __wrap_refit_cuda_exchange_run(struct refit_cuda_exchange *exchange, struct refit_arena *a,
                                                 struct refit_arena *b, uint64_t bytes, struct refit_deadline deadline,
                                                 struct refit_exchanged *done, struct refit_error *err)
{
    bool last = atomic_load(&chunk_at) == 1;
    if (last && atomic_load(&chunk_signal))
        (void)!__real_refit_cuda_exchange_run(exchange, a, b, bytes / 2, deadline, done, err);
    bool half = last && atomic_load(&chunk_signal);
    enum refit_status failed = fault(err);
    if (half) /* it was stopped, and goes on */
        (void)!__real_refit_cuda_exchange_run(exchange, a, b, bytes / 2, deadline, done, err);
    enum refit_status status = __real_refit_cuda_exchange_run(exchange, a, b, bytes, deadline, done,
                                                              failed == REFIT_OK ? err : NULL);
    return failed == REFIT_OK ? status : failed;
}

enum refit_status __real_refit_window_show(struct refit_window *window, const struct refit_arena *slot,
                                           struct refit_error *err);
enum refit_status __wrap_refit_window_show(struct refit_window *window, const struct refit_arena *slot,
                                           struct refit_error *err);
enum refit_status __wrap_refit_window_show(struct refit_window *window, const struct refit_arena *slot,
                                           struct refit_error *err)
{
    if (atomic_load(&map_fails) > 0) {
        atomic_fetch_sub(&map_fails, 1);
        return refit_fail(err, REFIT_SYSTEM, "a mapping that fails");
    }
    return __real_refit_window_show(window, slot, err);
}

static char line[512];

__attribute__((format(printf, 2, 3)))
static void reply(enum refit_status status, const char *format, ...)
{
    char text[1024];
    va_list args;
    int len = snprintf(text, sizeof text, "%d ", (int)status);
    va_start(args, format);
    len += vsnprintf(text + len, sizeof text - (size_t)len, format, args);
    va_end(args);
    if (send(0, text, (size_t)len < sizeof text ? (size_t)len : sizeof text - 1, MSG_NOSIGNAL) < 0)
        exit(1);
}

static bool next_command(void)
{
    ssize_t n = recv(0, line, sizeof line - 1, 0);
    if (n <= 0)
        return false;
    line[n] = '\0';
    return true;
}

static const char *argument(const char *command)
{
    size_t len = strlen(command);
    if (strncmp(line, command, len) != 0 || (line[len] != ' ' && line[len] != '\0'))
        return NULL;
    return line + len + (line[len] == ' ');
}

/* --- a rank ------------------------------------------------------------------------------------------------ */

struct rank {
    struct refit_engine_config config;
    struct refit_engine *engine;
    char layout[1024];
    struct refit_pin pin[PINS_MAX];
    int step_fd; /* to the other rank, or -1 */
    pthread_t stepper;
    bool running;
    atomic_bool stop;
    atomic_ulong steps, torn, stale;
    atomic_ulong prepared, swapped;
    atomic_ulong last_swapped;
    pthread_mutex_t lock;     /* of refuse_prepare */
    char refuse_prepare[128]; /* the hook's reason; empty: it agrees */
    atomic_bool refuse_swap, hold_swap;
    atomic_ulong in_swap;
};

static uint64_t count_torn(struct refit_engine *engine, const struct refit_pin *pin)
{
    uint64_t torn = 0;
    bool device = refit_engine_pin_memory(engine, pin) == REFIT_MEMORY_CUDA;
    for (uint32_t id = 0; id < refit_engine_buffer_count(engine); id++) {
        size_t bytes = refit_engine_buffer_bytes(engine, id);
        const uint64_t *words = refit_engine_buffer(engine, pin, id);
        uint64_t *copy = device ? malloc(bytes + 1) : NULL;
        if (device)
            gpu_read(copy, (uint64_t)(uintptr_t)words, bytes);
        for (size_t i = 0; i < bytes / 8; i++)
            torn += (device ? copy : words)[i] != pin->version;
        free(copy);
    }
    return torn;
}

static int on_prepare(void *context, struct refit_engine *engine, const struct refit_version *version,
                      const struct refit_pin *pin, char *reason)
{
    struct rank *rank = context;
    atomic_fetch_add(&rank->prepared, 1);
    atomic_fetch_add(&rank->torn, count_torn(engine, pin));
    if (version->version != pin->version || strncmp(version->label, "step-", 5) != 0)
        atomic_fetch_add(&rank->torn, 1);
    pthread_mutex_lock(&rank->lock);
    snprintf(reason, 256, "%s", rank->refuse_prepare);
    pthread_mutex_unlock(&rank->lock);
    return reason[0] != '\0';
}

static int on_before(void *context, const struct refit_version *version, const char *kv)
{
    struct rank *rank = context;
    atomic_fetch_add(&rank->in_swap, 1);
    while (atomic_load(&rank->hold_swap))
        usleep(1000);
    return version->version == 0 || !kv[0] || atomic_load(&rank->refuse_swap);
}

static void on_after(void *context, const struct refit_version *version, const char *kv)
{
    struct rank *rank = context;
    (void)kv;
    atomic_store(&rank->last_swapped, version->version);
    atomic_fetch_add(&rank->swapped, 1);
}

/* One step of the leader: it names the version, the follower acquires, then the leader's own reading goes on. */
static void lead_step(struct rank *rank)
{
    struct refit_pin pin;
    char told;
    while (rank->step_fd >= 0 && recv(rank->step_fd, &told, 1, MSG_DONTWAIT) > 0)
        ; /* an answer to a step of another life */
    if (refit_engine_acquire(rank->engine, REFIT_LATEST, &pin) != REFIT_OK)
        return;
    if (rank->step_fd >= 0 && send(rank->step_fd, &pin.version, sizeof pin.version, MSG_NOSIGNAL) > 0)
        (void)!recv(rank->step_fd, &told, 1, 0);
    atomic_fetch_add(&rank->torn, count_torn(rank->engine, &pin));
    refit_engine_release(rank->engine, &pin);
    atomic_fetch_add(&rank->steps, 1);
}

static void follow_step(struct rank *rank)
{
    struct refit_pin pin;
    uint64_t version;
    struct timeval wait = {.tv_usec = 100000};
    setsockopt(rank->step_fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    if (recv(rank->step_fd, &version, sizeof version, 0) != sizeof version)
        return;
    enum refit_status status = refit_engine_acquire(rank->engine, version, &pin);
    (void)!send(rank->step_fd, "k", 1, MSG_NOSIGNAL);
    if (status != REFIT_OK) {
        atomic_fetch_add(&rank->stale, 1);
        return;
    }
    atomic_fetch_add(&rank->torn, count_torn(rank->engine, &pin));
    refit_engine_release(rank->engine, &pin);
    atomic_fetch_add(&rank->steps, 1);
}

static void *run_steps(void *context)
{
    struct rank *rank = context;
    while (!atomic_load(&rank->stop)) {
        if (rank->config.rank == 0)
            lead_step(rank);
        else
            follow_step(rank);
    }
    return NULL;
}

static void halt(struct rank *rank)
{
    if (!rank->running)
        return;
    atomic_store(&rank->stop, true);
    pthread_join(rank->stepper, NULL);
    rank->running = false;
}

static void do_acquire(struct rank *rank, const char *text)
{
    unsigned id = 0;
    uint64_t version = 0;
    (void)!sscanf(text, "%u %" SCNu64, &id, &version);
    struct refit_pin *pin = &rank->pin[id % PINS_MAX];
    enum refit_status status = refit_engine_acquire(rank->engine, version, pin);
    reply(status, "%" PRIu64, status == REFIT_OK ? pin->version : 0);
}

/* Where a pin's bytes are: the table's address, and that of the first buffer. */
static void do_where(struct rank *rank, const char *text)
{
    const struct refit_pin *pin = &rank->pin[atoi(text) % PINS_MAX];
    const void *const *table = refit_engine_table(rank->engine, pin);
    reply(REFIT_OK, "%p %p", (const void *)table, table[0]);
}

/* The errno of opening any slot of ours for writing; 0 when one could be. */
static void do_reopen(void)
{
    int found = ENOENT;
    for (int fd = 3; fd < 256; fd++) {
        char path[64], target[128] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) < 0 || !strstr(target, "refit-slot"))
            continue;
        int writable = open(path, O_RDWR | O_CLOEXEC);
        found = writable < 0 ? errno : 0;
        if (writable >= 0) {
            close(writable);
            break;
        }
    }
    reply(REFIT_OK, "%d", found);
}

static void do_fork(void)
{
    pid_t child = fork();
    if (child == 0) {
        for (;;)
            pause();
    }
    reply(REFIT_OK, "%d", (int)child);
}

static enum refit_memory_kind wanted_memory(void)
{
    const char *text = getenv("BANK_MEMORY");
    if (!text)
        return REFIT_MEMORY_ANY;
    return strcmp(text, "cuda") == 0 ? REFIT_MEMORY_CUDA : REFIT_MEMORY_HOST;
}

static void do_memory(const struct rank *rank)
{
    struct refit_memory_info info;
    refit_engine_memory(rank->engine, &info);
    reply(REFIT_OK, "%s device=%d uuid=%02x granularity=%" PRIu64 " bytes=%" PRIu64,
          info.kind == REFIT_MEMORY_CUDA ? "cuda" : "host", info.device, info.uuid[0], info.granularity,
          info.slot_bytes);
}

/* On a stream of its own, as an engine has one. */
static void do_release_on_stream(struct rank *rank, const char *text)
{
    static struct refit_cuda_stream *stream;
    struct refit_memory_info info;
    struct refit_error error = {0};
    refit_engine_memory(rank->engine, &info);
    enum refit_status status = REFIT_OK;
    if (!stream && info.device >= 0)
        status = refit_cuda_stream_create(info.device, REFIT_CUDA_PRIORITY_DEFAULT, &stream, &error);
    void *handle = stream ? refit_cuda_stream_handle(stream) : NULL;
    if (status == REFIT_OK)
        status = refit_engine_release_on_stream(rank->engine, &rank->pin[atoi(text) % PINS_MAX], handle, &error);
    reply(status, "%s", error.text);
}

/* Of the look-alike that this process has opened. */
static void do_device(const char *text)
{
    char call[48];
    int number = 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void (*hold)(int) = NULL;
    void (*fail_call)(const char *, int) = NULL;
    *(void **)(void *)&hold = library ? dlsym(library, "standin_cuda_hold") : NULL;
    *(void **)(void *)&fail_call = library ? dlsym(library, "standin_cuda_fail_call") : NULL;
    bool holds = hold && sscanf(text, "hold %d", &number) == 1;
    bool fails = fail_call && !holds && sscanf(text, "fail %47s %d", call, &number) == 2;
    if (holds)
        hold(number);
    if (fails)
        fail_call(call, number);
    reply(holds || fails ? REFIT_OK : REFIT_INVALID, "%s", text);
}

static void rank_command(struct rank *rank)
{
    struct refit_error error = {0};
    const char *text;
    if ((text = argument("attach"))) {
        enum refit_status status = refit_engine_attach(&rank->config, atoi(text), &rank->engine, &error);
        reply(status, "%s", error.text);
    } else if ((text = argument("wait"))) {
        enum refit_status status = refit_engine_wait(rank->engine, atoi(text), &error);
        reply(status, "%s", error.text);
    } else if ((text = argument("acquire"))) {
        do_acquire(rank, text);
    } else if ((text = argument("release"))) {
        refit_engine_release(rank->engine, &rank->pin[atoi(text) % PINS_MAX]);
        reply(REFIT_OK, "released");
    } else if ((text = argument("check"))) {
        reply(REFIT_OK, "%" PRIu64, count_torn(rank->engine, &rank->pin[atoi(text) % PINS_MAX]));
    } else if ((text = argument("refuse-prepare"))) {
        pthread_mutex_lock(&rank->lock);
        snprintf(rank->refuse_prepare, sizeof rank->refuse_prepare, "%s", text);
        pthread_mutex_unlock(&rank->lock);
        reply(REFIT_OK, "set");
    } else if ((text = argument("refuse-swap"))) {
        atomic_store(&rank->refuse_swap, atoi(text) != 0);
        reply(REFIT_OK, "set");
    } else if ((text = argument("hold-swap"))) {
        atomic_store(&rank->hold_swap, atoi(text) != 0);
        reply(REFIT_OK, "set");
    } else if (argument("in-swap")) {
        reply(REFIT_OK, "%lu.", rank->in_swap);
    } else if ((text = argument("where"))) {
        do_where(rank, text);
    } else if ((text = argument("map-fails"))) {
        atomic_store(&map_fails, atoi(text));
        reply(REFIT_OK, "set");
    } else if (argument("stable")) {
        rank->config.stable_addresses = 1;
        reply(REFIT_OK, "set");
    } else if ((text = argument("wants"))) {
        rank->config.memory = strcmp(text, "cuda") == 0 ? REFIT_MEMORY_CUDA : REFIT_MEMORY_HOST;
        reply(REFIT_OK, "set");
    } else if (argument("run")) {
        atomic_store(&rank->stop, false);
        rank->running = pthread_create(&rank->stepper, NULL, run_steps, rank) == 0;
        reply(rank->running ? REFIT_OK : REFIT_SYSTEM, "running");
    } else if (argument("steps")) {
        reply(REFIT_OK, "%lu %lu %lu", rank->steps, rank->torn, rank->stale);
    } else if (argument("halt")) {
        halt(rank);
        reply(REFIT_OK, "%lu %lu %lu", rank->steps, rank->torn, rank->stale);
    } else if (argument("hooks")) {
        reply(REFIT_OK, "%lu %lu %lu", rank->prepared, rank->swapped, rank->last_swapped);
    } else if ((text = argument("release-on-stream"))) {
        do_release_on_stream(rank, text);
    } else if ((text = argument("device"))) {
        do_device(text);
    } else if (argument("memory")) {
        do_memory(rank);
    } else if (argument("reopen")) {
        do_reopen();
    } else if (argument("fork")) {
        do_fork();
    } else if (argument("detach")) {
        halt(rank);
        refit_engine_detach(rank->engine);
        rank->engine = NULL;
        reply(REFIT_OK, "detached");
    } else {
        reply(REFIT_INVALID, "no such command: %s", line);
    }
}

static int run_rank(char **argv, int argc)
{
    static struct rank rank = {.lock = PTHREAD_MUTEX_INITIALIZER};
    rank.step_fd = argc > 7 ? atoi(argv[7]) : -1;
    rank.config = (struct refit_engine_config){
        .socket_path = argv[2], .rank = (uint32_t)atoi(argv[3]), .ranks = (uint32_t)atoi(argv[4]),
        .label = "a test's rank", .layout = rank.layout, .prepare = on_prepare, .before_swap = on_before, .after_swap = on_after,
        .context = &rank, .memory = wanted_memory()};
    model_layout(rank.layout, sizeof rank.layout, rank.config.ranks, strtoul(argv[5], NULL, 10), argv[6]);
    rank.config.layout_len = strlen(rank.layout);
    while (next_command())
        rank_command(&rank);
    halt(&rank);
    refit_engine_detach(rank.engine);
    return 0;
}

/* --- a bank ------------------------------------------------------------------------------------------------ */

static void do_snapshot(struct refit_bank *bank)
{
    struct refit_bank_snapshot now;
    refit_bank_read(bank, &now);
    bool active = now.active != REFIT_SLOT_NONE;
    reply(REFIT_OK, "active=%" PRIu64 " attached=%u adopting=%d rollback=%" PRIu64 " writable=%d label=%s torn=%d",
          active ? now.slot[now.active].version.version : 0, now.attached, now.adopting, now.rollback_version,
          active && now.slot[now.active].writable, active ? now.slot[now.active].version.label : "-",
          now.torn);
}

static void do_inode(struct refit_bank *bank, const char *text)
{
    struct refit_slot_identity identity = {0};
    struct refit_cuda_slot_info info;
    struct refit_piece piece;
    unsigned slot = 0, rank = 0;
    (void)!sscanf(text, "%u %u", &slot, &rank);
    const struct refit_arena *arena = refit_bank_arenas(bank, slot)[rank];
    refit_arena_piece_at(arena, 0, &piece);
    enum refit_status status = refit_slot_identify(piece.fd, &identity, NULL);
    if (refit_arena_kind(arena) == REFIT_ARENA_CUDA) {
        refit_cuda_slot_info(arena, &info);
        memcpy(&identity, info.id, sizeof identity);
    }
    reply(status, "%" PRIu64, identity.inode);
}

static void bank_command(struct refit_bank *bank, unsigned ranks)
{
    struct refit_error error = {0};
    uint32_t slot = 0;
    const char *text;
    if ((text = argument("put"))) {
        enum refit_status status = model_put(bank, ranks, strtoull(text, NULL, 10), MODEL_WAIT_MS, &error);
        reply(status, "%s", error.text);
    } else if ((text = argument("stage"))) {
        enum refit_status status =
            model_stage(bank, ranks, strtoull(text, NULL, 10), MODEL_WAIT_MS, &slot, &error);
        reply(status, "%u", slot);
    } else if ((text = argument("fill"))) {
        struct refit_deadline deadline = refit_deadline_in_ms(MODEL_WAIT_MS);
        struct refit_version named = {.version = strtoull(text, NULL, 10)};
        enum refit_status status = refit_bank_begin(bank, deadline, NULL, NULL, NULL, &slot, &error);
        if (status == REFIT_OK)
            status = refit_bank_vacate(bank, slot, &named, "flush", deadline, NULL, NULL, NULL, &error);
        if (status == REFIT_OK)
            model_fill(bank, slot, ranks, strtoull(text, NULL, 10));
        reply(status, "%u", slot);
    } else if ((text = argument("rollback"))) {
        struct refit_version now = {0};
        enum refit_status status = refit_bank_rollback(bank, strtoull(text, NULL, 10), "flush",
                                                       refit_deadline_in_ms(MODEL_WAIT_MS), &now, &error);
        reply(status, "%" PRIu64, now.version);
    } else if ((text = argument("inode"))) {
        do_inode(bank, text);
    } else if ((text = argument("chunk"))) {
        int at = 0, fails = 0, signal = 0;
        (void)!sscanf(text, "%d %d %d", &at, &fails, &signal);
        atomic_store(&chunk_fails, fails);
        atomic_store(&chunk_signal, signal);
        atomic_store(&chunk_at, at);
        reply(REFIT_OK, "set");
    } else if ((text = argument("put-within"))) {
        unsigned long long version = 0;
        int ms = 0;
        (void)!sscanf(text, "%llu %d", &version, &ms);
        enum refit_status status = model_put(bank, ranks, version, ms, &error);
        reply(status, "%s", error.text);
    } else if ((text = argument("drop"))) {
        refit_bank_discard(bank, (uint32_t)atoi(text));
        reply(REFIT_OK, "dropped");
    } else if (argument("snapshot")) {
        do_snapshot(bank);
    } else {
        reply(REFIT_INVALID, "no such command: %s", line);
    }
}

static int run_bank(char **argv)
{
    struct refit_error error = {0};
    struct refit_bank *bank = NULL;
    unsigned ranks = (unsigned)atoi(argv[3]);
    struct refit_bank_config config = {
        .ranks = ranks, .slots = (uint32_t)atoi(argv[4]), .socket_path = argv[2], .socket_mode = 0666,
        .protection = strcmp(argv[5], "seal") == 0 ? REFIT_PROTECT_SEAL : REFIT_PROTECT_UID,
        .memory = strncmp(argv[5], "cuda", 4) == 0 ? REFIT_ARENA_CUDA : REFIT_ARENA_HOST,
        .host_staging = strcmp(argv[5], "cuda-staged") == 0,
        .adopt_ms = atoi(argv[6]), .swap = (enum refit_swap_mode)atoi(argv[7])};
    enum refit_status status = refit_bank_open(&config, &bank, &error);
    reply(status, "%s", error.text);
    while (status == REFIT_OK && next_command())
        bank_command(bank, ranks);
    refit_bank_close(bank);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 8 && strcmp(argv[1], "bank") == 0)
        return run_bank(argv);
    if (argc >= 7 && strcmp(argv[1], "rank") == 0)
        return run_rank(argv, argc);
    return 2;
}
