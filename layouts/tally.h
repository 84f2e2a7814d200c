/* SPDX-License-Identifier: Apache-2.0
 *
 * A tally: one digest accumulator per tensor of a layout, filled by many threads in any order, and the model's
 * digest that comes out of it.
 */
#ifndef REFIT_LAYOUTS_TALLY_H
#define REFIT_LAYOUTS_TALLY_H

#include "layouts/digest.h"
#include "layouts/layout.h"

struct refit_tally;

/* All zero; new. NULL when out of memory. */
struct refit_tally *refit_tally_create(uint32_t tensors);
void refit_tally_destroy(struct refit_tally *tally);
/* Thread-safe, relaxed; the reader synchronises with the adders by other means (join, a completion). */
void refit_tally_add(struct refit_tally *tally, uint32_t tensor, struct refit_digest part);
struct refit_digest refit_tally_get(const struct refit_tally *tally, uint32_t tensor);
uint32_t refit_tally_count(const struct refit_tally *tally);

/* The model's digest: SHA-256 over the lines "name dtype d0,d1,... hex\n" sorted by name, after the line
 * "refit-model/1 PROFILE\n". `profile` is the wire profile: "exact" when nothing is cast. The tally is by `layout`'s
 * tensor ids. Any side with the same tensors gets the same digest, whatever its layout. */
REFIT_MUST_CHECK enum refit_status refit_model_digest(const struct refit_layout *layout, const struct refit_tally *tally,
                                                      const char *profile, char hex[static REFIT_SHA256_HEX_MAX],
                                                      struct refit_error *err);

/* For the wire: the digests of all tensors in order, each in its 32 hex digits. New (free); NULL when out of memory. */
char *refit_tally_hex(const struct refit_tally *tally);
/* Adds such a text to `sum`. False, and nothing is added: it is not one of as many tensors. */
bool refit_tally_add_hex(struct refit_tally *sum, const char *text, size_t len);

#endif
