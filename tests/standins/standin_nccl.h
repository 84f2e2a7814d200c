/* SPDX-License-Identifier: Apache-2.0
 *
 * What the look-alike of libnccl.so.2 offers to tests besides NCCL's functions (by dlsym), and how it is set by the
 * environment. docs/gpu.md says what it does, and lists what ends the process with the call's name.
 *
 * STANDIN_NCCL="SWITCH,SWITCH..." sets for a whole process what the functions set:
 *   fail:CALL:NTH:RESULT   init-hangs   dies-in-group:NTH   error-after-groups:N:RESULT   delay-us:N   corrupt:NTH
 *   silent   version:CODE
 */
#ifndef REFIT_TESTS_STANDIN_NCCL_H
#define REFIT_TESTS_STANDIN_NCCL_H

#define STANDIN_NCCL_API __attribute__((visibility("default")))
#define STANDIN_NCCL_GROUP_MAX 2048

/* The nth call (from 1) of a function whose name is `call` returns `result` (of ncclResult_t), once. Functions that
 * give something back do so all the same. */
STANDIN_NCCL_API void standin_nccl_fail_call(const char *call, int nth, int result);
/* Communicators that are begun from now on never come up. */
STANDIN_NCCL_API void standin_nccl_init_hangs(int hangs);
/* The process is killed in the middle of its nth group from now. */
STANDIN_NCCL_API void standin_nccl_die_in_group(int nth);
/* `groups` more groups are carried out; the communicator of the next one has the asynchronous error `result`, once. */
STANDIN_NCCL_API void standin_nccl_error_after_groups(int groups, int result);
/* Before each message sent. */
STANDIN_NCCL_API void standin_nccl_delay_us(int microseconds);
/* One bit of the nth message sent from now on arrives inverted. */
STANDIN_NCCL_API void standin_nccl_corrupt(int nth);
/* A peer that is gone is not noticed, as over NVLink: what waits for it waits until ncclCommAbort. */
STANDIN_NCCL_API void standin_nccl_silent(int silent);
/* What ncclGetVersion says and ranks compare, from now on. */
STANDIN_NCCL_API void standin_nccl_version(int version);
/* Communicators, registrations and allocations alive. */
STANDIN_NCCL_API int standin_nccl_live(void);
/* How often each function was called since the last reset; NULL behind the last. Reset takes back the above, too. */
STANDIN_NCCL_API const char *standin_nccl_called(int index, int *times);
STANDIN_NCCL_API void standin_nccl_reset(void);

/* For look-alikes of libraries over it: a call of theirs is counted, and its result if it is to fail; one more or less is
 * alive. */
STANDIN_NCCL_API int standin_nccl_enter(const char *call);
STANDIN_NCCL_API void standin_nccl_count(int by);

#endif
