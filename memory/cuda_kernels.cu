/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda_exchange_kernel.h"
#include "memory/cuda_move.h"

/* Sums are mod 2^64, so the order in which threads add is of no matter. */
extern "C" __global__ void __launch_bounds__(REFIT_CUDA_THREADS) refit_move(const struct refit_cuda_move move)
{
    unsigned long long sum[2];
    refit_cuda_move_thread(&move, (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, (uint64_t)gridDim.x * blockDim.x,
                           sum);
    if (!move.sum)
        return;
    for (int step = 16; step > 0; step /= 2) {
        sum[0] += __shfl_down_sync(0xffffffffu, sum[0], step);
        sum[1] += __shfl_down_sync(0xffffffffu, sum[1], step);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&move.sum[0], sum[0]);
        atomicAdd(&move.sum[1], sum[1]);
    }
}

extern "C" __global__ void __launch_bounds__(REFIT_CUDA_THREADS)
    refit_exchange(const struct refit_cuda_exchange_range range)
{
    refit_cuda_exchange_thread(&range, (uint64_t)blockIdx.x * blockDim.x + threadIdx.x,
                               (uint64_t)gridDim.x * blockDim.x);
}
