/* SPDX-License-Identifier: Apache-2.0
 *
 * One try to fetch a version from siblings: a refit of this replica's own, and siblings that are asked to serve it. Of
 * a replica that spans pods, one refit at each pod that lacks the version, led by the pod with rank 0: when all are
 * staged and their digests add up to the version's, the others commit, and the pod with rank 0 last.
 */
#ifndef REFIT_SIDECAR_FETCH_H
#define REFIT_SIDECAR_FETCH_H

#include "sidecar/fetch_target.h"

struct refit_fetch {
    struct refit_receiver *receiver;
    struct refit_traffic *traffic;
    struct refit_credentials *credentials;
    struct refit_siblings *siblings; /* stand still meanwhile; those that fail are marked */
    const struct refit_siblings_own *own;
    const char *domain;
    int64_t deadline_ms;
    bool (*go_on)(void *context);             /* false: give up */
    void (*rest)(void *context, int64_t ms);  /* that long, or until something changes */
    void (*begun)(void *context, const char *url);
    void *context;

    struct refit_control_version version; /* with the model's digest */
    char resume[REFIT_REFIT_ID_MAX]; /* a try that broke off here, whose bytes are kept; empty: none. Then: this one. */
    /* afterwards */
    char source[REFIT_URL_MAX]; /* the first that served */
    size_t sources;             /* replicas that served */
    bool superseded;            /* a publish took its place */
};

/* Blocks. REFIT_OK: the version is served here, by all pods of this replica. */
REFIT_MUST_CHECK enum refit_status refit_fetch_run(struct refit_fetch *fetch, struct refit_error *err);

#endif
