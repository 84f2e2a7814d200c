/* SPDX-License-Identifier: Apache-2.0
 *
 * A few threads for what may block (a rollback waits for readers, an epoch is written to disk, a layout of 64 MiB is
 * parsed), so that the event loop never does. A job's `run` is called on a worker, its `done` on the loop's thread, in
 * refit_workers_collect. How many jobs there are is bounded by whoever submits: one per HTTP connection.
 */
#ifndef REFIT_SIDECAR_WORKERS_H
#define REFIT_SIDECAR_WORKERS_H

#include "base/error.h"

struct refit_job {
    void (*run)(struct refit_job *job);
    void (*done)(struct refit_job *job); /* owns the job from then on */
    struct refit_job *next;              /* of the pool while it has the job */
};

struct refit_workers;

/* `wake` is called on a worker whenever there is something to collect. *out is new. */
REFIT_MUST_CHECK enum refit_status refit_workers_start(unsigned threads, void (*wake)(void *context), void *context,
                                                       struct refit_workers **out, struct refit_error *err);
void refit_workers_submit(struct refit_workers *workers, struct refit_job *job);
void refit_workers_collect(struct refit_workers *workers);
/* Runs what is queued, joins the threads, collects. NULL is fine. */
void refit_workers_stop(struct refit_workers *workers);

#endif
