/* SPDX-License-Identifier: Apache-2.0
 *
 * The fast path of `nccl`: at a refit's beginning one collective per tensor moves what it can (docs/gpu.md), and what
 * it put in place is then granted as ever, but for the wire.
 *
 *   receiver                          every holder
 *   (takes the turns of its devices)
 *   SHARD {tag, ranks, id, list} -->  (tries for its device's turn)
 *                                <--  STARTED {tag}, or DENIED {tag}
 *   RUN {tag}                    -->  when all have STARTED
 *      member of each device   ====   member of each
 *                                <--  RAN {tag, status}
 *   PAUSE {tag}                  -->  all are through, or it is given up: turns are given back
 *
 * Until then nothing is granted. Whatever goes wrong ends the fast path, not the refit.
 */
#ifndef REFIT_TRANSPORT_NCCL_RESHARD_H
#define REFIT_TRANSPORT_NCCL_RESHARD_H

#include "transport/nccl_member.h"
#include "transport/nccl_receiver.h"
#include "transport/nccl_sending.h"

/* ---- the receiver: a thread of its own; functions with the ledger's lock held, but open, join and release ---- */

struct refit_nccl_reshard;

/* receiver->reshard, when the fast path is on here and its plan and memory allow it; else NULL. After all lanes. */
REFIT_MUST_CHECK enum refit_status refit_nccl_reshard_open(struct refit_nccl_receiver *receiver,
                                                           struct refit_error *err);
void refit_nccl_reshard_join(struct refit_nccl_receiver *receiver); /* stopped */
void refit_nccl_reshard_release(struct refit_nccl_receiver *receiver);

/* Nothing is to be granted yet. */
bool refit_nccl_reshard_holds(const struct refit_nccl_receiver *receiver);
/* The batch is in place, as far as is known. */
bool refit_nccl_reshard_placed(const struct refit_nccl_receiver *receiver, struct refit_grant grant);
/* One that was thought so is not: no more is placed. */
void refit_nccl_reshard_distrust(struct refit_nccl_receiver *receiver);
/* A holder was greeted. */
void refit_nccl_reshard_greeted(struct refit_nccl_flow *flow);
/* False: the frame is none of the fast path's. */
bool refit_nccl_reshard_take(struct refit_nccl_flow *flow);

/* ---- a holder, on its connection's thread ---- */

/* What it says in HELLO: whether the card's library is ours, and our rank. */
void refit_nccl_sharing_offer(struct refit_nccl_sending *sending, const char *card_id);
REFIT_MUST_CHECK enum refit_status refit_nccl_sharing_ask(struct refit_nccl_sending *sending, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_nccl_sharing_run(struct refit_nccl_sending *sending, struct refit_error *err);
/* False: the PAUSE is for a burst. */
bool refit_nccl_sharing_pause(struct refit_nccl_sending *sending);
REFIT_MUST_CHECK enum refit_status refit_nccl_sharing_step(struct refit_nccl_sending *sending, struct refit_error *err);
void refit_nccl_sharing_break_off(struct refit_nccl_sending *sending);
void refit_nccl_sharing_release(struct refit_nccl_sending *sending);

#endif
