/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a version that is fetched lands: this refitd, or another pod of its replica, whose control API is told the
 * same. Its refit is of nobody's epoch, so any lead's publish takes its place.
 */
#ifndef REFIT_SIDECAR_FETCH_TARGET_H
#define REFIT_SIDECAR_FETCH_TARGET_H

#include "sidecar/siblings.h"
#include "sidecar/traffic.h"

#define REFIT_FETCH_CALL_MS 2000     /* a call to a sibling */
#define REFIT_FETCH_LAYOUT_MS 30000  /* one that carries a layout, or plans */
#define REFIT_FETCH_REPLICAS_MAX 2   /* that are asked to serve a target */
#define REFIT_FETCH_HOLDERS_MAX (REFIT_FETCH_REPLICAS_MAX * REFIT_MATES_MAX)

/* The same for all targets of a try. */
struct refit_fetch_order {
    struct refit_control_version version;
    struct refit_layout *source; /* that the bytes come in; borrowed */
    uint32_t holders;            /* how many may serve at most */
    struct refit_deadline deadline;
    const char *domain;
};

struct refit_fetch_target {
    struct refit_receiver *receiver; /* of this refitd; NULL: it is another pod */
    struct refit_traffic *traffic;   /* borrowed, of this refitd */
    struct refit_sibling *pod;       /* borrowed; NULL: this refitd */
    struct refit_control control;    /* of the pod */
    uint32_t first_rank, rank_count; /* count 0: all of the replica */
    uint64_t before;                 /* the version served before; 0: none */
    char publish_id[REFIT_PUBLISH_ID_MAX];
    char token[2 * REFIT_TOKEN_BYTES + 1];
    char id[REFIT_REFIT_ID_MAX];     /* of its refit; empty: not begun */
    json_t *card;                    /* owned */
    /* who was asked to serve it, and what they call it */
    struct {
        struct refit_sibling *by;
        char id[REFIT_REFIT_ID_MAX];
    } serve[REFIT_FETCH_HOLDERS_MAX];
    uint32_t serves, replicas;
    size_t asked; /* of the candidates */
    /* as it was looked at last */
    enum refit_control_phase phase;
    uint64_t bytes_done;
    char digest[REFIT_SHA256_HEX_MAX];
    struct refit_error error;
};

/* `resume`: a try that broke off there, whose bytes are kept; empty: none. Alone, it commits by itself, and must then
 * be what the version's digest says; with others it waits. */
REFIT_MUST_CHECK enum refit_status refit_fetch_target_begin(struct refit_fetch_target *target,
                                                            const struct refit_fetch_order *order, const char *resume,
                                                            struct refit_error *err);
/* A pod that does not answer is looked at again: what is known of it stays. */
REFIT_MUST_CHECK enum refit_status refit_fetch_target_look(struct refit_fetch_target *target, struct refit_error *err);
/* Its refit gave way to another one. */
bool refit_fetch_target_is_replaced(struct refit_fetch_target *target);
/* Does not wait for the swap. */
REFIT_MUST_CHECK enum refit_status refit_fetch_target_commit(struct refit_fetch_target *target, uint64_t version,
                                                             const char *model, struct refit_error *err);
void refit_fetch_target_abort(struct refit_fetch_target *target, const char *why);
/* One that was committed goes back to what it served before, if there is that. */
void refit_fetch_target_take_back(struct refit_fetch_target *target);

const char *refit_fetch_target_name(const struct refit_fetch_target *target);
void refit_fetch_target_release(struct refit_fetch_target *target);

#endif
