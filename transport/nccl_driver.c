/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nccl_driver.h"
#include "transport/nccl_member.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnccl.so.2"
#define OLDEST 21900 /* ncclCommRegister; a non-blocking init that aborts cleanly is older */
#define MULTI_RANK_SINCE 23003

static struct refit_nccl_driver loaded;
static bool ready;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The one a trainer has loaded comes first: two NCCL in a process each take memory and threads of every GPU. */
static enum refit_status open_library(struct refit_error *err)
{
    const char *path = getenv("REFIT_NCCL_LIBRARY");
    if (path && *path != '\0')
        loaded.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    else
        loaded.library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!loaded.library && !(path && *path != '\0'))
        loaded.library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    return loaded.library ? REFIT_OK : refit_fail(err, REFIT_UNSUPPORTED, "%s", dlerror());
}

static enum refit_status too_old(const char *reason, struct refit_error *err)
{
    return refit_fail(err, REFIT_UNSUPPORTED, LIBRARY ": %s; NCCL %d.%d or newer is needed", reason, OLDEST / 10000,
                      OLDEST % 10000 / 100);
}

static enum refit_status resolve(void **function, const char *name, struct refit_error *err)
{
    char reason[80];
    *function = dlsym(loaded.library, name);
    if (*function)
        return REFIT_OK;
    snprintf(reason, sizeof reason, "lacks %s", name);
    return too_old(reason, err);
}

static enum refit_status resolve_all(struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
#define RESOLVE(name)       \
    if (status == REFIT_OK) \
        status = resolve((void **)(void *)&loaded.name, #name, err);
    REFIT_NCCL_CALLS(RESOLVE)
#undef RESOLVE
#define RESOLVE_NEWER(name) *(void **)(void *)&loaded.name = dlsym(loaded.library, #name);
    REFIT_NCCL_NEWER_CALLS(RESOLVE_NEWER)
#undef RESOLVE_NEWER
    return status;
}

static enum refit_status probe_version(struct refit_error *err)
{
    char reason[80], text[REFIT_NCCL_VERSION_TEXT_MAX];
    enum refit_status status = NCCL(&loaded, NULL, err, ncclGetVersion, &loaded.version);
    if (status != REFIT_OK || loaded.version >= OLDEST)
        return status;
    refit_nccl_version_text(loaded.version, text);
    snprintf(reason, sizeof reason, "is version %s", text);
    return too_old(reason, err);
}

static unsigned capabilities(const struct refit_nccl_driver *d)
{
    unsigned found = d->ncclCommShrink ? REFIT_NCCL_SHRINK : 0;
    if (d->ncclCommRevoke)
        found |= REFIT_NCCL_REVOKE;
    if (d->ncclCommGetUniqueId && d->ncclCommGrow)
        found |= REFIT_NCCL_GROW;
    if (d->ncclCommWindowRegister && d->ncclCommWindowDeregister && d->ncclPutSignal && d->ncclWaitSignal)
        found |= REFIT_NCCL_ONE_SIDED;
    if (d->version >= MULTI_RANK_SINCE)
        found |= REFIT_NCCL_MULTI_RANK_GPU;
    return found;
}

/* The library stays open: its threads do not survive dlclose. */
static enum refit_status load(struct refit_error *err)
{
    enum refit_status status = loaded.library ? REFIT_OK : open_library(err);
    if (status == REFIT_OK)
        status = resolve_all(err);
    if (status == REFIT_OK)
        status = probe_version(err);
    loaded.capabilities = status == REFIT_OK ? capabilities(&loaded) : 0;
    return status;
}

enum refit_status refit_nccl_driver(const struct refit_nccl_driver **out, struct refit_error *err)
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

static enum refit_status status_of(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
    case ncclInProgress: return REFIT_OK;
    case ncclRemoteError:
    case ncclSystemError: return REFIT_PEER;
    case ncclTimeout: return REFIT_TIMEOUT;
    case ncclInvalidArgument: return REFIT_INVALID;
    case ncclInvalidUsage: return REFIT_UNSUPPORTED;
    default: return REFIT_SYSTEM;
    }
}

enum refit_status refit_nccl_check(const struct refit_nccl_driver *driver, ncclComm_t comm, ncclResult_t result,
                                   const char *call, struct refit_error *err)
{
    enum refit_status status = status_of(result);
    if (status == REFIT_OK)
        return REFIT_OK;
    const char *last = driver->ncclGetLastError(comm);
    bool more = last && *last != '\0';
    return refit_fail(err, status, "%s: %s (%d)%s%.*s", call, driver->ncclGetErrorString(result), (int)result,
                      more ? ": " : "", more ? (int)strcspn(last, "\n") : 0, more ? last : "");
}

void refit_nccl_describe(char *text, size_t size)
{
    static const char *const names[] = {"shrink", "revoke", "grow", "one-sided", "several ranks per GPU"};
    const struct refit_nccl_driver *driver;
    char version[REFIT_NCCL_VERSION_TEXT_MAX];
    struct refit_error err;
    if (refit_nccl_driver(&driver, &err) != REFIT_OK) {
        snprintf(text, size, "built for %d.%d; %s", NCCL_MAJOR, NCCL_MINOR, err.text);
        return;
    }
    refit_nccl_version_text(driver->version, version);
    int used = snprintf(text, size, "built for %d.%d; " LIBRARY " %s", NCCL_MAJOR, NCCL_MINOR, version);
    const char *between = ": ";
    for (unsigned i = 0; i < sizeof names / sizeof *names && used > 0 && (size_t)used < size; i++) {
        if ((driver->capabilities & 1u << i) == 0)
            continue;
        used += snprintf(text + used, size - (size_t)used, "%s%s", between, names[i]);
        between = ", ";
    }
    if (used > 0 && (size_t)used + 2 < size) {
        used += snprintf(text + used, size - (size_t)used, "; ");
        refit_nccl_reshard_describe(text + used, size - (size_t)used);
    }
}
