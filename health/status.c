/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON objects of docs/api.md that describe a refit and the weights.
 */
#include <string.h>

#include "health/health.h"
#include "memory/cuda_probe.h"

static void set(json_t *object, const char *key, json_t *value)
{
    json_object_set_new(object, key, value);
}

static json_t *phases_json(const struct refit_session_snapshot *session)
{
    json_t *phases = json_object();
    for (int i = REFIT_PHASE_REQUESTED; i < REFIT_PHASE_COMMITTED; i++)
        set(phases, refit_phase_name((enum refit_phase)i), json_integer(session->phase_ns[i] / 1000));
    return phases;
}

static json_t *error_json(const struct refit_session_snapshot *session)
{
    const struct refit_error *error = &session->error;
    return json_pack("{s:s, s:s, s:o, s:s, s:b}", "status", refit_status_name(error->status), "phase",
                     refit_phase_name(session->failed_in), "text", refit_json_text(error->text), "action",
                     refit_status_action(error->status), "retryable", (int)refit_health_is_retryable(error->status));
}

static json_t *waiting_json(const struct refit_bank_waiting *waiting)
{
    return json_pack("{s:I, s:o, s:o, s:o, s:I}", "rank", (json_int_t)waiting->rank, "label",
                     refit_json_text(waiting->label), "version", refit_json_u64(waiting->version), "pins",
                     refit_json_u64(waiting->pins), "age_ms", (json_int_t)waiting->age_ms);
}

static json_t *supplied_json(const struct refit_supplied *supplied)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "origin_bytes", refit_json_u64(supplied->origin_bytes), "domain_bytes",
                     refit_json_u64(supplied->domain_bytes), "fleet_bytes", refit_json_u64(supplied->fleet_bytes),
                     "excess_bytes", refit_json_u64(supplied->excess_bytes), "kept_bytes",
                     refit_json_u64(supplied->kept_bytes));
}

json_t *refit_health_session_json(const struct refit_session_snapshot *session)
{
    json_t *out = json_pack("{s:s, s:s, s:s, s:s, s:b, s:s, s:s, s:o}", "id", session->id, "label", session->label,
                            "publish_id", session->publish_id, "phase", refit_phase_name(session->phase), "terminal",
                            (int)refit_health_is_terminal(session->phase), "digest", session->digest, "transport",
                            session->transport, "phase_us", phases_json(session));
    if (!out)
        return NULL;
    set(out, "version", refit_json_u64(session->version));
    set(out, "epoch", refit_json_u64(session->epoch));
    set(out, "bytes_due", refit_json_u64(session->bytes_due));
    set(out, "bytes_done", refit_json_u64(session->bytes_done));
    set(out, "sequence", refit_json_u64(session->sequence));
    set(out, "deadline_left_ms", json_integer(session->deadline_left_ms));
    set(out, "payload_bytes", refit_json_u64(session->stats.payload_bytes));
    set(out, "wire_bytes", refit_json_u64(session->stats.wire_bytes));
    set(out, "copied_bytes", refit_json_u64(session->stats.copied_bytes));
    set(out, "members", json_integer(session->members));
    set(out, "serving", json_integer(session->serving));
    set(out, "supplied", supplied_json(&session->supplied));
    if (session->phase == REFIT_PHASE_WAITING_FOR_READERS && session->waiting.pins)
        set(out, "waiting", waiting_json(&session->waiting));
    if (session->phase == REFIT_PHASE_ABORTED)
        set(out, "error", error_json(session));
    return out;
}

json_t *refit_health_version_json(const struct refit_version *version)
{
    return json_pack("{s:o, s:s, s:s}", "version", refit_json_u64(version->version), "label", version->label, "digest",
                     version->digest);
}

static json_t *held_version_json(const struct refit_receiver_snapshot *receiver, uint32_t slot)
{
    json_t *out = refit_health_version_json(&receiver->bank.slot[slot].version);
    if (!out)
        return NULL;
    set(out, "slot", json_integer(slot));
    set(out, "model", json_string(receiver->model[slot]));
    return out;
}

static json_t *in_state(const struct refit_receiver_snapshot *receiver, enum refit_slot_state state)
{
    for (uint32_t i = 0; i < receiver->bank.slots; i++)
        if (receiver->bank.slot[i].state == state)
            return held_version_json(receiver, i);
    return json_null();
}

static json_t *retained_json(const struct refit_receiver_snapshot *receiver)
{
    json_t *out = json_array();
    for (uint32_t i = 0; i < receiver->bank.slots; i++)
        if (receiver->bank.slot[i].state == REFIT_SLOT_RETAINED)
            json_array_append_new(out, held_version_json(receiver, i));
    return out;
}

static const char *kind_name(enum refit_arena_kind kind)
{
    return kind == REFIT_ARENA_CUDA ? "cuda" : "host";
}

static json_t *slots_json(const struct refit_bank_snapshot *bank)
{
    json_t *out = json_array();
    for (uint32_t i = 0; i < bank->slots; i++) {
        const struct refit_bank_slot *slot = &bank->slot[i];
        json_array_append_new(out, json_pack("{s:I, s:s, s:o, s:o, s:s, s:b, s:I}", "slot", (json_int_t)i, "state",
                                             refit_slot_state_name(slot->state), "version",
                                             refit_json_u64(slot->version.version), "pins",
                                             refit_json_u64(slot->pins), "memory", kind_name(slot->memory),
                                             "writable", (int)slot->writable, "since_ms", (json_int_t)slot->since_ms));
    }
    return out;
}

/* null: host memory. */
static json_t *device_json(const struct refit_bank_rank *rank)
{
    char uuid[REFIT_CUDA_UUID_TEXT_MAX];
    if (rank->device < 0)
        return json_null();
    refit_cuda_uuid_text(rank->uuid, uuid);
    return json_pack("{s:i, s:s}", "number", rank->device, "uuid", uuid);
}

const char *refit_health_memory_name(const struct refit_bank_snapshot *bank)
{
    return kind_name(bank->memory);
}

static json_t *ranks_json(const struct refit_bank_snapshot *bank)
{
    json_t *out = json_array();
    const uint32_t shown = (uint32_t)(sizeof bank->rank / sizeof bank->rank[0]);
    for (uint32_t i = 0; i < bank->ranks && i < shown; i++) {
        json_array_append_new(out, json_pack("{s:I, s:b, s:o, s:I, s:o}", "rank", (json_int_t)i, "attached",
                                             (int)bank->rank[i].attached, "label", refit_json_text(bank->rank[i].label),
                                             "pid", (json_int_t)bank->rank[i].pid, "device",
                                             device_json(&bank->rank[i])));
    }
    return out;
}

json_t *refit_health_weights_json(const struct refit_receiver_snapshot *receiver)
{
    const struct refit_bank_snapshot *bank = &receiver->bank;
    json_t *out = json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:b, s:b, s:s}", "instance", receiver->instance, "layout",
                            receiver->layout, "lead", receiver->lead, "protection",
                            refit_protection_name(bank->protection), "memory", refit_health_memory_name(bank),
                            "rollback_available",
                            (int)bank->rollback_available, "held", (int)receiver->held, "adopting", (int)bank->adopting,
                            "refit", receiver->session);
    if (!out)
        return NULL;
    set(out, "swap", json_string(refit_swap_mode_name(bank->swap)));
    set(out, "torn", json_boolean(bank->torn));
    set(out, "model_bytes", refit_json_u64(receiver->model_bytes));
    set(out, "active", in_state(receiver, REFIT_SLOT_ACTIVE));
    set(out, "staged", in_state(receiver, REFIT_SLOT_STAGED));
    set(out, "retained", retained_json(receiver));
    set(out, "rollback_version", refit_json_u64(bank->rollback_available ? bank->rollback_version : 0));
    set(out, "epoch", refit_json_u64(receiver->epoch));
    set(out, "slot_bytes", refit_json_u64(bank->slot_bytes));
    set(out, "slots", slots_json(bank));
    set(out, "ranks", ranks_json(bank));
    return out;
}

static const char *const result_names[] = {"caught-up", "superseded", "failed"};
_Static_assert(sizeof result_names / sizeof *result_names == REFIT_HEALTH_CATCH_UPS, "a name for each");

const char *refit_health_catch_up_name(enum refit_health_catch_up result)
{
    return result_names[result];
}

json_t *refit_health_stale_json(const struct refit_health_view *view)
{
    const struct refit_health_siblings *siblings = view->siblings;
    uint64_t served = refit_health_served_version(view);
    if (!siblings || (served != 0 && siblings->newest <= served && !siblings->apart[0]))
        return json_null();
    const char *why = served != 0 && siblings->newest <= served ? siblings->apart : siblings->waiting;
    return json_pack("{s:o, s:o, s:o, s:I, s:I, s:o}", "version", refit_json_u64(siblings->newest), "behind",
                     refit_json_u64(siblings->newest > served ? siblings->newest - served : 0), "fetching",
                     refit_json_u64(siblings->fetching), "siblings", (json_int_t)siblings->known, "heard",
                     (json_int_t)siblings->heard, "reason", refit_json_text(why));
}

static json_t *engine_json(const struct refit_health_engine *engine)
{
    return json_pack("{s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I}", "kind", engine->kind, "whole",
                     (int)engine->whole, "installed", refit_health_version_json(&engine->version), "found",
                     refit_json_text(engine->found), "reason", refit_json_text(engine->reason), "installs",
                     refit_json_u64(engine->installs), "failures", refit_json_u64(engine->failures), "restores",
                     refit_json_u64(engine->restores), "write_us", (json_int_t)(engine->write_ns / 1000), "load_us",
                     (json_int_t)(engine->load_ns / 1000), "paused_us", (json_int_t)(engine->paused_ns / 1000));
}

json_t *refit_health_status_json(const struct refit_health_view *view, const struct refit_health_history *history)
{
    json_t *out = json_pack("{s:s, s:I, s:o, s:o}", "software", view->software, "now_ms", (json_int_t)view->now_ms, "ready",
                            refit_health_ready(view).body, "history", refit_health_history_json(history));
    if (!out)
        return NULL;
    set(out, "weights", view->receiver ? refit_health_weights_json(view->receiver) : json_null());
    if (view->engine)
        set(out, "engine", engine_json(view->engine));
    if (view->siblings)
        set(out, "stale", refit_health_stale_json(view));
    set(out, "refit", view->session ? refit_health_session_json(view->session) : json_null());
    return out;
}
