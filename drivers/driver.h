/* SPDX-License-Identifier: Apache-2.0
 *
 * A driver: it stands in the bank for an engine that has weights of its own and is told over HTTP to load others.
 *
 * Such an engine is changed in place, while it is paused. What holds (docs/drivers.md):
 *   - it is resumed only with weights that were loaded whole and whose version it says it has;
 *   - when an install fails, the version before is installed again from its slot, still paused; when that fails, too,
 *     it stays paused, refit_driver_read says so, and the version is installed again later, until that succeeds;
 *   - an engine that comes back with other weights (it was restarted) gets the active version again;
 *   - a restarted refitd knows from its state file what the engine must have, and that it was cut off in between.
 *
 * Threads: one of its own, which looks at the engine; every function is thread-safe.
 */
#ifndef REFIT_DRIVERS_DRIVER_H
#define REFIT_DRIVERS_DRIVER_H

#include "receiver/bank.h"

#define REFIT_DRIVER_VERSION_MAX 128 /* of a weight_version, with its NUL */

/* How vLLM is given a path: its worker method reload_weights by /collective_rpc, or a weight transfer backend that
 * takes {"path": ...} by /start_weight_update, /update_weights, /finish_weight_update. */
enum refit_driver_load { REFIT_DRIVER_LOAD_RPC, REFIT_DRIVER_LOAD_TRANSFER };

struct refit_driver_config {
    const char *engine;    /* "vllm=http://127.0.0.1:8000", "sglang=http://127.0.0.1:30000" */
    const char *directory; /* where weights are written for the engine; made if it is not there */
    enum refit_driver_load load;
    int64_t call_ms;       /* longest time of a call that moves no weights; 0: 30000 */
    int64_t load_ms;       /* longest time of loading what was served before; 0: 600000 */
    int64_t poll_ms;       /* how often the engine is looked at; 0: 1000 */
};

struct refit_driver;

REFIT_MUST_CHECK enum refit_status refit_driver_check_engine(const char *text, struct refit_error *err);

/* Makes the directory, and empties it of what an earlier process left. *out is new. */
REFIT_MUST_CHECK enum refit_status refit_driver_create(const struct refit_driver_config *config,
                                                       struct refit_driver **out, struct refit_error *err);
const struct refit_bank_engine *refit_driver_hooks(struct refit_driver *driver); /* borrowed, for refit_bank_config */
/* Once the bank is open: reads what its state file says of the engine, and starts to look at it. `notify` (may be NULL)
 * is called from any thread when what refit_driver_read tells has changed. */
REFIT_MUST_CHECK enum refit_status refit_driver_start(struct refit_driver *driver, struct refit_bank *bank,
                                                      void (*notify)(void *context), void *context,
                                                      struct refit_error *err);
/* Before the bank is closed. Waits for an install that it began itself. */
void refit_driver_stop(struct refit_driver *driver);
void refit_driver_destroy(struct refit_driver *driver); /* after the bank was closed; NULL is fine */

struct refit_driver_snapshot {
    char engine[16];                        /* "vllm" */
    bool looked;                            /* the engine answered once, or an install was tried */
    bool whole;                             /* the engine has `version`, whole, and generates with it */
    bool installing;
    struct refit_version version;           /* installed last */
    char found[REFIT_DRIVER_VERSION_MAX];   /* what the engine said last */
    char reason[REFIT_ERROR_TEXT_MAX];      /* not whole: why, and what will happen */
    uint64_t installs, failures, restores;  /* versions installed, installs that failed, of those taken back */
    int64_t write_ns, load_ns, paused_ns;   /* of the last install: writing the file, loading it, the engine's pause */
};
void refit_driver_read(struct refit_driver *driver, struct refit_driver_snapshot *out);

#endif
