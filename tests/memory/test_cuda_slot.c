/* SPDX-License-Identifier: Apache-2.0
 *
 * Which slot is which: descriptors that come back, handles for other nodes, and devices side by side.
 */
#include "tests/memory/cuda_fixture.h"

#include <sys/mman.h>

#define BYTES 100000

static struct refit_arena *create(struct fixture *f, int device, struct refit_cuda_slot_info *info, int *fd)
{
    struct refit_arena *slot;
    must(f, refit_cuda_slot_create(device, BYTES, &slot, &f->err));
    refit_cuda_slot_info(slot, info);
    must(f, refit_cuda_slot_export(slot, fd, &f->err));
    return slot;
}

static void a_kept_slot_is_taken_back_and_can_be_filled_again(void **state)
{
    struct fixture *f = *state;
    struct refit_cuda_slot_info info, again;
    struct refit_arena *slot, *adopted;
    int fd;
    slot = create(f, 0, &info, &fd);
    refit_arena_release(slot);
    must(f, refit_cuda_slot_adopt(0, fd, BYTES, info.id, &adopted, &f->err));
    close(fd);
    refit_cuda_slot_info(adopted, &again);
    assert_memory_equal(again.id, info.id, sizeof info.id);
    assert_int_equal(again.bytes, info.bytes);
    assert_int_equal(refit_arena_bytes(adopted), BYTES);
    gpu_set(refit_arena_device_address(adopted, 0, BYTES), 7, BYTES); /* mapped for writing */
    refit_arena_release(adopted);
}

static void another_slot_is_not_taken_for_it(void **state)
{
    struct fixture *f = *state;
    struct refit_cuda_slot_info info, other;
    struct refit_arena *slots[2], *adopted;
    int fd, other_fd;
    slots[0] = create(f, 0, &info, &fd);
    slots[1] = create(f, 0, &other, &other_fd);
    assert_true(memcmp(info.id, other.id, sizeof info.id) != 0);
    assert_int_equal(refit_cuda_slot_adopt(0, other_fd, BYTES, info.id, &adopted, &f->err), REFIT_MISMATCH);
    assert_non_null(strstr(f->err.text, "another slot"));
    assert_int_equal(refit_cuda_slot_adopt(0, fd, BYTES - 1, info.id, &adopted, &f->err), REFIT_MISMATCH);
    assert_non_null(strstr(f->err.text, "99999 bytes is expected, it has 100000"));
    assert_int_equal(refit_cuda_slot_open(0, fd, BYTES + 1, true, &adopted, &f->err), REFIT_MISMATCH);
    close(fd);
    close(other_fd);
    refit_arena_release(slots[0]);
    refit_arena_release(slots[1]);
}

static void memory_that_is_no_slot_is_refused(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    struct refit_arena *adopted;
    uint8_t id[REFIT_CUDA_ID_BYTES] = {0};
    int fd = memfd_create("no slot", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 2 << 20), 0);
    assert_int_equal(refit_cuda_slot_adopt(0, fd, BYTES, id, &adopted, &f->err), REFIT_MISMATCH);
    assert_non_null(strstr(f->err.text, "no slot"));
    /* Less memory than the slot would take. */
    assert_int_equal(refit_cuda_slot_adopt(0, fd, (uint64_t)4 << 20, id, &adopted, &f->err), REFIT_SYSTEM);
    close(fd);
    assert_int_equal(refit_cuda_slot_adopt(0, -1, BYTES, id, &adopted, &f->err), REFIT_SYSTEM);
}

static void a_node_without_fabric_has_no_handle_for_others(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    struct refit_cuda_slot_info info;
    uint8_t handle[REFIT_CUDA_FABRIC_BYTES];
    int fd;
    struct refit_arena *slot = create(f, 0, &info, &fd);
    close(fd);
    assert_false(info.fabric);
    assert_int_equal(refit_cuda_slot_export_fabric(slot, handle, &f->err), REFIT_UNSUPPORTED);
    refit_arena_release(slot);
}

static int set_fabric(void **state)
{
    setenv("STANDIN_CUDA_FABRIC", "1", 1);
    return cuda_setup(state);
}

static int unset_fabric(void **state)
{
    unsetenv("STANDIN_CUDA_FABRIC");
    return cuda_teardown(state);
}

static void a_fabric_handle_opens_the_same_slot(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    struct refit_cuda_slot_info info, seen;
    struct refit_arena *view;
    uint8_t handle[REFIT_CUDA_FABRIC_BYTES] = {0};
    int fd;
    struct refit_arena *slot = create(f, 0, &info, &fd);
    close(fd);
    assert_true(info.fabric);
    must(f, refit_cuda_slot_export_fabric(slot, handle, &f->err));
    must(f, refit_cuda_slot_open_fabric(0, handle, BYTES, true, &view, &f->err));
    refit_cuda_slot_info(view, &seen);
    assert_memory_equal(seen.id, info.id, sizeof info.id);
    refit_arena_release(view);
    refit_arena_release(slot);
}

/* The device could, the node is not set up for it. */
static void where_fabric_is_refused_a_slot_is_an_ordinary_one(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    struct refit_cuda_slot_info info;
    int fd;
    standin.fail_call("cuMemCreate", 1);
    struct refit_arena *slot = create(f, 0, &info, &fd);
    close(fd);
    assert_false(info.fabric);
    refit_arena_release(slot);
}

/* ---- devices ---- */

static void move_on_both(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_arena *slots[2];
    must(f, refit_memory_pack(batch->source, batch->from, f->message, &f->expected, &completion, &f->err));
    for (int device = 0; device < 2; device++) {
        must(f, refit_cuda_slot_create(device, SPACE, &slots[device], &f->err));
        assert_int_equal(refit_arena_device(slots[device]), device);
        must(f, refit_memory_scatter(slots[device], batch->to, f->message, &f->found, &completion, &f->err));
        wait_for(f, &completion);
        expect_digests(f);
    }
    must(f, refit_memory_copy(slots[1], batch->to, slots[0], batch->to, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    expect_digests(f);
    refit_arena_release(slots[0]);
    must(f, refit_memory_pack(slots[1], batch->to, f->back, &f->found, &completion, &f->err));
    wait_for(f, &completion);
    assert_memory_equal(f->message, f->back, batch->bytes);
    refit_arena_release(slots[1]);
    f->batches++;
}

static void devices_work_side_by_side(void **state)
{
    struct fixture *f = *state;
    gpu_need_devices(2);
    world_open(&f->world, ONE, WORLD_BUFFERS, TURNED, WORLD_WHOLE);
    world_batches(&f->world, move_on_both, f);
    assert_int_equal(f->batches, 1);
}

/* What a slot takes of one device is not taken of the other. */
static void memory_is_counted_by_device(void **state)
{
    struct fixture *f = *state;
    gpu_need_switches();
    struct refit_arena *slots[2], *third;
    standin.total((size_t)8 << 20);
    must(f, refit_cuda_slot_create(0, (uint64_t)5 << 20, &slots[0], &f->err));
    must(f, refit_cuda_slot_create(1, (uint64_t)5 << 20, &slots[1], &f->err));
    assert_int_equal(refit_cuda_slot_create(1, (uint64_t)5 << 20, &third, &f->err), REFIT_NO_MEMORY);
    assert_non_null(strstr(f->err.text, "CUDA device 1"));
    refit_arena_release(slots[0]);
    refit_arena_release(slots[1]);
}

#define FABRIC(name) cmocka_unit_test_setup_teardown(name, set_fabric, unset_fabric)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_kept_slot_is_taken_back_and_can_be_filled_again),
        CASE(another_slot_is_not_taken_for_it),
        CASE(memory_that_is_no_slot_is_refused),
        CASE(a_node_without_fabric_has_no_handle_for_others),
        FABRIC(a_fabric_handle_opens_the_same_slot),
        FABRIC(where_fabric_is_refused_a_slot_is_an_ordinary_one),
        CASE(devices_work_side_by_side),
        CASE(memory_is_counted_by_device),
    };
    return cmocka_run_group_tests_name("memory/cuda_slot", tests, cuda_open, NULL);
}
