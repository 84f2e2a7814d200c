/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the swap modes share: a bank in a process of its own, and ranks. Include after bank_world.h.
 */
#ifndef REFIT_TESTS_RECEIVER_BANK_MODES_H
#define REFIT_TESTS_RECEIVER_BANK_MODES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/receiver/bank_model.h"

#define BANK 8 /* index of the bank's process */
#define ADOPT "30000"
#define LARGE ((unsigned long)1 << 20) /* several chunks of an exchange */

/* Host memory, or that of the look-alike's GPUs, there with other slots in host memory: each test runs in all. */
static inline const char *memory_kind(const struct bank_world *world)
{
    const char *text = getenv("BANK_MODES_MEMORY");
    if (text && strcmp(text, "cuda-staged") == 0 && world->swap != REFIT_SWAP_COPY)
        return "cuda";
    return text ? text : "uid";
}

static inline bool on_devices(void)
{
    return getenv("BANK_MODES_MEMORY") != NULL;
}

/* The nth part that an exchange of two ranks consists of: of host memory there are some ten, on devices one for each rank. */
static inline int part(int nth)
{
    return on_devices() && nth > 2 ? 2 : nth;
}

static inline void start_mode(struct bank_world *world, enum refit_swap_mode swap, uint32_t ranks, uint32_t slots)
{
    world->swap = swap;
    start_bank(world, BANK, ranks, swap == REFIT_SWAP_IN_PLACE ? 1 : slots,
               memory_kind(world), ADOPT);
    for (uint32_t rank = 0; rank < ranks; rank++)
        attach_rank(world, rank, rank, ranks);
}

static inline void put(struct bank_world *world, uint64_t version)
{
    if (command(world, BANK, "put %llu", (unsigned long long)version) != REFIT_OK)
        fail_msg("version %llu: %s", (unsigned long long)version, world->answer);
}

/* The leader pins `version`; every word of it is right. */
static inline void assert_reads(struct bank_world *world, unsigned at, uint64_t version)
{
    char expected[32];
    snprintf(expected, sizeof expected, "%llu", (unsigned long long)version);
    enum refit_status status = command(world, at, "acquire 0 %s", at == 0 ? "0" : expected);
    if (status != REFIT_OK)
        fail_msg("version %s is not read: %s", expected, refit_status_name(status));
    assert_string_equal(world->answer, expected);
    assert_int_equal(command(world, at, "check 0"), REFIT_OK);
    assert_string_equal(world->answer, "0");
    assert_int_equal(command(world, at, "release 0"), REFIT_OK);
}

static inline void where(struct bank_world *world, unsigned at, uint64_t version, char out[128])
{
    assert_int_equal(command(world, at, "acquire 0 %llu", at == 0 ? 0 : (unsigned long long)version), REFIT_OK);
    assert_int_equal(command(world, at, "where 0"), REFIT_OK);
    snprintf(out, 128, "%.127s", world->answer);
    assert_int_equal(command(world, at, "release 0"), REFIT_OK);
}

/* Until the leader's acquire answers this. */
static inline void await_acquire(struct bank_world *world, enum refit_status expected)
{
    struct refit_deadline deadline = refit_deadline_in_ms(MODEL_WAIT_MS);
    enum refit_status found;
    while ((found = command(world, 0, "acquire 1 0")) != expected) {
        if (found == REFIT_OK)
            assert_int_equal(command(world, 0, "release 1"), REFIT_OK);
        assert_false(refit_deadline_passed(deadline));
    }
    if (found == REFIT_OK)
        assert_int_equal(command(world, 0, "release 1"), REFIT_OK);
}

static inline void assert_no_hook_saw_a_mixture(struct bank_world *world, unsigned at)
{
    unsigned long steps, torn, stale;
    assert_int_equal(command(world, at, "steps"), REFIT_OK);
    assert_int_equal(sscanf(world->answer, "%lu %lu %lu", &steps, &torn, &stale), 3);
    assert_int_equal(torn, 0);
}

#define FOR_EACH_MODE(test)                                                             \
    static void test##_copy(void **state) { test(*state, REFIT_SWAP_COPY); }            \
    static void test##_remap(void **state) { test(*state, REFIT_SWAP_REMAP); }          \
    static void test##_in_place(void **state) { test(*state, REFIT_SWAP_IN_PLACE); }

#define TEST(name) cmocka_unit_test_setup_teardown(name, bank_world_setup, bank_world_teardown)
#define TEST_EACH_MODE(test) TEST(test##_copy), TEST(test##_remap), TEST(test##_in_place)

#endif
