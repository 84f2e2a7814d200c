/* SPDX-License-Identifier: Apache-2.0
 *
 * Prometheus text. Labels are bounded: phases, statuses, slot numbers; a digest appears once, in an _info metric.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "health/health.h"

static void family(struct refit_buf *out, const char *name, const char *type, const char *help)
{
    refit_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void whole(struct refit_buf *out, const char *name, const char *type, const char *help, uint64_t value)
{
    family(out, name, type, help);
    refit_buf_printf(out, "%s %" PRIu64 "\n", name, value);
}

static void real(struct refit_buf *out, const char *name, const char *type, const char *help, double value)
{
    family(out, name, type, help);
    refit_buf_printf(out, "%s %.12g\n", name, value);
}

/* Label values: backslash, quote and newline are escaped. */
static const char *quoted(const char *text, char out[static 192])
{
    size_t n = 0;
    for (; *text && n + 3 < 192; text++) {
        if (*text == '\\' || *text == '"')
            out[n++] = '\\';
        out[n++] = *text == '\n' ? ' ' : *text;
    }
    out[n] = '\0';
    return out;
}

static void process_metrics(struct refit_buf *out)
{
    struct refit_health_process process;
    refit_health_read_process(&process);
    real(out, "process_cpu_seconds_total", "counter", "User and system CPU time.", process.cpu_seconds);
    whole(out, "process_resident_memory_bytes", "gauge", "Resident memory, slots included.", process.resident_bytes);
    whole(out, "process_open_fds", "gauge", "Open file descriptors.", process.open_fds);
    whole(out, "process_max_fds", "gauge", "Most file descriptors that may be open.", process.max_fds);
    real(out, "process_start_time_seconds", "gauge", "Start, in seconds since the epoch.", process.start_time_seconds);
}

static void own_metrics(const struct refit_health_view *view, struct refit_buf *out)
{
    family(out, "refit_build_info", "gauge", "The software's version.");
    refit_buf_printf(out, "refit_build_info{version=\"%s\"} 1\n", view->software);
    whole(out, "refit_started", "gauge", "1 when listeners are bound and capacity is reserved.", view->started);
    whole(out, "refit_draining", "gauge", "1 while shutting down.", view->draining);
    real(out, "refit_event_loop_lag_seconds", "gauge", "How late the event loop's tick was, worst of the last minute.",
         (double)view->loop_lag_ns / 1e9);
    family(out, "refit_http_connections", "gauge", "Open HTTP connections by listener.");
    refit_buf_printf(out,
                     "refit_http_connections{listener=\"control\"} %u\nrefit_http_connections{listener=\"admin\"} %u\n",
                     view->control_connections, view->admin_connections);
}

static void version_metrics(const struct refit_receiver_snapshot *receiver, struct refit_buf *out)
{
    const struct refit_bank_snapshot *bank = &receiver->bank;
    const struct refit_version none = {0};
    const struct refit_version *version = bank->active < bank->slots ? &bank->slot[bank->active].version : &none;
    char label[192], digest[192];
    whole(out, "refit_version", "gauge", "Version served now; 0: none.", version->version);
    family(out, "refit_weights_info", "gauge", "What is served now: label, digest, layout.");
    refit_buf_printf(out, "refit_weights_info{label=\"%s\",digest=\"%s\",layout=\"%s\",protection=\"%s\"} 1\n",
                     quoted(version->label, label), quoted(version->digest, digest), receiver->layout,
                     refit_protection_name(bank->protection));
    whole(out, "refit_model_bytes", "gauge", "Bytes of the model served here, each tensor once.",
          receiver->model_bytes);
    whole(out, "refit_rollback_available", "gauge", "1 when the version before is retained.", bank->rollback_available);
    whole(out, "refit_held", "gauge", "1 while a rollback holds newer versions off.", receiver->held);
    whole(out, "refit_quarantined_digests", "gauge", "Model digests in quarantine.", receiver->quarantined);
    whole(out, "refit_lead_epoch", "gauge", "Epoch issued last.", receiver->epoch);
}

static void slot_metrics(const struct refit_bank_snapshot *bank, struct refit_buf *out)
{
    family(out, "refit_slots", "gauge", "Slots by state.");
    for (int state = REFIT_SLOT_FREE; state <= REFIT_SLOT_RETAINED; state++) {
        unsigned count = 0;
        for (uint32_t i = 0; i < bank->slots; i++)
            count += (int)bank->slot[i].state == state;
        refit_buf_printf(out, "refit_slots{state=\"%s\"} %u\n", refit_slot_state_name((enum refit_slot_state)state),
                         count);
    }
    family(out, "refit_slot_pins", "gauge",
           "Pins held on a slot, over all ranks; pins of the latest version are not counted.");
    for (uint32_t i = 0; i < bank->slots; i++)
        refit_buf_printf(out, "refit_slot_pins{slot=\"%" PRIu32 "\"} %" PRIu64 "\n", i, bank->slot[i].pins);
    whole(out, "refit_slot_capacity_bytes", "gauge", "Bytes of one slot on one rank.", bank->slot_bytes);
    whole(out, "refit_ranks", "gauge", "Engine ranks of this replica.", bank->ranks);
    whole(out, "refit_ranks_attached", "gauge", "Engine ranks attached now.", bank->attached);
    whole(out, "refit_swaps_total", "counter", "Swaps, rollbacks included.", bank->swaps);
    whole(out, "refit_rollbacks_total", "counter", "Rollbacks.", bank->rollbacks);
    whole(out, "refit_readers_died_total", "counter", "Engine processes that died while attached.", bank->readers_died);
    real(out, "refit_last_swap_seconds", "gauge", "Duration of the last swap: first rank shown to leader flipped.",
         (double)bank->last_swap_ns / 1e9);
}

static void refit_metrics(const struct refit_receiver_snapshot *receiver, struct refit_buf *out)
{
    family(out, "refit_refits_total", "counter", "Refits that ended, by outcome and reason.");
    refit_buf_printf(out, "refit_refits_total{outcome=\"committed\",reason=\"\"} %" PRIu64 "\n", receiver->committed);
    for (int status = REFIT_INVALID; status <= REFIT_SYSTEM; status++)
        refit_buf_printf(out, "refit_refits_total{outcome=\"aborted\",reason=\"%s\"} %" PRIu64 "\n",
                         refit_status_name((enum refit_status)status), receiver->aborted_by[status]);
    whole(out, "refit_refits_superseded_total", "counter", "Aborted refits that a newer publish replaced.",
          receiver->superseded);
    whole(out, "refit_landed_bytes_total", "counter", "Bytes landed in slots and verified.", receiver->bytes_landed);
    whole(out, "refit_plan_cache_hits_total", "counter", "Plans found in the cache.", receiver->plan_hits);
    whole(out, "refit_plan_cache_misses_total", "counter", "Plans that had to be made.", receiver->plan_misses);
}

static void total_metrics(const struct refit_health_totals *totals, struct refit_buf *out)
{
    whole(out, "refit_needed_bytes_total", "counter", "Bytes that the plans of ended refits asked for.",
          totals->bytes_needed);
    whole(out, "refit_moved_bytes_total", "counter", "Payload that ended refits moved, retries included.",
          totals->payload_bytes);
    whole(out, "refit_wire_bytes_total", "counter", "Bytes on the wire with framing, of ended refits.",
          totals->wire_bytes);
    whole(out, "refit_copied_bytes_total", "counter", "Payload of ended refits that took an extra copy.",
          totals->copied_bytes);
    family(out, "refit_phase_seconds_total", "counter", "Time that ended refits spent, by phase.");
    for (int i = REFIT_PHASE_REQUESTED; i < REFIT_PHASE_COMMITTED; i++)
        refit_buf_printf(out, "refit_phase_seconds_total{phase=\"%s\"} %.9g\n", refit_phase_name((enum refit_phase)i),
                         (double)totals->phase_ns[i] / 1e9);
}

static void session_metrics(const struct refit_session_snapshot *session, struct refit_buf *out)
{
    char transport[192];
    family(out, "refit_phase", "gauge", "1 for the phase of the running or latest refit.");
    for (int i = REFIT_PHASE_REQUESTED; i < REFIT_PHASE_COUNT; i++)
        refit_buf_printf(out, "refit_phase{phase=\"%s\"} %d\n", refit_phase_name((enum refit_phase)i),
                         (int)session->phase == i);
    whole(out, "refit_target_version", "gauge", "Version of the running or latest refit.", session->version);
    whole(out, "refit_target_bytes", "gauge", "Bytes the running or latest refit needs.", session->bytes_due);
    whole(out, "refit_target_done_bytes", "gauge", "Bytes of it that have landed and are verified.",
          session->bytes_done);
    family(out, "refit_transport_info", "gauge", "The path of the running or latest refit.");
    refit_buf_printf(out, "refit_transport_info{transport=\"%s\"} 1\n", quoted(session->transport, transport));
    family(out, "refit_phase_seconds", "gauge", "Time that the running or latest refit spent, by phase.");
    for (int i = REFIT_PHASE_REQUESTED; i < REFIT_PHASE_COMMITTED; i++)
        refit_buf_printf(out, "refit_phase_seconds{phase=\"%s\"} %.9g\n", refit_phase_name((enum refit_phase)i),
                         (double)session->phase_ns[i] / 1e9);
}

bool refit_health_metrics(const struct refit_health_view *view, struct refit_buf *out)
{
    own_metrics(view, out);
    if (view->receiver) {
        version_metrics(view->receiver, out);
        slot_metrics(&view->receiver->bank, out);
        refit_metrics(view->receiver, out);
    }
    if (view->totals)
        total_metrics(view->totals, out);
    if (view->session)
        session_metrics(view->session, out);
    process_metrics(out);
    return !out->failed;
}
