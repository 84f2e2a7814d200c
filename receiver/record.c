/* SPDX-License-Identifier: Apache-2.0
 *
 * The receiver's section of the state file: {"epoch", "lead", "held", "quarantine": [...]}.
 */
#include <stdio.h>
#include <string.h>

#include "receiver/receiver_internal.h"
#include "receiver/state.h"

#define SECTION "receiver"

enum refit_status refit_record_save(const struct refit_receiver *receiver, struct refit_error *err)
{
    json_t *digests = json_array();
    for (uint32_t i = 0; i < receiver->quarantine.count; i++)
        json_array_append_new(digests, json_string(receiver->quarantine.digests[i]));
    json_t *record = json_pack("{s:o, s:s, s:b, s:o}", "epoch", refit_json_u64(receiver->leads.epoch), "lead",
                               receiver->leads.name, "held", receiver->held, "quarantine", digests);
    /* An append that failed shows in the count: half a quarantine must not be written. */
    if (!record || json_array_size(json_object_get(record, "quarantine")) != receiver->quarantine.count) {
        json_decref(record);
        return refit_fail_alloc(err, "the receiver's state", sizeof receiver->quarantine);
    }
    enum refit_status status = refit_state_put(refit_bank_state(receiver->bank), SECTION, record, err);
    json_decref(record);
    return status;
}

static enum refit_status load_quarantine(struct refit_receiver *receiver, const json_t *digests,
                                         struct refit_error *err)
{
    size_t i;
    json_t *digest;
    json_array_foreach(digests, i, digest) {
        enum refit_status status =
            refit_quarantine_set(&receiver->quarantine, json_string_value(digest), true, err);
        if (status != REFIT_OK)
            return status;
    }
    return REFIT_OK;
}

static enum refit_status load(struct refit_receiver *receiver, const json_t *record, struct refit_error *err)
{
    const char *lead = "", *what = "section '" SECTION "' of the state file";
    enum refit_status status = refit_json_get_u64(record, "epoch", what, &receiver->leads.epoch, err);
    if (status == REFIT_OK)
        status = refit_json_opt_string(record, "lead", what, &lead, err);
    if (status == REFIT_OK)
        status = refit_json_opt_bool(record, "held", what, &receiver->held, err);
    if (status == REFIT_OK)
        status = load_quarantine(receiver, json_object_get(record, "quarantine"), err);
    if (status == REFIT_OK)
        snprintf(receiver->leads.name, sizeof receiver->leads.name, "%s", lead);
    return status;
}

enum refit_status refit_record_load(struct refit_receiver *receiver, struct refit_error *err)
{
    json_t *record = refit_state_get(refit_bank_state(receiver->bank), SECTION);
    if (!record)
        return REFIT_OK;
    enum refit_status status = load(receiver, record, err);
    json_decref(record);
    return status;
}
