/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to checkpoint/: a layout document from a table of tensors.
 */
#ifndef REFIT_CHECKPOINT_FAMILIES_H
#define REFIT_CHECKPOINT_FAMILIES_H

#include "base/json.h"
#include "checkpoint/table.h"

/* One rank, one buffer per tensor. Names that differ only in numbers, of one dtype and shape, become one family
 * entry where the numbers fill a box: 10^5 expert tensors are a handful of entries. Reorders the table's records.
 * *document is new. */
REFIT_MUST_CHECK enum refit_status refit_families_layout(struct refit_table *table, json_t **document,
                                                         struct refit_error *err);

#endif
