/* SPDX-License-Identifier: Apache-2.0
 *
 * The receiver's section of the state file: {"epoch", "lead", "held", "rolled_to", "quarantine": [...],
 * "proved": [...]}.
 */
#include <stdio.h>
#include <string.h>

#include "receiver/receiver_internal.h"
#include "receiver/state.h"

#define SECTION "receiver"

void refit_record_copy(const struct refit_receiver *receiver, struct refit_record *out)
{
    *out = (struct refit_record){
        .epoch = receiver->leads.epoch, .held = receiver->held, .rolled_to = receiver->rolled_to,
        .quarantine = receiver->quarantine, .proofs = receiver->proofs};
    memcpy(out->lead, receiver->leads.name, sizeof out->lead);
}

static json_t *record_json(const struct refit_record *record)
{
    json_t *digests = json_array();
    for (uint32_t i = 0; i < record->quarantine.count; i++)
        json_array_append_new(digests, json_string(record->quarantine.digests[i]));
    json_t *json = json_pack("{s:o, s:s, s:b, s:o, s:o, s:o}", "epoch", refit_json_u64(record->epoch), "lead",
                             record->lead, "held", record->held, "rolled_to", refit_json_u64(record->rolled_to),
                             "quarantine", digests, "proved", refit_proofs_json(&record->proofs));
    /* An append that failed shows in the count: half a quarantine must not be written. */
    if (json && json_array_size(json_object_get(json, "quarantine")) == record->quarantine.count)
        return json;
    json_decref(json);
    return NULL;
}

enum refit_status refit_record_write(struct refit_receiver *receiver, const struct refit_record *record,
                                     struct refit_error *err)
{
    json_t *json = record_json(record);
    if (!json)
        return refit_fail_alloc(err, "the receiver's state", sizeof *record);
    enum refit_status status = refit_state_put(refit_bank_state(receiver->bank), SECTION, json, err);
    json_decref(json);
    return status;
}

enum refit_status refit_record_save(struct refit_receiver *receiver, struct refit_error *err)
{
    struct refit_record record;
    pthread_mutex_lock(&receiver->saving);
    refit_receiver_lock(receiver);
    refit_record_copy(receiver, &record);
    refit_receiver_unlock(receiver);
    enum refit_status status = refit_record_write(receiver, &record, err);
    pthread_mutex_unlock(&receiver->saving);
    return status;
}

static enum refit_status load_quarantine(struct refit_receiver *receiver, const json_t *digests,
                                         struct refit_error *err)
{
    size_t i;
    json_t *digest;
    if (digests && !json_is_array(digests))
        return refit_fail(err, REFIT_INVALID, "section '" SECTION "' of the state file: \"quarantine\" must be an array");
    json_array_foreach(digests, i, digest) {
        enum refit_status status =
            refit_quarantine_set(&receiver->quarantine, json_string_value(digest), true, err);
        if (status != REFIT_OK)
            return status;
    }
    return REFIT_OK;
}

static enum refit_status load_rolled_to(struct refit_receiver *receiver, const json_t *record, const char *what,
                                        struct refit_error *err)
{
    return json_object_get(record, "rolled_to")
               ? refit_json_get_u64(record, "rolled_to", what, &receiver->rolled_to, err)
               : REFIT_OK;
}

/* What can be read counts, whatever else can't: an epoch or a hold that is forgotten lets somebody in. */
static enum refit_status load(struct refit_receiver *receiver, const json_t *record, struct refit_error *err)
{
    const char *lead = "", *what = "section '" SECTION "' of the state file";
    struct refit_error errors[6];
    const enum refit_status found[] = {
        refit_json_get_u64(record, "epoch", what, &receiver->leads.epoch, &errors[0]),
        refit_json_opt_string(record, "lead", what, &lead, &errors[1]),
        refit_json_opt_bool(record, "held", what, &receiver->held, &errors[2]),
        load_rolled_to(receiver, record, what, &errors[3]),
        load_quarantine(receiver, json_object_get(record, "quarantine"), &errors[4]),
        refit_proofs_read(&receiver->proofs, json_object_get(record, "proved"), &errors[5]),
    };
    snprintf(receiver->leads.name, sizeof receiver->leads.name, "%s", lead);
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        if (found[i] != REFIT_OK) {
            *err = errors[i];
            return found[i];
        }
    return REFIT_OK;
}

/* A refitd that does not start is worse than one that starts without its memory. */
void refit_record_load(struct refit_receiver *receiver)
{
    struct refit_error error;
    struct refit_state *state = refit_bank_state(receiver->bank);
    json_t *record = refit_state_get(state, SECTION);
    if (record && load(receiver, record, &error) != REFIT_OK)
        refit_state_drop(state, SECTION, error.text);
    json_decref(record);
}
