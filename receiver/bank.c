/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/bank.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "base/socket.h"
#include "base/thread.h"
#include "receiver/bank_internal.h"

const char *refit_slot_state_name(enum refit_slot_state state)
{
    switch (state) {
    case REFIT_SLOT_FREE: return "free";
    case REFIT_SLOT_FILLING: return "filling";
    case REFIT_SLOT_STAGED: return "staged";
    case REFIT_SLOT_ACTIVE: return "active";
    case REFIT_SLOT_RETAINED: return "retained";
    }
    return "unknown";
}

/* --- lock, waiters, notify --------------------------------------------------------------------------------- */

void refit_bank_lock(struct refit_bank *bank)
{
    pthread_mutex_lock(&bank->lock);
}

void refit_bank_unlock(struct refit_bank *bank)
{
    refit_bank_notify notify = bank->dirty ? bank->notify : NULL;
    void *context = bank->notify_context;
    bank->dirty = false;
    pthread_mutex_unlock(&bank->lock);
    if (notify)
        notify(context);
}

void refit_bank_changed(struct refit_bank *bank)
{
    bank->dirty = true;
    pthread_cond_broadcast(&bank->changed);
}

enum refit_status refit_bank_pause(struct refit_bank *bank, struct refit_deadline deadline, const atomic_bool *cancel,
                                   int slice_ms)
{
    if (cancel && atomic_load_explicit(cancel, memory_order_acquire))
        return REFIT_ABORTED;
    if (refit_deadline_passed(deadline))
        return REFIT_TIMEOUT;
    struct timespec until =
        refit_deadline_timespec(refit_deadline_earlier(deadline, refit_deadline_in_ms(slice_ms)));
    pthread_cond_timedwait(&bank->changed, &bank->lock, &until);
    return REFIT_OK;
}

void refit_bank_wake(struct refit_bank *bank)
{
    uint64_t one = 1;
    (void)!write(bank->wake, &one, sizeof one);
}

void refit_bank_set_notify(struct refit_bank *bank, refit_bank_notify notify, void *context)
{
    refit_bank_lock(bank);
    bank->notify = notify;
    bank->notify_context = context;
    refit_bank_unlock(bank);
}

void refit_bank_set_evict(struct refit_bank *bank, refit_bank_evict evict, void *context)
{
    refit_bank_lock(bank);
    bank->evict = evict;
    bank->evict_context = context;
    refit_bank_unlock(bank);
}

/* --- states ------------------------------------------------------------------------------------------------ */

static int64_t wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void refit_bank_set_state(struct refit_bank *bank, uint32_t slot, enum refit_slot_state state)
{
    struct refit_slot *s = &bank->slot[slot];
    s->state = state;
    s->since_ms = wall_ms();
    s->preparing = false;
    if (state == REFIT_SLOT_RETAINED) {
        s->retired_order = ++bank->retirements;
        s->retired_ns = refit_clock_ns();
    }
    if (state == REFIT_SLOT_FREE || state == REFIT_SLOT_FILLING)
        s->version = (struct refit_version){0};
    refit_bank_changed(bank);
}

/* --- open and close ---------------------------------------------------------------------------------------- */

enum refit_status refit_bank_check_fits(const struct refit_bank *bank, const struct refit_layout *layout,
                                        struct refit_error *err)
{
    if (refit_layout_ranks(layout) != bank->ranks_total)
        return refit_fail(err, REFIT_MISMATCH, "the layout describes %u ranks, the replica served here has %u",
                          refit_layout_ranks(layout), bank->ranks_total);
    for (uint32_t rank = 0; bank->slot_bytes > 0 && rank < bank->ranks; rank++) {
        uint64_t need = refit_layout_arena_bytes(layout, refit_bank_rank_number(bank, rank));
        if (need > bank->slot_bytes)
            return refit_fail(err, REFIT_MISMATCH,
                              "slots have %" PRIu64 " bytes, the layout of rank %u needs %" PRIu64
                              "; configure larger slots", bank->slot_bytes, refit_bank_rank_number(bank, rank), need);
    }
    return REFIT_OK;
}

static uint32_t ranks_total(const struct refit_bank_config *config)
{
    return config->ranks_total ? config->ranks_total : config->ranks;
}

static enum refit_status check_config(const struct refit_bank_config *config, struct refit_error *err)
{
    if (config->ranks < 1 || config->ranks > REFIT_BANK_RANKS_MAX)
        return refit_fail(err, REFIT_INVALID, "ranks: %u, 1 to %d are served by one refitd", config->ranks,
                          REFIT_BANK_RANKS_MAX);
    if (!config->socket_path)
        return refit_fail(err, REFIT_INVALID, "socket_path is required");
    if (config->first_rank > ranks_total(config) || config->ranks > ranks_total(config) - config->first_rank)
        return refit_fail(err, REFIT_INVALID, "ranks %u to %u of a replica of %u ranks", config->first_rank,
                          config->first_rank + config->ranks - 1, ranks_total(config));
    if (config->engine && !config->layout)
        return refit_fail(err, REFIT_INVALID, "an engine that installs weights itself declares no layout: name one");
    if (config->memory != REFIT_ARENA_HOST && config->memory != REFIT_ARENA_CUDA)
        return refit_fail(err, REFIT_INVALID, "memory: slots are in host memory or on CUDA devices");
    if (config->memory == REFIT_ARENA_CUDA && config->engine)
        return refit_fail(err, REFIT_INVALID, "an engine that installs weights itself reads them in host memory");
    if (config->in_engine && (config->memory != REFIT_ARENA_CUDA || config->host_staging ||
                              config->ranks > REFIT_REMOTE_ENGINES_MAX))
        return refit_fail(err, REFIT_INVALID, "receiving in engines: slots on devices are needed for it, and 1 to %d ranks",
                          REFIT_REMOTE_ENGINES_MAX);
    if (config->host_staging && (config->memory != REFIT_ARENA_CUDA || config->swap != REFIT_SWAP_COPY))
        return refit_fail(err, REFIT_INVALID, "staging in host memory: slots on devices and swap mode copy are needed for it");
    return refit_bank_check_mode(config, err);
}

static enum refit_status allocate_tables(struct refit_bank *bank, struct refit_error *err)
{
    bank->returned = calloc(bank->ranks, sizeof *bank->returned);
    for (uint32_t i = 0; i < bank->slots; i++) {
        struct refit_slot *s = &bank->slot[i];
        s->arena = calloc(bank->ranks, sizeof(*s->arena));
        s->writable = calloc(bank->ranks, sizeof(*s->writable));
        bank->record[i].memory = calloc(bank->ranks, sizeof(*bank->record[i].memory));
        if (!bank->returned || !s->arena || !s->writable || !bank->record[i].memory)
            return refit_fail_alloc(err, "the table of slots", bank->ranks * sizeof(*s->arena));
        s->since_ms = wall_ms();
    }
    return REFIT_OK;
}

static enum refit_status create(const struct refit_bank_config *config, struct refit_bank **out,
                                struct refit_error *err)
{
    struct refit_bank *bank = calloc(1, sizeof *bank);
    if (!bank)
        return refit_fail_alloc(err, "the bank", sizeof *bank);
    refit_cond_init(&bank->changed);
    pthread_mutex_init(&bank->lock, NULL);
    pthread_mutex_init(&bank->save_lock, NULL);
    bank->ranks = config->ranks;
    bank->first_rank = config->first_rank;
    bank->ranks_total = ranks_total(config);
    bank->slots = config->slots;
    bank->slot_bytes = config->slot_bytes;
    bank->protection = config->protection;
    bank->swap = config->swap;
    bank->closed = REFIT_SLOT_NONE;
    bank->active = bank->swap_to = bank->record_swap_to = bank->leader_gate = REFIT_SLOT_NONE;
    bank->listener = -1;
    bank->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bank->socket_path = strdup(config->socket_path);
    bank->layout = config->layout ? refit_layout_retain(config->layout) : NULL;
    bank->engine = config->engine;
    bank->in_engine = config->in_engine;
    *out = bank;
    if (!bank->socket_path || bank->wake < 0)
        return refit_fail(err, REFIT_NO_MEMORY, "the bank: no descriptor or no memory left");
    enum refit_status status = bank->layout ? refit_bank_check_fits(bank, bank->layout, err) : REFIT_OK;
    if (status == REFIT_OK)
        status = refit_bank_find_devices(bank, config, err);
    return status == REFIT_OK ? allocate_tables(bank, err) : status;
}

static enum refit_status open_state(struct refit_bank *bank, const char *path, struct refit_error *err)
{
    char beside[4096];
    if (!path) {
        if (snprintf(beside, sizeof beside, "%s.state", bank->socket_path) >= (int)sizeof beside)
            return refit_fail(err, REFIT_INVALID, "%s: path too long", bank->socket_path);
        path = beside;
    }
    return refit_state_open(path, &bank->state, err);
}

static enum refit_status start(struct refit_bank *bank, const struct refit_bank_config *config,
                               struct refit_error *err)
{
    /* The socket first: whoever has it has the state file. */
    enum refit_status status = refit_socket_listen(bank->socket_path, config->socket_mode ? config->socket_mode : 0660,
                                                   &bank->listener, err);
    if (status == REFIT_OK)
        status = open_state(bank, config->state_path, err);
    if (status != REFIT_OK)
        return status;
    refit_bank_adopt_begin(bank, config->adopt_ms);
    if (!bank->adopting && refit_bank_sized(bank)) {
        status = refit_bank_make_memory(bank, REFIT_SLOT_NONE, err);
        if (status != REFIT_OK)
            return status;
        refit_bank_save(bank);
    }
    status = refit_thread_start(&bank->thread, refit_bank_thread, bank, "the bank's thread", err);
    bank->thread_runs = status == REFIT_OK;
    return status;
}

enum refit_status refit_bank_open(const struct refit_bank_config *config, struct refit_bank **out,
                                  struct refit_error *err)
{
    struct refit_bank *bank = NULL;
    enum refit_status status = check_config(config, err);
    if (status == REFIT_OK)
        status = create(config, &bank, err);
    if (status == REFIT_OK)
        status = start(bank, config, err);
    if (status != REFIT_OK) {
        refit_bank_close(bank);
        return status;
    }
    *out = bank;
    return REFIT_OK;
}

static void release_slots(struct refit_bank *bank)
{
    refit_bank_release_exchange(bank); /* it may have pinned what is released below */
    for (uint32_t i = 0; i < bank->slots; i++) {
        for (uint32_t rank = 0; bank->slot[i].arena && rank < bank->ranks; rank++)
            refit_arena_release(bank->slot[i].arena[rank]);
        free(bank->slot[i].arena);
        free(bank->slot[i].writable);
    }
    refit_bank_record_release(bank);
    free(bank->returned);
    free(bank->device);
}

void refit_bank_close(struct refit_bank *bank)
{
    if (!bank)
        return;
    if (bank->thread_runs) {
        atomic_store_explicit(&bank->stop, true, memory_order_release);
        refit_bank_wake(bank);
        pthread_join(bank->thread, NULL);
    }
    if (bank->listener >= 0)
        unlink(bank->socket_path);
    while (bank->readers) {
        struct refit_reader *reader = bank->readers;
        bank->readers = reader->next;
        refit_reader_destroy(reader);
    }
    refit_bank_release_writers(bank);
    release_slots(bank);
    refit_io_close(&bank->listener);
    refit_io_close(&bank->wake);
    refit_state_close(bank->state);
    refit_layout_release(bank->layout);
    pthread_cond_destroy(&bank->changed);
    pthread_mutex_destroy(&bank->lock);
    pthread_mutex_destroy(&bank->save_lock);
    free(bank->socket_path);
    free(bank);
}

/* --- reading ----------------------------------------------------------------------------------------------- */

struct refit_layout *refit_bank_layout(struct refit_bank *bank)
{
    refit_bank_lock(bank);
    struct refit_layout *layout = bank->layout ? refit_layout_retain(bank->layout) : NULL;
    refit_bank_unlock(bank);
    return layout;
}

struct refit_state *refit_bank_state(struct refit_bank *bank)
{
    return bank->state;
}

struct refit_arena *const *refit_bank_arenas(struct refit_bank *bank, uint32_t slot)
{
    return bank->slot[slot].arena;
}

static void read_slot(const struct refit_bank *bank, uint32_t slot, struct refit_bank_slot *out)
{
    const struct refit_slot *s = &bank->slot[slot];
    *out = (struct refit_bank_slot){
        .state = s->state, .version = s->version,
        .memory = refit_bank_on_device(bank, slot) ? REFIT_ARENA_CUDA : REFIT_ARENA_HOST,
        .writable = true, .since_ms = s->since_ms};
    for (uint32_t rank = 0; rank < bank->ranks; rank++)
        out->writable = out->writable && (!s->arena[rank] || s->writable[rank]);
    for (const struct refit_reader *r = bank->readers; r; r = r->next) {
        if (r->gate != slot)
            out->pins += refit_claim_pins(r->claim, slot);
    }
}

static void read_devices(const struct refit_bank *bank, struct refit_bank_snapshot *out)
{
    for (uint32_t rank = 0; rank < bank->ranks && rank < sizeof out->rank / sizeof out->rank[0]; rank++) {
        out->rank[rank].device = bank->device ? bank->device[rank].ordinal : -1;
        if (bank->device)
            memcpy(out->rank[rank].uuid, bank->device[rank].uuid, sizeof out->rank[rank].uuid);
    }
}

static void read_ranks(const struct refit_bank *bank, struct refit_bank_snapshot *out)
{
    for (const struct refit_reader *r = bank->readers; r; r = r->next) {
        if (!refit_reader_attached(r))
            continue;
        out->attached++;
        if (r->rank >= sizeof out->rank / sizeof out->rank[0])
            continue;
        out->rank[r->rank].attached = true;
        out->rank[r->rank].pid = r->pid;
        memcpy(out->rank[r->rank].label, r->label, sizeof r->label);
    }
}

static uint32_t last_retired(const struct refit_bank *bank, uint64_t below)
{
    uint32_t best = REFIT_SLOT_NONE;
    for (uint32_t i = 0; i < bank->slots; i++) {
        const struct refit_slot *s = &bank->slot[i];
        if (s->state == REFIT_SLOT_RETAINED && s->version.version < below &&
            (best == REFIT_SLOT_NONE || s->retired_order > bank->slot[best].retired_order))
            best = i;
    }
    return best;
}

/* What was gone back from, or taken back from a canary, is retained too: back is never forward to that. */
uint32_t refit_bank_earlier(const struct refit_bank *bank)
{
    return last_retired(bank, bank->active == REFIT_SLOT_NONE ? UINT64_MAX : bank->slot[bank->active].version.version);
}

void refit_bank_read(struct refit_bank *bank, struct refit_bank_snapshot *out)
{
    memset(out, 0, sizeof *out);
    refit_bank_lock(bank);
    out->ranks = bank->ranks;
    out->first_rank = bank->first_rank;
    out->ranks_total = bank->ranks_total;
    out->slots = bank->slots;
    out->memory = bank->device_slots > 0 ? REFIT_ARENA_CUDA : REFIT_ARENA_HOST;
    out->protection = refit_bank_protection(bank);
    out->swap = bank->swap;
    out->torn = bank->closed == REFIT_SLOT_TORN;
    out->active = bank->active;
    out->adopting = bank->adopting;
    out->swaps = bank->swaps;
    out->rollbacks = bank->rollbacks;
    out->readers_died = bank->readers_died;
    out->last_swap_ns = bank->last_swap_ns;
    for (uint32_t rank = 0; rank < bank->ranks; rank++) {
        uint64_t bytes = refit_bank_rank_bytes(bank, rank);
        out->slot_bytes = bytes > out->slot_bytes ? bytes : out->slot_bytes;
    }
    for (uint32_t i = 0; i < bank->slots; i++)
        read_slot(bank, i, &out->slot[i]);
    read_ranks(bank, out);
    read_devices(bank, out);
    uint32_t earlier = refit_bank_earlier(bank), left = last_retired(bank, UINT64_MAX);
    out->rollback_available = earlier != REFIT_SLOT_NONE && bank->active != REFIT_SLOT_NONE;
    out->rollback_version = out->rollback_available ? bank->slot[earlier].version.version : 0;
    out->left_version = left != REFIT_SLOT_NONE ? bank->slot[left].version.version : 0;
    refit_bank_unlock(bank);
}
