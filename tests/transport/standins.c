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

/* ---- libraries without switches ---- */

static void no_failure(const char *call, int nth)
{
    (void)call;
    (void)nth;
}

static void no_number(int number)
{
    (void)number;
}

static void no_total(size_t bytes)
{
    (void)bytes;
}

static int none_alive(void)
{
    return 0;
}

static const char *none_called(int index, int *times)
{
    (void)index;
    *times = 0;
    return NULL;
}

static void no_reset(void)
{
}

static const struct standin_switches none = {
    .cuda = {.fail_call = no_failure, .hold = no_number, .delay = no_number, .fault = no_number, .peers = no_number,
             .total = no_total, .live = none_alive, .called = none_called, .reset = no_reset},
    .nccl = {.live = none_alive, .called = none_called, .reset = no_reset},
};

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        fail_msg("%s: is it the look-alike?", name);
    return found;
}

#define RESOLVE(library, name) *(void **)(void *)&standins.library.name = symbol(library, "standin_" #library "_" #name)

int standins_open(void **state)
{
    (void)state;
    standins = none;
    if (!gpu_switch("standin_cuda_reset"))
        return 0;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!cuda || !nccl)
        fail_msg("%s", dlerror());
    RESOLVE(cuda, fail_call);
    RESOLVE(cuda, hold);
    RESOLVE(cuda, delay);
    RESOLVE(cuda, fault);
    RESOLVE(cuda, peers);
    RESOLVE(cuda, total);
    RESOLVE(cuda, live);
    RESOLVE(cuda, called);
    RESOLVE(cuda, reset);
    RESOLVE(nccl, fail_call);
    RESOLVE(nccl, init_hangs);
    RESOLVE(nccl, die_in_group);
    RESOLVE(nccl, error_after_groups);
    RESOLVE(nccl, delay_us);
    RESOLVE(nccl, corrupt);
    RESOLVE(nccl, silent);
    RESOLVE(nccl, live);
    RESOLVE(nccl, called);
    RESOLVE(nccl, reset);
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
