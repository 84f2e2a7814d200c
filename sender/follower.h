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

/* begin.c: known, led, part of the fleet; then the refit is requested, its ticket is in the replica. What another process,
 * or another lead, made stale is asked for again, once. */
REFIT_MUST_CHECK enum refit_status refit_follower_begin(struct refit_replica *replica, struct refit_error *err);
/* The request alone, by another way (fell_back). */
REFIT_MUST_CHECK enum refit_status refit_follower_begin_again(struct refit_replica *replica, struct refit_error *err);

/* Fed by members of another layout, not by the trainer. */
bool refit_replica_is_served(const struct refit_replica *replica);
/* lend.c: asks those that serve its class and have not accepted yet. Errors are for later attempts. */
void refit_follower_ask_servers(struct refit_replica *replica);
/* None of those that serve its class is left. */
bool refit_follower_is_deserted(const struct refit_replica *replica);

/* commit.c: at the barrier and after it. */
REFIT_MUST_CHECK enum refit_status refit_follower_wait_verdict(struct refit_replica *replica, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_follower_commit(struct refit_replica *replica, struct refit_error *err);
/* One that is committed waits for its seal, and goes back when it has to. */
REFIT_MUST_CHECK enum refit_status refit_follower_wait_seal(struct refit_replica *replica, struct refit_error *err);

/* One look at the refit. A call that fails is forgiven for REFIT_PATIENCE_MS, unless another process answers there. */
REFIT_MUST_CHECK enum refit_status refit_follower_look(struct refit_replica *replica, int64_t after, int64_t wait_ms,
                                                       int64_t *silent_since_ns, struct refit_control_state *state,
                                                       struct refit_error *err);
void refit_follower_take_state(struct refit_replica *replica, const struct refit_control_state *state);
REFIT_MUST_CHECK enum refit_status refit_follower_fail_aborted(const struct refit_replica *replica,
                                                               const struct refit_control_state *state,
                                                               struct refit_error *err);
/* Another process answers there than the one that was led. */
bool refit_replica_is_replaced(const struct refit_replica *replica);

/* `ms` from now, or the publish's deadline. */
struct refit_deadline refit_follower_deadline(const struct refit_replica *replica, int64_t ms);
/* That long; no longer once the publish is given up. */
void refit_follower_pause(struct refit_replica *replica, int64_t ms);
/* The publish is over for all, or for this one. */
bool refit_follower_given_up(struct refit_replica *replica, struct refit_error *err);
/* The same call may succeed soon. */
bool refit_follower_may_pass(enum refit_status status);

#endif
