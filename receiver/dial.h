/* SPDX-License-Identifier: Apache-2.0
 *
 * This process as a holder for one receiver: dials it, again when it is not there yet or was lost, and serves it
 * until it says that it needs no more.
 */
#ifndef REFIT_RECEIVER_DIAL_H
#define REFIT_RECEIVER_DIAL_H

#include <pthread.h>

#include "transport/transport.h"

#define REFIT_DIAL_PATHS_MAX 3

struct refit_dial_path {
    const struct refit_transport *transport;
    const json_t *card; /* borrowed */
};

struct refit_dial {
    struct refit_endpoint_config config; /* of the holder; what it points to is borrowed */
    struct refit_dial_path path[REFIT_DIAL_PATHS_MAX]; /* the one to be tried first is first */
    size_t paths;
    struct refit_deadline deadline;

    /* private */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopping, connected; /* under the lock, as the endpoint */
    const struct refit_transport *transport;
    struct refit_endpoint *endpoint;
    uint64_t sent_bytes; /* by endpoints that were closed */
};

/* The public members are set by the caller, before or after. */
REFIT_MUST_CHECK enum refit_status refit_dial_init(struct refit_dial *dial, struct refit_error *err);
void refit_dial_release(struct refit_dial *dial); /* after run has returned, if it was called */

/* REFIT_OK: it needs no more, or has ended its refit. REFIT_ABORTED: stopped. REFIT_TIMEOUT. Blocks; nothing of the
 * endpoint is left when it returns. */
REFIT_MUST_CHECK enum refit_status refit_dial_run(struct refit_dial *dial, struct refit_error *err);
/* Any thread: run returns soon, and no byte is read once it has; bounded by REFIT_ABORT_MS. */
void refit_dial_stop(struct refit_dial *dial);
bool refit_dial_is_connected(struct refit_dial *dial);
uint64_t refit_dial_sent(struct refit_dial *dial); /* planned bytes */

#endif
