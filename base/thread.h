/* SPDX-License-Identifier: Apache-2.0
 *
 * Starting threads in a process that may be somebody else's.
 */
#ifndef REFIT_BASE_THREAD_H
#define REFIT_BASE_THREAD_H

#include <pthread.h>

#include "base/error.h"

/* With all signals blocked: they are for the application's own threads. `what` names the thread in the error. */
REFIT_MUST_CHECK enum refit_status refit_thread_start(pthread_t *thread, void *(*run)(void *context), void *context,
                                                      const char *what, struct refit_error *err);

#endif
