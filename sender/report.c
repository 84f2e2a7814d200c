/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/report.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *refit_outcome_name(enum refit_outcome outcome)
{
    switch (outcome) {
    case REFIT_OUTCOME_COMMITTED: return "committed";
    case REFIT_OUTCOME_ABORTED: return "aborted";
    case REFIT_OUTCOME_STAGED: return "staged";
    case REFIT_OUTCOME_UNKNOWN: return "unknown";
    }
    return "unknown";
}

const char *refit_fleet_outcome_name(enum refit_fleet_outcome outcome)
{
    switch (outcome) {
    case REFIT_FLEET_COMMITTED: return "committed";
    case REFIT_FLEET_ABORTED: return "aborted";
    case REFIT_FLEET_STAGED: return "staged";
    case REFIT_FLEET_PARTLY_COMMITTED: return "partly-committed";
    case REFIT_FLEET_UNKNOWN: return "outcome-unknown";
    }
    return "outcome-unknown";
}

const char *refit_fleet_outcome_action(enum refit_fleet_outcome outcome)
{
    switch (outcome) {
    case REFIT_FLEET_COMMITTED: return "nothing is to be done";
    case REFIT_FLEET_ABORTED: return "all serve what they served before; mend what the errors name and publish again";
    case REFIT_FLEET_STAGED: return "publish the same version again to commit it, or close the sender to abort it";
    case REFIT_FLEET_PARTLY_COMMITTED:
        return "those that did not commit serve what they served before and get the next version like all others; "
               "'refit rollback --to ...' takes the others back";
    case REFIT_FLEET_UNKNOWN:
        return "some did not answer after they were told to commit; 'refit resolve --to ...' asks them and finishes";
    }
    return "";
}

/* ---- what it comes to ---- */

/* Pods of one replica stand next to each other, the one that leads it first: what it does is what the replica does, and yet
 * a pod that does something else is told. */
struct sums {
    uint32_t replicas, committed, others, unknown, strays;
};

static struct sums sum_outcomes(const struct refit_report_store *store, enum refit_outcome wanted)
{
    struct sums sums = {0};
    enum refit_outcome leads = REFIT_OUTCOME_ABORTED;
    for (size_t i = 0; i < store->report.replica_count; i++) {
        const struct refit_replica_report *replica = &store->replicas[i];
        bool first = i == 0 || replica->replica != store->replicas[i - 1].replica;
        if (first)
            leads = replica->outcome;
        sums.replicas += first;
        sums.committed += first && replica->outcome == wanted;
        sums.unknown += replica->outcome == REFIT_OUTCOME_UNKNOWN;
        sums.others += replica->outcome != wanted;
        sums.strays += !first && replica->outcome != leads;
    }
    return sums;
}

void refit_report_conclude(struct refit_report_store *store, bool staged_wanted, uint32_t quorum)
{
    enum refit_outcome wanted = staged_wanted ? REFIT_OUTCOME_STAGED : REFIT_OUTCOME_COMMITTED;
    struct sums sums = sum_outcomes(store, wanted);
    struct refit_report *report = &store->report;
    if (sums.unknown > 0)
        report->outcome = REFIT_FLEET_UNKNOWN;
    else if (sums.others == 0)
        report->outcome = staged_wanted ? REFIT_FLEET_STAGED : REFIT_FLEET_COMMITTED;
    else if (sums.strays > 0 || (sums.committed > 0 && !staged_wanted))
        report->outcome = REFIT_FLEET_PARTLY_COMMITTED;
    else
        report->outcome = REFIT_FLEET_ABORTED;
    if (quorum > 0 && sums.committed >= quorum && sums.strays == 0)
        return;
    for (size_t i = 0; i < report->replica_count && store->outcome.status == REFIT_OK; i++)
        if (store->replicas[i].outcome != wanted)
            store->outcome = store->replicas[i].error;
}

/* Seconds travel as whole microseconds: documents hold no real numbers. */
struct field {
    const char *key;
    size_t offset;
};
#define SECONDS(member) {#member, offsetof(struct refit_replica_report, member)}
static const struct field seconds_fields[] = {
    SECONDS(seconds), SECONDS(plan_s),    SECONDS(wait_readers_s), SECONDS(transfer_s),
    SECONDS(verify_s), SECONDS(prepare_s), SECONDS(staged_s),       SECONDS(swap_s),
};
#define SECONDS_FIELDS (sizeof seconds_fields / sizeof seconds_fields[0])

#define BYTES(member) {#member, offsetof(struct refit_replica_report, member)}
static const struct field bytes_fields[] = {
    BYTES(bytes_needed), BYTES(bytes_moved), BYTES(bytes_sent), BYTES(bytes_saved), BYTES(bytes_excess), BYTES(wire_bytes),
};
#define BYTES_FIELDS (sizeof bytes_fields / sizeof bytes_fields[0])

static json_t *micros(double seconds)
{
    return json_integer((json_int_t)(seconds * 1e6 + 0.5));
}

static json_t *error_to_json(const struct refit_error *error)
{
    return json_pack("{s:i, s:o}", "status", (int)error->status, "text",
                     refit_json_text(error->status == REFIT_OK ? "" : error->text));
}

static json_t *replica_to_json(const struct refit_replica_report *replica)
{
    json_t *json = json_pack("{s:s, s:I, s:i, s:o, s:s, s:s, s:s}", "url", replica->url, "replica",
                             (json_int_t)replica->replica, "outcome", (int)replica->outcome, "error",
                             error_to_json(&replica->error), "refit_id", replica->refit_id, "digest", replica->digest,
                             "transport", replica->transport);
    for (size_t i = 0; json && i < BYTES_FIELDS; i++) {
        uint64_t value;
        memcpy(&value, (const char *)replica + bytes_fields[i].offset, sizeof value);
        json_object_set_new(json, bytes_fields[i].key, refit_json_u64(value));
    }
    for (size_t i = 0; json && i < SECONDS_FIELDS; i++) {
        double value;
        memcpy(&value, (const char *)replica + seconds_fields[i].offset, sizeof value);
        json_object_set_new(json, seconds_fields[i].key, micros(value));
    }
    return json;
}

json_t *refit_report_to_json(const struct refit_report_store *store)
{
    const struct refit_report *report = &store->report;
    json_t *replicas = json_array();
    for (size_t i = 0; replicas && i < report->replica_count; i++)
        if (json_array_append_new(replicas, replica_to_json(&store->replicas[i])) != 0) {
            json_decref(replicas);
            return NULL;
        }
    return json_pack("{s:o, s:s, s:i, s:o, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "version",
                     refit_json_u64(report->version), "digest", report->digest, "fleet", (int)report->outcome,
                     "membership_epoch", refit_json_u64(report->membership_epoch), "relayed", report->relayed,
                     "bytes_sent", refit_json_u64(report->bytes_sent), "bytes_saved", refit_json_u64(report->bytes_saved),
                     "bytes_excess", refit_json_u64(report->bytes_excess), "sources_free", micros(report->sources_free_s),
                     "seconds", micros(report->seconds), "outcome", error_to_json(&store->outcome), "replicas", replicas);
}

static void copy_text(char *out, size_t size, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    snprintf(out, size, "%s", text ? text : "");
}

static enum refit_status read_error(const json_t *json, struct refit_error *out, struct refit_error *err)
{
    int64_t status = 0;
    enum refit_status read = refit_json_get_int(json, "status", "report", 0, REFIT_SYSTEM, &status, err);
    out->status = (enum refit_status)status;
    copy_text(out->text, sizeof out->text, json, "text");
    return read;
}

static enum refit_status read_seconds(const json_t *json, const char *key, double *out, struct refit_error *err)
{
    int64_t micros_read = 0;
    enum refit_status status = refit_json_get_int(json, key, "report", 0, INT64_MAX, &micros_read, err);
    *out = (double)micros_read / 1e6;
    return status;
}

static enum refit_status read_replica(const json_t *json, struct refit_replica_report *out, struct refit_error *err)
{
    int64_t outcome = 0, number = 0;
    enum refit_status status =
        refit_json_get_int(json, "outcome", "report", 0, REFIT_OUTCOME_UNKNOWN, &outcome, err);
    out->outcome = (enum refit_outcome)outcome;
    if (status == REFIT_OK)
        status = read_error(json_object_get(json, "error"), &out->error, err);
    if (status == REFIT_OK)
        status = refit_json_get_int(json, "replica", "report", 0, UINT32_MAX, &number, err);
    out->replica = (uint32_t)number;
    for (size_t i = 0; status == REFIT_OK && i < BYTES_FIELDS; i++) {
        uint64_t value = 0;
        status = refit_json_get_u64(json, bytes_fields[i].key, "report", &value, err);
        memcpy((char *)out + bytes_fields[i].offset, &value, sizeof value);
    }
    for (size_t i = 0; status == REFIT_OK && i < SECONDS_FIELDS; i++) {
        double value = 0;
        status = read_seconds(json, seconds_fields[i].key, &value, err);
        memcpy((char *)out + seconds_fields[i].offset, &value, sizeof value);
    }
    copy_text(out->url, sizeof out->url, json, "url");
    copy_text(out->refit_id, sizeof out->refit_id, json, "refit_id");
    copy_text(out->digest, sizeof out->digest, json, "digest");
    copy_text(out->transport, sizeof out->transport, json, "transport");
    return status;
}

static enum refit_status read_replicas(const json_t *list, struct refit_report_store *out, struct refit_error *err)
{
    size_t count = json_array_size(list);
    out->replicas = calloc(count + 1, sizeof *out->replicas);
    if (!out->replicas)
        return refit_fail_alloc(err, "a report", count * sizeof *out->replicas);
    for (size_t i = 0; i < count; i++) {
        enum refit_status status = read_replica(json_array_get(list, i), &out->replicas[i], err);
        if (status != REFIT_OK)
            return status;
    }
    out->report.replica_count = count;
    out->report.replicas = out->replicas;
    return REFIT_OK;
}

static enum refit_status read_sums(const json_t *json, struct refit_report *out, struct refit_error *err)
{
    const struct {
        const char *key;
        uint64_t *value;
    } sums[] = {{"membership_epoch", &out->membership_epoch}, {"bytes_sent", &out->bytes_sent},
                {"bytes_saved", &out->bytes_saved}, {"bytes_excess", &out->bytes_excess}};
    int64_t outcome = 0;
    enum refit_status status = refit_json_get_int(json, "fleet", "report", 0, REFIT_FLEET_UNKNOWN, &outcome, err);
    out->outcome = (enum refit_fleet_outcome)outcome;
    out->relayed = json_is_true(json_object_get(json, "relayed"));
    for (size_t i = 0; i < sizeof sums / sizeof *sums && status == REFIT_OK; i++)
        status = refit_json_get_u64(json, sums[i].key, "report", sums[i].value, err);
    return status;
}

enum refit_status refit_report_from_json(const json_t *json, struct refit_report_store *out, struct refit_error *err)
{
    memset(out, 0, sizeof *out);
    enum refit_status status = refit_json_get_u64(json, "version", "report", &out->report.version, err);
    copy_text(out->report.digest, sizeof out->report.digest, json, "digest");
    if (status == REFIT_OK)
        status = read_sums(json, &out->report, err);
    if (status == REFIT_OK)
        status = read_seconds(json, "sources_free", &out->report.sources_free_s, err);
    if (status == REFIT_OK)
        status = read_seconds(json, "seconds", &out->report.seconds, err);
    if (status == REFIT_OK)
        status = read_error(json_object_get(json, "outcome"), &out->outcome, err);
    if (status == REFIT_OK)
        status = read_replicas(json_object_get(json, "replicas"), out, err);
    if (status != REFIT_OK)
        refit_report_release(out);
    return status;
}

void refit_report_release(struct refit_report_store *store)
{
    free(store->replicas);
    memset(store, 0, sizeof *store);
}
