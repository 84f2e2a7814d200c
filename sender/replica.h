/* SPDX-License-Identifier: Apache-2.0
 *
 * What the lead knows of one `refitd` (a replica, or a pod of one): across publishes, and in the one under way. (Internal
 * to the lead's files.)
 */
#ifndef REFIT_SENDER_REPLICA_H
#define REFIT_SENDER_REPLICA_H

#include <stdatomic.h>

#include "layouts/topology.h"
#include "sender/classes.h"
#include "sender/lead.h"
#include "sender/plan_cache.h"
#include "sender/twins.h"
#include "sender/unit.h"

enum refit_replica_stage {
    REFIT_REPLICA_ASKING,    /* is being led, or made to answer */
    REFIT_REPLICA_ASKED,     /* waits until the fleet is formed */
    REFIT_REPLICA_MOVING,    /* until its refit is staged and all ranks have let go of it */
    REFIT_REPLICA_STAGED,    /* waits for its verdict */
    REFIT_REPLICA_COMMITTED, /* waits for its seal */
    REFIT_REPLICA_ENDED,     /* the report is filled */
};

enum refit_verdict { REFIT_VERDICT_NONE, REFIT_VERDICT_COMMIT, REFIT_VERDICT_KEEP, REFIT_VERDICT_ABORT };
/* What becomes of one that is committed: others may make it go back. */
enum refit_seal { REFIT_SEAL_NONE, REFIT_SEAL_FINAL, REFIT_SEAL_REVERT };

struct refit_replica {
    struct refit_lead *lead;
    uint32_t number;         /* among this publish's */
    struct refit_unit *unit; /* of this publish */
    bool leaves;             /* no member any more: to be let go */
    /* The follower's own: */
    struct refit_control control;
    uint64_t epoch;                              /* 0: not led yet */
    char led_instance[REFIT_HTTP_HEADER_MAX];    /* the process that gave the epoch */
    char source_instance[REFIT_HTTP_HEADER_MAX]; /* the process that has the source layout */
    char source_digest[REFIT_SHA256_HEX_MAX];    /* which one */
    struct refit_layout *layout;                 /* served there; NULL: not asked yet */
    char transport[16];
    char host_instance[REFIT_HTTP_HEADER_MAX];   /* the process that the next four are of */
    json_t *cards;                               /* {"tcp": ..., "local": ...} */
    char domain[REFIT_DOMAIN_NAME_MAX];
    uint32_t first_rank, rank_count;             /* those of its layout that this process holds */
    struct refit_control_ticket ticket;
    char resume[REFIT_ID_MAX];                   /* a refit that broke off, whose landed bytes count; empty: none */
    char publish_id[REFIT_ID_MAX + 2];           /* of its request */
    bool keeps;                                  /* takes what the publish says is unchanged from what it serves */
    bool fell_back;                              /* to the trainer, in this publish */
    uint64_t asked_to_serve;                     /* bit by bit: the servers that have accepted */
    int64_t begun_ns;
    uint64_t active_before;                      /* the version it served when this publish began; 0: none */
    uint64_t staged_kept; /* stage_only: the version that is still staged after its publish; 0: none */
    bool resumed;         /* was staged by an earlier publish */
    pthread_t thread;
    bool leaving; /* at the end: the thread says so to the replica */
    /* Under the lead's lock: */
    enum refit_replica_stage stage;
    bool in_trouble; /* did not answer as it should: the fleet is not kept waiting for it */
    uint32_t asks, confirmed; /* how often it was asked whether it is still staged, and what was answered */
    enum refit_verdict verdict;
    struct refit_error verdict_error;
    enum refit_seal seal;
    struct refit_error seal_error;
    struct refit_class *class; /* NULL: fed by the trainer alone */
    uint32_t self;             /* its number in the class */
    bool drained;       /* no rank reads for it (any more) */
    bool posted;        /* ranks were told to serve */
    uint64_t attempt;
    uint32_t served;    /* ranks that have answered */
    uint64_t sent_bytes; /* payload that ranks sent to it in this attempt */
    struct refit_error served_error; /* the first rank's that failed */
    struct refit_tally *tally;       /* sum of the ranks' */
    struct refit_tally *again;       /* check_source: of the ranks' memory after they had sent */
    struct refit_tally *share;       /* of a pod, by tensor: what landed there; NULL: not known */
    char digest[REFIT_SHA256_HEX_MAX]; /* of what landed; empty until the ranks have let go */
    bool tally_whole;                  /* `tally` is known to be of exactly what landed */
    enum refit_control_phase phase;
    uint64_t bytes_done, bytes_due;
    struct refit_replica_report report;
};

struct refit_lead {
    uint32_t rank_count;
    bool takeover;
    char name[128];
    char transport[16]; /* "auto", "tcp", "local", "nccl" */
    bool on_device;     /* the memory of this rank */
    struct refit_credentials *credentials; /* borrowed */
    struct refit_ranks *ranks;
    struct refit_members *members;
    struct refit_twins twins; /* members that are not counted */
    struct refit_layout *source;
    struct refit_gathering gathering; /* how it is filled when its ranks have no memory of it */
    /* Of the publish under way: */
    struct refit_broadcast *broadcast; /* NULL: another strategy. Changed under the lock */
    char publish_id[33];
    struct refit_lead_publish publish;
    uint64_t membership_epoch;
    bool relay;
    struct refit_deadline barrier; /* when the barrier waits no longer */
    int64_t begun_ns;
    bool running; /* a conductor is to be joined */
    pthread_t conductor;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool cancelled;
    int64_t first_asked_ns; /* 0: nobody waits for the fleet yet */
    bool formed; /* classes are made; whoever comes later is fed by the trainer alone */
    struct refit_class *classes;
    size_t class_count;
    struct refit_unit *units;
    size_t unit_count;
    struct refit_course course;
    uint64_t attempts;
    struct refit_error rank_lost; /* REFIT_OK: all ranks are there */
    pthread_mutex_t telling;
    struct refit_layout *told[REFIT_PLAN_CACHE_MAX]; /* destination layouts that the ranks know */
    size_t told_count;
    size_t replica_count;
    struct refit_replica **replicas;
    struct refit_replica **leavers; /* those that are no members any more */
    size_t leaver_count;
};

void *refit_conductor_run(void *lead); /* a thread's body */

/* The barrier is over, or the publish is. */
bool refit_lead_given_up(struct refit_lead *lead, struct refit_error *err);

/* Does it hold its whole layout? */
bool refit_replica_is_whole(const struct refit_replica *replica);
/* Both hold the same ranks of the same layout: their digests are comparable. */
bool refit_replica_same_ranks(const struct refit_replica *a, const struct refit_replica *b);
/* And want the same of it: their plans have the same edges. */
bool refit_replica_same_part(const struct refit_replica *a, const struct refit_replica *b);

/* A replica that is not a member: abort what is staged there, resign. On threads, bounded. */
void refit_replicas_leave(struct refit_replica **replicas, size_t count);
void refit_replica_destroy(struct refit_replica *replica);

#endif
