/* SPDX-License-Identifier: Apache-2.0
 *
 * The look-alike of libnccl_m2n.so: what it moves, and what ends the process.
 */
#include <nccl_m2n.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/standins/nccl_ranks.h"

#define ROWS 8
#define COLUMNS 12

/* Rows of ranks 0 and 1 become columns of ranks 2 and 3. */
struct call {
    ncclM2nHandle_t handle;
    ncclComm_t comm;
    int mesh[2], start[2], placement[2];
    size_t shape[2][2];
    void *memory;
};

static struct call prepare(struct rank *rank)
{
    struct call call = {.mesh = {2, 2}, .start = {0, 2}, .placement = {0, 1},
                        .shape = {{ROWS / 2, COLUMNS}, {ROWS, COLUMNS / 2}},
                        .comm = rank_up(rank), .memory = device_memory(ROWS * COLUMNS / 2, 0xee)};
    CHECK(ncclM2nInit(&call.handle, NULL) == ncclSuccess);
    for (int i = 0; rank->rank < 2 && i < ROWS * COLUMNS / 2; i++)
        ((uint8_t *)call.memory)[i] = (uint8_t)(rank->rank * ROWS * COLUMNS / 2 + i);
    return call;
}

static ncclResult_t reshard(struct call *call, const struct rank *rank)
{
    ncclMesh_t meshes[2];
    ncclDistTensor_t sides[2];
    for (int s = 0; s < 2; s++) {
        meshes[s] = (ncclMesh_t)NCCL_M2N_MESH_INITIALIZER;
        meshes[s].ndims = 1;
        meshes[s].dims = &call->mesh[s];
        meshes[s].startRank = call->start[s];
        sides[s] = (ncclDistTensor_t)NCCL_M2N_DIST_TENSOR_INITIALIZER;
        sides[s].dataPtr = rank->rank / 2 == s ? call->memory : NULL;
        sides[s].localShape = call->shape[s];
        sides[s].ndims = 2;
        sides[s].dtype = ncclUint8;
        sides[s].mesh = &meshes[s];
        sides[s].placements = &call->placement[s];
    }
    return ncclReshard(call->handle, call->comm, &sides[0], &sides[1], rank->stream);
}

static void reshard_alone(struct call *call, const struct rank *rank)
{
    CHECK(ncclM2nGroupStart() == ncclSuccess);
    CHECK(reshard(call, rank) == ncclSuccess);
    CHECK(ncclM2nGroupEnd() == ncclSuccess);
}

static void end(struct call *call)
{
    CHECK(ncclM2nFinalize(call->handle) == ncclSuccess);
    rank_down(call->comm);
    device_free(call->memory);
}

static void move(struct rank *rank)
{
    struct call call = prepare(rank);
    reshard_alone(&call, rank);
    stream_wait(rank->stream);
    for (int row = 0; rank->rank >= 2 && row < ROWS; row++)
        for (int column = 0; column < COLUMNS / 2; column++)
            CHECK(((uint8_t *)call.memory)[row * COLUMNS / 2 + column] ==
                  (uint8_t)(row * COLUMNS + (rank->rank - 2) * COLUMNS / 2 + column));
    end(&call);
}

static void rows_become_columns(void **state)
{
    ranks_succeed(4, move);
}

/* A group that is discarded moves nothing, and needs nobody else. */
static void discard(struct rank *rank)
{
    struct call call = prepare(rank);
    if (rank->rank == 0) {
        CHECK(ncclM2nGroupStart() == ncclSuccess && reshard(&call, rank) == ncclSuccess);
        CHECK(ncclM2nGroupAbort() == ncclSuccess);
    }
    end(&call);
}

static void a_discarded_group_is_nothing(void **state)
{
    ranks_succeed(4, discard);
}

/* As many bytes, another order. */
static void describe_other(struct rank *rank)
{
    struct call call = prepare(rank);
    if (rank->rank == 1) {
        call.placement[0] = 1;
        call.shape[0][0] = ROWS;
        call.shape[0][1] = COLUMNS / 2;
    }
    reshard_alone(&call, rank);
}

static void ranks_that_describe_another_tensor_are_found_out(void **state)
{
    ranks_die(4, describe_other, "describes other tensors than rank");
}

static void differ_in_shape(struct rank *rank)
{
    struct call call = prepare(rank);
    call.shape[1][0]--;
    reshard_alone(&call, rank);
}

static void sides_of_different_shapes_are_refused(void **state)
{
    ranks_die(4, differ_in_shape, "ncclReshard: dimension 0 is 8 at the source and 7 at the destination");
}

static void share_ranks(struct rank *rank)
{
    struct call call = prepare(rank);
    call.start[1] = 1;
    reshard_alone(&call, rank);
}

static void sides_that_share_ranks_are_refused(void **state)
{
    ranks_die(4, share_ranks, "ncclReshard: ");
}

static void have_no_memory(struct rank *rank)
{
    struct call call = prepare(rank);
    call.memory = NULL;
    reshard_alone(&call, rank);
}

static void a_rank_of_the_mesh_has_memory(void **state)
{
    ranks_die(4, have_no_memory, "of the mesh and has none");
}

static void use_after_finalize(struct rank *rank)
{
    struct call call = prepare(rank);
    CHECK(ncclM2nFinalize(call.handle) == ncclSuccess);
    reshard_alone(&call, rank);
}

static void a_finalized_handle_is_not_used(void **state)
{
    ranks_die(4, use_after_finalize, "ncclReshard: not a live handle");
}

static void destroy_before_finalize(struct rank *rank)
{
    struct call call = prepare(rank);
    reshard_alone(&call, rank);
    stream_wait(rank->stream);
    rank_down(call.comm);
    ncclM2nFinalize(call.handle);
}

static void communicators_outlive_the_handle(void **state)
{
    ranks_die(4, destroy_before_finalize, "not a live communicator");
}

static void call_alone(struct rank *rank)
{
    struct call call = prepare(rank);
    (void)reshard(&call, rank);
}

static void a_call_outside_a_group_is_refused(void **state)
{
    ranks_die(4, call_alone, "ncclReshard: outside a group");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_become_columns),
        cmocka_unit_test(a_discarded_group_is_nothing),
        cmocka_unit_test(ranks_that_describe_another_tensor_are_found_out),
        cmocka_unit_test(sides_of_different_shapes_are_refused),
        cmocka_unit_test(sides_that_share_ranks_are_refused),
        cmocka_unit_test(a_rank_of_the_mesh_has_memory),
        cmocka_unit_test(a_finalized_handle_is_not_used),
        cmocka_unit_test(communicators_outlive_the_handle),
        cmocka_unit_test(a_call_outside_a_group_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
