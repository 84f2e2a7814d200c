/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of a driver share. The bank lets one install run at a time; what only installs touch is theirs, what
 * others read is under the lock.
 */
#ifndef REFIT_DRIVERS_DRIVER_INTERNAL_H
#define REFIT_DRIVERS_DRIVER_INTERNAL_H

#include <pthread.h>

#include "drivers/driver.h"
#include "drivers/engine.h"
#include "drivers/export.h"

#define REFIT_DRIVER_LATE_LOOKS 60

struct refit_driver {
    /* fixed once started */
    const struct refit_driver_engine *engine;
    struct refit_driver_link link;
    int64_t load_ms, poll_ms;
    char path[REFIT_EXPORT_PATH_MAX / 2];
    int directory;
    struct refit_bank_engine hooks;
    struct refit_bank *bank; /* borrowed */
    void (*notify)(void *context);
    void *notify_context;

    pthread_mutex_t exporting; /* taken before the lock */
    struct refit_export export; /* under `exporting`; an install that took it reads it without */
    bool export_taken;          /* likewise */
    pthread_mutex_t changing;   /* held while the engine is changed, paused, resumed; taken before the others */
    bool unanswered;            /* under `changing`: a load was sent whose answer never came */
    unsigned late_pause;        /* likewise: looks for which a pause that was never answered may still come */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct refit_driver_snapshot now;
    uint64_t serial; /* of the latest install: what was seen before it is old */
    bool stopping;
    bool torn;       /* not whole for another reason than that the engine did not answer */
    unsigned silent;          /* looks in a row that timed out */
    int64_t again_ns, pause_ms; /* the next reinstall: not before, and how long it waits after a failure */

    pthread_t thread;
    bool thread_runs;
};

/* The engine has this version, whole, and generates: in the snapshot, and for a restarted refitd. */
void refit_driver_whole(struct refit_driver *driver, const struct refit_version *version);
/* It does not. */
__attribute__((format(printf, 2, 3)))
void refit_driver_broken(struct refit_driver *driver, const char *format, ...);

/* What a restarted refitd must know: which version the engine has, or that it was being changed. */
REFIT_MUST_CHECK enum refit_status refit_driver_mark(struct refit_driver *driver, const struct refit_version *version,
                                                     bool whole, struct refit_error *err);
void refit_driver_version_text(const struct refit_version *version, char out[static REFIT_DRIVER_VERSION_MAX]);

/* --- install.c: the bank's hooks */
enum refit_status refit_driver_prepare(void *context, const struct refit_bank_copy *copy,
                                       struct refit_deadline deadline,
                                       const atomic_bool *cancel, struct refit_error *err);
enum refit_status refit_driver_install(void *context, const struct refit_bank_copy *to,
                                       const struct refit_bank_copy *from,
                                       const char *kv, struct refit_deadline deadline, struct refit_error *err);
void refit_driver_forget(void *context, const struct refit_version *version);

#endif
