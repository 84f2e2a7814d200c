/* SPDX-License-Identifier: Apache-2.0
 *
 * The look-alike of libcuda.so.1 (tests/standins) with its switches, and what tests of GPU memory share.
 */
#ifndef REFIT_TESTS_MEMORY_CUDA_FIXTURE_H
#define REFIT_TESTS_MEMORY_CUDA_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "layouts/digest.h"
#include "memory/cuda_stream.h"
#include "tests/memory/world.h"
#include "tests/standins/standin_cuda.h"
#include "tests/support/gpu.h"

extern struct gpu_switches standin;

struct fixture {
    struct world world;
    struct refit_segments expected;
    struct refit_segments found;
    struct refit_error err;
    uint8_t *message;
    uint8_t *back;
    size_t batches;
};

/* Group and case setups for CMocka. After a case nothing of the driver's may be alive. */
int cuda_open(void **state);
int cuda_setup(void **state);
int cuda_teardown(void **state);

void must(const struct fixture *f, enum refit_status status);
/* OK within 20 seconds. */
void wait_for(struct fixture *f, struct refit_completion *completion);
void expect_digests(const struct fixture *f);
/* How often the function was called since the last reset. */
int calls_of(const char *name);
/* Runs `all` once for each call of the driver that it makes, which then fails: an error that names it or success, nothing
 * left alive, and the next run succeeds. Returns how many runs failed. */
size_t fail_each_call(struct fixture *f, enum refit_status (*all)(struct fixture *f));

#define LAYOUT(ranks, shape, entries)                                                                       \
    "{\"format\":\"refit-layout/1\",\"ranks\":" ranks ",\"meshes\":{\"m\":{\"axes\":[\"a\"],\"shape\":" shape \
    "}},\"entries\":[" entries "]}"
#define TENSOR(name, dtype, shape, rest) \
    "{\"tensor\":\"" name "\",\"dtype\":\"" dtype "\",\"shape\":" shape ",\"mesh\":\"m\"," rest "}"
#define WHOLE "\"placements\":[\"Replicate\"]"
#define ROWS "\"placements\":[\"Shard(0)\"]"
#define COLUMNS "\"placements\":[\"Shard(1)\"]"

/* One batch, most of it turned. */
#define ONE LAYOUT("1", "[1]", TENSOR("w", "U8", "[64,64]", WHOLE) "," TENSOR("v", "U8", "[300]", WHOLE))
#define TURNED LAYOUT("1", "[1]", TENSOR("v", "U8", "[300]", WHOLE) "," TENSOR("w", "U8", "[64,64]", "\"order\":[1,0]," WHOLE))
#define SPACE 8192
/* 1200 tensors in a batch. */
#define MANY(placements)                                                                                  \
    "{\"tensor\":\"e.{i}\",\"for\":{\"i\":[0,1200]},\"dtype\":\"U8\",\"shape\":[3,5],\"mesh\":\"m\"," placements "}"

/* Cuts and orders of many kinds; the last is {NULL, NULL}. */
extern const char *const cuda_pairs[][2];

#define CASE(name) cmocka_unit_test_setup_teardown(name, cuda_setup, cuda_teardown)

#endif
