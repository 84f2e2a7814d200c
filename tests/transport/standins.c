/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/transport/standins.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dlfcn.h>
#include <string.h>

#include <cmocka.h>

struct standin_switches standins;

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        fail_msg("%s: is it the look-alike?", name);
    return found;
}

#define RESOLVE(name) *(void **)(void *)&standins.nccl.name = symbol(nccl, "standin_nccl_" #name)

int standins_open(void **state)
{
    (void)state;
    standins.cuda = gpu_switches();
    standins.nccl.live = standins.cuda.live;
    standins.nccl.called = standins.cuda.called;
    standins.nccl.reset = standins.cuda.reset;
    if (!gpu_switch("standin_cuda_reset"))
        return 0;
    void *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!nccl)
        fail_msg("%s", dlerror());
    RESOLVE(fail_call);
    RESOLVE(init_hangs);
    RESOLVE(die_in_group);
    RESOLVE(error_after_groups);
    RESOLVE(delay_us);
    RESOLVE(corrupt);
    RESOLVE(silent);
    RESOLVE(live);
    RESOLVE(called);
    RESOLVE(reset);
    return 0;
}

int standins_nccl_calls(const char *name)
{
    int times;
    const char *called;
    for (int i = 0; (called = standins.nccl.called(i, &times)) != NULL; i++)
        if (strcmp(called, name) == 0)
            return times;
    return 0;
}

void standins_check_none_alive(void)
{
    assert_int_equal(standins.nccl.live(), 0);
    assert_int_equal(standins.cuda.live(), 0);
}
