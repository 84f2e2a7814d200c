/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/system/device.h"

#include "tests/support/gpu.h"

int device_of_rank(uint32_t rank)
{
    return (int)rank % gpu_devices();
}

uint64_t device_allocate(int device, size_t bytes)
{
    return gpu_allocate(device, bytes);
}

void device_free(uint64_t address)
{
    gpu_free(address);
}

void device_write(uint64_t address, const void *bytes, size_t len)
{
    gpu_write(address, bytes, len);
}

void device_read(void *bytes, uint64_t address, size_t len)
{
    gpu_read(bytes, address, len);
}
