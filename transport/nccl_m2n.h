/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to transport/: NCCL M2N, opened at run time (docs/gpu.md). Types are those of nccl_m2n.h, so a call that does
 * not fit is an error of the compiler.
 */
#ifndef REFIT_TRANSPORT_NCCL_M2N_H
#define REFIT_TRANSPORT_NCCL_M2N_H

#include <nccl_m2n.h>

#include "transport/nccl_driver.h"

#define REFIT_NCCL_M2N_CALLS(X)                                                                                      \
    X(ncclM2nInit) X(ncclM2nFinalize) X(ncclM2nGetLastError) X(ncclM2nGroupStart) X(ncclM2nGroupEnd)                 \
    X(ncclM2nGroupAbort) X(ncclReshard)

struct refit_nccl_m2n {
    const struct refit_nccl_driver *nccl;
    void *library;
    char id[64]; /* of the build: two that are equal are the same library */
#define REFIT_NCCL_M2N_MEMBER(name) __typeof__(name) *name;
    REFIT_NCCL_M2N_CALLS(REFIT_NCCL_M2N_MEMBER)
#undef REFIT_NCCL_M2N_MEMBER
};

/* The library, opened at the first call that succeeds; any thread. REFIT_UNSUPPORTED with the reason: not there,
 * without a build id, bound to another NCCL than Refit's, or that one is too old. */
REFIT_MUST_CHECK enum refit_status refit_nccl_m2n(const struct refit_nccl_m2n **out, struct refit_error *err);

/* As refit_nccl_check, with the library's own detail. */
REFIT_MUST_CHECK enum refit_status refit_nccl_m2n_check(const struct refit_nccl_m2n *m2n, ncclResult_t result,
                                                        const char *call, struct refit_error *err);

/* M2N(m2n, err, ncclReshard, ...) calls and checks. */
#define M2N(m2n, err, call, ...) refit_nccl_m2n_check(m2n, (m2n)->call(__VA_ARGS__), #call, err)

/* The library's state is one of the process's, from the first `enter` to the last `leave`. Communicators that it has
 * seen stay until then: it keeps what belongs to them. `comm` is aborted, at once or later; NULL is fine. */
REFIT_MUST_CHECK enum refit_status refit_nccl_m2n_enter(const struct refit_nccl_m2n *m2n, ncclM2nHandle_t *out,
                                                        struct refit_error *err);
void refit_nccl_m2n_leave(const struct refit_nccl_m2n *m2n, ncclComm_t comm);

#endif
