/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeping up with the siblings: a thread that asks some of them every few seconds what they serve, and, when that is newer
 * than what is served here (or nothing is), lets this replica fetch it from them. No trainer and no lead takes part, and
 * nobody else is paused: the siblings send from their slots.
 *
 * What it fetches is a refit like any other, begun by refitd itself, of nobody's epoch: a lead's publish takes its place.
 */
#ifndef REFIT_SIDECAR_CATCH_UP_H
#define REFIT_SIDECAR_CATCH_UP_H

#include "health/health.h"
#include "sidecar/config.h"
#include "sidecar/traffic.h"

struct refit_catch_up;

struct refit_catch_up_config {
    const struct refit_config *config; /* borrowed, as all of these */
    struct refit_receiver *receiver;
    struct refit_traffic *traffic;
    void (*notify)(void *context); /* what read says has changed; any thread */
    void *context;
};

/* REFIT_INVALID: --siblings is not well formed, or the files of its credentials can't be used. */
REFIT_MUST_CHECK enum refit_status refit_catch_up_start(const struct refit_catch_up_config *config,
                                                        struct refit_catch_up **out, struct refit_error *err);
/* Begins nothing from now on. Does not wait. */
void refit_catch_up_halt(struct refit_catch_up *catch_up);
/* Blocks for at most one call to a sibling. NULL is fine. Before the receiver is closed. */
void refit_catch_up_stop(struct refit_catch_up *catch_up);

/* Something may have changed here. `version`: what the engine serves, whoever installed it; `settled`: that is known. */
void refit_catch_up_look(struct refit_catch_up *catch_up, uint64_t version, bool settled);
void refit_catch_up_read(struct refit_catch_up *catch_up, struct refit_health_siblings *out);

#endif
