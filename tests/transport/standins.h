/* SPDX-License-Identifier: Apache-2.0
 *
 * The switches of the look-alikes of libcuda.so.1 and libnccl.so.2 (tests/standins), opened as Refit opens them.
 */
#ifndef REFIT_TESTS_TRANSPORT_STANDINS_H
#define REFIT_TESTS_TRANSPORT_STANDINS_H

#include "tests/standins/standin_cuda.h"
#include "tests/standins/standin_nccl.h"
#include "tests/support/gpu.h"

#define STANDIN_MEMBER(library, name) __typeof__(standin_##library##_##name) *name;

struct standin_switches {
    struct {
        STANDIN_MEMBER(cuda, fail_call)
        STANDIN_MEMBER(cuda, hold)
        STANDIN_MEMBER(cuda, delay)
        STANDIN_MEMBER(cuda, fault)
        STANDIN_MEMBER(cuda, peers)
        STANDIN_MEMBER(cuda, total)
        STANDIN_MEMBER(cuda, live)
        STANDIN_MEMBER(cuda, called)
        STANDIN_MEMBER(cuda, reset)
    } cuda;
    struct {
        STANDIN_MEMBER(nccl, fail_call)
        STANDIN_MEMBER(nccl, init_hangs)
        STANDIN_MEMBER(nccl, die_in_group)
        STANDIN_MEMBER(nccl, error_after_groups)
        STANDIN_MEMBER(nccl, delay_us)
        STANDIN_MEMBER(nccl, corrupt)
        STANDIN_MEMBER(nccl, silent)
        STANDIN_MEMBER(nccl, live)
        STANDIN_MEMBER(nccl, called)
        STANDIN_MEMBER(nccl, reset)
    } nccl;
};
/* Of libraries without switches those do nothing, or are not there: tests that turn on them begin with gpu_need_switches(). */
extern struct standin_switches standins;

/* As a group's set-up. */
int standins_open(void **state);
/* How often a function of NCCL was called since the last reset. */
int standins_nccl_calls(const char *name);
/* Nothing is alive in either. */
void standins_check_none_alive(void);

#endif
