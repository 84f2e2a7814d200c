/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/gpu.h"

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TEXT_OF(name) #name
#define NAME_OF(name) TEXT_OF(name) /* expands cuda.h's macros, which put versions behind names */

#define CALLS(X)                                                                                        \
    X(cuInit) X(cuDeviceGet) X(cuDeviceGetCount) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) \
    X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuMemAlloc) X(cuMemFree) X(cuMemcpyHtoD) X(cuMemcpyDtoH)    \
    X(cuPointerGetAttribute)

static void *library;
static struct {
#define MEMBER(name) __typeof__(name) *name;
    CALLS(MEMBER)
} cuda;
static struct {
    __typeof__(standin_cuda_allocate) *allocate;
    __typeof__(standin_cuda_free) *free;
} standin;

static void check(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS)
        fail_msg("%s: error %d", call, (int)result);
}
#define CALL(name, ...) check(cuda.name(__VA_ARGS__), #name)

static void *symbol(const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        fail_msg("%s: not in libcuda.so.1", name);
    return found;
}

static void open_driver(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
#define RESOLVE(name) *(void **)(void *)&cuda.name = symbol(NAME_OF(name));
    CALLS(RESOLVE)
    bool ignored = getenv("REFIT_TEST_NO_SWITCHES") != NULL;
    *(void **)(void *)&standin.allocate = ignored ? NULL : dlsym(library, "standin_cuda_allocate");
    *(void **)(void *)&standin.free = ignored ? NULL : dlsym(library, "standin_cuda_free");
    CALL(cuInit, 0);
}

void gpu_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_driver);
    if (!library)
        fail_msg("libcuda.so.1 does not open");
}

int gpu_devices(void)
{
    int count = 0;
    gpu_open();
    CALL(cuDeviceGetCount, &count);
    return count;
}

void *gpu_switch(const char *name)
{
    gpu_open();
    return getenv("REFIT_TEST_NO_SWITCHES") ? NULL : dlsym(library, name);
}

/* ---- a driver without switches ---- */

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

struct gpu_switches gpu_switches(void)
{
    struct gpu_switches found = {.fail_call = no_failure, .hold = no_number, .delay = no_number, .fault = no_number,
                                 .peers = no_number, .total = no_total, .live = none_alive, .called = none_called,
                                 .reset = no_reset};
    if (!gpu_switch("standin_cuda_reset"))
        return found;
#define SWITCH(name) *(void **)(void *)&found.name = symbol("standin_cuda_" #name)
    SWITCH(fail_call);
    SWITCH(hold);
    SWITCH(delay);
    SWITCH(fault);
    SWITCH(peers);
    SWITCH(total);
    SWITCH(live);
    SWITCH(called);
    SWITCH(reset);
    return found;
}

void gpu_need_switches(void)
{
    if (gpu_switch("standin_cuda_reset"))
        return;
    print_message("skipped: needs a driver that can be made to fail, and this one has no switches\n");
    skip();
}

void gpu_need_devices(int count)
{
    int there = gpu_devices();
    if (there >= count)
        return;
    print_message("skipped: needs %d devices, and there are %d\n", count, there);
    skip();
}

/* ---- memory ---- */

static void enter(int device)
{
    CUcontext context;
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxPushCurrent, context);
}

static void leave(int device)
{
    CUcontext context;
    CALL(cuCtxPopCurrent, &context);
    CALL(cuDevicePrimaryCtxRelease, device);
}

static int device_of(uint64_t address)
{
    int device = -1;
    CALL(cuPointerGetAttribute, &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    return device;
}

/* The context is kept as long. */
uint64_t gpu_allocate(int device, size_t bytes)
{
    CUdeviceptr address;
    CUcontext context;
    gpu_open();
    if (standin.allocate)
        return standin.allocate(device, bytes);
    enter(device);
    CALL(cuMemAlloc, &address, bytes);
    CALL(cuCtxPopCurrent, &context);
    return address;
}

void gpu_free(uint64_t address)
{
    CUcontext context;
    if (standin.free) {
        standin.free(address);
        return;
    }
    int device = device_of(address);
    enter(device);
    CALL(cuMemFree, address);
    CALL(cuCtxPopCurrent, &context);
    CALL(cuDevicePrimaryCtxRelease, device);
    CALL(cuDevicePrimaryCtxRelease, device);
}

void gpu_write(uint64_t address, const void *bytes, size_t len)
{
    gpu_open();
    if (standin.allocate) {
        memcpy((void *)(uintptr_t)address, bytes, len);
        return;
    }
    if (len == 0)
        return;
    int device = device_of(address);
    enter(device);
    CALL(cuMemcpyHtoD, address, bytes, len);
    leave(device);
}

void gpu_read(void *bytes, uint64_t address, size_t len)
{
    gpu_open();
    if (standin.allocate) {
        memcpy(bytes, (const void *)(uintptr_t)address, len);
        return;
    }
    if (len == 0)
        return;
    int device = device_of(address);
    enter(device);
    CALL(cuMemcpyDtoH, bytes, address, len);
    leave(device);
}

void gpu_set(uint64_t address, int value, size_t len)
{
    void *bytes = malloc(len + 1);
    assert_non_null(bytes);
    memset(bytes, value, len);
    gpu_write(address, bytes, len);
    free(bytes);
}
