/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread that takes one replica through its refit. (Internal to follower.c, begin.c and conductor.c.)
 */
#ifndef REFIT_SENDER_FOLLOWER_H
#define REFIT_SENDER_FOLLOWER_H

#include "sender/replica.h"

#define REFIT_CALL_MS 15000    /* one small request */
#define REFIT_UPLOAD_MS 60000  /* a layout, either way */
#define REFIT_PATIENCE_MS 3000 /* with a replica that can't be led yet (restarting, no engine), or has gone silent */
#define REFIT_AGAIN_MS 100     /* between attempts */

void *refit_follower_run(void *replica); /* a thread's body */

/* begin.c: the refit is requested, its ticket is in the replica. What another process, or another lead, made stale is
 * asked for again, once. */
REFIT_MUST_CHECK enum refit_status refit_follower_begin(struct refit_replica *replica, struct refit_error *err);

/* `ms` from now, or the publish's deadline. */
struct refit_deadline refit_follower_deadline(const struct refit_replica *replica, int64_t ms);
/* Until something changes at the lead, or the time is over; not at all once the publish is given up. */
void refit_follower_pause(struct refit_replica *replica, int64_t ms);
/* The same call may succeed soon. */
bool refit_follower_may_pass(enum refit_status status);

#endif
