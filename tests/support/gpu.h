/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of GPUs for tests, by the driver that Refit opens: the look-alike (tests/standins), or a real one. What needs the
 * look-alike's switches, or more devices than there are, is skipped and says so. REFIT_TEST_NO_SWITCHES in the
 * environment: the look-alike is taken for a real driver, whose memory the host can't touch.
 */
#ifndef REFIT_TESTS_SUPPORT_GPU_H
#define REFIT_TESTS_SUPPORT_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/standins/standin_cuda.h"

/* Opens the driver; a test that has none fails. As often as wanted. */
void gpu_open(void);
int gpu_devices(void);
/* A function of standin_cuda.h by its name; NULL: the driver is none that has switches. */
void *gpu_switch(const char *name);

struct gpu_switches {
    __typeof__(standin_cuda_fail_call) *fail_call;
    __typeof__(standin_cuda_hold) *hold;
    __typeof__(standin_cuda_delay) *delay;
    __typeof__(standin_cuda_fault) *fault;
    __typeof__(standin_cuda_peers) *peers;
    __typeof__(standin_cuda_total) *total;
    __typeof__(standin_cuda_live) *live;
    __typeof__(standin_cuda_called) *called;
    __typeof__(standin_cuda_reset) *reset;
};
/* All of them. Of a driver without switches they do nothing, and tests that turn on them begin with gpu_need_switches(). */
struct gpu_switches gpu_switches(void);

/* Skip the test. */
void gpu_need_switches(void);
void gpu_need_devices(int count);

/* As a trainer in this process has it: of the device's primary context. */
uint64_t gpu_allocate(int device, size_t bytes);
void gpu_free(uint64_t address);
/* Nothing that is queued waits for these, nor they for that. */
void gpu_write(uint64_t address, const void *bytes, size_t len);
void gpu_read(void *bytes, uint64_t address, size_t len);
void gpu_set(uint64_t address, int value, size_t len);

#endif
