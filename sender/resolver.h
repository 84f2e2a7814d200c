/* SPDX-License-Identifier: Apache-2.0
 *
 * A name looked up on a thread of its own, with a deadline. (Internal to members.c and rank_address.c.)
 */
#ifndef REFIT_SENDER_RESOLVER_H
#define REFIT_SENDER_RESOLVER_H

#include "sender/members.h"

struct refit_resolver;

/* `resolve` NULL: the system's. NULL: out of memory. */
struct refit_resolver *refit_resolver_create(const char *name, refit_members_resolve_fn resolve, void *context);
/* A look-up that still runs goes on by itself. NULL is fine. */
void refit_resolver_destroy(struct refit_resolver *resolver);

/* Addresses, sorted, each once; `out` has room for REFIT_MEMBERS_MAX. A look-up that an earlier call left behind is
 * waited for instead of starting another. REFIT_TIMEOUT. */
REFIT_MUST_CHECK enum refit_status refit_resolver_ask(struct refit_resolver *resolver, struct refit_deadline deadline,
                                                      char (*out)[REFIT_MEMBER_ADDRESS_MAX], size_t *count,
                                                      struct refit_error *err);

#endif
