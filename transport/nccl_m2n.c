/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nccl_m2n.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "transport/nccl_member.h"

#define LIBRARY "libnccl_m2n.so"

static struct refit_nccl_m2n loaded;
static bool ready;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- which library ---- */

static void write_id(const uint8_t *bytes, size_t count)
{
    size_t at = (size_t)snprintf(loaded.id, sizeof loaded.id, "%u-", NCCL_M2N_API_VERSION);
    for (size_t i = 0; i < count && at + 2 < sizeof loaded.id; i++)
        at += (size_t)snprintf(loaded.id + at, sizeof loaded.id - at, "%02x", bytes[i]);
}

/* A note segment is loaded memory: its sizes are the linker's. */
static void read_notes(const uint8_t *at, size_t bytes)
{
    while (bytes >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) note;
        memcpy(&note, at, sizeof note);
        size_t name = (note.n_namesz + 3u) & ~(size_t)3, text = (note.n_descsz + 3u) & ~(size_t)3;
        if (name > bytes - sizeof note || text > bytes - sizeof note - name)
            return;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(at + sizeof note, "GNU", 4) == 0)
            write_id(at + sizeof note + name, note.n_descsz);
        at += sizeof note + name + text;
        bytes -= sizeof note + name + text;
    }
}

static int read_object(struct dl_phdr_info *object, size_t size, void *function)
{
    bool ours = false;
    (void)size;
    for (ElfW(Half) i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + part->p_vaddr;
        ours |= part->p_type == PT_LOAD && (uintptr_t)function >= start && (uintptr_t)function - start < part->p_memsz;
    }
    for (ElfW(Half) i = 0; ours && i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_NOTE)
            read_notes((const uint8_t *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr),
                       object->dlpi_phdr[i].p_memsz);
    return ours;
}

static enum refit_status find_id(struct refit_error *err)
{
    loaded.id[0] = '\0';
    dl_iterate_phdr(read_object, dlsym(loaded.library, "ncclReshard"));
    if (loaded.id[0] != '\0')
        return REFIT_OK;
    return refit_fail(err, REFIT_UNSUPPORTED, LIBRARY ": has no build id, which tells whether both ends have the same");
}

/* A communicator of one NCCL is no good to another. */
static enum refit_status check_nccl(struct refit_error *err)
{
    void *theirs = dlsym(loaded.library, "ncclGetVersion");
    if (theirs != dlsym(loaded.nccl->library, "ncclGetVersion"))
        return refit_fail(err, REFIT_UNSUPPORTED, LIBRARY ": is bound to another libnccl.so.2 than Refit");
    if (loaded.nccl->version < NCCL_M2N_MIN_NCCL_VERSION_CODE)
        return refit_fail(err, REFIT_UNSUPPORTED, LIBRARY ": takes NCCL 2.30.5 or newer, and %d is here",
                          loaded.nccl->version);
    return loaded.nccl->ncclCommRevoke ? REFIT_OK : refit_fail(err, REFIT_UNSUPPORTED, "NCCL lacks ncclCommRevoke");
}

/* ---- opening ---- */

static enum refit_status resolve(void **function, const char *name, struct refit_error *err)
{
    *function = dlsym(loaded.library, name);
    return *function ? REFIT_OK : refit_fail(err, REFIT_UNSUPPORTED, LIBRARY ": lacks %s", name);
}

static enum refit_status resolve_all(struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
#define RESOLVE(name)       \
    if (status == REFIT_OK) \
        status = resolve((void **)(void *)&loaded.name, #name, err);
    REFIT_NCCL_M2N_CALLS(RESOLVE)
#undef RESOLVE
    return status;
}

/* NCCL comes first, so that what this library needs is found among what is open. It stays open, as NCCL does. */
static enum refit_status load(struct refit_error *err)
{
    const char *path = getenv("REFIT_NCCL_M2N_LIBRARY");
    enum refit_status status = refit_nccl_driver(&loaded.nccl, err);
    if (status != REFIT_OK)
        return status;
    if (!loaded.library)
        loaded.library = dlopen(path && *path != '\0' ? path : LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!loaded.library)
        return refit_fail(err, REFIT_UNSUPPORTED, "%s", dlerror());
    status = resolve_all(err);
    if (status == REFIT_OK)
        status = check_nccl(err);
    return status == REFIT_OK ? find_id(err) : status;
}

enum refit_status refit_nccl_m2n(const struct refit_nccl_m2n **out, struct refit_error *err)
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

enum refit_status refit_nccl_m2n_check(const struct refit_nccl_m2n *m2n, ncclResult_t result, const char *call,
                                       struct refit_error *err)
{
    if (result == ncclSuccess)
        return REFIT_OK;
    const char *detail = m2n->ncclM2nGetLastError();
    struct refit_error why;
    enum refit_status status = refit_nccl_check(m2n->nccl, NULL, result, call, &why);
    if (status == REFIT_OK) /* in progress: it says that it waits */
        status = REFIT_SYSTEM;
    return refit_fail(err, status, "%s: %s (%d)%s%.300s", call, m2n->nccl->ncclGetErrorString(result), (int)result,
                      detail && *detail != '\0' ? ": " : "", detail ? detail : "");
}

/* ---- its state ---- */

static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
static ncclM2nHandle_t handle;
static unsigned users;
static ncclComm_t *retired; /* owned */
static size_t retired_count;

enum refit_status refit_nccl_m2n_enter(const struct refit_nccl_m2n *m2n, ncclM2nHandle_t *out, struct refit_error *err)
{
    const ncclM2nConfig_t config = NCCL_M2N_CONFIG_INITIALIZER;
    enum refit_status status = REFIT_OK;
    pthread_mutex_lock(&state_lock);
    /* Room for the communicator that this user will leave. */
    ncclComm_t *more = reallocarray(retired, retired_count + users + 1, sizeof(ncclComm_t));
    if (!more)
        status = refit_fail_alloc(err, "communicators", (retired_count + users + 1) * sizeof(ncclComm_t));
    else
        retired = more;
    if (status == REFIT_OK && users == 0)
        status = M2N(m2n, err, ncclM2nInit, &handle, &config);
    if (status == REFIT_OK) {
        users++;
        *out = handle;
    }
    pthread_mutex_unlock(&state_lock);
    return status;
}

void refit_nccl_m2n_leave(const struct refit_nccl_m2n *m2n, ncclComm_t comm)
{
    struct refit_error err;
    pthread_mutex_lock(&state_lock);
    if (comm)
        retired[retired_count++] = comm;
    if (--users == 0) {
        if (M2N(m2n, &err, ncclM2nFinalize, handle) != REFIT_OK)
            refit_log_limited(REFIT_LOG_WARN, "NCCL M2N did not end cleanly", REFIT_LOG_CAUSE(&err));
        for (size_t i = 0; i < retired_count; i++)
            if (NCCL(m2n->nccl, NULL, &err, ncclCommAbort, retired[i]) != REFIT_OK)
                refit_log_limited(REFIT_LOG_WARN, "a communicator of a reshard did not abort cleanly",
                                  REFIT_LOG_CAUSE(&err));
        free(retired);
        retired = NULL;
        retired_count = 0;
        handle = NULL;
    }
    pthread_mutex_unlock(&state_lock);
}

/* ---- what was found ---- */

static bool is_wanted(void)
{
    const char *text = getenv("REFIT_NCCL_RESHARD");
    return text && strcmp(text, "on") == 0;
}

const char *refit_nccl_reshard_id(void)
{
    const struct refit_nccl_m2n *m2n;
    struct refit_error err;
    if (!is_wanted())
        return NULL;
    if (refit_nccl_m2n(&m2n, &err) == REFIT_OK)
        return m2n->id;
    refit_log_limited(REFIT_LOG_WARN, "REFIT_NCCL_RESHARD is on, and NCCL M2N can't be used", REFIT_LOG_CAUSE(&err));
    return NULL;
}

void refit_nccl_reshard_describe(char *text, size_t size)
{
    const struct refit_nccl_m2n *m2n;
    struct refit_error err;
    bool found = refit_nccl_m2n(&m2n, &err) == REFIT_OK;
    snprintf(text, size, "reshard %s: built for %d.%d.%d; %s%s", is_wanted() ? "on" : "off", NCCL_M2N_MAJOR,
             NCCL_M2N_MINOR, NCCL_M2N_PATCH, found ? LIBRARY " " : "", found ? m2n->id : err.text);
}
