/* SPDX-License-Identifier: Apache-2.0
 *
 * The look-alike's calls that are about no memory and no stream: devices, contexts, modules; and its switches.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/standins/cuda_internal.h"

#define CALLS_MAX 96
#define DEPTH_MAX 8

struct call {
    char name[48];
    int times;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct call calls[CALLS_MAX];
static char failing[48];
static int fail_in;
static atomic_int live, peers_refused;
static struct {
    char context; /* its address is the handle */
    atomic_int retained;
    atomic_int lost;
} devices[STANDIN_DEVICES_MAX];
static char module;
char standin_move_function, standin_exchange_function;
/* LeakSanitizer loses its way in the thread-local memory of a library that is opened, unless it is of this model. */
#define THREADS_OWN static _Thread_local __attribute__((tls_model("initial-exec")))
THREADS_OWN int current[DEPTH_MAX]; /* devices whose contexts are on the thread's stack */
THREADS_OWN int depth;

void standin_die(const char *call, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "stand-in libcuda: %s: ", call);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

void standin_count(int by)
{
    atomic_fetch_add(&live, by);
}

/* For processes that a test can't reach otherwise: "fail CALL NTH", "hold 0", "hold 1", once. */
static void obey(const char *path)
{
    char line[96] = "", call[48];
    int number;
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    if (!fgets(line, sizeof line, file))
        line[0] = '\0';
    fclose(file);
    unlink(path);
    if (sscanf(line, "fail %47s %d", call, &number) == 2)
        standin_cuda_fail_call(call, number);
    else if (sscanf(line, "hold %d", &number) == 1)
        standin_cuda_hold(number);
    else
        standin_die("STANDIN_CUDA_CONTROL", "not understood: %s", line);
}

bool standin_enter(const char *name)
{
    bool fails = false;
    int i = 0;
    const char *control = getenv("STANDIN_CUDA_CONTROL");
    if (control && access(control, R_OK) == 0)
        obey(control);
    pthread_mutex_lock(&lock);
    while (i < CALLS_MAX - 1 && calls[i].times > 0 && strcmp(calls[i].name, name) != 0)
        i++;
    snprintf(calls[i].name, sizeof calls[i].name, "%s", name);
    calls[i].times++;
    if (fail_in > 0 && strcmp(failing, name) == 0)
        fails = --fail_in == 0;
    pthread_mutex_unlock(&lock);
    return fails;
}

void standin_cuda_fail_call(const char *call, int nth)
{
    pthread_mutex_lock(&lock);
    snprintf(failing, sizeof failing, "%s", call);
    fail_in = nth;
    pthread_mutex_unlock(&lock);
}

int standin_cuda_live(void)
{
    return atomic_load(&live);
}

const char *standin_cuda_called(int index, int *times)
{
    if (index >= CALLS_MAX || calls[index].times == 0)
        return NULL;
    *times = calls[index].times;
    return calls[index].name;
}

void standin_cuda_reset(void)
{
    pthread_mutex_lock(&lock);
    memset(calls, 0, sizeof calls);
    fail_in = 0;
    pthread_mutex_unlock(&lock);
}

__attribute__((destructor)) static void report(void)
{
    if (atomic_load(&live) == 0)
        return;
    fprintf(stderr, "stand-in libcuda: %d objects still alive at exit\n", atomic_load(&live));
    _exit(70);
}

/* As CUDA has it: a list of what this process sees. */
static int visible(int count)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list)
        return count;
    int listed = *list ? 1 : 0;
    for (; *list; list++)
        listed += *list == ',';
    return listed < count ? listed : count;
}

int standin_devices(void)
{
    const char *text = getenv("STANDIN_CUDA_DEVICES");
    int count = text ? atoi(text) : 1;
    return visible(count < 1 || count > STANDIN_DEVICES_MAX ? 1 : count);
}

int standin_need_context(const char *call)
{
    if (depth == 0 || atomic_load(&devices[current[depth - 1]].retained) == 0)
        standin_die(call, "no context is current in this thread");
    return current[depth - 1];
}

CUcontext standin_context(int device)
{
    return (CUcontext)(void *)&devices[device].context;
}

CUresult standin_lost(int device)
{
    return (CUresult)atomic_load(&devices[device].lost);
}

void standin_lose(int device, CUresult error)
{
    atomic_store(&devices[device].lost, (int)error);
}

CUresult cuInit(unsigned int flags)
{
    ENTER_FAILS(FAILED);
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDriverGetVersion(int *version)
{
    ENTER_FAILS(FAILED);
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    *name = error == CUDA_ERROR_OUT_OF_MEMORY     ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                                  : "CUDA_ERROR_UNKNOWN";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    ENTER_FAILS(FAILED);
    *count = standin_devices();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER_FAILS(FAILED);
    *device = ordinal;
    return ordinal >= 0 && ordinal < standin_devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* STANDIN_CUDA_ORDER "1,0": what this process calls 0 is the machine's 1. */
int standin_machine_number(int device)
{
    const char *order = getenv("STANDIN_CUDA_ORDER");
    if (!order)
        order = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; order && i < device; i++)
        order = strchr(order, ',') ? strchr(order, ',') + 1 : NULL;
    return order ? atoi(order) : device;
}

int standin_local_number(int machine)
{
    for (int device = 0; device < standin_devices(); device++)
        if (standin_machine_number(device) == machine)
            return device;
    return -1;
}

void standin_cuda_peers(int allowed)
{
    atomic_store(&peers_refused, !allowed);
}

bool standin_can_reach(int device, int machine)
{
    return standin_machine_number(device) == machine || (!atomic_load(&peers_refused) && !getenv("STANDIN_CUDA_NO_PEERS"));
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    ENTER_FAILS(FAILED);
    if (device < 0 || device >= standin_devices() || peer < 0 || peer >= standin_devices())
        return CUDA_ERROR_INVALID_DEVICE;
    /* Of one and the same device CUDA says no. */
    *can = device != peer && standin_can_reach(device, standin_machine_number(peer));
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    ENTER_FAILS(FAILED);
    device = standin_machine_number(device);
    memset(uuid, 0x5A + device, sizeof *uuid);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER_FAILS(FAILED);
    (void)device;
    *value = attribute == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID                 ? 0
             : attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED ? getenv("STANDIN_CUDA_FABRIC") != NULL
                                                                             : 1;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    ENTER_FAILS(FAILED);
    atomic_fetch_add(&devices[device].retained, 1);
    standin_count(1);
    *out = standin_context(device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    bool fails = standin_enter(__func__);
    int before = atomic_fetch_sub(&devices[device].retained, 1);
    if (before == 0)
        standin_die(__func__, "released more often than retained");
    if (before == 1)
        standin_lose(device, CUDA_SUCCESS);
    standin_count(-1);
    return fails ? FAILED : CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext wanted)
{
    ENTER_FAILS(FAILED);
    for (int device = 0; device < standin_devices(); device++) {
        if (wanted != standin_context(device))
            continue;
        if (atomic_load(&devices[device].retained) == 0 || depth == DEPTH_MAX)
            standin_die(__func__, "the context of device %d is not live, or %d are pushed", device, depth);
        current[depth++] = device;
        return CUDA_SUCCESS;
    }
    standin_die(__func__, "not a context");
}

CUresult cuCtxPopCurrent(CUcontext *out)
{
    bool fails = standin_enter(__func__);
    if (depth == 0)
        standin_die(__func__, "no context is current in this thread");
    *out = standin_context(current[--depth]);
    return fails ? FAILED : CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *out)
{
    *out = depth > 0 ? standin_context(current[depth - 1]) : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER_CONTEXT(FAILED);
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    uint32_t magic;
    ENTER_CONTEXT(FAILED);
    memcpy(&magic, image, sizeof magic);
    if (magic != 0xBA55ED50u)
        standin_die(__func__, "not a fatbin");
    standin_count(1);
    *out = (CUmodule)(void *)&module;
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule gone)
{
    bool fails = standin_enter(__func__);
    if ((void *)gone != &module)
        standin_die(__func__, "not a module");
    standin_count(-1);
    return fails ? FAILED : CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule from, const char *name)
{
    ENTER_FAILS(FAILED);
    if ((void *)from != &module)
        standin_die(__func__, "not a module");
    if (strcmp(name, "refit_move") == 0)
        *out = (CUfunction)(void *)&standin_move_function;
    else if (strcmp(name, "refit_exchange") == 0)
        *out = (CUfunction)(void *)&standin_exchange_function;
    else
        return CUDA_ERROR_NOT_FOUND;
    return CUDA_SUCCESS;
}
