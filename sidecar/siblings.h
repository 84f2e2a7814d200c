/* SPDX-License-Identifier: Apache-2.0
 *
 * What this replica knows of its siblings: who they are, what they serve, and what follows from it. No I/O: answers go in, a
 * choice comes out.
 *
 * A sibling is a whole replica, or a pod of one that spans several: those of one name, or of one member of the list.
 * Such a replica serves a version when pods with all of its ranks do and each knows the same digest of the whole model.
 *
 * The version to fetch is the highest that a whole replica serves, but
 *   - not one that a sibling has staged and does not serve yet: its publish is under way, and may fail;
 *   - not one that a sibling, or this replica itself, has gone back from;
 *   - not one that siblings serve with different digests: nobody can say which of them is right.
 * Then the next lower one is looked at, as long as it is newer than what is served here; of a replica that spans pods:
 * than what any of them serves, or the same where some lack it.
 */
#ifndef REFIT_SIDECAR_SIBLINGS_H
#define REFIT_SIDECAR_SIBLINGS_H

#include "health/health.h"
#include "sender/control.h"
#include "sender/members.h"

#define REFIT_REPLICA_NAME_MAX 128

struct refit_sibling {
    char url[REFIT_URL_MAX];
    char member[REFIT_URL_MAX]; /* the first URL of the member that it is a pod of, as the list has it */
    uint64_t place;     /* in this replica's own order: others have other orders */
    bool self;          /* this very process */
    /* of its process */
    char instance[REFIT_HTTP_HEADER_MAX]; /* that the next two are of; empty: not known */
    char domain[64];
    char replica[REFIT_REPLICA_NAME_MAX]; /* the name of its replica; empty: it has none */
    uint32_t first_rank, rank_count, ranks; /* those it holds, and those of its layout */
    bool whole;         /* holds all ranks of its replica */
    /* as it said last */
    int64_t heard_ns;   /* 0: not heard yet, or silent since */
    struct refit_control_version active;
    char model[REFIT_SHA256_HEX_MAX]; /* digest of the active version of all its replica; empty: not known */
    uint64_t holds;     /* the active version, or while its engines hand slots back the one before the restart */
    char layout[REFIT_SHA256_HEX_MAX];
    uint64_t staged;    /* 0: none */
    uint64_t back_from; /* highest retained version above the active one; 0: none */
    /* when to ask again */
    int64_t due_ns;
    int64_t pause_ms;   /* after failures */
    /* what follows, as refit_siblings_choose found it last */
    bool twin;          /* the process of another one, under another address */
    bool mate;          /* a pod of this very replica */
    struct refit_control_version offer; /* what its whole replica serves, with the model's digest; version 0: nothing */
    char broken[REFIT_REFIT_ID_MAX]; /* of a mate: the last try there, whose bytes may be kept; empty: none */
};

struct refit_siblings {
    uint64_t seed;
    uint64_t epoch; /* of the membership */
    struct refit_sibling *item; /* new, in order of place */
    size_t count;
};

/* The same members keep what is known of them. REFIT_NO_MEMORY leaves all as it was. */
REFIT_MUST_CHECK enum refit_status refit_siblings_follow(struct refit_siblings *siblings,
                                                         const struct refit_membership *membership,
                                                         struct refit_error *err);
void refit_siblings_release(struct refit_siblings *siblings);

/* Whom to ask now: of those that are due the one that has waited longest; NULL: nobody is. */
struct refit_sibling *refit_siblings_due(struct refit_siblings *siblings, int64_t now_ns);
/* The answer of GET /v1/weights; asked again after `pause_ms`. REFIT_INVALID: it is none. */
REFIT_MUST_CHECK enum refit_status refit_sibling_heard(struct refit_sibling *sibling, const json_t *weights,
                                                       int64_t now_ns, int64_t pause_ms, struct refit_error *err);
/* It did not answer, or would not serve: not asked for longer each time. */
void refit_sibling_failed(struct refit_sibling *sibling, int64_t now_ns);

/* What is served here, and which part of its replica this is. */
struct refit_siblings_own {
    uint64_t version;   /* 0: nothing */
    uint64_t back_from; /* as a sibling's */
    char domain[64];
    const char *replica; /* its name; NULL or empty: it has none */
    uint32_t first_rank, rank_count, ranks; /* rank_count 0 or ranks: this is all of it */
};
#define REFIT_MATES_MAX REFIT_MEMBER_PODS_MAX
struct refit_siblings_choice {
    struct refit_control_version version; /* version 0: nothing to fetch */
    uint64_t newest;    /* that any sibling serves; 0: none */
    uint32_t heard;     /* siblings that have answered lately, but this one */
    uint64_t disputed;  /* a version with two digests; 0: none */
    uint64_t withheld;  /* the highest passed over because it is staged or was gone back from; 0: none */
};
void refit_siblings_choose(struct refit_siblings *siblings, const struct refit_siblings_own *own, int64_t now_ns,
                           struct refit_siblings_choice *out);

/* After a choice: the other pods of this replica by rank, at most REFIT_MATES_MAX. False: nobody is known to have
 * *lacking, a rank. */
bool refit_siblings_mates(struct refit_siblings *siblings, const struct refit_siblings_own *own,
                          struct refit_sibling **out,
                          size_t *count, uint32_t *lacking);
/* Whether pods of this replica can find each other at all: it has a name, or the list names it as one that spans
 * pods. */
bool refit_siblings_know_replica(const struct refit_siblings *siblings, const struct refit_siblings_own *own);

/* After a choice: the pods of the replica that `head` is the first of, by rank; a whole one is its own. Returns how
 * many, at most REFIT_MATES_MAX; 0: not all are there any more. */
size_t refit_siblings_pods(struct refit_siblings *siblings, struct refit_sibling *head, struct refit_sibling **out);

/* Who serves it: the first pods of replicas of one layout, the same domain first, then by place. Returns how many, at
 * most `max`. */
size_t refit_siblings_sources(struct refit_siblings *siblings, const struct refit_control_version *version,
                              const char *domain, struct refit_sibling **out, size_t max);

#endif
