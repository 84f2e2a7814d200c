/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "health/health.h"

static const struct refit_bank_slot *served(const struct refit_health_view *view)
{
    if (!view->receiver || view->receiver->bank.active >= view->receiver->bank.slots)
        return NULL;
    return &view->receiver->bank.slot[view->receiver->bank.active];
}

__attribute__((format(printf, 2, 3))) static void reason(json_t *reasons, const char *format, ...)
{
    char text[REFIT_ERROR_TEXT_MAX + 64];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    json_t *value = json_string(text);
    /* Whatever the text, a reason makes the verdict: an error can carry a file name that is not UTF-8. */
    json_array_append_new(reasons, value ? value : json_string("(a reason that is not UTF-8)"));
}

/* Not started: why. */
static void startup_reasons(const struct refit_health_view *view, json_t *reasons)
{
    if (view->failure)
        reason(reasons, "can't start: %s", view->failure);
    else if (!view->started)
        reason(reasons, "capacity is being reserved");
}

static struct refit_health_verdict verdict(const struct refit_health_view *view, json_t *reasons)
{
    const struct refit_bank_slot *slot = served(view);
    const struct refit_version none = {0}, *version = slot ? &slot->version : &none;
    struct refit_health_verdict out = {.ok = reasons && json_array_size(reasons) == 0, .version = version->version};
    out.body = json_pack("{s:s, s:o, s:s, s:s, s:s, s:o}", "status", out.ok ? "ok" : "unavailable", "version",
                         refit_json_u64(version->version), "label", version->label, "digest", version->digest, "state",
                         slot ? refit_slot_state_name(slot->state) : "none", "reasons", reasons);
    if (out.body) {
        json_object_set_new(out.body, "slot", slot ? json_integer(view->receiver->bank.active) : json_null());
        json_object_set_new(out.body, "since_ms", json_integer(slot ? slot->since_ms : 0));
    }
    return out;
}

struct refit_health_verdict refit_health_live(const struct refit_health_view *view)
{
    return verdict(view, json_array());
}

struct refit_health_verdict refit_health_started(const struct refit_health_view *view)
{
    json_t *reasons = json_array();
    startup_reasons(view, reasons);
    if (view->startup_needs_weights && !served(view))
        reason(reasons, "no version is served yet, and --startup-needs-weights asks for one");
    return verdict(view, reasons);
}

static void rank_reasons(const struct refit_bank_snapshot *bank, json_t *reasons)
{
    if (bank->attached < bank->ranks)
        reason(reasons, "%" PRIu32 " of %" PRIu32 " engine ranks are attached", bank->attached, bank->ranks);
}

static void weight_reasons(const struct refit_health_view *view, json_t *reasons)
{
    const struct refit_bank_slot *slot = served(view);
    if (!slot && view->receiver->bank.adopting)
        reason(reasons, "waiting for engines to hand their slots back after a restart");
    else if (!slot)
        reason(reasons, "no version is served yet");
    else if (slot->version.version < view->ready_min_version)
        reason(reasons, "version %" PRIu64 " is served, at least %" PRIu64 " is asked for", slot->version.version,
               view->ready_min_version);
}

struct refit_health_verdict refit_health_ready(const struct refit_health_view *view)
{
    json_t *reasons = json_array();
    startup_reasons(view, reasons);
    if (view->draining)
        reason(reasons, "shutting down");
    if (view->receiver) {
        rank_reasons(&view->receiver->bank, reasons);
        weight_reasons(view, reasons);
    }
    return verdict(view, reasons);
}
