/* SPDX-License-Identifier: Apache-2.0
 *
 * How a receiver endpoint is found by the listener. The public side is in transport.h.
 */
#ifndef REFIT_TRANSPORT_LISTENER_H
#define REFIT_TRANSPORT_LISTENER_H

#include "transport/greeting.h"

/* What comes in: bytes of `tcp`, packets of `local`, or the control stream of `nccl`, which is on tcp's port. */
enum refit_gate_kind { REFIT_GATE_TCP, REFIT_GATE_LOCAL, REFIT_GATE_NCCL };

/* Embedded in a receiver endpoint. `admit` runs on the listener's thread: on REFIT_OK it has taken what `stream` holds and
 * answered WELCOME; otherwise the listener answers with the error and closes. `edges` holds greeting->edges entries. */
struct refit_gate {
    enum refit_gate_kind kind;
    const struct refit_endpoint_config *config; /* refit id and token */
    enum refit_status (*admit)(struct refit_gate *gate, const struct refit_greeting *greeting, const uint8_t *edges,
                               const struct refit_stream *stream, struct refit_error *err);
    struct refit_gate *next;
};

/* REFIT_CONFLICT: another endpoint of this refit and transport is there already. REFIT_UNSUPPORTED: `nccl`, and the
 * listener demands TLS. */
REFIT_MUST_CHECK enum refit_status refit_listener_register(struct refit_listener *listener, struct refit_gate *gate,
                                                           struct refit_error *err);
/* After it returns `admit` is not running and will not run. */
void refit_listener_unregister(struct refit_listener *listener, struct refit_gate *gate);
/* A connection whose greeting was read, and whose token was proven, by another process: to the endpoint of its refit. On
 * REFIT_OK that has taken what `stream` holds. Any thread. */
REFIT_MUST_CHECK enum refit_status refit_listener_hand_over(struct refit_listener *listener,
                                                            const struct refit_greeting *greeting, uint8_t *edges,
                                                            const struct refit_stream *stream, struct refit_error *err);
/* An admitted connection has been closed. */
void refit_listener_forget(struct refit_listener *listener);

#endif
