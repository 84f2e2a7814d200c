/* SPDX-License-Identifier: Apache-2.0
 *
 * The source layouts that were put, by digest: bounded by count and by bytes of text, the least recently used one
 * goes first. A refit that runs retains its own, so eviction never takes it away. Not thread-safe: the receiver's lock
 * guards it.
 */
#ifndef REFIT_RECEIVER_SOURCES_H
#define REFIT_RECEIVER_SOURCES_H

#include "layouts/layout.h"

#define REFIT_SOURCES_MAX 8
#define REFIT_SOURCES_TEXT_MAX (32u << 20) /* bytes; the newest one is kept whatever its size */

struct refit_source {
    struct refit_layout *layout; /* owned */
    uint64_t used;               /* when it was last asked for, in steps */
};

struct refit_sources {
    struct refit_source items[REFIT_SOURCES_MAX];
    size_t count;
    uint64_t step;
};

/* Borrowed until the next put; NULL: unknown. */
struct refit_layout *refit_sources_find(struct refit_sources *sources, const char *digest);
/* Retains `layout`. */
void refit_sources_put(struct refit_sources *sources, struct refit_layout *layout);
void refit_sources_clear(struct refit_sources *sources);

#endif
