/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/sources.h"

#include <string.h>

struct refit_layout *refit_sources_find(struct refit_sources *sources, const char *digest)
{
    for (size_t i = 0; i < sources->count; i++) {
        struct refit_source *item = &sources->items[i];
        if (strcmp(refit_layout_digest(item->layout), digest) == 0) {
            item->used = ++sources->step;
            return item->layout;
        }
    }
    return NULL;
}

static size_t text_bytes(const struct refit_layout *layout)
{
    size_t len;
    refit_layout_text(layout, &len);
    return len;
}

static size_t total_bytes(const struct refit_sources *sources)
{
    size_t sum = 0;
    for (size_t i = 0; i < sources->count; i++)
        sum += text_bytes(sources->items[i].layout);
    return sum;
}

static void drop_oldest(struct refit_sources *sources)
{
    size_t oldest = 0;
    for (size_t i = 1; i < sources->count; i++)
        if (sources->items[i].used < sources->items[oldest].used)
            oldest = i;
    refit_layout_release(sources->items[oldest].layout);
    sources->items[oldest] = sources->items[--sources->count];
}

void refit_sources_put(struct refit_sources *sources, struct refit_layout *layout)
{
    if (refit_sources_find(sources, refit_layout_digest(layout)))
        return;
    size_t len = text_bytes(layout);
    while (sources->count > 0 &&
           (sources->count == REFIT_SOURCES_MAX || total_bytes(sources) + len > REFIT_SOURCES_TEXT_MAX))
        drop_oldest(sources);
    sources->items[sources->count++] =
        (struct refit_source){.layout = refit_layout_retain(layout), .used = ++sources->step};
}

void refit_sources_clear(struct refit_sources *sources)
{
    for (size_t i = 0; i < sources->count; i++)
        refit_layout_release(sources->items[i].layout);
    sources->count = 0;
}
