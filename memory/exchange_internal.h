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

/* With a GPU at one end or both; REFIT_UNSUPPORTED in a build without CUDA. As the functions of exchange.h. */
struct refit_cuda_exchange;
REFIT_MUST_CHECK enum refit_status refit_cuda_exchange_create(int device, struct refit_cuda_exchange **out,
                                                              struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_cuda_exchange_prepare(struct refit_cuda_exchange *exchange,
                                                               const struct refit_arena *arena, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_cuda_exchange_run(struct refit_cuda_exchange *exchange, struct refit_arena *a,
                                                           struct refit_arena *b, uint64_t bytes,
                                                           struct refit_deadline deadline, struct refit_exchanged *done,
                                                           struct refit_error *err);
void refit_cuda_exchange_destroy(struct refit_cuda_exchange *exchange);

/* A window on a GPU, as the functions of window.h. */
struct refit_cuda_window;
REFIT_MUST_CHECK enum refit_status refit_cuda_window_create(const struct refit_arena *slot,
                                                            struct refit_cuda_window **out, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_cuda_window_show(struct refit_cuda_window *window,
                                                          const struct refit_arena *slot, struct refit_error *err);
uint64_t refit_cuda_window_address(const struct refit_cuda_window *window);
void refit_cuda_window_destroy(struct refit_cuda_window *window);

#endif
