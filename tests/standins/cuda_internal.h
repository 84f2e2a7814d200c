/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REFIT_TESTS_STANDINS_CUDA_INTERNAL_H
#define REFIT_TESTS_STANDINS_CUDA_INTERNAL_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/standins/standin_cuda.h"

#define STANDIN_DEVICES_MAX 8
#define STANDIN_ANY_DEVICE (-1)

enum standin_kind { STANDIN_DEVICE, STANDIN_PINNED, STANDIN_REGISTERED, STANDIN_RESERVED, STANDIN_HANDLE };

/* What CUfunction points to. */
extern char standin_move_function, standin_exchange_function;

/* Counts the call; true: it is to fail. */
bool standin_enter(const char *call);
_Noreturn void standin_die(const char *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
void standin_count(int by); /* of objects alive */

int standin_devices(void);
/* The machine's number of a device, by which other processes know it, and this process's number of it; -1: it has none. */
int standin_machine_number(int device);
int standin_local_number(int machine);
/* The device may be given access to memory of the machine's device `machine`. */
bool standin_can_reach(int device, int machine);
/* The device of the thread's current context; dies when there is none. */
int standin_need_context(const char *call);
CUcontext standin_context(int device);

/* What work that was queued has done to a device's context: CUDA_SUCCESS, or the error of all calls from then on. */
CUresult standin_lost(int device);
void standin_lose(int device, CUresult error);

/* Dies unless [address, + bytes) is live memory of the device or pinned, and may be written. */
void standin_touch_on(const char *call, int device, uint64_t address, uint64_t bytes, bool writing);
/* Of any device. */
void standin_touch(const char *call, uint64_t address, uint64_t bytes, bool writing);
bool standin_is_known(uint64_t address);

/* For look-alikes of libraries that queue work of their own. Both die unless the stream is live; neither needs a
 * context. `work(context)` runs in its turn, in the stream's thread. */
int standin_stream_device(const char *call, CUstream stream);
void standin_enqueue(const char *call, CUstream stream, void (*work)(void *), void *context);

#define ENTER_FAILS(error)        \
    if (standin_enter(__func__))  \
    return error
#define FAILED CUDA_ERROR_UNKNOWN
/* For calls that need a context: those of a lost one fail. */
#define ENTER_CONTEXT(error)                                  \
    ENTER_FAILS(error);                                       \
    int device = standin_need_context(__func__);              \
    if (standin_lost(device) != CUDA_SUCCESS)                 \
        return standin_lost(device)

#endif
