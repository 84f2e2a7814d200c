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

/* Opens the driver; a test that has none fails. As often as wanted. */
void gpu_open(void);
int gpu_devices(void);
/* A function of standin_cuda.h by its name; NULL: the driver is none that has switches. */
void *gpu_switch(const char *name);

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
