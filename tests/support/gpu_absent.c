/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/support/gpu.h in a build without CUDA: tests that need it are not registered there.
 */
#include "tests/support/gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

void gpu_open(void)
{
    fail_msg("built without CUDA");
}

int gpu_devices(void)
{
    return 0;
}

void *gpu_switch(const char *name)
{
    (void)name;
    return NULL;
}

void gpu_need_switches(void)
{
    skip();
}

void gpu_need_devices(int count)
{
    (void)count;
    skip();
}

uint64_t gpu_allocate(int device, size_t bytes)
{
    (void)device;
    (void)bytes;
    gpu_open();
    return 0;
}

void gpu_free(uint64_t address)
{
    (void)address;
}

void gpu_write(uint64_t address, const void *bytes, size_t len)
{
    (void)address;
    (void)bytes;
    (void)len;
}

void gpu_read(void *bytes, uint64_t address, size_t len)
{
    (void)bytes;
    (void)address;
    (void)len;
}

void gpu_set(uint64_t address, int value, size_t len)
{
    (void)address;
    (void)value;
    (void)len;
}
