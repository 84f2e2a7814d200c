/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "health/health.h"

const int64_t refit_health_bounds_ns[REFIT_HEALTH_BUCKETS] = {
    1000000, 5000000, 25000000, 100000000, 250000000, 500000000, 1000000000, 2500000000, 5000000000, 10000000000, 30000000000,
    60000000000, 300000000000,
};

bool refit_health_is_terminal(enum refit_phase phase)
{
    return phase == REFIT_PHASE_COMMITTED || phase == REFIT_PHASE_ABORTED;
}

bool refit_health_is_retryable(enum refit_status status)
{
    return status == REFIT_BUSY || status == REFIT_TIMEOUT || status == REFIT_PEER || status == REFIT_CORRUPT;
}

void refit_health_histogram_add(struct refit_health_histogram *histogram, int64_t ns)
{
    size_t i = 0;
    while (i < REFIT_HEALTH_BUCKETS && ns > refit_health_bounds_ns[i])
        i++;
    if (i < REFIT_HEALTH_BUCKETS)
        histogram->bucket[i]++;
    histogram->count++;
    histogram->sum_ns += ns;
}

const char *refit_health_path_name(enum refit_health_path path)
{
    static const char *const names[] = {"tcp", "local", "file", "nccl", "other"};
    return names[path];
}

static enum refit_health_path path_of(const char *transport)
{
    int path = 0;
    while (path < REFIT_HEALTH_PATH_OTHER && strcmp(refit_health_path_name((enum refit_health_path)path), transport) != 0)
        path++;
    return (enum refit_health_path)path;
}

static void add_times(struct refit_health_totals *totals, const struct refit_session_snapshot *session)
{
    int64_t whole = 0;
    for (int i = REFIT_PHASE_REQUESTED; i < REFIT_PHASE_COMMITTED; i++) {
        if (session->phase_ns[i] > 0) /* else it was never in that phase */
            refit_health_histogram_add(&totals->phase[i], session->phase_ns[i]);
        whole += session->phase_ns[i];
    }
    refit_health_histogram_add(&totals->duration[session->phase == REFIT_PHASE_ABORTED], whole);
}

void refit_health_observe(struct refit_health_totals *totals, const struct refit_session_snapshot *session)
{
    if (!refit_health_is_terminal(session->phase) || strcmp(totals->seen, session->id) == 0)
        return;
    enum refit_health_path path = path_of(session->transport);
    memcpy(totals->seen, session->id, sizeof totals->seen);
    totals->bytes_needed += session->bytes_due;
    totals->payload_bytes[path] += session->stats.payload_bytes;
    totals->wire_bytes += session->stats.wire_bytes;
    totals->copied_bytes += session->stats.copied_bytes;
    totals->refits[path]++;
    add_times(totals, session);
}

void refit_health_observe_swap(struct refit_health_totals *totals, const struct refit_bank_snapshot *bank)
{
    if (bank->swaps == totals->swaps_seen)
        return;
    totals->swaps_seen = bank->swaps;
    refit_health_histogram_add(&totals->swap, bank->last_swap_ns);
}
