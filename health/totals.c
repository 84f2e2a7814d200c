/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "health/health.h"

bool refit_health_is_terminal(enum refit_phase phase)
{
    return phase == REFIT_PHASE_COMMITTED || phase == REFIT_PHASE_ABORTED;
}

bool refit_health_is_retryable(enum refit_status status)
{
    return status == REFIT_BUSY || status == REFIT_TIMEOUT || status == REFIT_PEER || status == REFIT_CORRUPT;
}

void refit_health_observe(struct refit_health_totals *totals, const struct refit_session_snapshot *session)
{
    if (!refit_health_is_terminal(session->phase) || strcmp(totals->seen, session->id) == 0)
        return;
    memcpy(totals->seen, session->id, sizeof totals->seen);
    totals->bytes_needed += session->bytes_due;
    totals->payload_bytes += session->stats.payload_bytes;
    totals->wire_bytes += session->stats.wire_bytes;
    totals->copied_bytes += session->stats.copied_bytes;
    for (int i = 0; i < REFIT_PHASE_COUNT; i++)
        totals->phase_ns[i] += session->phase_ns[i];
}
