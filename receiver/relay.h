/* SPDX-License-Identifier: Apache-2.0
 *
 * A member's other half: while its slot is filled it is a holder for every other member, and serves what has landed.
 * It dials each of them, again and again, until that one says that it needs no more, or the relay is stopped. A
 * member that never receives costs nothing but these attempts.
 */
#ifndef REFIT_RECEIVER_RELAY_H
#define REFIT_RECEIVER_RELAY_H

#include "receiver/fleet.h"

struct refit_relay_config {
    struct refit_fleet *fleet;         /* retained */
    struct refit_plan *plan;           /* retained, as is landed */
    struct refit_landed *landed;
    struct refit_arena *const *arenas; /* borrowed until stop: the slot must neither be written nor given up before */
    size_t arena_count;
    uint32_t holder;                   /* this member's number at the others */
    struct refit_tls *tls;             /* borrowed; as in refit_endpoint_config */
    uint64_t rate_bytes_per_s;         /* of all together; 0: unlimited */
    int nice;
    bool nccl; /* may be used here */
    bool verify;
    struct refit_deadline deadline;
    void (*on_done)(void *context);    /* no member is left to serve; any thread, no lock held */
    void *context;
};

struct refit_relay;

REFIT_MUST_CHECK enum refit_status refit_relay_start(const struct refit_relay_config *config, struct refit_relay **out,
                                                     struct refit_error *err);
/* How many members may still come for bytes. */
uint32_t refit_relay_left(struct refit_relay *relay);
/* Bounded by REFIT_ABORT_MS; when it returns nothing reads the arenas any more. Frees; NULL is fine. */
void refit_relay_stop(struct refit_relay *relay);

#endif
