/* SPDX-License-Identifier: Apache-2.0
 *
 * Who leads, and how this replica is reached.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "layouts/binding.h"
#include "layouts/topology.h"
#include "sidecar/routes.h"

static enum refit_status read_lead(const struct refit_call *call, char *name, size_t size, bool *takeover,
                                   struct refit_error *err)
{
    static const char *const known[] = {"name", "takeover", NULL};
    enum refit_status status = refit_json_known(call->json, "lead", known, err);
    if (status == REFIT_OK)
        status = refit_call_text(call, "name", "lead", name, size, err);
    if (status == REFIT_OK)
        status = refit_json_opt_bool(call->json, "takeover", "lead", takeover, err);
    if (status == REFIT_OK && !name[0])
        status = refit_fail(err, REFIT_INVALID, "lead: \"name\" must say who leads, found nothing");
    return status;
}

void refit_handle_lead(const struct refit_call *call, struct refit_reply *reply)
{
    char name[REFIT_LEAD_NAME_MAX] = "";
    bool takeover = false;
    uint64_t epoch;
    struct refit_error err;
    enum refit_status status = read_lead(call, name, sizeof name, &takeover, &err);
    if (status == REFIT_OK)
        status = refit_receiver_lead(call->receiver, name, takeover, &epoch, &err);
    if (status) {
        refit_reply_error(reply, &err, status == REFIT_CONFLICT ? "other-lead" : NULL, 0);
        return;
    }
    refit_audit(call->client, "lead", refit_log_text("lead", name), refit_log_u64("epoch", epoch),
                refit_log_bool("takeover", takeover));
    refit_reply_json(
        reply, 200,
        json_pack("{s:o, s:s}", "epoch", refit_json_u64(epoch), "instance", refit_receiver_instance(call->receiver)));
}

static enum refit_status read_resign(const struct refit_call *call, char *name, size_t size, uint64_t *epoch,
                                     struct refit_error *err)
{
    static const char *const known[] = {"name", "epoch", NULL};
    enum refit_status status = refit_json_known(call->json, "resign", known, err);
    if (status == REFIT_OK)
        status = refit_call_text(call, "name", "resign", name, size, err);
    if (status == REFIT_OK)
        status = refit_json_get_u64(call->json, "epoch", "resign", epoch, err);
    return status;
}

void refit_handle_resign(const struct refit_call *call, struct refit_reply *reply)
{
    char name[REFIT_LEAD_NAME_MAX] = "";
    uint64_t epoch = 0;
    struct refit_error err;
    enum refit_status status = read_resign(call, name, sizeof name, &epoch, &err);
    if (status == REFIT_OK)
        status = refit_receiver_resign(call->receiver, name, epoch, &err);
    if (status) {
        const char *type = status == REFIT_STALE ? "stale-epoch" : status == REFIT_CONFLICT ? "other-lead" : NULL;
        refit_reply_error(reply, &err, type, 0);
        return;
    }
    refit_audit(call->client, "resign", refit_log_text("lead", name), refit_log_u64("epoch", epoch));
    refit_reply_json(reply, 200, json_pack("{s:o}", "epoch", refit_json_u64(epoch)));
}

/* Who serves which rank, and from what memory. */
static json_t *binding_json(const struct refit_receiver_snapshot *now)
{
    struct refit_binding binding = {.ranks = now->bank.ranks};
    const uint32_t known = sizeof now->bank.rank / sizeof *now->bank.rank;
    binding.rank = calloc(binding.ranks, sizeof *binding.rank);
    if (!binding.rank)
        return json_null();
    memcpy(binding.layout, now->layout, sizeof binding.layout);
    for (uint32_t i = 0; i < binding.ranks; i++) {
        binding.rank[i] = (struct refit_bound_rank){.kind = "host", .bytes = now->bank.slot_bytes};
        if (i >= known)
            continue;
        binding.rank[i].attached = now->bank.rank[i].attached;
        binding.rank[i].pid = now->bank.rank[i].pid;
        snprintf(binding.rank[i].process, sizeof binding.rank[i].process, "%s", now->bank.rank[i].label);
    }
    json_t *json = refit_binding_to_json(&binding);
    refit_binding_release(&binding);
    return json;
}

void refit_handle_host(const struct refit_call *call, struct refit_reply *reply)
{
    char boot_id[REFIT_BOOT_ID_MAX];
    struct refit_receiver_snapshot now;
    json_t *transports = json_object();
    refit_boot_id(boot_id);
    refit_receiver_read(call->receiver, &now);
    for (const struct refit_transport *const *t = refit_transports(); *t; t++) {
        json_t *card;
        if (refit_receiver_card(call->receiver, (*t)->name, &card, NULL) == REFIT_OK)
            json_object_set_new(transports, (*t)->name, card);
    }
    json_t *ranks =
        json_pack("{s:I, s:I}", "first", (json_int_t)now.bank.first_rank, "count", (json_int_t)now.bank.ranks);
    refit_reply_json(reply, 200,
                     json_pack("{s:s, s:s, s:o, s:o, s:o, s:o}", "boot_id", boot_id, "replica",
                               call->sidecar->config->replica, "ranks", ranks, "transports", transports,
                               "topology", refit_topology_of_one(*boot_id ? boot_id : "unknown", now.bank.ranks),
                               "binding", binding_json(&now)));
}
