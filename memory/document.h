/* SPDX-License-Identifier: Apache-2.0
 *
 * Room for documents from outside. Past the memory limit there is a kill and no error, and a text that is much smaller
 * than the limit may become a document that passes it.
 */
#ifndef REFIT_MEMORY_DOCUMENT_H
#define REFIT_MEMORY_DOCUMENT_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Before a JSON text is parsed, on any thread, of which there will be so many copies at once. What others have taken
 * and not given back counts, too. REFIT_NO_MEMORY names `what`; else *bytes is given back by refit_document_leave(),
 * once the document is gone. */
REFIT_MUST_CHECK enum refit_status refit_document_enter(const void *text, size_t len, unsigned copies, const char *what,
                                                        uint64_t *bytes, struct refit_error *err);
void refit_document_leave(uint64_t bytes);

#endif
