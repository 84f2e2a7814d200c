/* SPDX-License-Identifier: Apache-2.0
 *
 * The families of docs/metrics.md. Labels are bounded: phases, statuses, paths, slot numbers; texts and digests are labels of
 * _info metrics only, which have one sample each.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "health/exposition.h"
#include "memory/cuda_probe.h"
#include "memory/ops.h"

#define GAUGE REFIT_METRIC_GAUGE
#define COUNTER REFIT_METRIC_COUNTER
#define LABELS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void whole(struct refit_exposition *x, enum refit_metric_type type, const char *name, const char *help, uint64_t value)
{
    refit_exposition_whole(x, type, name, help, value);
}

static void process_metrics(struct refit_exposition *x)
{
    struct refit_health_process process;
    refit_health_read_process(&process);
    refit_exposition_seconds(x, COUNTER, "process_cpu_seconds", "User and system CPU time.", process.cpu_seconds);
    whole(x, GAUGE, "process_resident_memory_bytes", "Resident memory, slots included.", process.resident_bytes);
    whole(x, GAUGE, "process_virtual_memory_bytes", "Virtual memory.", process.virtual_bytes);
    whole(x, GAUGE, "process_threads", "Threads.", process.threads);
    whole(x, GAUGE, "process_open_fds", "Open file descriptors.", process.open_fds);
    whole(x, GAUGE, "process_max_fds", "Most file descriptors that may be open.", process.max_fds);
    refit_exposition_seconds(x, GAUGE, "process_start_time_seconds", "Start, in seconds since the epoch.",
                             process.start_time_seconds);
}

/* Of one refitd with ranks on several GPUs. */
static void between_devices(struct refit_exposition *x)
{
    struct refit_memory_between_devices moved;
    refit_memory_between_devices(&moved);
    refit_exposition_family(x, COUNTER, "refit_device_copied_bytes",
                            "Bytes copied from a GPU of this process to another; direct: without host memory between.");
    refit_exposition_u64(x, LABELS("path", "direct"), moved.direct_bytes);
    refit_exposition_u64(x, LABELS("path", "host"), moved.by_host_bytes);
}

static bool is_ready(const struct refit_health_view *view)
{
    struct refit_health_verdict verdict = refit_health_ready(view);
    json_decref(verdict.body);
    return verdict.ok;
}

static void own_metrics(const struct refit_health_view *view, struct refit_exposition *x)
{
    refit_exposition_family(x, REFIT_METRIC_INFO, "refit_build", "The software's version.");
    refit_exposition_u64(x, LABELS("version", view->software), 1);
    whole(x, GAUGE, "refit_started", "1 when listeners are bound and capacity is reserved.", view->started);
    whole(x, GAUGE, "refit_ready", "1 when /readyz answers 200.", is_ready(view));
    whole(x, GAUGE, "refit_draining", "1 while shutting down.", view->draining);
    refit_exposition_seconds(x, GAUGE, "refit_event_loop_lag_seconds",
                             "How late the event loop's tick was, worst of the last minute.", (double)view->loop_lag_ns / 1e9);
    whole(x, COUNTER, "refit_log_lines_lost", "Log lines dropped because standard error did not take them.",
          view->log_lines_lost);
}

static void http_metrics(const struct refit_health_view *view, struct refit_exposition *x)
{
    const struct refit_health_http *const listeners[] = {&view->control, &view->admin};
    static const char *const names[] = {"control", "admin"};
    refit_exposition_family(x, GAUGE, "refit_http_connections", "Open HTTP connections by listener.");
    for (int i = 0; i < 2; i++)
        refit_exposition_u64(x, LABELS("listener", names[i]), listeners[i]->connections);
    refit_exposition_family(x, COUNTER, "refit_http_connections_refused",
                            "Connections closed at once because all others were being answered.");
    for (int i = 0; i < 2; i++)
        refit_exposition_u64(x, LABELS("listener", names[i]), listeners[i]->refused);
    refit_exposition_family(x, COUNTER, "refit_tls_handshakes_failed", "TLS handshakes of a listener that failed.");
    for (int i = 0; i < 2; i++)
        refit_exposition_u64(x, LABELS("listener", names[i]), listeners[i]->handshakes_failed);
    refit_exposition_family(x, COUNTER, "refit_http_answers", "HTTP answers by listener and class of status.");
    for (int i = 0; i < 2; i++)
        for (int class = 2; class < 6; class ++) {
            char code[] = {(char)('0' + class), 'x', 'x', '\0'};
            refit_exposition_u64(x, LABELS("listener", names[i], "code", code), listeners[i]->answers[class]);
        }
}

static void guard_metrics(const struct refit_health_guard *guard, struct refit_exposition *x)
{
    refit_exposition_family(x, COUNTER, "refit_http_requests_denied", "Requests to the control API turned away, by reason.");
    refit_exposition_u64(x, LABELS("reason", "unauthenticated"), guard->unauthenticated);
    refit_exposition_u64(x, LABELS("reason", "forbidden"), guard->forbidden);
    refit_exposition_family(x, GAUGE, "refit_tls_certificate_expiry_timestamp_seconds",
                            "When the certificate of a listener expires, in seconds since the epoch; 0: it has none.");
    refit_exposition_real(x, LABELS("listener", "control"), (double)guard->control_not_after_s);
    refit_exposition_real(x, LABELS("listener", "data"), (double)guard->data_not_after_s);
    whole(x, GAUGE, "refit_credentials_refused",
          "1 while certificate or access files were refused as they are now and older ones are in use.", guard->refused);
}

static void version_metrics(const struct refit_health_view *view, struct refit_exposition *x)
{
    const struct refit_receiver_snapshot *receiver = view->receiver;
    const struct refit_bank_snapshot *bank = &receiver->bank;
    const struct refit_bank_slot none = {0};
    const struct refit_bank_slot *slot = bank->active < bank->slots ? &bank->slot[bank->active] : &none;
    const struct refit_version *version = refit_health_served(view);
    char number[24];
    version = version ? version : &none.version;
    snprintf(number, sizeof number, "%" PRIu64, version->version);
    whole(x, GAUGE, "refit_version", "Version served now; 0: none.", version->version);
    refit_exposition_family(x, REFIT_METRIC_INFO, "refit_weights", "What is served now: version, label, digest, layout.");
    refit_exposition_u64(x, LABELS("version", number, "label", version->label, "digest", version->digest, "layout",
                                   receiver->layout, "protection", refit_protection_name(bank->protection), "memory",
                                   refit_health_memory_name(bank)), 1);
    refit_exposition_seconds(x, GAUGE, "refit_version_since_timestamp_seconds",
                             "When the version served now became active, in seconds since the epoch; 0: none.",
                             (double)slot->since_ms / 1e3);
    whole(x, GAUGE, "refit_model_bytes", "Bytes of the model served here, each tensor once.", receiver->model_bytes);
    whole(x, GAUGE, "refit_rollback_available", "1 when the version before is retained.", bank->rollback_available);
    whole(x, GAUGE, "refit_torn", "1 when a swap failed half way and nothing whole is left to serve: refit it.", bank->torn);
    whole(x, GAUGE, "refit_held", "1 while a rollback holds newer versions off.", receiver->held);
    whole(x, GAUGE, "refit_quarantined_digests", "Model digests in quarantine.", receiver->quarantined);
    whole(x, GAUGE, "refit_lead_epoch", "Epoch issued last.", receiver->epoch);
}

static double pin_age_s(const struct refit_bank_snapshot *bank, uint32_t slot, int64_t now_ms)
{
    const struct refit_bank_slot *s = &bank->slot[slot];
    bool old = slot != bank->active && s->pins > 0;
    return old && now_ms > s->since_ms ? (double)(now_ms - s->since_ms) / 1e3 : 0;
}

static void pin_metrics(const struct refit_bank_snapshot *bank, int64_t now_ms, struct refit_exposition *x)
{
    char number[16];
    refit_exposition_family(x, GAUGE, "refit_slot_pins",
                            "Pins held on a slot, over all ranks; pins of the latest version are not counted.");
    for (uint32_t i = 0; i < bank->slots; i++) {
        snprintf(number, sizeof number, "%" PRIu32, i);
        refit_exposition_u64(x, LABELS("slot", number), bank->slot[i].pins);
    }
    refit_exposition_family(x, GAUGE, "refit_slot_pin_age_seconds",
                            "How long a slot has been pinned since its version stopped being the one served; 0: not pinned.");
    for (uint32_t i = 0; i < bank->slots; i++) {
        snprintf(number, sizeof number, "%" PRIu32, i);
        refit_exposition_real(x, LABELS("slot", number), pin_age_s(bank, i, now_ms));
    }
}

static void engine_metrics(const struct refit_health_engine *engine, struct refit_exposition *x)
{
    whole(x, GAUGE, "refit_engine_whole", "1 when the engine that installs weights itself has a version whole and generates.",
          engine->whole);
    whole(x, COUNTER, "refit_engine_installs", "Versions that it installed.", engine->installs);
    whole(x, COUNTER, "refit_engine_install_failures", "Installs that failed.", engine->failures);
    whole(x, COUNTER, "refit_engine_restores", "Of those, how many were taken back.", engine->restores);
    refit_exposition_seconds(x, GAUGE, "refit_engine_paused_seconds", "How long it was paused for the last install.",
                             (double)engine->paused_ns / 1e9);
}

static void device_metrics(const struct refit_bank_snapshot *bank, struct refit_exposition *x)
{
    char rank[16], device[16] = "", uuid[REFIT_CUDA_UUID_TEXT_MAX] = "";
    refit_exposition_family(x, REFIT_METRIC_INFO, "refit_rank_device",
                            "The GPU that holds the slots of a rank; empty labels: they are in host memory.");
    for (uint32_t i = 0; i < bank->ranks && i < sizeof bank->rank / sizeof bank->rank[0]; i++) {
        snprintf(rank, sizeof rank, "%" PRIu32, i);
        if (bank->rank[i].device >= 0) {
            snprintf(device, sizeof device, "%d", bank->rank[i].device);
            refit_cuda_uuid_text(bank->rank[i].uuid, uuid);
        }
        refit_exposition_u64(x, LABELS("rank", rank, "device", device, "uuid", uuid), 1);
    }
}

static void slot_metrics(const struct refit_health_view *view, struct refit_exposition *x)
{
    const struct refit_bank_snapshot *bank = &view->receiver->bank;
    const uint32_t attached = !view->engine ? bank->attached : view->engine->whole ? bank->ranks : 0;
    refit_exposition_family(x, GAUGE, "refit_slots", "Slots by state.");
    for (int state = REFIT_SLOT_FREE; state <= REFIT_SLOT_RETAINED; state++) {
        unsigned count = 0;
        for (uint32_t i = 0; i < bank->slots; i++)
            count += (int)bank->slot[i].state == state;
        refit_exposition_u64(x, LABELS("state", refit_slot_state_name((enum refit_slot_state)state)), count);
    }
    whole(x, GAUGE, "refit_slot_capacity_bytes", "Bytes of one slot on one rank.", bank->slot_bytes);
    whole(x, GAUGE, "refit_ranks", "Engine ranks of this replica.", bank->ranks);
    device_metrics(bank, x);
    whole(x, GAUGE, "refit_ranks_attached", "Engine ranks attached now.", attached);
    whole(x, COUNTER, "refit_swaps", "Swaps, rollbacks included.", bank->swaps);
    whole(x, COUNTER, "refit_rollbacks", "Rollbacks.", bank->rollbacks);
    whole(x, COUNTER, "refit_readers_died", "Engine processes that died while attached.", bank->readers_died);
}

static void refit_metrics(const struct refit_receiver_snapshot *receiver, struct refit_exposition *x)
{
    refit_exposition_family(x, COUNTER, "refit_refits", "Refits that ended, by outcome and reason.");
    refit_exposition_u64(x, LABELS("outcome", "committed", "reason", ""), receiver->committed);
    for (int status = REFIT_INVALID; status <= REFIT_SYSTEM; status++)
        refit_exposition_u64(x, LABELS("outcome", "aborted", "reason", refit_status_name((enum refit_status)status)),
                             receiver->aborted_by[status]);
    whole(x, COUNTER, "refit_refits_superseded", "Aborted refits that a newer publish replaced.", receiver->superseded);
    whole(x, COUNTER, "refit_landed_bytes", "Bytes landed in slots and verified.", receiver->bytes_landed);
    whole(x, COUNTER, "refit_plan_cache_hits", "Plans found in the cache.", receiver->plan_hits);
    whole(x, COUNTER, "refit_plan_cache_misses", "Plans that had to be made.", receiver->plan_misses);
}

static void fleet_metrics(const struct refit_receiver_snapshot *receiver, struct refit_exposition *x)
{
    const struct refit_supplied *supplied = &receiver->supplied;
    refit_exposition_family(x, COUNTER, "refit_received_bytes",
                            "Bytes of ended refits by where they came from; kept: not moved, they were here.");
    refit_exposition_u64(x, LABELS("from", "trainer"), supplied->origin_bytes);
    refit_exposition_u64(x, LABELS("from", "domain"), supplied->domain_bytes);
    refit_exposition_u64(x, LABELS("from", "fleet"), supplied->fleet_bytes);
    refit_exposition_u64(x, LABELS("from", "kept"), supplied->kept_bytes);
    whole(x, COUNTER, "refit_excess_bytes", "Bytes from the trainer because the member whose turn it was had failed.",
          supplied->excess_bytes);
    whole(x, COUNTER, "refit_served_bytes", "Bytes sent in requests to serve other replicas that have ended.",
          receiver->served_bytes);
    whole(x, GAUGE, "refit_serving", "Requests to serve other replicas that run.", receiver->serving);
}

static void byte_totals(const struct refit_health_totals *totals, struct refit_exposition *x)
{
    whole(x, COUNTER, "refit_needed_bytes", "Bytes that the plans of ended refits asked for.", totals->bytes_needed);
    refit_exposition_family(x, COUNTER, "refit_moved_bytes", "Payload that ended refits moved, retries included, by path.");
    for (int i = 0; i < REFIT_HEALTH_PATHS; i++)
        refit_exposition_u64(x, LABELS("transport", refit_health_path_name((enum refit_health_path)i)),
                             totals->payload_bytes[i]);
    whole(x, COUNTER, "refit_wire_bytes", "Bytes on the wire with framing, of ended refits.", totals->wire_bytes);
    whole(x, COUNTER, "refit_copied_bytes", "Payload of ended refits that took an extra copy.", totals->copied_bytes);
    refit_exposition_family(x, COUNTER, "refit_refits_by_transport", "Refits that ended, by the path their bytes took.");
    for (int i = 0; i < REFIT_HEALTH_PATHS; i++)
        refit_exposition_u64(x, LABELS("transport", refit_health_path_name((enum refit_health_path)i)), totals->refits[i]);
}

static void time_totals(const struct refit_health_totals *totals, struct refit_exposition *x)
{
    refit_exposition_family(x, REFIT_METRIC_HISTOGRAM, "refit_phase_duration_seconds",
                            "Time that ended refits spent in a phase they were in.");
    for (int i = REFIT_PHASE_REQUESTED; i < REFIT_PHASE_COMMITTED; i++)
        refit_exposition_histogram(x, "phase", refit_phase_name((enum refit_phase)i), &totals->phase[i]);
    refit_exposition_family(x, REFIT_METRIC_HISTOGRAM, "refit_duration_seconds", "Time from request to end of a refit.");
    refit_exposition_histogram(x, "outcome", "committed", &totals->duration[0]);
    refit_exposition_histogram(x, "outcome", "aborted", &totals->duration[1]);
    refit_exposition_family(x, REFIT_METRIC_HISTOGRAM, "refit_swap_duration_seconds",
                            "Duration of a swap: first rank shown to leader flipped.");
    refit_exposition_histogram(x, NULL, NULL, &totals->swap);
}

static void session_metrics(const struct refit_session_snapshot *session, struct refit_exposition *x)
{
    refit_exposition_family(x, GAUGE, "refit_phase", "1 for the phase of the running or latest refit.");
    for (int i = REFIT_PHASE_REQUESTED; i < REFIT_PHASE_COUNT; i++)
        refit_exposition_u64(x, LABELS("phase", refit_phase_name((enum refit_phase)i)), (int)session->phase == i);
    whole(x, GAUGE, "refit_running", "1 while a refit runs.", !refit_health_is_terminal(session->phase));
    whole(x, GAUGE, "refit_target_version", "Version of the running or latest refit.", session->version);
    whole(x, GAUGE, "refit_target_bytes", "Bytes the running or latest refit needs.", session->bytes_due);
    whole(x, GAUGE, "refit_target_done_bytes", "Bytes of it that have landed and are verified.", session->bytes_done);
    refit_exposition_family(x, REFIT_METRIC_INFO, "refit_transport", "The path of the running or latest refit.");
    refit_exposition_u64(x, LABELS("transport", session->transport), 1);
}

static void sibling_metrics(const struct refit_health_view *view, struct refit_exposition *x)
{
    const struct refit_health_siblings *siblings = view->siblings;
    uint64_t served = refit_health_served_version(view);
    whole(x, GAUGE, "refit_siblings", "Siblings known, this replica aside.", siblings->known);
    whole(x, GAUGE, "refit_siblings_heard", "Siblings that have answered lately.", siblings->heard);
    whole(x, GAUGE, "refit_siblings_version", "Newest version that a sibling serves; 0: none.", siblings->newest);
    whole(x, GAUGE, "refit_version_lag", "How much newer that is than the version served here, as numbers go; 0: not at all.",
          siblings->newest > served ? siblings->newest - served : 0);
    whole(x, GAUGE, "refit_siblings_disputed", "1 while siblings serve one version with different digests.",
          siblings->disputed != 0);
    refit_exposition_family(x, COUNTER, "refit_catch_ups", "Versions fetched from siblings, by result.");
    for (int i = 0; i < REFIT_HEALTH_CATCH_UPS; i++)
        refit_exposition_u64(x, LABELS("result", refit_health_catch_up_name((enum refit_health_catch_up)i)),
                             siblings->results[i]);
}

bool refit_health_metrics(const struct refit_health_view *view, bool openmetrics, struct refit_buf *out)
{
    struct refit_exposition x = {.out = out, .openmetrics = openmetrics};
    own_metrics(view, &x);
    http_metrics(view, &x);
    guard_metrics(&view->guard, &x);
    if (view->receiver) {
        version_metrics(view, &x);
        slot_metrics(view, &x);
        pin_metrics(&view->receiver->bank, view->now_ms, &x);
        refit_metrics(view->receiver, &x);
        fleet_metrics(view->receiver, &x);
    }
    if (view->siblings)
        sibling_metrics(view, &x);
    if (view->engine)
        engine_metrics(view->engine, &x);
    if (view->totals) {
        byte_totals(view->totals, &x);
        time_totals(view->totals, &x);
    }
    if (view->session)
        session_metrics(view->session, &x);
    between_devices(&x);
    process_metrics(&x);
    refit_exposition_end(&x);
    return !out->failed;
}
