/* SPDX-License-Identifier: Apache-2.0
 *
 * Waits on sockets that end at once when the endpoint's wake descriptor becomes readable. All sockets are non-blocking.
 */
#ifndef REFIT_TRANSPORT_WIRE_H
#define REFIT_TRANSPORT_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "base/error.h"

#define REFIT_FOREVER ((struct refit_deadline){.at_ns = INT64_MAX})

/* Until `fd` has one of `events` (or an error to report): REFIT_OK, REFIT_TIMEOUT, REFIT_ABORTED. */
REFIT_MUST_CHECK enum refit_status refit_wire_wait(int fd, short events, int wake, struct refit_deadline deadline,
                                                   struct refit_error *err);
/* All of `iov`, which is used up. `flags`: MSG_MORE or 0. */
REFIT_MUST_CHECK enum refit_status refit_wire_send(int fd, struct iovec *iov, int count, int flags, int wake,
                                                   struct refit_deadline deadline, struct refit_error *err);

/* Drops the first `bytes` of the iovecs from *first on; returns the index of the first one that is not used up. */
int refit_iov_drop(struct iovec *iov, int first, int count, size_t bytes);

/* errno means that the connection is gone, not that something is wrong on this host. */
bool refit_wire_is_hangup(int errnum);

#endif
