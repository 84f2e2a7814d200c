/* SPDX-License-Identifier: Apache-2.0
 *
 * `nccl` whose receiving ends are engines (transport/remote.h), as a transport like any other: for tests that run over
 * several. The engines are of this process.
 */
#ifndef REFIT_TESTS_TRANSPORT_ENGINES_H
#define REFIT_TESTS_TRANSPORT_ENGINES_H

#include "transport/remote.h"

/* Closing a receiver checks that its engines have ended, and that they said so. */
extern const struct refit_transport engines_transport;

/* REFIT_TEST_IN_ENGINE in the environment: that one for refit_transport_nccl; destinations are slots then. */
bool engines_wanted(void);
const struct refit_transport *engines_or_nccl(void);

/* A listener's card says of how many engines it speaks; with one end, of none. */
void engines_in_card(json_t *card, size_t count);

#endif
