/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "memory/cuda.h"

#define LIBRARY "libcuda.so.1"
#define LOST "; this process can use the device no more: restart it"
#define TEXT_OF(name) #name
#define NAME_OF(name) TEXT_OF(name) /* expands cuda.h's macros, which put versions behind names */

static struct refit_cuda_driver loaded;
static bool ready;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static enum refit_status resolve(void **function, const char *name, struct refit_error *err)
{
    *function = dlsym(loaded.library, name);
    if (*function)
        return REFIT_OK;
    return refit_fail(err, REFIT_UNSUPPORTED, LIBRARY ": lacks %s; a driver for CUDA %d.%d or newer is needed",
                      name, CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
}

static enum refit_status resolve_all(struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
#define RESOLVE(name)        \
    if (status == REFIT_OK)  \
        status = resolve((void **)(void *)&loaded.name, NAME_OF(name), err);
    REFIT_CUDA_CALLS(RESOLVE)
#undef RESOLVE
    return status;
}

static enum refit_status start(struct refit_error *err)
{
    enum refit_status status = CUDA(&loaded, err, cuInit, 0);
    if (status == REFIT_OK)
        status = CUDA(&loaded, err, cuDriverGetVersion, &loaded.version);
    if (status == REFIT_OK)
        status = CUDA(&loaded, err, cuDeviceGetCount, &loaded.devices);
    return status;
}

/* The library stays open: threads of a driver do not survive dlclose. */
static enum refit_status load(struct refit_error *err)
{
    if (!loaded.library)
        loaded.library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!loaded.library)
        return refit_fail(err, REFIT_UNSUPPORTED, "%s", dlerror());
    enum refit_status status = resolve_all(err);
    return status == REFIT_OK ? start(err) : status;
}

enum refit_status refit_cuda_driver(const struct refit_cuda_driver **out, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    pthread_mutex_lock(&lock);
    if (!ready)
        status = load(err);
    ready = status == REFIT_OK;
    pthread_mutex_unlock(&lock);
    *out = &loaded;
    return status;
}

/* What work that was queued has done, by whomever: all calls of the context fail from then on. */
static bool is_sticky(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT: return true;
    default: return false;
    }
}

enum refit_status refit_cuda_check(const struct refit_cuda_driver *driver, CUresult result, const char *call,
                                   struct refit_error *err)
{
    const char *name = NULL;
    if (result == CUDA_SUCCESS)
        return REFIT_OK;
    if (driver->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        name = "an error without a name";
    return refit_fail(err, result == CUDA_ERROR_OUT_OF_MEMORY ? REFIT_NO_MEMORY : REFIT_SYSTEM, "%s: %s (%d)%s", call,
                      name, (int)result, is_sticky(result) ? LOST : "");
}

enum refit_status refit_cuda_probe(struct refit_error *err)
{
    const struct refit_cuda_driver *driver;
    enum refit_status status = refit_cuda_driver(&driver, err);
    if (status == REFIT_OK && driver->devices == 0)
        status = refit_fail(err, REFIT_UNSUPPORTED, LIBRARY ": the driver has no device");
    return status;
}

void refit_cuda_describe(char *text, size_t size)
{
    const struct refit_cuda_driver *driver;
    struct refit_error err;
    if (refit_cuda_driver(&driver, &err) != REFIT_OK)
        snprintf(text, size, "built for %d.%d; %s", CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10, err.text);
    else
        snprintf(text, size, "built for %d.%d; driver for %d.%d, %d device%s", CUDA_VERSION / 1000,
                 CUDA_VERSION % 1000 / 10, driver->version / 1000, driver->version % 1000 / 10, driver->devices,
                 driver->devices == 1 ? "" : "s");
}
