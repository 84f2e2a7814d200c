/* SPDX-License-Identifier: Apache-2.0
 *
 * Who leads, and how this replica is reached.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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
    refit_audit(call->client, "change=lead lead=%s epoch=%" PRIu64 " takeover=%d", name, epoch, takeover);
    refit_reply_json(
        reply, 200,
        json_pack("{s:o, s:s}", "epoch", refit_json_u64(epoch), "instance", refit_receiver_instance(call->receiver)));
}

/* Not a regular file with a size, so base/io.h's reader is no use. */
static void read_boot_id(char *out, int size)
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file || !fgets(out, size, file))
        out[0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    if (file)
        fclose(file);
}

void refit_handle_host(const struct refit_call *call, struct refit_reply *reply)
{
    char boot_id[64];
    json_t *transports = json_object();
    read_boot_id(boot_id, (int)sizeof boot_id);
    for (const struct refit_transport *const *t = refit_transports(); *t; t++) {
        json_t *card;
        if (refit_receiver_card(call->receiver, (*t)->name, &card, NULL) == REFIT_OK)
            json_object_set_new(transports, (*t)->name, card);
    }
    refit_reply_json(reply, 200, json_pack("{s:s, s:o}", "boot_id", boot_id, "transports", transports));
}
