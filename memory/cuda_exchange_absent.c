/* SPDX-License-Identifier: Apache-2.0
 *
 * The exchanges and windows of GPUs in a build without CUDA: there are no arenas that would ask for them.
 */
#include "memory/exchange_internal.h"

static enum refit_status left_out(struct refit_error *err)
{
    return refit_fail(err, REFIT_UNSUPPORTED, "CUDA: left out: no CUDA headers and nvcc when it was built");
}

enum refit_status refit_cuda_exchange_create(int device, struct refit_cuda_exchange **out, struct refit_error *err)
{
    (void)device;
    (void)out;
    return left_out(err);
}

enum refit_status refit_cuda_exchange_prepare(struct refit_cuda_exchange *exchange, const struct refit_arena *arena,
                                              struct refit_error *err)
{
    (void)exchange;
    (void)arena;
    return left_out(err);
}

enum refit_status refit_cuda_exchange_run(struct refit_cuda_exchange *exchange, struct refit_arena *a,
                                          struct refit_arena *b, uint64_t bytes, struct refit_deadline deadline,
                                          struct refit_exchanged *done, struct refit_error *err)
{
    (void)exchange;
    (void)a;
    (void)b;
    (void)bytes;
    (void)deadline;
    (void)done;
    return left_out(err);
}

void refit_cuda_exchange_destroy(struct refit_cuda_exchange *exchange)
{
    (void)exchange;
}

enum refit_status refit_cuda_window_create(const struct refit_arena *slot, struct refit_cuda_window **out,
                                           struct refit_error *err)
{
    (void)slot;
    (void)out;
    return left_out(err);
}

enum refit_status refit_cuda_window_show(struct refit_cuda_window *window, const struct refit_arena *slot,
                                         struct refit_error *err)
{
    (void)window;
    (void)slot;
    return left_out(err);
}

uint64_t refit_cuda_window_address(const struct refit_cuda_window *window)
{
    (void)window;
    return 0;
}

void refit_cuda_window_destroy(struct refit_cuda_window *window)
{
    (void)window;
}
