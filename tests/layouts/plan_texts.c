/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "plan_texts.h"

struct refit_layout *parse(const char *text)
{
    struct refit_layout *layout = NULL;
    struct refit_error err = {.text = ""};
    if (refit_layout_parse(text, strlen(text), "a test layout", &layout, &err) != REFIT_OK) {
        print_error("%s\n%s\n", err.text, text);
        fail();
    }
    return layout;
}

struct refit_plan *plan_of(struct refit_layout *source, struct refit_layout *destination, uint32_t first,
                           uint32_t count)
{
    struct refit_plan *plan = NULL;
    struct refit_error err;
    const struct refit_plan_scope scope = {
        .side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS, .first_rank = first, .rank_count = count};
    if (refit_plan_build(source, destination, scope, &plan, &err) != REFIT_OK) {
        print_error("%s\n", err.text);
        fail();
    }
    return plan;
}

const struct refit_edge *edge_at(const struct refit_plan *plan, size_t at, size_t expected)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    assert_int_equal(count, expected);
    return &edges[at];
}

struct refit_group takers_of(const struct refit_plan *plan, const struct refit_edge *edge)
{
    return refit_plan_group(plan, REFIT_DESTINATION, edge->destination_group);
}

struct refit_group senders_of(const struct refit_plan *plan, const struct refit_edge *edge)
{
    return refit_plan_group(plan, REFIT_SOURCE, edge->source_group);
}
