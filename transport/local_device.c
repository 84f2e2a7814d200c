/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/local_device.h"

#include <string.h>

#include "memory/cuda_probe.h"

bool refit_local_of_device(const struct refit_local_piece *piece)
{
    static const uint8_t none[REFIT_CUDA_UUID_BYTES];
    return memcmp(piece->device, none, sizeof none) != 0;
}

/* Of the receiver's arenas; -1: it is in host memory. */
static int device_at(const struct refit_endpoint_config *receiver, size_t index)
{
    return receiver->arenas[index] ? refit_arena_device(receiver->arenas[index]) : -1;
}

/* A device that is not seen here may still be reached, or so the driver is asked. */
static enum refit_status open_for(int device, int home, const struct refit_local_piece *piece, int fd,
                                  struct refit_arena **out, struct refit_error *err)
{
    enum refit_status status = home >= 0 ? refit_cuda_peers(device, home, err) : REFIT_OK;
    return status == REFIT_OK ? refit_cuda_slot_open(device, fd, piece->bytes, true, out, err) : status;
}

enum refit_status refit_local_device_open(const struct refit_local_piece *piece, int fd,
                                          const struct refit_endpoint_config *receiver, struct refit_arena **out,
                                          struct refit_error *err)
{
    struct refit_error ignored;
    int home = -1;
    enum refit_status status = refit_fail(err, REFIT_UNSUPPORTED, "the slots here are in host memory");
    if (refit_cuda_device_find(piece->device, &home, &ignored) != REFIT_OK)
        home = -1;
    for (size_t i = 0; i < receiver->arena_count; i++)
        if (home >= 0 && device_at(receiver, i) == home)
            return refit_cuda_slot_open(home, fd, piece->bytes, true, out, err);
    for (size_t i = 0; i < receiver->arena_count && status != REFIT_OK; i++) {
        bool again = i > 0 && device_at(receiver, i) == device_at(receiver, i - 1);
        if (device_at(receiver, i) >= 0 && !again)
            status = open_for(device_at(receiver, i), home, piece, fd, out, err);
    }
    return status;
}
