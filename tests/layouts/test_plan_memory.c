/* SPDX-License-Identifier: Apache-2.0
 *
 * Each allocation of building a plan made to fail once (the linker wraps them): a clean error, and nothing leaks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "layouts/plan.h"
#include "random_layout.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

/* Allocations that still succeed; -1: all do. */
static long allowed = -1;

static bool refuse(void)
{
    if (allowed < 0) {
        return false;
    }
    return allowed-- == 0; /* one fails, the next succeed again */
}

void *__wrap_malloc(size_t size)
{
    return refuse() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return refuse() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return refuse() ? NULL : __real_realloc(old, size);
}

/* True when the failing allocation was never reached. */
static bool build_with_failure(struct refit_layout *source, struct refit_layout *destination,
                               struct refit_plan_scope scope, long nth)
{
    struct refit_plan *plan = NULL;
    struct refit_error err = {.status = REFIT_OK};
    allowed = nth;
    const enum refit_status status = refit_plan_build(source, destination, scope, &plan, &err);
    const bool reached = allowed < 0;
    allowed = -1;
    if (status != REFIT_OK) {
        assert_true(reached);
        assert_int_equal(status, REFIT_NO_MEMORY);
        assert_int_equal(err.status, REFIT_NO_MEMORY);
        assert_null(plan);
    }
    refit_plan_release(plan);
    return !reached;
}

static void failing_allocations_are_reported(void **state)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct random r = {.state = seed};
        const struct model model = random_model(&r);
        struct refit_layout *source = random_layout(&r, &model, 12, seed % 2);
        struct refit_layout *destination = random_layout(&r, &model, 12, seed % 2);
        const struct refit_plan_scope scope = {.side = seed % 3 ? REFIT_SOURCE : REFIT_DESTINATION,
                                               .rank = REFIT_ALL_RANKS,
                                               .rank_count = seed % 2 ? 1 : 0};
        assert_true(source && destination);
        long nth = 0;
        while (!build_with_failure(source, destination, scope, nth)) {
            nth++;
        }
        assert_true(nth > 10);
        refit_layout_release(source);
        refit_layout_release(destination);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failing_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
