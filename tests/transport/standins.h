/* SPDX-License-Identifier: Apache-2.0
 *
 * The switches of the look-alikes of libcuda.so.1 and libnccl.so.2 (tests/standins), opened as Refit opens them.
 */
#ifndef REFIT_TESTS_TRANSPORT_STANDINS_H
#define REFIT_TESTS_TRANSPORT_STANDINS_H

#include "tests/standins/standin_nccl.h"
#include "tests/support/gpu.h"

#define STANDIN_MEMBER(name) __typeof__(standin_nccl_##name) *name;

struct standin_switches {
    struct gpu_switches cuda;
    struct {
        STANDIN_MEMBER(fail_call)
        STANDIN_MEMBER(init_hangs)
        STANDIN_MEMBER(die_in_group)
        STANDIN_MEMBER(error_after_groups)
        STANDIN_MEMBER(delay_us)
        STANDIN_MEMBER(corrupt)
        STANDIN_MEMBER(silent)
        STANDIN_MEMBER(live)
        STANDIN_MEMBER(called)
        STANDIN_MEMBER(reset)
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
