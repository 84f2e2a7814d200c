/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to transport/: NCCL, opened at run time. Types are those of nccl.h, so a call that does not fit is an error
 * of the compiler. A process that has an NCCL (a trainer, by torch) uses that one; REFIT_NCCL_LIBRARY overrides.
 */
#ifndef REFIT_TRANSPORT_NCCL_DRIVER_H
#define REFIT_TRANSPORT_NCCL_DRIVER_H

#include <nccl.h>

#include "base/error.h"
#include "transport/nccl_version.h"

#define REFIT_NCCL_CALLS(X)                                                                                          \
    X(ncclGetVersion) X(ncclGetErrorString) X(ncclGetLastError) X(ncclGetUniqueId) X(ncclCommInitRankConfig)         \
    X(ncclCommFinalize) X(ncclCommDestroy) X(ncclCommAbort) X(ncclCommGetAsyncError) X(ncclCommCount)                \
    X(ncclCommCuDevice) X(ncclCommUserRank) X(ncclCommRegister) X(ncclCommDeregister) X(ncclSend) X(ncclRecv)        \
    X(ncclGroupStart) X(ncclGroupEnd)
/* NULL where the library is older: ask the capabilities. */
#define REFIT_NCCL_NEWER_CALLS(X)                                                                                    \
    X(ncclCommShrink) X(ncclCommRevoke) X(ncclCommGetUniqueId) X(ncclCommGrow) X(ncclCommWindowRegister)             \
    X(ncclCommWindowDeregister) X(ncclPutSignal) X(ncclWaitSignal)

enum refit_nccl_capability {
    REFIT_NCCL_SHRINK = 1 << 0,         /* 2.27: ncclCommShrink */
    REFIT_NCCL_REVOKE = 1 << 1,         /* 2.28.7: ncclCommRevoke */
    REFIT_NCCL_GROW = 1 << 2,           /* 2.29: ncclCommGetUniqueId, ncclCommGrow */
    REFIT_NCCL_ONE_SIDED = 1 << 3,      /* 2.29: windows, ncclPutSignal, ncclWaitSignal */
    REFIT_NCCL_MULTI_RANK_GPU = 1 << 4, /* 2.30.3: several ranks on one GPU, with NCCL_MULTI_RANK_GPU_ENABLE=1 */
};

struct refit_nccl_driver {
    void *library;
    int version;           /* 23203: 2.32.3 */
    unsigned capabilities; /* of enum refit_nccl_capability */
#define REFIT_NCCL_MEMBER(name) __typeof__(name) *name;
    REFIT_NCCL_CALLS(REFIT_NCCL_MEMBER)
    REFIT_NCCL_NEWER_CALLS(REFIT_NCCL_MEMBER)
#undef REFIT_NCCL_MEMBER
};

/* The library, opened at the first call that succeeds; any thread. REFIT_UNSUPPORTED with the reason: not there, or
 * older than 2.19. */
REFIT_MUST_CHECK enum refit_status refit_nccl_driver(const struct refit_nccl_driver **out, struct refit_error *err);

/* REFIT_OK for ncclSuccess, and for ncclInProgress: the call was accepted, and ncclCommGetAsyncError tells its end.
 * Else the call's name, NCCL's error and its last message, as
 *   REFIT_PEER        ncclRemoteError, ncclSystemError: the other side, or the way to it
 *   REFIT_TIMEOUT     ncclTimeout
 *   REFIT_INVALID     ncclInvalidArgument
 *   REFIT_UNSUPPORTED ncclInvalidUsage: versions that differ, two ranks on a GPU, a call NCCL has no room for
 *   REFIT_SYSTEM      ncclUnhandledCudaError, ncclInternalError and what is new.
 * `comm` may be NULL. */
REFIT_MUST_CHECK enum refit_status refit_nccl_check(const struct refit_nccl_driver *driver, ncclComm_t comm,
                                                    ncclResult_t result, const char *call, struct refit_error *err);

/* NCCL(driver, comm, err, ncclSend, buffer, count, ncclUint8, peer, comm, stream) calls and checks. */
#define NCCL(driver, comm, err, call, ...) refit_nccl_check(driver, comm, (driver)->call(__VA_ARGS__), #call, err)

#endif
