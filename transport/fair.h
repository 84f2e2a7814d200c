/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns among the members that one process sends to at a time.
 *
 * Connections share a link as their congestion control has it: for seconds one may get twice what another gets. Members
 * that pass on what they get have to be equally far, or what the last one still has goes through its own link to all
 * others while theirs are idle. So nobody is sent more than a lead beyond the member that was sent least. That one is
 * waited for only
 *
 * - while it has something to be sent;
 * - while its connection takes bytes: one that is stopped or lost takes none;
 * - while the link is used: where waiting halves what all are sent together, its own path is slow. It is then set
 *   apart, each time for longer.
 *
 * Whoever was not waited for comes back at most a lead behind. Functions of one object may be called from any thread.
 */
#ifndef REFIT_TRANSPORT_FAIR_H
#define REFIT_TRANSPORT_FAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct refit_fair;

/* One member: a holder's endpoint. */
struct refit_fair_member {
    struct refit_fair *fair; /* NULL: takes no turns, and all below does nothing */
    struct refit_fair_member *next;
    uint64_t lead;             /* bytes */
    uint64_t sent;             /* bytes; lifted when it was not waited for */
    unsigned busy;             /* connections that have something to send */
    bool counted;              /* is waited for */
    unsigned times_apart;
    int64_t moved_ns, gap_ns;  /* when its connection last took bytes; how long that usually takes */
    int64_t apart_until_ns;
};

/* One connection of a member, on its thread. */
struct refit_fair_place {
    struct refit_fair_member *member;
    struct refit_fair_place *next;
    int fd;                    /* eventfd that is written when it may be this one's turn; borrowed */
    bool busy, waiting;
};

REFIT_MUST_CHECK enum refit_status refit_fair_create(struct refit_fair **out, struct refit_error *err);
void refit_fair_destroy(struct refit_fair *fair); /* after all have left; NULL is fine */

void refit_fair_join(struct refit_fair_member *member, struct refit_fair *fair, uint64_t lead);
void refit_fair_leave(struct refit_fair_member *member);
void refit_fair_open(struct refit_fair_place *place, struct refit_fair_member *member, int fd);
void refit_fair_close(struct refit_fair_place *place);

/* It has a batch to send: may it now? If not, its fd is written later; ask again after 100 ms at the latest, for time
 * alone may change the answer. */
bool refit_fair_may_send(struct refit_fair_place *place, int64_t now_ns);
/* Its connection took so many bytes. */
void refit_fair_sent(struct refit_fair_place *place, uint64_t bytes, int64_t now_ns);
/* It has nothing to send. */
void refit_fair_rest(struct refit_fair_place *place, int64_t now_ns);

#endif
