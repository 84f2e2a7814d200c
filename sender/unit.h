/* SPDX-License-Identifier: Apache-2.0
 *
 * A replica as one thing: one `refitd`, or several pods that must switch as one. And the course of a publish over all of
 * them: who may commit, when, and who has to go back. Pure bookkeeping: everything here is called with the lead's
 * lock held and only changes what followers and conductor then act upon.
 *
 * Pods commit in two waves: those without rank 0 first, then the one with it, whose leader names the version of every
 * step; that is the commit. Going back is the same the other way round.
 */
#ifndef REFIT_SENDER_UNIT_H
#define REFIT_SENDER_UNIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "layouts/layout.h"

struct refit_lead;
struct refit_replica;

enum refit_unit_state {
    REFIT_UNIT_GATHERING,  /* until all pods are staged */
    REFIT_UNIT_STAGED,     /* waits for its turn */
    REFIT_UNIT_FOLLOWERS,  /* pods without rank 0 are committing */
    REFIT_UNIT_LEADER,     /* the pod with rank 0 is */
    REFIT_UNIT_COMMITTED,  /* may still be taken back */
    REFIT_UNIT_REVERTING,  /* the pod with rank 0 goes back first */
    REFIT_UNIT_SEALED,     /* committed for good */
    REFIT_UNIT_FAILED,
};

struct refit_unit {
    uint32_t number;
    struct refit_replica **pods; /* rank 0's first; points into the lead's array */
    size_t pod_count;
    enum refit_unit_state state;
    char model[REFIT_SHA256_HEX_MAX]; /* of all its pods together, once all are staged; empty: not known */
    bool asked; /* its pods were told to look once more */
    struct refit_error error; /* why it failed: the pod's that did first */
};

enum refit_course_phase {
    REFIT_COURSE_WAITING, /* nobody has been let go */
    REFIT_COURSE_CANARIES, /* the canaries are committing */
    REFIT_COURSE_TRIAL,    /* they serve, and are watched */
    REFIT_COURSE_CHECK,    /* the conductor asks the check's URL */
    REFIT_COURSE_OPEN,     /* whoever is staged commits */
    REFIT_COURSE_OFF,      /* called off: nobody commits any more */
};
struct refit_course {
    enum refit_course_phase phase;
    bool asked; /* those that are staged were told to look once more whether they are, before others rely on it */
    int64_t enough_ns; /* as many were staged as the policy wants; 0: not yet */
    int64_t trial_ends_ns;
    struct refit_error why; /* OFF */
    bool takes_back;        /* OFF: also those that are committed, for they were on trial */
};

/* Takes everything as far as it goes now. The return value is when to look again at the latest (refit_clock_ns). */
int64_t refit_course_step(struct refit_lead *lead);
/* The answer to REFIT_COURSE_CHECK; REFIT_OK: good. */
void refit_course_checked(struct refit_lead *lead, const struct refit_error *result);
/* Every unit has come to its end. */
bool refit_course_over(const struct refit_lead *lead);

#endif
