/* SPDX-License-Identifier: Apache-2.0
 *
 * A plan's totals for people and programs: what the API and `refit plan` print.
 */
#ifndef REFIT_LAYOUTS_PLAN_JSON_H
#define REFIT_LAYOUTS_PLAN_JSON_H

#include "base/json.h"
#include "layouts/plan.h"

/* {"source", "destination": layout digests, "bytes", "written_bytes", "batch_bytes", "ops", "edges": [{"source_ranks":
 * [...], "destination_ranks": [...], "bytes", "ops", "batches", "digest"}]}; new. NULL when out of memory. */
json_t *refit_plan_json(const struct refit_plan *plan);

/* "0-3,8": rising ranks; cut to "0-3,..." where `len` ends. Returns `text`. */
char *refit_group_format(struct refit_group group, char *text, size_t len);

#endif
