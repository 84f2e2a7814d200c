/* SPDX-License-Identifier: Apache-2.0
 *
 * What the look-alike of libcuda.so.1 offers to tests besides CUDA's functions (by dlsym). Misuse (an address that is
 * not mapped, or not for writing; a handle freed twice; no context; an object destroyed while it is used) ends the
 * process with the call's name, and so does exit with something still allocated.
 */
#ifndef REFIT_TESTS_STANDIN_CUDA_H
#define REFIT_TESTS_STANDIN_CUDA_H

#include <stddef.h>

#define STANDIN_API __attribute__((visibility("default")))

/* The nth call (from 1) of a function whose name is `call` fails, once. Functions that give something back do so all
 * the same. */
STANDIN_API void standin_cuda_fail_call(const char *call, int nth);
/* Streams stop before their next item, until hold is 0. */
STANDIN_API void standin_cuda_hold(int hold);
/* The device's memory from now on. */
STANDIN_API void standin_cuda_total(size_t bytes);
/* Objects alive. */
STANDIN_API int standin_cuda_live(void);
/* How often each function was called since the last reset; NULL behind the last. */
STANDIN_API const char *standin_cuda_called(int index, int *times);
STANDIN_API void standin_cuda_reset(void);

#endif
