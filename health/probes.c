/* SPDX-License-Identifier: Apache-2.0
 *
 * The three probes: each is a list of checks, and holds when all of them do.
 */
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

struct checks {
    json_t *all, *reasons;
};

/* What was looked at. When it does not hold, the sentence says why. */
__attribute__((format(printf, 4, 5)))
static void check(struct checks *checks, const char *name, bool ok, const char *format, ...)
{
    char text[REFIT_ERROR_TEXT_MAX + 64];
    va_list args;
    json_array_append_new(checks->all, json_pack("{s:s, s:b}", "name", name, "ok", (int)ok));
    if (ok)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    /* Whatever the text, a reason makes the verdict. */
    json_array_append_new(checks->reasons, refit_json_text(text));
}

static struct checks begin(void)
{
    return (struct checks){json_array(), json_array()};
}

static void check_capacity(const struct refit_health_view *view, struct checks *checks)
{
    if (view->failure)
        check(checks, "capacity", false, "can't start: %s", view->failure);
    else
        check(checks, "capacity", view->started, "capacity is being reserved");
}

const struct refit_version *refit_health_served(const struct refit_health_view *view)
{
    const struct refit_bank_slot *slot = served(view);
    if (view->engine)
        return view->engine->whole ? &view->engine->version : NULL;
    return slot ? &slot->version : NULL;
}

uint64_t refit_health_served_version(const struct refit_health_view *view)
{
    const struct refit_version *version = refit_health_served(view);
    return version ? version->version : 0;
}

static struct refit_health_verdict verdict(const struct refit_health_view *view, struct checks *checks)
{
    const struct refit_bank_slot *slot = served(view);
    const struct refit_version none = {0}, *found = refit_health_served(view), *version = found ? found : &none;
    struct refit_health_verdict out = {.ok = checks->reasons && json_array_size(checks->reasons) == 0,
                                       .version = version->version};
    out.body = json_pack("{s:s, s:o, s:s, s:s, s:s, s:o, s:o}", "status", out.ok ? "ok" : "unavailable", "version",
                         refit_json_u64(version->version), "label", version->label, "digest", version->digest, "state",
                         slot ? refit_slot_state_name(slot->state) : "none", "reasons", checks->reasons, "checks", checks->all);
    if (out.body) {
        json_object_set_new(out.body, "model",
                            json_string(slot ? view->receiver->model[view->receiver->bank.active] : ""));
        json_object_set_new(out.body, "slot", slot ? json_integer(view->receiver->bank.active) : json_null());
        json_object_set_new(out.body, "since_ms", json_integer(slot ? slot->since_ms : 0));
    }
    return out;
}

struct refit_health_verdict refit_health_live(const struct refit_health_view *view)
{
    struct checks checks = begin();
    check(&checks, "loop", true, "this answer is the proof");
    return verdict(view, &checks);
}

struct refit_health_verdict refit_health_started(const struct refit_health_view *view)
{
    struct checks checks = begin();
    check_capacity(view, &checks);
    if (view->startup_needs_weights)
        check(&checks, "version", refit_health_served(view), "no version is served yet, and --startup-needs-weights asks for one");
    return verdict(view, &checks);
}

static void check_engine(const struct refit_health_view *view, struct checks *checks)
{
    const struct refit_bank_snapshot *bank = &view->receiver->bank;
    if (view->engine)
        check(checks, "engine", view->engine->whole, "engine %s: %s", view->engine->kind, view->engine->reason);
    else
        check(checks, "engines", bank->attached >= bank->ranks, "%" PRIu32 " of %" PRIu32 " engine ranks are attached",
              bank->attached, bank->ranks);
}

static void check_version(const struct refit_health_view *view, struct checks *checks)
{
    const struct refit_version *version = refit_health_served(view);
    const char *siblings = view->siblings ? view->siblings->waiting : "";
    if (view->receiver->bank.adopting)
        check(checks, "version", version, "waiting for engines to hand their slots back after a restart");
    else if (view->receiver->bank.torn)
        check(checks, "version", version, "a swap that failed left no whole version: refit again");
    else
        check(checks, "version", version, "no version is served yet%s%s", *siblings ? "; siblings: " : "", siblings);
    if (view->siblings && view->siblings->part)
        check(checks, "replica", !view->siblings->apart[0], "%s", view->siblings->apart);
    if (version && view->ready_min_version)
        check(checks, "minimum-version", version->version >= view->ready_min_version,
              "version %" PRIu64 " is served, at least %" PRIu64 " is asked for", version->version,
              view->ready_min_version);
}

struct refit_health_verdict refit_health_ready(const struct refit_health_view *view)
{
    struct checks checks = begin();
    check_capacity(view, &checks);
    check(&checks, "not-draining", !view->draining, "shutting down");
    if (view->receiver) {
        check_engine(view, &checks);
        check_version(view, &checks);
    }
    return verdict(view, &checks);
}
