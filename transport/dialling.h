/* SPDX-License-Identifier: Apache-2.0
 *
 * How a holder reaches a receiver over TCP: its card, the connection (with TLS where the card demands it), the greeting.
 */
#ifndef REFIT_TRANSPORT_DIALLING_H
#define REFIT_TRANSPORT_DIALLING_H

#include "transport/address.h"
#include "transport/endpoint.h"
#include "transport/greeting.h"

/* Of a card. */
struct refit_target {
    struct refit_address address;
    char text[128]; /* names it in errors; empty until it is known */
    bool tls;
    const char *name; /* borrowed from the card: to be found in its certificate */
};

/* `tls`: what this side has for receivers that demand it; NULL: those are refused. */
REFIT_MUST_CHECK enum refit_status refit_target_parse(const json_t *card, const struct refit_tls *tls,
                                                      struct refit_target *out, struct refit_error *err);
/* Connects and greets with stream `number`; from REFIT_OK on *out is the caller's to close. `flags`: see greeting.h. */
REFIT_MUST_CHECK enum refit_status refit_target_dial(const struct refit_target *target,
                                                     const struct refit_endpoint *holder, unsigned number,
                                                     uint32_t flags, struct refit_deadline deadline,
                                                     struct refit_stream *out, struct refit_error *err);

#endif
