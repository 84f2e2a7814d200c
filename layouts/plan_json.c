/* SPDX-License-Identifier: Apache-2.0 */
#include "layouts/plan_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static json_t *ranks_json(struct refit_group group)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < group.count; i++) {
        json_array_append_new(list, json_integer(group.ranks[i]));
    }
    return list;
}

static json_t *edge_json(const struct refit_plan *plan, const struct refit_edge *edge)
{
    char digest[17];
    (void)snprintf(digest, sizeof(digest), "%016" PRIx64, edge->digest);
    return json_pack("{s:o, s:o, s:o, s:o, s:I, s:s}", "source_ranks",
                     ranks_json(refit_plan_group(plan, REFIT_SOURCE, edge->source_group)), "destination_ranks",
                     ranks_json(refit_plan_group(plan, REFIT_DESTINATION, edge->destination_group)), "bytes",
                     refit_json_u64(edge->bytes), "ops", refit_json_u64(edge->ops), "batches",
                     (json_int_t)edge->batches, "digest", digest);
}

json_t *refit_plan_json(const struct refit_plan *plan)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    json_t *list = json_array();
    uint64_t ops = 0;
    for (size_t i = 0; i < count; i++) {
        ops += edges[i].ops;
        json_array_append_new(list, edge_json(plan, &edges[i]));
    }
    return json_pack("{s:s, s:s, s:o, s:o, s:I, s:o, s:o}", "source", refit_layout_digest(refit_plan_source(plan)),
                     "destination", refit_layout_digest(refit_plan_destination(plan)), "bytes",
                     refit_json_u64(refit_plan_bytes(plan)), "written_bytes",
                     refit_json_u64(refit_plan_written_bytes(plan)), "batch_bytes",
                     (json_int_t)refit_plan_batch_bytes(plan), "ops", refit_json_u64(ops), "edges", list);
}

/* "0", "0-3", with a comma before it unless it is the first; returns its length. */
static size_t format_run(uint32_t first, uint32_t last, bool leads, char *text, size_t len)
{
    const char *comma = leads ? "" : ",";
    const int n = first == last ? snprintf(text, len, "%s%" PRIu32, comma, first)
                                : snprintf(text, len, "%s%" PRIu32 "-%" PRIu32, comma, first, last);
    return (size_t)n;
}

char *refit_group_format(struct refit_group group, char *text, size_t len)
{
    size_t at = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < group.count;) {
        char run[32];
        uint32_t end = i + 1;
        while (end < group.count && group.ranks[end] == group.ranks[end - 1] + 1) {
            end++;
        }
        const size_t n = format_run(group.ranks[i], group.ranks[end - 1], i == 0, run, sizeof(run));
        if (at + n + sizeof(",...") > len) {
            (void)snprintf(text + at, len - at, "%s...", i ? "," : "");
            break;
        }
        memcpy(text + at, run, n + 1);
        at += n;
        i = end;
    }
    return text;
}
