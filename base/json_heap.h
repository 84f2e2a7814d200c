/* SPDX-License-Identifier: Apache-2.0
 *
 * What a JSON text becomes in memory. A few bytes of it ("{},") may become a hundred times as many, so whoever takes
 * texts from outside has to know before it parses them.
 */
#ifndef REFIT_BASE_JSON_HEAP_H
#define REFIT_BASE_JSON_HEAP_H

#include <stddef.h>
#include <stdint.h>

/* No less than the heap that refit_json_parse() takes for `text`, in bytes, and for an ordinary one about twice that.
 * One pass, no allocation; the text need not be valid. */
uint64_t refit_json_heap(const char *text, size_t len);

#endif
