/* SPDX-License-Identifier: Apache-2.0
 *
 * Layout documents in files beside the tests, and what the layout says about memory, byte by byte.
 */
#ifndef REFIT_TESTS_LAYOUTS_DOCUMENT_H
#define REFIT_TESTS_LAYOUTS_DOCUMENT_H

#include "layouts/layout.h"

/* Reads REFIT_LAYOUT_TEST_DIR/NAME; new, and fails the test when it can't. */
char *document_read(const char *name, size_t *len);
/* The layout of that file; new. Prints the error when there is one. */
struct refit_layout *document_layout(const char *name);

#define UNIT_UNWRITTEN (-1)
#define UNIT_FILL (-2)
#define UNIT_TWICE (-3)

/* What the regions and fills put at one byte of an arena: the unit that starts here. */
struct unit_at {
    int64_t tensor; /* id, or one of the above */
    int64_t flat;   /* row-major index of the unit in its tensor, or the fill's value */
};

/* One entry per byte of the rank's arena; new. */
struct unit_at *document_memory(const struct refit_layout *layout, uint32_t rank);

#endif
