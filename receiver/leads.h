/* SPDX-License-Identifier: Apache-2.0
 *
 * Who leads: the epoch last issued, to whom, and when it was last heard of. No clocks of two machines are compared; an
 * epoch is a number that only grows. Not thread-safe: the receiver's lock guards it.
 */
#ifndef REFIT_RECEIVER_LEADS_H
#define REFIT_RECEIVER_LEADS_H

#include "receiver/receiver.h"

struct refit_leads {
    uint64_t epoch;                 /* 0: none was issued yet */
    char name[REFIT_LEAD_NAME_MAX]; /* empty: none was issued yet */
    int64_t heard_ns;               /* 0: it has nothing under way here, so that another may follow it */
};

/* May `name` lead now? REFIT_INVALID: not a name; REFIT_CONFLICT names the live other lead. `working`: a refit of the
 * current epoch runs, so that its lead counts as alive. */
REFIT_MUST_CHECK enum refit_status refit_leads_admit(const struct refit_leads *leads, const char *name, bool takeover,
                                                     bool working, int64_t ttl_ms, struct refit_error *err);
/* REFIT_STALE unless `epoch` is the current one; then its lead has been heard of. */
REFIT_MUST_CHECK enum refit_status refit_leads_check(struct refit_leads *leads, uint64_t epoch,
                                                     struct refit_error *err);
/* The lead of `epoch` has nothing under way any more. REFIT_STALE: another epoch is current; REFIT_CONFLICT: it was
 * issued to another name. */
REFIT_MUST_CHECK enum refit_status refit_leads_resign(struct refit_leads *leads, const char *name, uint64_t epoch,
                                                      struct refit_error *err);

#endif
