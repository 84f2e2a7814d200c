/* SPDX-License-Identifier: Apache-2.0
 *
 * What the look-alike of libcuda.so.1 offers to tests besides CUDA's functions (by dlsym). Misuse (an address that is
 * not mapped, or not for writing, or another device's; a handle freed twice; no context) ends the process with the call's
 * name, and so does exit with something still allocated.
 *
 * STANDIN_CUDA_DEVICES in the environment: how many devices there are (1); STANDIN_CUDA_FABRIC: they have fabric handles
 * (of this process's own memory); CUDA_VISIBLE_DEVICES, as CUDA has it; STANDIN_CUDA_ORDER: the machine's numbers of this process's devices ("1,0");
 * STANDIN_CUDA_NO_PEERS: no device reaches another's memory;
 * STANDIN_CUDA_CONTROL: a file that is looked for at each call, and when it is there is obeyed and removed: "fail CALL NTH"
 * or "hold 0" and "hold 1", as below.
 */
#ifndef REFIT_TESTS_STANDIN_CUDA_H
#define REFIT_TESTS_STANDIN_CUDA_H

#include <stddef.h>
#include <stdint.h>

#define STANDIN_API __attribute__((visibility("default")))

/* The nth call (from 1) of a function whose name is `call` fails, once. Functions that give something back do so all
 * the same. */
STANDIN_API void standin_cuda_fail_call(const char *call, int nth);
/* Streams stop before their next item, until hold is 0. */
STANDIN_API void standin_cuda_hold(int hold);
/* Every item of a stream takes so much longer. */
STANDIN_API void standin_cuda_delay(int microseconds);
/* The nth kernel (from 1) that runs reads a bad address: its device's context is lost, what is queued on it is dropped, and
 * all calls fail with CUDA_ERROR_ILLEGAL_ADDRESS until the context has been given back. 0: none will. */
STANDIN_API void standin_cuda_fault(int nth);
/* 0: from now on no device is given access to another's memory, nor does an import of it open for one; 1: as at first. */
STANDIN_API void standin_cuda_peers(int allowed);
/* Each device's memory from now on. */
STANDIN_API void standin_cuda_total(size_t bytes);
/* Objects alive. */
STANDIN_API int standin_cuda_live(void);
/* How often each function was called since the last reset; NULL behind the last. */
STANDIN_API const char *standin_cuda_called(int index, int *times);
STANDIN_API void standin_cuda_reset(void);

/* Memory as a trainer in this process has it, in the device's primary context; the host may read and write it. */
STANDIN_API uint64_t standin_cuda_allocate(int device, size_t bytes);
STANDIN_API void standin_cuda_free(uint64_t address);

#endif
