/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tensors a refit need not move, because the receiver has them: names as a publish lists them, made into the
 * mask that both sides plan with (struct refit_plan_scope).
 */
#ifndef REFIT_LAYOUTS_WANTED_H
#define REFIT_LAYOUTS_WANTED_H

#include "layouts/layout.h"

#define REFIT_UNCHANGED_NAMES_MAX 65536
#define REFIT_UNCHANGED_PREFIXES_MAX 1024 /* names that end with '*' */

/* `names`: an array of strings; each names a tensor of `destination`, or with a trailing '*' all whose names begin
 * so. A name that the layout does not have names nothing. *mask is new (free() it), one byte for each tensor id: 0
 * when it is named. */
REFIT_MUST_CHECK enum refit_status refit_wanted_without(const struct refit_layout *destination, const json_t *names,
                                                        uint8_t **mask, struct refit_error *err);

#endif
