/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REFIT_TESTS_STANDINS_CUDA_INTERNAL_H
#define REFIT_TESTS_STANDINS_CUDA_INTERNAL_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/standins/standin_cuda.h"

enum standin_kind { STANDIN_DEVICE, STANDIN_PINNED, STANDIN_RESERVED, STANDIN_HANDLE, STANDIN_STREAM, STANDIN_EVENT,
                    STANDIN_MODULE, STANDIN_CONTEXT };

/* Counts the call; true: it is to fail. */
bool standin_enter(const char *call);
_Noreturn void standin_die(const char *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
void standin_count(int by); /* of objects alive */
void standin_need_context(const char *call);

/* Dies unless [address, + bytes) is live memory of the device or pinned, and may be written. */
void standin_touch(const char *call, uint64_t address, uint64_t bytes, bool writing);
bool standin_is_known(uint64_t address);

/* For look-alikes of libraries that queue work of their own. Both die unless the stream is live; neither needs a
 * context. `work(context)` runs in its turn, in the stream's thread. */
void standin_need_stream(const char *call, CUstream stream);
void standin_enqueue(const char *call, CUstream stream, void (*work)(void *), void *context);

#define ENTER_FAILS(error)        \
    if (standin_enter(__func__))  \
    return error
#define FAILED CUDA_ERROR_UNKNOWN

#endif
