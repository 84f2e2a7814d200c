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

static void *open_library(const char *name)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail_msg("%s", dlerror());
    return library;
}

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
    void *cuda = open_library("libcuda.so.1"), *nccl = open_library("libnccl.so.2");
    (void)state;
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
