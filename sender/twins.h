/* SPDX-License-Identifier: Apache-2.0
 *
 * Members that are one process under two addresses: a name with A and AAAA records gives each refitd twice. They are
 * told by the instance that refitd reports, and the first of them stays. Asked only where a list has addresses of both
 * families, and once per membership.
 */
#ifndef REFIT_SENDER_TWINS_H
#define REFIT_SENDER_TWINS_H

#include "sender/credentials.h"
#include "sender/members.h"

struct refit_twins {
    uint64_t epoch; /* of the membership that `urls` is of; 0: to be asked */
    char **urls;    /* new; of those that were dropped */
    size_t count;
};

/* Drops them from `now`. One that does not answer stays, and is asked again the next time. */
REFIT_MUST_CHECK enum refit_status refit_twins_drop(struct refit_twins *twins, struct refit_membership *now,
                                                    struct refit_credentials *credentials,
                                                    struct refit_deadline deadline,
                                                    struct refit_error *err);
void refit_twins_release(struct refit_twins *twins);

#endif
