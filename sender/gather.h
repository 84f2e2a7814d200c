/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's part in gathering the whole model at rank 0, bucket by bucket (layouts/dense.h).
 */
#ifndef REFIT_SENDER_GATHER_H
#define REFIT_SENDER_GATHER_H

#include <refit/sender.h>

#include "base/json.h"
#include "layouts/plan.h"
#include "layouts/tally.h"
#include "memory/arena.h"
#include "transport/transport.h"

/* Serves one bucket until rank 0 has it: as a holder of `plan`, known there as `refit_id`. */
typedef enum refit_status (*refit_gather_move_fn)(void *context, const char *refit_id, struct refit_plan *plan,
                                                  struct refit_error *err);
/* One bucket after the other; those that this rank has no part of are passed over. */
REFIT_MUST_CHECK enum refit_status refit_gather_serve(struct refit_layout *source, uint32_t rank, const char *refit_id,
                                                      refit_gather_move_fn move, void *context, struct refit_error *err);
/* Adds to `again`, by the dense layout's tensors, what this rank's memory holds now. */
REFIT_MUST_CHECK enum refit_status refit_gather_check(struct refit_layout *source, uint32_t rank,
                                                      const struct refit_arena *arena, struct refit_tally *again,
                                                      struct refit_error *err);

/* The dense layout of tensors that a callback fills. *out is new. */
REFIT_MUST_CHECK enum refit_status refit_gather_layout(const struct refit_sender_tensor *tensors, size_t count,
                                                       struct refit_layout **out, struct refit_error *err);

/* How rank 0 is reached by `rank`: by a socket of this host when it shares it and `wanted` ("auto", "tcp", "local")
 * allows it, always by rank 0 itself; else over tcp, at the address at which its lead was found. `cards` has both, as
 * rank 0 sent them. *card is new. */
REFIT_MUST_CHECK enum refit_status refit_gather_path(const json_t *cards, const char *wanted, uint32_t rank,
                                                     const char *lead_address, const struct refit_transport **transport,
                                                     json_t **card, struct refit_error *err);

#endif
