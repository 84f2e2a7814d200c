/* SPDX-License-Identifier: Apache-2.0
 *
 * The report of a publish as a message: rank 0 makes it, every rank reads it.
 */
#ifndef REFIT_SENDER_REPORT_H
#define REFIT_SENDER_REPORT_H

#include <refit/sender.h>

#include "base/json.h"

/* Owns what it points at. */
struct refit_report_store {
    struct refit_report report;
    struct refit_replica_report *replicas;
    struct refit_error outcome; /* what wait_report returns */
};

/* What the replicas' outcomes come to: the fleet's outcome, and what wait_report returns. `quorum` 0: all must commit. */
void refit_report_conclude(struct refit_report_store *store, bool staged_wanted, uint32_t quorum);

/* New; NULL when out of memory. */
json_t *refit_report_to_json(const struct refit_report_store *store);
REFIT_MUST_CHECK enum refit_status refit_report_from_json(const json_t *json, struct refit_report_store *out,
                                                          struct refit_error *err);
void refit_report_release(struct refit_report_store *store);

#endif
