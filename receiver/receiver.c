/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/receiver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "layouts/coverage.h"
#include "memory/document.h"
#include "receiver/receiver_internal.h"

void refit_receiver_lock(struct refit_receiver *receiver)
{
    pthread_mutex_lock(&receiver->lock);
}

void refit_receiver_unlock(struct refit_receiver *receiver)
{
    pthread_mutex_unlock(&receiver->lock);
}

void refit_receiver_changed(struct refit_receiver *receiver)
{
    refit_receiver_lock(receiver);
    pthread_cond_broadcast(&receiver->changed);
    void (*notify)(void *) = receiver->notify;
    void *context = receiver->notify_context;
    refit_receiver_unlock(receiver);
    if (notify)
        notify(context);
}

bool refit_receiver_wait(struct refit_receiver *receiver, struct refit_deadline deadline)
{
    struct timespec until = refit_deadline_timespec(deadline);
    return pthread_cond_timedwait(&receiver->changed, &receiver->lock, &until) == 0;
}

void refit_receiver_set_notify(struct refit_receiver *receiver, void (*notify)(void *context), void *context)
{
    refit_receiver_lock(receiver);
    receiver->notify = notify;
    receiver->notify_context = context;
    refit_receiver_unlock(receiver);
}

struct refit_bank *refit_receiver_bank(struct refit_receiver *receiver)
{
    return receiver->bank;
}

const char *refit_receiver_instance(const struct refit_receiver *receiver)
{
    return receiver->instance;
}

/* Engines receive: offered while all of them can. A holder has a connection for each. */
static enum refit_status engines_card(struct refit_receiver *receiver, json_t **out, struct refit_error *err)
{
    int version;
    json_t *card;
    enum refit_status status = refit_bank_can_receive(receiver->bank, &version, err);
    if (status == REFIT_OK)
        status = refit_listener_card(receiver->listener, refit_transport_nccl.name, &card, err);
    if (status != REFIT_OK)
        return status;
    if (json_object_set_new(card, "version", json_integer(version)) != 0 ||
        json_object_set_new(card, "engines", json_integer(receiver->config.bank.ranks)) != 0) {
        json_decref(card);
        return refit_fail_alloc(err, "a card", REFIT_CARD_MAX);
    }
    *out = card;
    return REFIT_OK;
}

enum refit_status refit_receiver_card(struct refit_receiver *receiver, const char *transport, json_t **out,
                                      struct refit_error *err)
{
    if (!refit_transport_find(transport))
        return refit_fail(err, REFIT_UNSUPPORTED, "transport '%s' is not known; use tcp, local or nccl", transport);
    if (receiver->config.bank.in_engine && strcmp(transport, refit_transport_nccl.name) == 0)
        return engines_card(receiver, out, err);
    return refit_listener_card(receiver->listener, transport, out, err);
}

/* --- opening ---------------------------------------------------------------------------------------------------- */

static void on_bank(void *context)
{
    refit_receiver_changed(context);
}

static void on_evict(void *context, uint32_t slot)
{
    refit_serves_end_slot(context, slot);
}

static void set_defaults(struct refit_receiver_config *config)
{
    if (config->streams == 0)
        config->streams = 2;
    if (config->deadline_ms == 0)
        config->deadline_ms = 600000;
    if (config->deadline_max_ms == 0)
        config->deadline_max_ms = 86400000;
    if (config->staged_ttl_ms == 0)
        config->staged_ttl_ms = 600000;
    if (config->lead_ttl_ms == 0)
        config->lead_ttl_ms = 15000;
    if (config->relay_silence_ms == 0)
        config->relay_silence_ms = 500;
    if (config->relay_stall_ms == 0)
        config->relay_stall_ms = 2000;
}

static enum refit_status copy_config(struct refit_receiver *receiver, const struct refit_receiver_config *config,
                                     struct refit_error *err)
{
    receiver->config = *config;
    set_defaults(&receiver->config);
    receiver->config.checkpoint_root = NULL;
    if (!config->checkpoint_root)
        return REFIT_OK;
    receiver->config.checkpoint_root = receiver->checkpoint_root = strdup(config->checkpoint_root);
    return receiver->checkpoint_root ? REFIT_OK
                                     : refit_fail_alloc(err, "the checkpoint root", strlen(config->checkpoint_root));
}

static enum refit_status init_locks(struct refit_receiver *receiver, struct refit_error *err)
{
    int errnum = refit_cond_init(&receiver->changed);
    if (errnum == 0)
        errnum = pthread_mutex_init(&receiver->lock, NULL);
    if (errnum == 0)
        errnum = pthread_mutex_init(&receiver->saving, NULL);
    return errnum == 0 ? REFIT_OK : refit_fail_errno(err, errnum, "the receiver's lock");
}

static void make_instance(struct refit_receiver *receiver)
{
    uint64_t random[2];
    refit_io_random(random, sizeof random);
    snprintf(receiver->instance, sizeof receiver->instance, "%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
}

/* Beside the engines' socket and named after it, unless configured: replicas may share a directory. */
static enum refit_status start_listener(struct refit_receiver *receiver, const struct refit_receiver_config *config,
                                        struct refit_error *err)
{
    struct refit_listener_config listener = config->listener;
    const char *socket = config->bank.socket_path;
    char path[4096];
    if (snprintf(path, sizeof path, "%s.data", socket) >= (int)sizeof path)
        return refit_fail(err, REFIT_INVALID, "socket path is too long: %.80s...", socket);
    if (!listener.local_path)
        listener.local_path = path;
    return refit_listener_start(&listener, &receiver->listener, err);
}

enum refit_status refit_receiver_open(const struct refit_receiver_config *config, struct refit_receiver **out,
                                      struct refit_error *err)
{
    struct refit_receiver *receiver = calloc(1, sizeof *receiver);
    if (!receiver)
        return refit_fail_alloc(err, "the receiver", sizeof *receiver);
    enum refit_status status = init_locks(receiver, err);
    if (status != REFIT_OK) {
        free(receiver);
        return status;
    }
    make_instance(receiver);
    refit_transports_keep();
    status = copy_config(receiver, config, err);
    if (status == REFIT_OK)
        status = refit_bank_open(&config->bank, &receiver->bank, err);
    if (status == REFIT_OK)
        refit_record_load(receiver);
    if (status == REFIT_OK)
        status = start_listener(receiver, config, err);
    if (status != REFIT_OK) {
        refit_receiver_close(receiver);
        return status;
    }
    refit_bank_set_notify(receiver->bank, on_bank, receiver);
    refit_bank_set_evict(receiver->bank, on_evict, receiver);
    *out = receiver;
    return REFIT_OK;
}

void refit_receiver_follow_slots(struct refit_receiver *receiver)
{
    struct refit_bank_snapshot bank;
    refit_bank_read(receiver->bank, &bank);
    refit_receiver_lock(receiver);
    refit_kept_follow(&receiver->kept, &bank);
    refit_receiver_unlock(receiver);
}

/* Ends what runs and joins its thread, which has joined all before it. */
static void stop_sessions(struct refit_receiver *receiver)
{
    refit_receiver_lock(receiver);
    receiver->closing = true;
    for (uint32_t i = 0; i < receiver->session_count; i++)
        refit_session_cancel(receiver->sessions[i], REFIT_ABORTED, "refitd is shutting down");
    refit_receiver_unlock(receiver);
    refit_receiver_changed(receiver);
    if (receiver->thread_started)
        pthread_join(receiver->thread, NULL);
}

void refit_receiver_close(struct refit_receiver *receiver)
{
    if (!receiver)
        return;
    stop_sessions(receiver);
    refit_serves_close(receiver);
    refit_listener_stop(receiver->listener);
    refit_bank_close(receiver->bank);
    refit_transports_let_go();
    for (uint32_t i = 0; i < receiver->session_count; i++)
        refit_session_release(receiver->sessions[i]);
    refit_plans_clear(&receiver->plans);
    refit_kept_clear(&receiver->kept);
    refit_sources_clear(&receiver->sources);
    pthread_cond_destroy(&receiver->changed);
    pthread_mutex_destroy(&receiver->lock);
    pthread_mutex_destroy(&receiver->saving);
    free(receiver->checkpoint_root);
    free(receiver);
}

/* --- leads and documents ---------------------------------------------------------------------------------------- */

static bool lead_works(const struct refit_receiver *receiver)
{
    for (uint32_t i = 0; i < receiver->session_count; i++) {
        const struct refit_session *session = receiver->sessions[i];
        if (session->request.epoch == receiver->leads.epoch && session->request.epoch != 0 &&
            !refit_session_is_finished(session) && !atomic_load_explicit(&session->cancel, memory_order_relaxed))
            return true;
    }
    return false;
}

static enum refit_status admit(const struct refit_receiver *receiver, const char *name, bool takeover,
                               struct refit_error *err)
{
    return refit_leads_admit(&receiver->leads, name, takeover, lead_works(receiver), receiver->config.lead_ttl_ms, err);
}

/* Nobody is left to commit what the leads up to `epoch` began. */
static void fence(struct refit_receiver *receiver, uint64_t epoch, const char *why)
{
    for (uint32_t i = 0; i < receiver->session_count; i++) {
        struct refit_session *session = receiver->sessions[i];
        if (session->request.epoch != 0 && session->request.epoch <= epoch)
            refit_session_cancel(session, REFIT_ABORTED, "%s", why);
    }
}

static void install_lead(struct refit_receiver *receiver, const struct refit_record *record)
{
    char why[REFIT_LEAD_NAME_MAX + 32];
    snprintf(why, sizeof why, "its lead was replaced by %s", record->lead);
    fence(receiver, receiver->leads.epoch, why);
    receiver->leads.epoch = record->epoch;
    memcpy(receiver->leads.name, record->lead, sizeof receiver->leads.name);
    receiver->leads.heard_ns = refit_clock_ns();
}

/* With `saving` held. An epoch is on disk before it is told; one that is not told may be issued again. */
static enum refit_status issue_epoch(struct refit_receiver *receiver, const char *name, bool takeover,
                                     struct refit_record *record, struct refit_error *err)
{
    refit_receiver_lock(receiver);
    enum refit_status status = admit(receiver, name, takeover, err);
    refit_record_copy(receiver, record);
    refit_receiver_unlock(receiver);
    if (status != REFIT_OK)
        return status;
    if (__builtin_add_overflow(record->epoch, 1, &record->epoch))
        return refit_fail(err, REFIT_INVALID, "no epoch is left after 2^64 - 1");
    snprintf(record->lead, sizeof record->lead, "%s", name);
    status = refit_record_write(receiver, record, err);
    if (status != REFIT_OK)
        return refit_error_prefix(err, status, "an epoch for %s", name);
    refit_receiver_lock(receiver);
    status = admit(receiver, name, takeover, err); /* the other lead may have begun a refit meanwhile */
    if (status == REFIT_OK)
        install_lead(receiver, record);
    refit_receiver_unlock(receiver);
    return status;
}

enum refit_status refit_receiver_lead(struct refit_receiver *receiver, const char *name, bool takeover,
                                      uint64_t *epoch, struct refit_error *err)
{
    struct refit_record record;
    pthread_mutex_lock(&receiver->saving);
    enum refit_status status = issue_epoch(receiver, name, takeover, &record, err);
    pthread_mutex_unlock(&receiver->saving);
    if (status != REFIT_OK)
        return status;
    *epoch = record.epoch;
    refit_receiver_changed(receiver);
    return REFIT_OK;
}

enum refit_status refit_receiver_resign(struct refit_receiver *receiver, const char *name, uint64_t epoch,
                                        struct refit_error *err)
{
    refit_receiver_lock(receiver);
    enum refit_status status = refit_leads_resign(&receiver->leads, name, epoch, err);
    if (status == REFIT_OK)
        fence(receiver, epoch, "its lead resigned");
    refit_receiver_unlock(receiver);
    if (status == REFIT_OK)
        refit_receiver_changed(receiver);
    return status;
}

enum refit_status refit_receiver_put_source(struct refit_receiver *receiver, const char *digest, const void *text,
                                            size_t len, struct refit_error *err)
{
    refit_receiver_lock(receiver);
    bool known = refit_sources_find(&receiver->sources, digest) != NULL;
    refit_receiver_unlock(receiver);
    /* A lead sends what it has sent before, in canonical form: that need not be parsed again. */
    char hex[REFIT_SHA256_HEX_MAX];
    refit_sha256_hex(text, known ? len : 0, hex);
    if (known && strcmp(hex, digest) == 0)
        return REFIT_OK;
    struct refit_layout *layout;
    uint64_t room;
    enum refit_status status = refit_document_enter(text, len, 1, "source layout", &room, err);
    if (status != REFIT_OK)
        return status;
    status = refit_layout_parse(text, len, "source layout", &layout, err);
    refit_document_leave(room);
    if (status != REFIT_OK)
        return status;
    if (strcmp(refit_layout_digest(layout), digest) == 0) {
        refit_receiver_lock(receiver);
        refit_sources_put(&receiver->sources, layout);
        refit_receiver_unlock(receiver);
    } else
        status = refit_fail(err, REFIT_MISMATCH, "source layout: named %.80s, its canonical text has the digest %s",
                            digest, refit_layout_digest(layout));
    refit_layout_release(layout);
    return status;
}

/* --- plans ------------------------------------------------------------------------------------------------------ */

enum refit_status refit_receiver_plan_for(struct refit_receiver *receiver, struct refit_layout *source,
                                          struct refit_layout *destination, struct refit_plan **out,
                                          struct refit_error *err)
{
    refit_receiver_lock(receiver);
    *out = refit_plans_find(&receiver->plans, refit_layout_digest(source), refit_layout_digest(destination));
    refit_receiver_unlock(receiver);
    if (*out)
        return REFIT_OK;
    const struct refit_plan_scope scope = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS,
                                           .first_rank = receiver->config.bank.first_rank,
                                           .rank_count = receiver->config.bank.ranks};
    enum refit_status status = refit_plan_build(source, destination, scope, out, err);
    if (status != REFIT_OK)
        return status;
    refit_receiver_lock(receiver);
    refit_plans_put(&receiver->plans, *out);
    refit_receiver_unlock(receiver);
    return REFIT_OK;
}

enum refit_status refit_receiver_prove(struct refit_receiver *receiver, const struct refit_layout *destination,
                                       struct refit_error *err)
{
    const char *digest = refit_layout_digest(destination);
    refit_receiver_lock(receiver);
    bool proved = strcmp(receiver->covered, digest) == 0;
    refit_receiver_unlock(receiver);
    if (proved)
        return REFIT_OK;
    enum refit_status status = refit_coverage_check(destination, err);
    if (status != REFIT_OK)
        return refit_error_prefix(err, status, "the layout served here");
    refit_receiver_lock(receiver);
    snprintf(receiver->covered, sizeof receiver->covered, "%s", digest);
    refit_receiver_unlock(receiver);
    return REFIT_OK;
}

enum refit_status refit_receiver_plan(struct refit_receiver *receiver, const char *source_digest,
                                      struct refit_plan **out, struct refit_error *err)
{
    struct refit_layout *destination = refit_bank_layout(receiver->bank);
    if (!destination)
        return refit_fail(err, REFIT_BUSY, "no engine has attached yet, so there is no layout to plan for; retry");
    refit_receiver_lock(receiver);
    struct refit_layout *source = refit_sources_find(&receiver->sources, source_digest);
    if (source)
        refit_layout_retain(source);
    refit_receiver_unlock(receiver);
    const struct refit_plan_scope scope = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS, .totals_only = true,
                                           .first_rank = receiver->config.bank.first_rank,
                                           .rank_count = receiver->config.bank.ranks};
    enum refit_status status =
        source ? refit_plan_build(source, destination, scope, out, err)
               : refit_fail(err, REFIT_NOT_FOUND, "source layout %.80s is not known here; put it, then retry",
                            source_digest);
    refit_layout_release(source);
    refit_layout_release(destination);
    return status;
}

/* --- reading ---------------------------------------------------------------------------------------------------- */

/* A whole replica's digest is the model's; of a part's it is what its lead has said. */
static void read_models(const struct refit_receiver *receiver, struct refit_receiver_snapshot *out)
{
    const struct refit_bank_snapshot *bank = &out->bank;
    for (uint32_t i = 0; i < bank->slots; i++) {
        const struct refit_version version = bank->slot[i].version;
        const char *model = bank->ranks == bank->ranks_total
                                ? version.digest
                                : refit_proofs_find(&receiver->proofs, version.version, version.digest);
        snprintf(out->model[i], sizeof out->model[i], "%s", model);
    }
}

static void read_locked(const struct refit_receiver *receiver, struct refit_receiver_snapshot *out)
{
    read_models(receiver, out);
    out->held = receiver->held;
    out->epoch = receiver->leads.epoch;
    memcpy(out->lead, receiver->leads.name, sizeof out->lead);
    out->quarantined = receiver->quarantine.count;
    if (receiver->session_count > 0)
        memcpy(out->session, receiver->sessions[0]->id, sizeof out->session);
    out->committed = receiver->committed;
    out->aborted = receiver->aborted;
    out->superseded = receiver->superseded;
    memcpy(out->aborted_by, receiver->aborted_by, sizeof out->aborted_by);
    out->bytes_landed = receiver->bytes_landed;
    out->supplied = receiver->supplied;
    out->serving = refit_serves_running(&receiver->serves);
    out->served_bytes = receiver->serves.bytes;
    out->plan_hits = receiver->plans.hits;
    out->plan_misses = receiver->plans.misses;
}

void refit_receiver_read(struct refit_receiver *receiver, struct refit_receiver_snapshot *out)
{
    memset(out, 0, sizeof *out);
    refit_bank_read(receiver->bank, &out->bank);
    memcpy(out->instance, receiver->instance, sizeof out->instance);
    struct refit_layout *layout = refit_bank_layout(receiver->bank);
    if (layout) {
        snprintf(out->layout, sizeof out->layout, "%s", refit_layout_digest(layout));
        out->model_bytes = refit_layout_model_bytes(layout);
        refit_layout_release(layout);
    }
    refit_receiver_lock(receiver);
    read_locked(receiver, out);
    refit_receiver_unlock(receiver);
}
