/* SPDX-License-Identifier: Apache-2.0
 *
 * What nccl is made of that needs no NCCL: frames that are not well formed, and turns.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "transport/nccl_turn.h"
#include "transport/nccl_wire.h"

/* ---- frames ---- */

static void a_hello_says_who_its_holder_is(void **state)
{
    uint8_t bytes[REFIT_FRAME_BYTES + REFIT_NCCL_HELLO_MAX];
    struct refit_error err;
    struct refit_nccl_hello out, hello = {.version = 23203, .device_count = 3, .process = refit_nccl_process()};
    memset(hello.devices[2].bytes, 7, REFIT_NCCL_ID_BYTES);
    size_t len = refit_nccl_hello_encode(&hello, bytes) - REFIT_FRAME_BYTES;
    assert_int_equal(refit_nccl_hello_decode(bytes + REFIT_FRAME_BYTES, len, &out, &err), REFIT_OK);
    assert_int_equal(out.version, 23203);
    assert_int_equal(out.device_count, 3);
    assert_true(refit_nccl_id_equal(&out.process, &hello.process));
    assert_true(refit_nccl_id_equal(&out.devices[2], &hello.devices[2]));
    for (size_t shorter = 0; shorter < len; shorter++)
        assert_int_equal(refit_nccl_hello_decode(bytes + REFIT_FRAME_BYTES, shorter, &out, &err), REFIT_INVALID);
    uint32_t many = REFIT_NCCL_DEVICES_MAX + 1;
    memcpy(bytes + REFIT_FRAME_BYTES + 4, &many, sizeof many);
    assert_int_equal(refit_nccl_hello_decode(bytes + REFIT_FRAME_BYTES, len, &out, &err), REFIT_INVALID);
}

static enum refit_status decode(const uint8_t *bytes, struct refit_frame frame, struct refit_nccl_go *out)
{
    struct refit_error err;
    return refit_nccl_go_decode(&frame, bytes + REFIT_FRAME_BYTES, out, &err);
}

static void a_go_names_batches_and_says_nothing_else(void **state)
{
    uint8_t bytes[REFIT_FRAME_BYTES + REFIT_NCCL_GO_MAX];
    struct refit_nccl_go out, go = {.tag = 5, .fresh = true, .count = 2, .batches = {{.edge = 1, .batch = 2}, {3, 4}}};
    struct refit_frame frame;
    refit_nccl_go_encode(&go, bytes);
    memcpy(&frame, bytes, sizeof frame);
    assert_int_equal(decode(bytes, frame, &out), REFIT_OK);
    assert_true(out.tag == 5 && out.fresh && out.count == 2 && out.batches[1].edge == 3 && out.batches[1].batch == 4);
    const struct refit_frame wrong[] = {
        {.length = frame.length, .batch = 0, .argument = frame.argument},
        {.length = frame.length, .batch = REFIT_NCCL_GROUP_MAX + 1, .argument = frame.argument},
        {.length = frame.length, .batch = UINT32_MAX, .argument = frame.argument},
        {.length = frame.length - 1, .batch = 2, .argument = frame.argument},
        {.length = frame.length, .batch = 2, .argument = 0},
        {.length = frame.length, .batch = 2, .argument = 2},
        {.length = frame.length, .batch = 2, .argument = 3},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(decode(bytes, wrong[i], &out), REFIT_PEER);
}

static void a_hello_that_can_reshard_says_so_where_others_do_not_look(void **state)
{
    uint8_t bytes[2][REFIT_FRAME_BYTES + REFIT_NCCL_HELLO_MAX];
    struct refit_frame frame;
    struct refit_nccl_hello hello = {.version = 23203, .device_count = 1, .rank = 6};
    size_t len = refit_nccl_hello_encode(&hello, bytes[0]);
    memcpy(&frame, bytes[0], sizeof frame);
    assert_true(frame.argument == 0 && frame.batch == 0);
    hello.reshards = true;
    assert_int_equal(refit_nccl_hello_encode(&hello, bytes[1]), len);
    memcpy(&frame, bytes[1], sizeof frame);
    assert_true(frame.argument == REFIT_HELLO_RESHARDS && frame.batch == 6);
    assert_memory_equal(bytes[0] + REFIT_FRAME_BYTES, bytes[1] + REFIT_FRAME_BYTES, len - REFIT_FRAME_BYTES);
}

static void a_go_of_placed_batches_and_a_shard_come_back_as_they_were(void **state)
{
    uint8_t bytes[REFIT_FRAME_BYTES + REFIT_NCCL_GO_MAX];
    struct refit_error err;
    struct refit_frame frame;
    struct refit_nccl_go go = {.tag = 5, .placed = true, .count = 1, .batches = {{.edge = 1, .batch = 2}}}, went;
    struct refit_nccl_shard shard = {.tag = 8, .ranks = 12, .unique = {1, [127] = 9}, .list = 77}, out;
    refit_nccl_go_encode(&go, bytes);
    memcpy(&frame, bytes, sizeof frame);
    assert_int_equal(decode(bytes, frame, &went), REFIT_OK);
    assert_true(went.placed && !went.fresh && went.batches[0].batch == 2);
    assert_int_equal(refit_nccl_shard_encode(&shard, bytes), REFIT_FRAME_BYTES + REFIT_NCCL_SHARD_BYTES);
    memcpy(&frame, bytes, sizeof frame);
    assert_int_equal(refit_nccl_shard_decode(&frame, bytes + REFIT_FRAME_BYTES, &out, &err), REFIT_OK);
    assert_true(out.tag == 8 && out.ranks == 12 && out.list == 77);
    assert_memory_equal(out.unique, shard.unique, sizeof out.unique);
    frame.length--;
    assert_int_equal(refit_nccl_shard_decode(&frame, bytes + REFIT_FRAME_BYTES, &out, &err), REFIT_PEER);
}

/* ---- turns ---- */

static void count(void *times)
{
    (*(int *)times)++;
}

static bool try_until(struct refit_turn_seat *seat)
{
    struct refit_deadline deadline = refit_deadline_in_ms(20000);
    while (!refit_turn_try(seat))
        if (refit_deadline_passed(deadline))
            return false;
    return true;
}

static void a_turn_is_one_at_a_time_and_told_to_who_was_refused(void **state)
{
    struct refit_turn turn;
    int told[2] = {0, 0};
    struct refit_turn_seat a = {.notify = count, .context = &told[0]}, b = {.notify = count, .context = &told[1]};
    refit_turn_init(&turn);
    refit_turn_sit(&turn, &a);
    refit_turn_sit(&turn, &b);
    assert_true(refit_turn_try(&a));
    assert_false(refit_turn_try(&b));
    refit_turn_leave(&a);
    assert_true(told[0] == 0 && told[1] == 1);
    assert_true(refit_turn_try(&b));
    assert_false(refit_turn_try(&a));
    refit_turn_leave(&b);
    assert_int_equal(told[0], 1);
    assert_true(try_until(&a));
    refit_turn_leave(&a);
    assert_true(refit_turn_try(&a)); /* nobody else wants it */
    refit_turn_rise(&a);
    assert_true(try_until(&b));
    refit_turn_rise(&b);
    refit_turn_rise(&b);
    refit_turn_destroy(&turn);
}

/* Told once, and not come: nobody waits for him again. */
static void who_does_not_come_is_forgotten(void **state)
{
    struct refit_turn turn;
    int told[2] = {0, 0};
    struct refit_turn_seat a = {.notify = count, .context = &told[0]}, b = {.notify = count, .context = &told[1]};
    refit_turn_init(&turn);
    refit_turn_sit(&turn, &a);
    refit_turn_sit(&turn, &b);
    assert_true(refit_turn_try(&a));
    assert_false(refit_turn_try(&b));
    refit_turn_leave(&a);
    assert_true(try_until(&a));
    refit_turn_leave(&a);
    assert_true(refit_turn_try(&a));
    assert_int_equal(told[1], 1);
    refit_turn_rise(&a);
    refit_turn_rise(&b);
    refit_turn_destroy(&turn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hello_says_who_its_holder_is),
        cmocka_unit_test(a_go_names_batches_and_says_nothing_else),
        cmocka_unit_test(a_hello_that_can_reshard_says_so_where_others_do_not_look),
        cmocka_unit_test(a_go_of_placed_batches_and_a_shard_come_back_as_they_were),
        cmocka_unit_test(a_turn_is_one_at_a_time_and_told_to_who_was_refused),
        cmocka_unit_test(who_does_not_come_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
