/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to memory/: CUDA's driver API, opened at run time. Types are those of cuda.h, so a call that does not fit is a
 * compiler's error; names too (cuMemAlloc is cuMemAlloc_v2 there), so the table asks for the version it was built for.
 */
#ifndef REFIT_MEMORY_CUDA_DRIVER_H
#define REFIT_MEMORY_CUDA_DRIVER_H

#include <cuda.h>

#include "base/error.h"

#define REFIT_CUDA_CALLS(X)                                                                                        \
    X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid)        \
    X(cuDeviceGetAttribute) X(cuDeviceCanAccessPeer) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease)      \
    X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxGetStreamPriorityRange) X(cuPointerGetAttribute)                 \
    X(cuMemGetInfo) X(cuMemGetAllocationGranularity) X(cuMemCreate) X(cuMemRelease) X(cuMemAddressReserve)         \
    X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemExportToShareableHandle)                \
    X(cuMemImportFromShareableHandle) X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost)                \
    X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoDAsync) X(cuMemsetD8Async)                              \
    X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamQuery) X(cuStreamWaitEvent)                         \
    X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery)                                            \
    X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemHostGetDevicePointer)                                       \
    X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction) X(cuLaunchKernel)

struct refit_cuda_driver {
    void *library;
    int version; /* 1000 * major + 10 * minor */
    int devices;
#define REFIT_CUDA_MEMBER(name) __typeof__(name) *name;
    REFIT_CUDA_CALLS(REFIT_CUDA_MEMBER)
#undef REFIT_CUDA_MEMBER
};

/* The driver, opened and initialised at the first call that succeeds. */
REFIT_MUST_CHECK enum refit_status refit_cuda_driver(const struct refit_cuda_driver **out, struct refit_error *err);
/* REFIT_OK for CUDA_SUCCESS; else REFIT_NO_MEMORY or REFIT_SYSTEM, naming the call and CUDA's error. */
REFIT_MUST_CHECK enum refit_status refit_cuda_check(const struct refit_cuda_driver *driver, CUresult result,
                                                    const char *call, struct refit_error *err);

/* CUDA(driver, err, cuMemFree, address) calls and checks. */
#define CUDA(driver, err, call, ...) refit_cuda_check(driver, (driver)->call(__VA_ARGS__), #call, err)

#endif
