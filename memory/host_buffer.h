/* SPDX-License-Identifier: Apache-2.0
 *
 * Host memory between a socket and arenas: what a transport receives into before it scatters, or packs and then sends.
 * Pinned when a GPU is at the other end: the operations of ops.h then copy from it and to it without a staging of their own
 * (each row that is dense in it). The device reads or writes it until the operation's completion; when a wait gave up
 * before, it may go on until the device is done, and then harms only that operation's bytes: on a device, operations are
 * done in their order.
 */
#ifndef REFIT_MEMORY_HOST_BUFFER_H
#define REFIT_MEMORY_HOST_BUFFER_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct refit_host_buffer;

/* `device`: of the GPU (refit_arena_device); -1: ordinary memory. Pinned memory is good for all GPUs. Not zeroed. May wait
 * for the device when pinned, as may destroying it. */
REFIT_MUST_CHECK enum refit_status refit_host_buffer_create(int device, size_t bytes, struct refit_host_buffer **out,
                                                            struct refit_error *err);
/* What a device still works on is given back when it is done. NULL is fine. */
void refit_host_buffer_destroy(struct refit_host_buffer *buffer);
uint8_t *refit_host_buffer_bytes(const struct refit_host_buffer *buffer);

#endif
