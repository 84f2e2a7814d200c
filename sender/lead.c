/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/lead.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "base/thread.h"
#include "sender/replica.h"
#include "sender/serve.h"
#include "sender/served.h"

/* Of the deadline, a part is kept for committing those that are staged: a fifth, at most this. */
#define RESERVE_MS 10000
#define MEMBERS_MS 5000 /* to find out who the members are */

static void set_name(struct refit_lead *lead, const char *name)
{
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    if (name && *name)
        snprintf(lead->name, sizeof lead->name, "%s", name);
    else
        snprintf(lead->name, sizeof lead->name, "%s-%d", host, (int)getpid());
}

static enum refit_status check_transport(const char *name, struct refit_error *err)
{
    if (!name || strcmp(name, "auto") == 0 || refit_transport_find(name))
        return REFIT_OK;
    return refit_fail(err, REFIT_INVALID, "transport \"%s\" is not known; expected auto, tcp, local or nccl", name);
}

enum refit_status refit_lead_create(const struct refit_lead_config *config, struct refit_lead **out,
                                    struct refit_error *err)
{
    struct refit_lead *lead = calloc(1, sizeof *lead);
    if (!lead)
        return refit_fail_alloc(err, "the lead", sizeof *lead);
    lead->rank_count = config->ranks;
    lead->takeover = config->takeover;
    lead->credentials = config->credentials;
    snprintf(lead->transport, sizeof lead->transport, "%s", config->transport ? config->transport : "auto");
    set_name(lead, config->name);
    pthread_mutex_init(&lead->lock, NULL);
    pthread_mutex_init(&lead->telling, NULL);
    refit_cond_init(&lead->changed);
    enum refit_status status = check_transport(config->transport, err);
    if (status == REFIT_OK)
        status = refit_members_open(&config->members, &lead->members, err);
    if (status != REFIT_OK)
        refit_lead_destroy(lead);
    else
        *out = lead;
    return status;
}

void refit_lead_end(struct refit_lead *lead)
{
    refit_lead_cancel(lead);
    refit_lead_join(lead);
    refit_replicas_leave(lead->replicas, lead->replica_count);
    refit_replicas_leave(lead->leavers, lead->leaver_count);
}

void refit_lead_destroy(struct refit_lead *lead)
{
    if (!lead)
        return;
    refit_classes_dissolve(lead);
    for (size_t i = 0; i < lead->replica_count; i++)
        refit_replica_destroy(lead->replicas[i]);
    for (size_t i = 0; i < lead->leaver_count; i++)
        refit_replica_destroy(lead->leavers[i]);
    refit_members_close(lead->members);
    refit_twins_release(&lead->twins);
    json_decref(lead->publish.unchanged);
    for (size_t i = 0; i < lead->told_count; i++)
        refit_layout_release(lead->told[i]);
    refit_layout_release(lead->source);
    pthread_cond_destroy(&lead->changed);
    pthread_mutex_destroy(&lead->telling);
    pthread_mutex_destroy(&lead->lock);
    free(lead->replicas);
    free(lead->leavers);
    free(lead->units);
    free(lead);
}

void refit_lead_set_ranks(struct refit_lead *lead, struct refit_ranks *ranks)
{
    lead->ranks = ranks;
}

/* The ranks make their plans anew for another source, and must be told the destinations again. */
void refit_lead_set_device(struct refit_lead *lead, bool on_device)
{
    lead->on_device = on_device;
}

void refit_lead_set_source(struct refit_lead *lead, struct refit_layout *source, const struct refit_gathering *gathering)
{
    for (size_t i = 0; i < lead->told_count; i++)
        refit_layout_release(lead->told[i]);
    lead->told_count = 0;
    refit_layout_release(lead->source);
    lead->source = refit_layout_retain(source);
    lead->gathering = gathering ? *gathering : (struct refit_gathering){.gather = NULL};
}

/* ---- what ranks say ---- */

/* With the lock held. */
static enum refit_status take_served(struct refit_replica *replica, const struct refit_served *served,
                                     const void *tally, size_t len, struct refit_error *err)
{
    replica->sent_bytes += served->payload_bytes;
    replica->report.bytes_sent += served->payload_bytes;
    replica->report.wire_bytes += served->wire_bytes;
    if (replica->class)
        replica->class->egress += served->payload_bytes;
    enum refit_status status = refit_served_add(tally, len, replica->tally, replica->again, err);
    if (served->outcome.status == REFIT_OK || status != REFIT_OK)
        return status;
    *err = served->outcome;
    return served->outcome.status;
}

void refit_lead_on_served(struct refit_lead *lead, uint32_t rank, const void *body, size_t len)
{
    struct refit_served served;
    struct refit_error err;
    const void *tally = NULL;
    size_t tally_len = 0;
    if (refit_served_read(body, len, &served, &tally, &tally_len, &err) != REFIT_OK) {
        refit_fail(&err, REFIT_PEER, "what it served can't be understood");
        refit_lead_on_lost(lead, rank, &err);
        return;
    }
    pthread_mutex_lock(&lead->lock);
    if (lead->broadcast && served.replica == REFIT_SERVE_GATHER)
        refit_broadcast_on_served(lead->broadcast, rank, &served, tally, tally_len);
    struct refit_replica *replica = served.replica < lead->replica_count ? lead->replicas[served.replica] : NULL;
    if (replica && replica->posted && served.attempt == replica->attempt) {
        if (take_served(replica, &served, tally, tally_len, &err) != REFIT_OK &&
            (replica->served_error.status == REFIT_OK || refit_served_is_let_go(replica->served_error.status)))
            refit_fail(&replica->served_error, err.status, "rank %u: %s", rank, err.text);
        replica->served++;
        pthread_cond_broadcast(&lead->changed);
    }
    pthread_mutex_unlock(&lead->lock);
}

void refit_lead_on_lost(struct refit_lead *lead, uint32_t rank, const struct refit_error *why)
{
    pthread_mutex_lock(&lead->lock);
    if (lead->rank_lost.status == REFIT_OK)
        refit_fail(&lead->rank_lost, why->status, "rank %u: %s", rank, why->text);
    pthread_cond_broadcast(&lead->changed);
    pthread_mutex_unlock(&lead->lock);
}

/* ---- members ---- */

static struct refit_replica *take_known(struct refit_lead *lead, const char *url)
{
    for (size_t i = 0; i < lead->replica_count; i++)
        if (lead->replicas[i]->leaves && strcmp(lead->replicas[i]->control.url.text, url) == 0) {
            lead->replicas[i]->leaves = false;
            return lead->replicas[i];
        }
    return NULL;
}

static struct refit_replica *make_replica(struct refit_lead *lead, const char *url, struct refit_error *err)
{
    struct refit_replica *replica = calloc(1, sizeof *replica);
    if (!replica) {
        refit_fail_alloc(err, "a replica", sizeof *replica);
        return NULL;
    }
    replica->lead = lead;
    replica->stage = REFIT_REPLICA_ENDED;
    if (refit_control_init(&replica->control, url, err) == REFIT_OK) {
        replica->control.credentials = lead->credentials;
        return replica;
    }
    free(replica);
    return NULL;
}

/* The replicas and units of a membership, those that were members before among them. */
struct roster {
    struct refit_replica **replicas;
    size_t replica_count;
    struct refit_unit *units;
    size_t unit_count;
};

static enum refit_status fill_roster(struct refit_lead *lead, const struct refit_membership *now, struct roster *roster,
                                     struct refit_error *err)
{
    for (size_t i = 0; i < lead->replica_count; i++)
        lead->replicas[i]->leaves = true;
    for (size_t i = 0; i < now->count; i++) {
        struct refit_unit *unit = &roster->units[roster->unit_count];
        *unit = (struct refit_unit){.number = (uint32_t)roster->unit_count++,
                                    .pods = roster->replicas + roster->replica_count};
        for (; unit->pod_count < now->members[i].count; unit->pod_count++) {
            const char *url = now->members[i].urls[unit->pod_count];
            struct refit_replica *replica = take_known(lead, url);
            if (!replica && !(replica = make_replica(lead, url, err)))
                return REFIT_NO_MEMORY;
            roster->replicas[roster->replica_count++] = replica;
        }
    }
    return REFIT_OK;
}

static size_t count_pods(const struct refit_membership *now)
{
    size_t count = 0;
    for (size_t i = 0; i < now->count; i++)
        count += now->members[i].count;
    return count;
}

/* Those that are no members any more are let go at the end of the publish. */
static enum refit_status part_with_leavers(struct refit_lead *lead, struct refit_error *err)
{
    size_t room = lead->leaver_count + lead->replica_count;
    struct refit_replica **leavers = realloc(lead->leavers, (room + 1) * sizeof(struct refit_replica *));
    if (!leavers)
        return refit_fail_alloc(err, "members", room * sizeof *leavers);
    lead->leavers = leavers;
    for (size_t i = 0; i < lead->replica_count; i++)
        if (lead->replicas[i]->leaves)
            lead->leavers[lead->leaver_count++] = lead->replicas[i];
    return REFIT_OK;
}

/* Takes what the roster holds. */
static void install_roster(struct refit_lead *lead, struct roster *roster)
{
    refit_classes_dissolve(lead);
    pthread_mutex_lock(&lead->lock);
    free(lead->replicas);
    free(lead->units);
    lead->replicas = roster->replicas;
    lead->replica_count = roster->replica_count;
    lead->units = roster->units;
    lead->unit_count = roster->unit_count;
    for (size_t i = 0; i < lead->unit_count; i++)
        for (size_t k = 0; k < lead->units[i].pod_count; k++)
            lead->units[i].pods[k]->unit = &lead->units[i];
    for (size_t i = 0; i < lead->replica_count; i++)
        lead->replicas[i]->number = (uint32_t)i;
    pthread_mutex_unlock(&lead->lock);
}

static void drop_roster(struct refit_lead *lead, struct roster *roster)
{
    for (size_t i = 0; i < roster->replica_count; i++)
        if (!roster->replicas[i]->unit)
            refit_replica_destroy(roster->replicas[i]); /* made just now */
    for (size_t i = 0; i < lead->replica_count; i++)
        lead->replicas[i]->leaves = false;
    free(roster->replicas);
    free(roster->units);
}

static enum refit_status take_members(struct refit_lead *lead, const struct refit_membership *now,
                                      struct refit_error *err)
{
    if (now->count == 0)
        return refit_fail(err, REFIT_INVALID, "there is no member: the names have no addresses now");
    struct roster roster = {.replicas = calloc(count_pods(now), sizeof(struct refit_replica *)),
                            .units = calloc(now->count, sizeof *roster.units)};
    enum refit_status status = roster.replicas && roster.units
                                   ? fill_roster(lead, now, &roster, err)
                                   : refit_fail_alloc(err, "members", now->count * sizeof *roster.units);
    if (status == REFIT_OK)
        status = part_with_leavers(lead, err);
    if (status == REFIT_OK)
        install_roster(lead, &roster);
    else
        drop_roster(lead, &roster);
    return status;
}

static enum refit_status renew_members(struct refit_lead *lead, struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_membership now;
    enum refit_status status = refit_members_read(
        lead->members, refit_deadline_earlier(deadline, refit_deadline_in_ms(MEMBERS_MS)), &now, err);
    if (status != REFIT_OK)
        return status;
    lead->membership_epoch = now.epoch;
    deadline = refit_deadline_earlier(deadline, refit_deadline_in_ms(MEMBERS_MS));
    status = refit_twins_drop(&lead->twins, &now, lead->credentials, deadline, err);
    if (status == REFIT_OK)
        status = take_members(lead, &now, err);
    refit_membership_release(&now);
    return status;
}

/* ---- a publish ---- */

static void reset_replica(struct refit_replica *replica)
{
    replica->stage = REFIT_REPLICA_ASKING;
    replica->verdict = REFIT_VERDICT_NONE;
    replica->seal = REFIT_SEAL_NONE;
    replica->in_trouble = false;
    replica->asks = replica->confirmed = 0;
    replica->class = NULL;
    replica->drained = false;
    replica->posted = false;
    replica->resumed = false;
    replica->fell_back = false;
    replica->keeps = false;
    replica->asked_to_serve = 0;
    replica->served = 0;
    replica->sent_bytes = 0;
    replica->served_error = (struct refit_error){0};
    if (replica->staged_kept == 0) {
        replica->digest[0] = '\0';
        replica->tally_whole = false;
        refit_tally_destroy(replica->share);
        replica->share = NULL;
    }
    replica->phase = REFIT_CONTROL_REQUESTED;
    replica->bytes_done = replica->bytes_due = 0;
    replica->report = (struct refit_replica_report){.outcome = REFIT_OUTCOME_ABORTED, .replica = replica->unit->number};
    snprintf(replica->report.url, sizeof replica->report.url, "%s", replica->control.url.text);
}

/* Part of the time is kept for committing, and for watching canaries. */
static enum refit_status set_barrier(struct refit_lead *lead, struct refit_error *err)
{
    int64_t left_ms = refit_deadline_left_ms(lead->publish.deadline), wait_ms = lead->publish.policy.wait_ms;
    int64_t reserve_ms = left_ms / 5 < RESERVE_MS ? left_ms / 5 : RESERVE_MS;
    if (wait_ms > 0 && wait_ms >= left_ms - 2 * reserve_ms)
        return refit_fail(err, REFIT_INVALID, "the policy waits %lld ms, the deadline of %lld ms leaves no time beside it",
                          (long long)wait_ms, (long long)lead->publish.deadline_ms);
    lead->barrier = refit_deadline_in_ms(left_ms - reserve_ms - wait_ms);
    return REFIT_OK;
}

static enum refit_status check_policy(const struct refit_lead *lead, struct refit_error *err)
{
    if (lead->publish.policy.count <= lead->unit_count)
        return REFIT_OK;
    return refit_fail(err, REFIT_INVALID, "the policy speaks of %u replicas, there are %zu", lead->publish.policy.count,
                      lead->unit_count);
}

static void reset(struct refit_lead *lead)
{
    uint8_t random[16];
    refit_io_random(random, sizeof random);
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(lead->publish_id + 2 * i, 3, "%02x", random[i]);
    lead->begun_ns = refit_clock_ns();
    lead->relay = lead->publish.strategy != REFIT_STRATEGY_DIRECT && lead->publish.strategy != REFIT_STRATEGY_BROADCAST &&
                  lead->replica_count > 1;
    pthread_mutex_lock(&lead->lock);
    lead->cancelled = false;
    lead->formed = false;
    lead->first_asked_ns = 0;
    lead->course = (struct refit_course){.phase = REFIT_COURSE_WAITING};
    for (size_t i = 0; i < lead->replica_count; i++)
        reset_replica(lead->replicas[i]);
    pthread_mutex_unlock(&lead->lock);
}

enum refit_status refit_lead_begin(struct refit_lead *lead, const struct refit_lead_publish *publish,
                                   struct refit_error *err)
{
    json_decref(lead->publish.unchanged);
    lead->publish = *publish;
    enum refit_status status = renew_members(lead, publish->deadline, err);
    if (status == REFIT_OK)
        status = check_policy(lead, err);
    if (status == REFIT_OK)
        status = set_barrier(lead, err);
    if (status != REFIT_OK)
        return status;
    reset(lead);
    if (lead->publish.strategy == REFIT_STRATEGY_BROADCAST)
        status = refit_broadcast_create(lead, &lead->broadcast, err);
    if (status != REFIT_OK)
        return status;
    status = refit_thread_start(&lead->conductor, refit_conductor_run, lead, "the conductor's thread", err);
    lead->running = status == REFIT_OK;
    if (status != REFIT_OK) {
        refit_broadcast_destroy(lead->broadcast);
        lead->broadcast = NULL;
    }
    return status;
}

void refit_lead_cancel(struct refit_lead *lead)
{
    pthread_mutex_lock(&lead->lock);
    lead->cancelled = true;
    pthread_cond_broadcast(&lead->changed);
    pthread_mutex_unlock(&lead->lock);
}

void refit_lead_join(struct refit_lead *lead)
{
    if (lead->running)
        pthread_join(lead->conductor, NULL);
    lead->running = false;
}

size_t refit_lead_replicas(const struct refit_lead *lead)
{
    return lead->replica_count;
}

void refit_lead_progress(struct refit_lead *lead, struct refit_replica_progress *out)
{
    pthread_mutex_lock(&lead->lock);
    for (size_t i = 0; i < lead->replica_count; i++) {
        const struct refit_replica *replica = lead->replicas[i];
        out[i] = (struct refit_replica_progress){.url = replica->control.url.text,
                                                 .phase = refit_control_phase_name(replica->phase),
                                                 .bytes_done = replica->bytes_done,
                                                 .bytes_due = replica->bytes_due};
    }
    pthread_mutex_unlock(&lead->lock);
}

bool refit_lead_given_up(struct refit_lead *lead, struct refit_error *err)
{
    pthread_mutex_lock(&lead->lock);
    bool cancelled = lead->cancelled;
    struct refit_error lost = lead->rank_lost;
    pthread_mutex_unlock(&lead->lock);
    if (cancelled)
        refit_fail(err, REFIT_ABORTED, "the sender was closed");
    else if (lost.status != REFIT_OK)
        refit_fail(err, lost.status, "%s", lost.text);
    else if (refit_deadline_passed(lead->barrier))
        refit_fail(err, REFIT_TIMEOUT, "not staged before the deadline");
    else
        return false;
    return true;
}
