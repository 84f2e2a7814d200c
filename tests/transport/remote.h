/* SPDX-License-Identifier: Apache-2.0
 *
 * A holder in a process of its own, that can be killed or stopped.
 */
#ifndef REFIT_TESTS_TRANSPORT_REMOTE_H
#define REFIT_TESTS_TRANSPORT_REMOTE_H

#include <sys/types.h>

#include "tests/transport/world.h"

struct remote {
    pid_t pid;
    int to;
};

/* Source rank 0 as `holder`. Forked while this process has no other thread; waits for the card, then holds until the
 * receiver is done or gone. */
struct remote remote_start(struct world *world, uint32_t holder, uint64_t rate);
void remote_connect(const struct remote *remote, const json_t *card);
void remote_stop(const struct remote *remote); /* SIGSTOP, and waits until it has stopped */
/* Its status: 0 when the receiver was done, 3 when it was gone. */
int remote_wait(struct remote *remote);

#endif
