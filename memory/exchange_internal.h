/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to memory/: how the kinds of memory exchange.
 */
#ifndef REFIT_MEMORY_EXCHANGE_INTERNAL_H
#define REFIT_MEMORY_EXCHANGE_INTERNAL_H

#include "memory/arena_ops.h"
#include "memory/exchange.h"

/* Stays in the second-level cache: each byte is read and written once in memory. */
#define REFIT_EXCHANGE_HOST_CHUNK ((uint64_t)256 << 10)

/* One chunk of host memory; a function of its own, so that a test can stop or fail in the middle. */
REFIT_MUST_CHECK enum refit_status refit_exchange_host_chunk(uint8_t *a, uint8_t *b, uint64_t bytes, uint8_t *bounce,
                                                             struct refit_error *err);

#endif
