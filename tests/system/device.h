/* SPDX-License-Identifier: Apache-2.0
 *
 * What reader and publisher do with memory of GPUs. Benchmarks, which have it in the host, are built with device_none.c.
 */
#ifndef REFIT_TESTS_SYSTEM_DEVICE_H
#define REFIT_TESTS_SYSTEM_DEVICE_H

#include <stddef.h>
#include <stdint.h>

/* The number of the device that a rank's memory is on: its own, or by turns where there are fewer. */
int device_of_rank(uint32_t rank);
uint64_t device_allocate(int device, size_t bytes);
void device_free(uint64_t address);
void device_write(uint64_t address, const void *bytes, size_t len);
void device_read(void *bytes, uint64_t address, size_t len);

#endif
