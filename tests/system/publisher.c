/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer rank whose weights are the pattern of a version (pattern.h). Publishes the versions it is told, one after the other.
 *
 *   publisher LAYOUT RANK RANKS LEAD VERSIONS(comma separated) [option...] MEMBER...
 *
 * VERSIONS "-": told on standard input, line by line: "fill V" (answered by "filled V") writes version V's pattern, "publish V"
 * publishes what is there.
 *
 *   transport=tcp|local|nccl   deadline=MS   heap (ordinary memory, not shareable)   cuda (on device RANK)   check (check_source)
 *   scribble (overwrites its weights with the next version's while a publish runs)   name=TEXT   takeover
 *   overwrite (on SIGUSR1, overwrites its weights with the next version's once, and prints "overwritten")
 *   policy=WORDS   strategy=WORD   stage (stage_only)   stay (does not end by itself)
 *   resume   gate=PATH (publishes version V once PATH.V is there)
 *
 * One line per publish: "ok VERSION DIGEST BYTES_NEEDED BYTES_MOVED WIRE_BYTES COPIED TRANSPORT" for the first replica, or
 * "failed VERSION STATUS TEXT", then one line "replica URL OUTCOME TEXT" each, and
 * "fleet OUTCOME EPOCH SENT EXCESS SAVED relayed|direct". Status 0 when all were ok.
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "refit/sender.h"
#include "tests/system/device.h"
#include "tests/system/pattern.h"

struct publisher {
    struct refit_layout *layout;
    uint32_t rank;
    uint8_t *memory;
    uint64_t on_device; /* with cuda: what is registered; memory is copied there */
    size_t bytes;
    struct refit_sender_buffer *buffers;
    size_t count;
    bool heap, cuda, check, scribble, overwrite, stage, stay, resume;
    const char *policy, *strategy, *gate;
    int64_t deadline_ms;
    struct refit_sender_config config;
    _Atomic uint64_t version; /* of the last publish; other threads write what follows it */
    atomic_bool stop, done;
    pthread_t overwriter;
};

static bool add_buffer(void *context, const struct refit_buffer *buffer)
{
    struct publisher *p = context;
    p->buffers = realloc(p->buffers, (p->count + 1) * sizeof *p->buffers);
    p->buffers[p->count++] = (struct refit_sender_buffer){
        .name = strdup(buffer->name), .data = p->memory + buffer->offset, .bytes = buffer->bytes};
    return true;
}

static bool read_option(struct publisher *p, char *option)
{
    p->heap |= strcmp(option, "heap") == 0;
    p->cuda |= strcmp(option, "cuda") == 0;
    p->check |= strcmp(option, "check") == 0;
    p->scribble |= strcmp(option, "scribble") == 0;
    p->overwrite |= strcmp(option, "overwrite") == 0;
    p->config.takeover |= strcmp(option, "takeover") == 0;
    p->stage |= strcmp(option, "stage") == 0;
    p->resume |= strcmp(option, "resume") == 0;
    p->stay |= strcmp(option, "stay") == 0;
    if (strncmp(option, "policy=", 7) == 0)
        p->policy = option + 7;
    if (strncmp(option, "strategy=", 9) == 0)
        p->strategy = option + 9;
    if (strncmp(option, "gate=", 5) == 0)
        p->gate = option + 5;
    if (strncmp(option, "transport=", 10) == 0)
        p->config.transport = option + 10;
    if (strncmp(option, "deadline=", 9) == 0)
        p->deadline_ms = atoll(option + 9);
    if (strncmp(option, "name=", 5) == 0)
        p->config.name = option + 5;
    if (strncmp(option, "cacert=", 7) == 0)
        p->config.cacert = option + 7;
    if (strncmp(option, "cert=", 5) == 0)
        p->config.cert = option + 5;
    if (strncmp(option, "key=", 4) == 0)
        p->config.key = option + 4;
    if (strncmp(option, "token=", 6) == 0)
        p->config.token_file = option + 6;
    return strncmp(option, "http://", 7) != 0 && strncmp(option, "https://", 8) != 0 &&
           strncmp(option, "file:", 5) != 0 && strncmp(option, "dns:", 4) != 0;
}

static void wait_for_gate(const struct publisher *p, uint64_t version)
{
    char path[512];
    snprintf(path, sizeof path, "%s.%llu", p->gate ? p->gate : "", (unsigned long long)version);
    while (p->gate && access(path, F_OK) != 0)
        poll(NULL, 0, 10);
}

static void fill(struct publisher *p, uint64_t version)
{
    pattern_fill(p->layout, p->rank, p->memory, version);
    if (p->cuda)
        device_write(p->on_device, p->memory, p->bytes);
}

static void *scribble(void *context)
{
    struct publisher *p = context;
    for (uint64_t v = p->version + 1; !atomic_load(&p->stop); v++)
        fill(p, v);
    return NULL;
}

static void *overwrite_when_told(void *context)
{
    struct publisher *p = context;
    sigset_t signals;
    int number;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    while (sigwait(&signals, &number) == 0 && !atomic_load(&p->done)) {
        fill(p, p->version + 1);
        printf("overwritten\n");
        fflush(stdout);
    }
    return NULL;
}

/* Blocked before any thread is started, the signal waits for the one that takes it. */
static void listen_for_overwrite(struct publisher *p)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    if (p->overwrite && pthread_create(&p->overwriter, NULL, overwrite_when_told, p) != 0)
        p->overwrite = false;
}

static void end_overwriter(struct publisher *p)
{
    if (!p->overwrite)
        return;
    atomic_store(&p->done, true);
    pthread_kill(p->overwriter, SIGUSR1);
    pthread_join(p->overwriter, NULL);
}

static int publish(struct publisher *p, struct refit_sender *sender, uint64_t version)
{
    struct refit_error err = {0};
    struct refit_report report = {0};
    char label[32];
    pthread_t thread;
    snprintf(label, sizeof label, "step-%llu", (unsigned long long)version);
    struct refit_publish request = {.version = version, .label = label, .deadline_ms = p->deadline_ms, .check_source = p->check,
                                    .policy = p->policy, .strategy = p->strategy, .stage_only = p->stage,
                                    .resume = p->resume};
    p->version = version;
    atomic_store(&p->stop, false);
    if (p->scribble)
        pthread_create(&thread, NULL, scribble, p);
    enum refit_status status = refit_sender_publish(sender, &request, &report, &err);
    atomic_store(&p->stop, true);
    if (p->scribble)
        pthread_join(thread, NULL);
    const struct refit_replica_report *first = report.replica_count ? &report.replicas[0] : NULL;
    if (status != REFIT_OK)
        printf("failed %llu %s %s\n", (unsigned long long)version, refit_status_name(status), err.text);
    else if (first)
        printf("ok %llu %s %llu %llu %llu %s\n", (unsigned long long)version, report.digest,
               (unsigned long long)first->bytes_needed, (unsigned long long)first->bytes_moved,
               (unsigned long long)first->wire_bytes, first->transport);
    for (size_t i = 0; i < report.replica_count; i++)
        printf("replica %s %s %s\n", report.replicas[i].url, refit_outcome_name(report.replicas[i].outcome),
               report.replicas[i].outcome == REFIT_OUTCOME_COMMITTED ? "" : report.replicas[i].error.text);
    if (first)
        printf("fleet %s %llu %llu %llu %llu %s\n", refit_fleet_outcome_name(report.outcome),
               (unsigned long long)report.membership_epoch, (unsigned long long)report.bytes_sent,
               (unsigned long long)report.bytes_excess, (unsigned long long)report.bytes_saved,
               report.relayed ? "relayed" : "direct");
    fflush(stdout);
    return status == REFIT_OK ? 0 : 1;
}

static int publish_listed(struct publisher *p, struct refit_sender *sender, const char *versions)
{
    int rc = 0;
    for (const char *at = versions; rc == 0 && at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        uint64_t version = strtoull(at, NULL, 10);
        wait_for_gate(p, version);
        fill(p, version);
        rc = publish(p, sender, version);
    }
    return rc;
}

/* Who measures wants every rank to have its bytes before any begins. */
static int publish_told(struct publisher *p, struct refit_sender *sender)
{
    char line[64];
    unsigned long long version;
    int rc = 0;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "fill %llu", &version) == 1) {
            fill(p, version);
            printf("filled %llu\n", version);
            fflush(stdout);
        } else if (sscanf(line, "publish %llu", &version) == 1) {
            rc |= publish(p, sender, version);
        }
    }
    return rc;
}

static int register_all(struct publisher *p, struct refit_sender *sender, const char *text, size_t len, struct refit_error *err)
{
    size_t bytes = (size_t)refit_layout_arena_bytes(p->layout, p->rank) + 64;
    int device = p->cuda ? device_of_rank(p->rank) : 0;
    void *memory = NULL;
    if (p->cuda)
        p->on_device = device_allocate(device, bytes);
    if (p->cuda || p->heap)
        memory = calloc(1, bytes);
    else if (refit_sender_alloc(sender, bytes, &memory, err) != REFIT_OK)
        return -1;
    p->memory = memory;
    p->bytes = bytes;
    refit_layout_buffers(p->layout, p->rank, add_buffer, p);
    for (size_t i = 0; p->cuda && i < p->count; i++) {
        p->buffers[i].data = (const uint8_t *)(uintptr_t)p->on_device + ((const uint8_t *)p->buffers[i].data - p->memory);
        p->buffers[i].memory = REFIT_SENDER_CUDA;
        p->buffers[i].device = device;
    }
    return refit_sender_register(sender, text, len, p->buffers, p->count, err) == REFIT_OK ? 0 : -1;
}

static void release_buffers(struct publisher *p)
{
    for (size_t i = 0; i < p->count; i++)
        free((void *)(uintptr_t)p->buffers[i].name);
    free(p->buffers);
    if (p->cuda)
        device_free(p->on_device);
    if (p->cuda || p->heap)
        free(p->memory);
}

int main(int argc, char **argv)
{
    char *text;
    size_t len;
    struct refit_error err;
    struct refit_sender *sender;
    if (argc < 6)
        return 2;
    struct publisher p = {.rank = (uint32_t)atoi(argv[2]), .deadline_ms = 30000};
    p.config = (struct refit_sender_config){.rank = p.rank, .ranks = (uint32_t)atoi(argv[3]), .lead_address = argv[4]};
    int next = 6;
    while (next < argc && read_option(&p, argv[next]))
        next++;
    listen_for_overwrite(&p);
    p.config.replicas = (const char *const *)(argv + next);
    p.config.replica_count = (size_t)(argc - next);
    if (refit_io_read_file(argv[1], 1 << 24, &text, &len, &err) != REFIT_OK ||
        refit_layout_parse(text, len, argv[1], &p.layout, &err) != REFIT_OK ||
        refit_sender_open(&p.config, &sender, &err) != REFIT_OK) {
        printf("failed 0 %s %s\n", refit_status_name(err.status), err.text);
        return 1;
    }
    int rc = register_all(&p, sender, text, len, &err);
    if (rc != 0)
        printf("failed 0 %s %s\n", refit_status_name(err.status), err.text);
    if (rc == 0)
        rc = strcmp(argv[5], "-") == 0 ? publish_told(&p, sender) : publish_listed(&p, sender, argv[5]);
    while (p.stay)
        pause();
    end_overwriter(&p);
    refit_sender_close(sender);
    release_buffers(&p);
    refit_layout_release(p.layout);
    free(text);
    return rc == 0 ? 0 : 1;
}
