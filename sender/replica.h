/* SPDX-License-Identifier: Apache-2.0
 *
 * What the lead knows of one replica: across publishes, and in the one under way. (Internal to lead.c, conductor.c,
 * follower.c and begin.c.)
 */
#ifndef REFIT_SENDER_REPLICA_H
#define REFIT_SENDER_REPLICA_H

#include <stdatomic.h>

#include "sender/lead.h"
#include "sender/plan_cache.h"

enum refit_replica_stage {
    REFIT_REPLICA_WORKING, /* until its refit is staged and all ranks have let go of it */
    REFIT_REPLICA_STAGED,  /* waits at the barrier */
    REFIT_REPLICA_ENDED,   /* the report is filled */
};

enum refit_verdict { REFIT_VERDICT_NONE, REFIT_VERDICT_COMMIT, REFIT_VERDICT_KEEP, REFIT_VERDICT_ABORT };

struct refit_replica {
    struct refit_lead *lead;
    uint32_t number;
    /* The follower's own: */
    struct refit_control control;
    uint64_t epoch;                              /* 0: not led yet */
    char led_instance[REFIT_HTTP_HEADER_MAX];    /* the process that gave the epoch */
    char source_instance[REFIT_HTTP_HEADER_MAX]; /* the process that has the source layout */
    char source_digest[REFIT_SHA256_HEX_MAX];    /* which one */
    struct refit_layout *layout;                 /* served there; NULL: not asked yet */
    char transport[16];
    char boot_instance[REFIT_HTTP_HEADER_MAX];   /* the process whose /v1/host chose the transport */
    struct refit_control_ticket ticket;
    int64_t begun_ns;
    uint64_t staged_kept; /* stage_only: the version that is still staged after its publish; 0: none */
    pthread_t thread;
    bool leaving; /* at the end: the thread says so to the replica */
    /* Under the lead's lock: */
    enum refit_replica_stage stage;
    int64_t staged_ns; /* when it came to the barrier */
    enum refit_verdict verdict;
    struct refit_error verdict_error;
    bool drained;       /* no rank reads for it (any more) */
    bool posted;        /* ranks were told to serve */
    uint64_t attempt;
    uint32_t served;    /* ranks that have answered */
    struct refit_error served_error; /* the first rank's that failed */
    struct refit_tally *tally;       /* sum of the ranks' */
    char digest[REFIT_SHA256_HEX_MAX]; /* of the tally; empty until it is whole */
    enum refit_control_phase phase;
    uint64_t bytes_done, bytes_due;
    struct refit_replica_report report;
};

struct refit_lead {
    uint32_t rank_count;
    bool takeover;
    char name[128];
    char transport[16]; /* "auto", "tcp", "local" */
    struct refit_ranks *ranks;
    struct refit_layout *source;
    char publish_id[33]; /* of the publish under way, as are the four below */
    struct refit_lead_publish publish;
    struct refit_deadline barrier; /* when the barrier waits no longer */
    int64_t begun_ns;
    bool running; /* a conductor is to be joined */
    pthread_t conductor;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool cancelled;
    uint64_t attempts;
    struct refit_error rank_lost; /* REFIT_OK: all ranks are there */
    pthread_mutex_t telling;
    struct refit_layout *told[REFIT_PLAN_CACHE_MAX]; /* destination layouts that the ranks know */
    size_t told_count;
    size_t replica_count;
    struct refit_replica *replicas;
};

void *refit_conductor_run(void *lead); /* a thread's body */

/* The barrier is over, or the publish is. */
bool refit_lead_given_up(struct refit_lead *lead, struct refit_error *err);

#endif
