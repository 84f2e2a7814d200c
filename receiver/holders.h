/* SPDX-License-Identifier: Apache-2.0
 *
 * Who can be asked in one refit, and how each of them does: trainer ranks by rank, then the fleet's members, then
 * replicas that serve. Looks after silence and standstill; whom to ask is decided by supply.h from what is found
 * here. Used by the refit's thread only.
 */
#ifndef REFIT_RECEIVER_HOLDERS_H
#define REFIT_RECEIVER_HOLDERS_H

#include "receiver/fleet.h"
#include "receiver/receiver.h"

#define REFIT_PATHS_MAX 3
#define REFIT_GRACE_NS INT64_C(10000000000) /* for a lost source to come back */

/* An endpoint of the refit. */
struct refit_path {
    const struct refit_transport *transport;
    struct refit_endpoint *endpoint;
    bool in_process; /* no holder dials: the source is a checkpoint's files */
};

struct refit_holder {
    int path;              /* connected there; -1: not */
    bool ever;             /* was connected */
    bool usable;           /* members: may be asked now. Others: will be there, as far as one can tell */
    bool full;             /* its queue has no room until something of it completes */
    bool out;              /* for the rest of this refit */
    bool slow;             /* passed by: others end long before it */
    uint32_t owed, losses, corrupt;
    uint32_t landed;       /* batches */
    uint64_t bytes;        /* landed */
    uint32_t due;          /* members: batches that wait to be asked of it, as last told */
    int64_t since_ns;      /* it owes since then, or landed something then */
    int64_t heard_ns;      /* when it was last heard of */
    uint64_t mark;         /* what all had landed at that time */
    int64_t lost_ns;       /* 0: not lost */
    int64_t away_until_ns;
};

struct refit_holders {
    struct refit_path path[REFIT_PATHS_MAX];
    size_t paths;
    const struct refit_fleet *fleet; /* NULL: none */
    uint32_t ranks, members, sources, count;
    const bool *alternatives;        /* by rank: every group it is in has others; borrowed */
    struct refit_holder *items;
    bool *usable;                    /* by member */
    int64_t silence_ns, stall_ns, begun_ns, swept_ns, trusted_ns;
    int64_t gap_ns;                  /* the longest silence of a member that ended by itself */
    uint64_t due;                    /* batches that wait to be asked of anyone, as last told */
    uint64_t landed;                 /* batches of all */
    uint32_t owed;                   /* by all */
    uint32_t owed_max;               /* by one that is no member */
};

REFIT_MUST_CHECK enum refit_status refit_holders_init(struct refit_holders *holders, const struct refit_fleet *fleet,
                                                      uint32_t ranks, const bool *alternatives,
                                                      const struct refit_receiver_config *config,
                                                      struct refit_error *err);
void refit_holders_release(struct refit_holders *holders);

/* Looks at all, drops who is silent or stands still. True: others may be asked now than before. */
bool refit_holders_sweep(struct refit_holders *holders);

static inline uint32_t refit_holders_member(const struct refit_holders *holders, uint32_t member)
{
    return holders->ranks + member;
}

static inline bool refit_holders_is_member(const struct refit_holders *holders, uint32_t holder)
{
    return holder >= holders->ranks && holder < holders->ranks + holders->members;
}

/* A grant. As post of the transport; what it tells of the holder is noted. */
REFIT_MUST_CHECK enum refit_status refit_holders_post(struct refit_holders *holders, uint32_t holder,
                                                      const struct refit_edge *edge, uint32_t batch,
                                                      struct refit_error *err);
/* What came of a grant. `bytes` is 0 when it did not land. */
void refit_holders_completed(struct refit_holders *holders, const struct refit_transfer_completion *completion,
                             uint64_t bytes);
/* Not asked again in this refit. */
void refit_holders_exclude(struct refit_holders *holders, uint32_t holder);

/* "source rank 3", "member http://...", "serving replica 1" */
#define REFIT_HOLDER_NAME_MAX (REFIT_MEMBER_NAME_MAX + 32)
void refit_holders_name(const struct refit_holders *holders, uint32_t holder, char out[static REFIT_HOLDER_NAME_MAX]);
enum refit_holder_condition refit_holders_condition(const struct refit_holders *holders, uint32_t holder);

#endif
