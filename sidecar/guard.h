/* SPDX-License-Identifier: Apache-2.0
 *
 * The door: the certificates of the control listener and of the data port, the access lists, and who is let through to
 * which route of the control listener.
 */
#ifndef REFIT_SIDECAR_GUARD_H
#define REFIT_SIDECAR_GUARD_H

#include "sidecar/access.h"
#include "sidecar/http_server.h"

struct refit_guard;
REFIT_MUST_CHECK enum refit_status refit_guard_open(const struct refit_config *config, struct refit_guard **out,
                                                    struct refit_error *err);
void refit_guard_close(struct refit_guard *guard);
struct refit_tls *refit_guard_tls(struct refit_guard *guard); /* NULL: the listener is plain */
struct refit_tls *refit_guard_data_tls(struct refit_guard *guard); /* of the data port; NULL: it is plain */
struct refit_tls *refit_guard_peer_tls(struct refit_guard *guard); /* towards other refitd; NULL: nothing is configured */
/* Looks at the files again; says what changed. About once a second, and when asked to. */
void refit_guard_refresh(struct refit_guard *guard);

/* Names who asks (exchange->by), and answers (false) unless they may use this route; `method` and `pattern` as in the
 * table of routes, NULL for no route at all, which is told only to those who may read. */
bool refit_guard_admits(struct refit_guard *guard, struct refit_exchange *exchange, const char *method,
                        const char *pattern, struct refit_reply *reply);

struct refit_guard_status {
    struct refit_tls_status control, data;   /* the certificates of the two listeners */
    bool refused;                            /* older files than there are now are in use: of TLS, or an access list */
    uint64_t unauthenticated, forbidden;     /* requests refused */
};
void refit_guard_read(const struct refit_guard *guard, struct refit_guard_status *out);

#endif
