/* SPDX-License-Identifier: Apache-2.0
 *
 * The look-alike's switches, and its calls that are about no communicator.
 */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "tests/standins/cuda_internal.h"
#include "tests/standins/nccl_internal.h"

#define CALLS_MAX 64

struct call {
    char name[48];
    int times;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct call calls[CALLS_MAX];
static char failing[48];
static int fail_in;
static ncclResult_t fail_with;
static atomic_int live, hangs, die_in, error_in, error_result, delay, corrupt_in, silent;
static atomic_int version = NCCL_VERSION_CODE;

void nccl_die(const char *call, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "stand-in libnccl: %s: ", call);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

void nccl_count(int by)
{
    atomic_fetch_add(&live, by);
}

ncclResult_t nccl_enter(const char *name)
{
    ncclResult_t result = ncclSuccess;
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < CALLS_MAX - 1 && calls[i].times > 0 && strcmp(calls[i].name, name) != 0)
        i++;
    if (calls[i].times == 0) /* who asks may be reading it */
        snprintf(calls[i].name, sizeof calls[i].name, "%s", name);
    calls[i].times++;
    if (fail_in > 0 && strcmp(failing, name) == 0 && --fail_in == 0)
        result = fail_with;
    pthread_mutex_unlock(&lock);
    return result;
}

int standin_nccl_enter(const char *call) { return (int)nccl_enter(call); }
void standin_nccl_count(int by) { nccl_count(by); }

/* True once, when a count that was set comes to 0. */
static bool falls_due(atomic_int *count)
{
    int now = atomic_load(count);
    while (now > 0 && !atomic_compare_exchange_weak(count, &now, now - 1))
        ;
    return now == 1;
}

int nccl_version(void) { return atomic_load(&version); }
bool nccl_is_silent(void) { return atomic_load(&silent) != 0; }
bool nccl_hangs(void) { return atomic_load(&hangs) != 0; }
int nccl_delay_us(void) { return atomic_load(&delay); }
bool nccl_corrupts(void) { return falls_due(&corrupt_in); }
bool nccl_dies(void) { return falls_due(&die_in); }

ncclResult_t nccl_breaks(void)
{
    return falls_due(&error_in) ? (ncclResult_t)atomic_load(&error_result) : ncclSuccess;
}

void standin_nccl_fail_call(const char *call, int nth, int result)
{
    pthread_mutex_lock(&lock);
    snprintf(failing, sizeof failing, "%s", call);
    fail_in = nth;
    fail_with = (ncclResult_t)result;
    pthread_mutex_unlock(&lock);
}

void standin_nccl_init_hangs(int on) { atomic_store(&hangs, on); }
void standin_nccl_die_in_group(int nth) { atomic_store(&die_in, nth); }
void standin_nccl_delay_us(int microseconds) { atomic_store(&delay, microseconds); }
void standin_nccl_corrupt(int nth) { atomic_store(&corrupt_in, nth); }
void standin_nccl_silent(int on) { atomic_store(&silent, on); }
void standin_nccl_version(int code) { atomic_store(&version, code); }
int standin_nccl_live(void) { return atomic_load(&live); }

void standin_nccl_error_after_groups(int groups, int result)
{
    atomic_store(&error_result, result);
    atomic_store(&error_in, groups + 1);
}

const char *standin_nccl_called(int index, int *times)
{
    pthread_mutex_lock(&lock);
    int found = index < CALLS_MAX ? calls[index].times : 0;
    pthread_mutex_unlock(&lock);
    *times = found;
    return found > 0 ? calls[index].name : NULL;
}

void standin_nccl_reset(void)
{
    pthread_mutex_lock(&lock);
    memset(calls, 0, sizeof calls);
    fail_in = 0;
    pthread_mutex_unlock(&lock);
    atomic_int *const counts[] = {&hangs, &die_in, &error_in, &delay, &corrupt_in, &silent};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        atomic_store(counts[i], 0);
    atomic_store(&version, NCCL_VERSION_CODE);
}

static void set_switch(const char *word)
{
    char call[48];
    int n, m;
    if (sscanf(word, "fail:%47[^:]:%d:%d", call, &n, &m) == 3)
        standin_nccl_fail_call(call, n, m);
    else if (strcmp(word, "init-hangs") == 0)
        standin_nccl_init_hangs(1);
    else if (sscanf(word, "dies-in-group:%d", &n) == 1)
        standin_nccl_die_in_group(n);
    else if (sscanf(word, "error-after-groups:%d:%d", &n, &m) == 2)
        standin_nccl_error_after_groups(n, m);
    else if (sscanf(word, "delay-us:%d", &n) == 1)
        standin_nccl_delay_us(n);
    else if (sscanf(word, "corrupt:%d", &n) == 1)
        standin_nccl_corrupt(n);
    else if (strcmp(word, "silent") == 0)
        standin_nccl_silent(1);
    else if (sscanf(word, "version:%d", &n) == 1)
        standin_nccl_version(n);
    else
        nccl_die("STANDIN_NCCL", "no switch %s", word);
}

__attribute__((constructor)) static void read_environment(void)
{
    const char *text = getenv("STANDIN_NCCL");
    char words[512], *rest = words;
    snprintf(words, sizeof words, "%s", text ? text : "");
    for (char *word; (word = strsep(&rest, ",")) != NULL;)
        if (*word != '\0')
            set_switch(word);
}

__attribute__((destructor)) static void report(void)
{
    if (nccl_group_is_open()) {
        fprintf(stderr, "stand-in libnccl: ncclGroupStart: a group is open at exit\n");
        _exit(71);
    }
    if (atomic_load(&live) == 0)
        return;
    fprintf(stderr, "stand-in libnccl: %d communicators, registrations or allocations still alive at exit\n",
            atomic_load(&live));
    _exit(71);
}

ncclResult_t ncclGetVersion(int *out)
{
    ENTER();
    *out = nccl_version();
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const names[ncclNumResults] = {
        [ncclSuccess] = "no error",
        [ncclUnhandledCudaError] = "unhandled cuda error",
        [ncclSystemError] = "unhandled system error",
        [ncclInternalError] = "internal error",
        [ncclInvalidArgument] = "invalid argument",
        [ncclInvalidUsage] = "invalid usage",
        [ncclRemoteError] = "remote process exited or there was a network error",
        [ncclInProgress] = "NCCL operation in progress",
        [ncclTimeout] = "timeout",
    };
    return (unsigned)result < ncclNumResults ? names[result] : "unknown result code";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
    ENTER();
    memset(out, 0, sizeof *out);
    if (getrandom(out->internal, sizeof(uint64_t), 0) != (ssize_t)sizeof(uint64_t))
        nccl_die(__func__, "no random numbers");
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **out, size_t bytes)
{
    CUdeviceptr address = 0;
    ENTER();
    if (cuMemAlloc(&address, bytes) != CUDA_SUCCESS)
        return ncclUnhandledCudaError;
    nccl_count(1);
    *out = (void *)(uintptr_t)address;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *memory)
{
    ncclResult_t injected = nccl_enter(__func__);
    if (cuMemFree((CUdeviceptr)(uintptr_t)memory) != CUDA_SUCCESS)
        return ncclUnhandledCudaError;
    nccl_count(-1);
    return injected;
}
