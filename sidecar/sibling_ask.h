/* SPDX-License-Identifier: Apache-2.0
 *
 * Asking one sibling what it serves, and, once per process behind its URL, who it is.
 */
#ifndef REFIT_SIDECAR_SIBLING_ASK_H
#define REFIT_SIDECAR_SIBLING_ASK_H

#include "sidecar/siblings.h"

/* Blocks for a call or two, and for one that carries a layout when it is another than the one served here. What failed
 * is noted in the sibling, and logged; else it is due again after `pause_ms`. */
void refit_sibling_ask(struct refit_sibling *sibling, struct refit_receiver *receiver,
                       struct refit_credentials *credentials, int64_t pause_ms);

#endif
