/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <signal.h>

enum refit_status refit_thread_start(pthread_t *thread, void *(*run)(void *context), void *context, const char *what,
                                     struct refit_error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int errnum = pthread_create(thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return errnum == 0 ? REFIT_OK : refit_fail_errno(err, errnum, "cannot start %s", what);
}
