/* SPDX-License-Identifier: Apache-2.0
 *
 * Whom members ask, without anything that moves: over many shapes of fleets and sets of dead members.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "receiver/supply.h"

#define MEMBERS_MAX 32
#define BATCHES 960

struct fleet {
    uint32_t members;
    char name[MEMBERS_MAX][16];
    const char *domains[MEMBERS_MAX];
    uint32_t bytes[BATCHES];
    struct refit_supply *of[MEMBERS_MAX]; /* each member's own */
    bool alive[MEMBERS_MAX];
};

static uint64_t state;

static uint32_t below(uint32_t limit)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % limit;
}

static void open_fleet(struct fleet *f, uint32_t members, uint32_t domains)
{
    *f = (struct fleet){.members = members};
    for (uint32_t i = 0; i < members; i++) {
        snprintf(f->name[i], sizeof f->name[i], "host-%u", i < domains ? i : below(domains));
        f->domains[i] = f->name[i];
        f->alive[i] = true;
    }
    for (uint32_t i = 0; i < BATCHES; i++)
        f->bytes[i] = i % 97 == 96 ? 4096 + below(200000) : 262144; /* the last ones of edges are shorter */
    for (uint32_t i = 0; i < members; i++) {
        struct refit_supply_config config = {.domains = f->domains, .members = members, .self = i,
                                             .batch_bytes = f->bytes, .batches = BATCHES};
        assert_int_equal(refit_supply_create(&config, &f->of[i], NULL), REFIT_OK);
    }
}

static void close_fleet(struct fleet *f)
{
    for (uint32_t i = 0; i < f->members; i++)
        refit_supply_destroy(f->of[i]);
}

static void kill_some(struct fleet *f, uint32_t count)
{
    for (uint32_t i = 0; i < f->members; i++)
        f->alive[i] = true;
    for (uint32_t i = 0; i < count; i++)
        f->alive[below(f->members)] = false;
    f->alive[below(f->members)] = true; /* one at least */
}

/* Follows who asks whom from one member to the origin; *imports are the steps that enter its domain. */
static uint32_t follow(const struct fleet *f, uint32_t member, uint64_t batch, bool *excess)
{
    uint32_t steps = 0;
    for (;;) {
        struct refit_supply_answer a = refit_supply_choose(f->of[member], batch, f->alive, true);
        assert_int_not_equal(a.from, REFIT_SUPPLY_NOBODY);
        if (a.from == REFIT_SUPPLY_ORIGIN) {
            *excess = a.excess;
            return member;
        }
        assert_true(f->alive[a.member]);
        assert_int_not_equal(a.member, member);
        member = a.member;
        assert_true(++steps <= f->members); /* never in a circle */
    }
}

static void check_batch(const struct fleet *f, uint64_t batch, uint64_t *asked, uint64_t *inflow)
{
    uint32_t origin = 0, imports[MEMBERS_MAX] = {0};
    for (uint32_t i = 0; i < f->members; i++) {
        if (!f->alive[i])
            continue;
        bool excess;
        struct refit_supply_answer a = refit_supply_choose(f->of[i], batch, f->alive, true);
        follow(f, i, batch, &excess);
        bool inside = a.from == REFIT_SUPPLY_MEMBER && refit_supply_same_domain(f->of[i], a.member);
        for (uint32_t j = 0; !inside && j <= i; j++)
            if (strcmp(f->domains[j], f->domains[i]) == 0) {
                imports[j]++;
                break;
            }
        inflow[i] += inside ? 0 : f->bytes[batch];
        if (a.from == REFIT_SUPPLY_ORIGIN) {
            origin++;
            asked[i] += f->bytes[batch];
            assert_int_equal(a.excess, refit_supply_home_seed(f->of[i], batch) != i);
        }
    }
    assert_int_equal(origin, 1);
    for (uint32_t i = 0; i < f->members; i++)
        assert_true(imports[i] <= 1);
}

static void check_fleet(const struct fleet *f, uint64_t *asked, uint64_t *inflow)
{
    memset(asked, 0, MEMBERS_MAX * sizeof *asked);
    memset(inflow, 0, MEMBERS_MAX * sizeof *inflow);
    for (uint64_t batch = 0; batch < BATCHES; batch++)
        check_batch(f, batch, asked, inflow);
}

/* Members, domains. */
static const uint32_t shapes[][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 4},   {8, 8},
                                     {8, 2}, {8, 1}, {16, 16}, {13, 5}, {32, 7}};
#define SHAPES (sizeof shapes / sizeof *shapes)

static void origin_is_asked_once_and_each_domain_gets_each_batch_once(void **unused)
{
    uint64_t asked[MEMBERS_MAX], inflow[MEMBERS_MAX];
    for (size_t i = 0; i < SHAPES; i++) {
        struct fleet f;
        open_fleet(&f, shapes[i][0], shapes[i][1]);
        check_fleet(&f, asked, inflow);
        close_fleet(&f);
    }
}

static void all_members_name_the_same_home_seed(void **unused)
{
    struct fleet f;
    open_fleet(&f, 13, 5);
    for (uint64_t batch = 0; batch < BATCHES; batch++)
        for (uint32_t i = 1; i < f.members; i++)
            assert_int_equal(refit_supply_home_seed(f.of[i], batch), refit_supply_home_seed(f.of[0], batch));
    close_fleet(&f);
}

static void shares_are_even(void **unused)
{
    static const uint32_t even[][2] = {{4, 4}, {8, 8}, {16, 16}, {8, 1}};
    uint64_t asked[MEMBERS_MAX], inflow[MEMBERS_MAX];
    for (size_t i = 0; i < sizeof even / sizeof *even; i++) {
        struct fleet f;
        open_fleet(&f, even[i][0], even[i][1]);
        check_fleet(&f, asked, inflow);
        uint64_t sum = 0;
        for (uint32_t m = 0; m < f.members; m++)
            sum += asked[m];
        for (uint32_t m = 0; m < f.members; m++) {
            assert_true(asked[m] * f.members * 100 >= sum * 95);
            assert_true(asked[m] * f.members * 100 <= sum * 105);
        }
        close_fleet(&f);
    }
}

/* What comes into a domain is split evenly among its members. */
static void inflow_of_a_domain_is_shared(void **unused)
{
    uint64_t asked[MEMBERS_MAX], inflow[MEMBERS_MAX];
    struct fleet f;
    open_fleet(&f, 8, 8);
    close_fleet(&f);
    f = (struct fleet){.members = 8};
    for (uint32_t i = 0; i < BATCHES; i++)
        f.bytes[i] = 262144;
    for (uint32_t i = 0; i < 8; i++) {
        f.domains[i] = i < 4 ? "a" : "b";
        f.alive[i] = true;
    }
    for (uint32_t i = 0; i < 8; i++) {
        struct refit_supply_config config = {.domains = f.domains, .members = 8, .self = i, .batch_bytes = f.bytes,
                                             .batches = BATCHES};
        assert_int_equal(refit_supply_create(&config, &f.of[i], NULL), REFIT_OK);
    }
    check_fleet(&f, asked, inflow);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(inflow[i], (uint64_t)BATCHES * 262144 / 4);
        assert_int_equal(asked[i], (uint64_t)BATCHES * 262144 / 8);
    }
    close_fleet(&f);
}

static void whoever_dies_the_others_find_a_holder(void **unused)
{
    uint64_t asked[MEMBERS_MAX], inflow[MEMBERS_MAX];
    for (size_t i = 0; i < SHAPES; i++) {
        struct fleet f;
        open_fleet(&f, shapes[i][0], shapes[i][1]);
        for (uint32_t dead = 1; dead <= f.members; dead = dead * 2) {
            kill_some(&f, dead);
            check_fleet(&f, asked, inflow);
        }
        close_fleet(&f);
    }
}

/* What a dead member would have brought is shared by the others: nobody does twice the work. */
static void share_of_the_dead_is_spread(void **unused)
{
    uint64_t asked[MEMBERS_MAX], inflow[MEMBERS_MAX];
    struct fleet f;
    open_fleet(&f, 8, 8);
    f.alive[3] = false;
    check_fleet(&f, asked, inflow);
    uint64_t sum = 0;
    for (uint32_t m = 0; m < 8; m++)
        sum += asked[m];
    for (uint32_t m = 0; m < 8; m++)
        if (m != 3)
            assert_in_range(asked[m] * 7 * 100 / sum, 88, 112);
    close_fleet(&f);
}

/* Members that believe different things of each other still ask in one direction only. */
static void different_beliefs_make_no_circle(void **unused)
{
    struct fleet f;
    bool believes[MEMBERS_MAX][MEMBERS_MAX];
    open_fleet(&f, 13, 5);
    for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < f.members; i++)
            for (uint32_t j = 0; j < f.members; j++)
                believes[i][j] = below(3) > 0;
        for (uint64_t batch = 0; batch < 64; batch++)
            for (uint32_t start = 0; start < f.members; start++) {
                uint32_t at = start, steps = 0;
                struct refit_supply_answer a;
                while ((a = refit_supply_choose(f.of[at], batch, believes[at], true)).from == REFIT_SUPPLY_MEMBER) {
                    assert_true(++steps <= f.members);
                    at = a.member;
                }
                assert_int_equal(a.from, REFIT_SUPPLY_ORIGIN);
            }
    }
    close_fleet(&f);
}

static void without_the_origin_anyone_left_is_asked(void **unused)
{
    struct fleet f;
    open_fleet(&f, 8, 4);
    for (uint64_t batch = 0; batch < BATCHES; batch++)
        for (uint32_t i = 0; i < f.members; i++) {
            struct refit_supply_answer a = refit_supply_choose(f.of[i], batch, f.alive, false);
            assert_int_equal(a.from, REFIT_SUPPLY_MEMBER);
            assert_int_not_equal(a.member, i);
        }
    memset(f.alive, 0, sizeof f.alive);
    assert_int_equal(refit_supply_choose(f.of[0], 0, f.alive, false).from, REFIT_SUPPLY_NOBODY);
    close_fleet(&f);
}

static void without_a_fleet_the_origin_is_asked(void **unused)
{
    struct refit_supply *s;
    assert_int_equal(refit_supply_create(&(struct refit_supply_config){.batches = 9}, &s, NULL), REFIT_OK);
    struct refit_supply_answer a = refit_supply_choose(s, 8, NULL, true);
    assert_int_equal(a.from, REFIT_SUPPLY_ORIGIN);
    assert_false(a.excess);
    refit_supply_destroy(s);
}

static void slow_holder_gets_less(void **unused)
{
    const uint32_t batch = 1 << 20;
    struct refit_supply_load fast = {.owed = 2, .delivered = UINT64_C(100) << 20};
    struct refit_supply_load slow = {.owed = 1, .delivered = UINT64_C(10) << 20};
    assert_true(refit_supply_before(fast, slow, batch));
    assert_false(refit_supply_before(slow, fast, batch));
    slow = fast;
    slow.owed++;
    assert_true(refit_supply_before(fast, slow, batch));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(origin_is_asked_once_and_each_domain_gets_each_batch_once),
        cmocka_unit_test(all_members_name_the_same_home_seed),
        cmocka_unit_test(shares_are_even),
        cmocka_unit_test(inflow_of_a_domain_is_shared),
        cmocka_unit_test(whoever_dies_the_others_find_a_holder),
        cmocka_unit_test(share_of_the_dead_is_spread),
        cmocka_unit_test(different_beliefs_make_no_circle),
        cmocka_unit_test(without_the_origin_anyone_left_is_asked),
        cmocka_unit_test(without_a_fleet_the_origin_is_asked),
        cmocka_unit_test(slow_holder_gets_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
