/* SPDX-License-Identifier: Apache-2.0
 *
 * The receiver: refits of one replica, from request to committed or aborted.
 *
 *   requested -> preflight -> waiting-for-readers -> transfer -> verify -> prepare -> staged -> committing -> committed
 *                    any of these ------------------------------------------------> aborted (the old version serves)
 *
 * One refit runs at a time, on a thread of its own; a newer publish supersedes one that has not been staged. What
 * comes in is a request (a lead's, or a checkpoint's); what moves is decided by plans; what is served is the bank's
 * (bank.h). The receiver also keeps who leads (epochs), source layouts and plans (by digest, bounded caches), hold and
 * quarantine.
 *
 * Every function is thread-safe and, unless it says so, returns at once. Statuses map to HTTP in sidecar/.
 */
#ifndef REFIT_RECEIVER_RECEIVER_H
#define REFIT_RECEIVER_RECEIVER_H

#include "layouts/tally.h"
#include "receiver/bank.h"
#include "transport/transport.h"

struct refit_fleet;

#define REFIT_PUBLISH_ID_MAX 64
#define REFIT_LEAD_NAME_MAX 128
#define REFIT_INSTANCE_MAX 33

struct refit_receiver_config {
    struct refit_bank_config bank;
    struct refit_listener_config listener; /* local_path NULL: the bank's socket_path + ".data" */
    const char *checkpoint_root;   /* POST /refit may name checkpoints below it; NULL: none */
    unsigned streams;              /* tcp connections per holder; 0: 2 */
    uint64_t rate_bytes_per_s;     /* 0: unlimited */
    int nice;                      /* of bulk threads */
    int64_t deadline_ms;           /* of a refit that names none; 0: 600000 */
    int64_t deadline_max_ms;       /* 0: 86400000 */
    int64_t staged_ttl_ms;         /* a staged refit that nobody commits aborts itself; 0: 600000 */
    int64_t lead_ttl_ms;           /* a lead that was silent this long may be replaced; 0: 15000 */
    bool verify;
    int64_t relay_silence_ms;      /* a holder that owes and is silent this long is dropped; 0: 500 */
    struct refit_tls *tls;         /* client's end: as a holder, for receivers that demand TLS; borrowed; NULL: none */
    int64_t relay_stall_ms;        /* one that lives and delivers nothing, while others do, is passed by; 0: 2000 */
};

enum refit_commit_mode { REFIT_COMMIT_BARRIER, REFIT_COMMIT_AUTO };

struct refit_request {
    uint64_t version;
    char label[64];
    uint64_t epoch;                       /* 0 for a checkpoint and for catch_up */
    char publish_id[REFIT_PUBLISH_ID_MAX];
    char source[REFIT_SHA256_HEX_MAX];    /* digest of a layout that was put; empty for a checkpoint */
    char checkpoint[1024];                /* path relative to the root; empty for a lead's publish */
    char transport[16];                   /* "tcp", "local" or "nccl"; the lead's choice */
    char digest[REFIT_SHA256_HEX_MAX];    /* the model digest expected; empty: not known yet */
    enum refit_commit_mode commit;
    char kv[16];                          /* "flush", "keep", "namespace" */
    int64_t deadline_ms;                  /* 0: the default */
    char body_digest[REFIT_SHA256_HEX_MAX]; /* of the canonical request: same identity with another body is refused */
    struct refit_fleet *fleet;            /* NULL: this replica alone; a session retains it */
    uint64_t unchanged_since;             /* 0: nothing is said to be unchanged since a version */
    json_t *unchanged;                    /* the names of what is (layouts/wanted.h); a session retains it */
    char resume[REFIT_REFIT_ID_MAX];      /* a refit that broke off, whose landed bytes are this one's; empty: none */
    uint32_t first_rank, rank_count;      /* the ranks that the lead takes this refitd for; count 0: it did not say */
    uint32_t buckets;                     /* `source` is dense and comes in so many (receiver/broadcast.h); 0: by plan */
    bool catch_up;                        /* of nobody's epoch: this replica fetches from others what they serve. `digest` must be
                                           * given, or its pods' digests are added up before the commit. It takes no
                                           * other refit's place, and gives way to any of a lead. */
};

enum refit_phase {
    REFIT_PHASE_REQUESTED, REFIT_PHASE_PREFLIGHT, REFIT_PHASE_WAITING_FOR_READERS, REFIT_PHASE_TRANSFER,
    REFIT_PHASE_VERIFY, REFIT_PHASE_PREPARE, REFIT_PHASE_STAGED, REFIT_PHASE_COMMITTING, REFIT_PHASE_COMMITTED,
    REFIT_PHASE_ABORTED, REFIT_PHASE_COUNT
};
const char *refit_phase_name(enum refit_phase phase); /* "waiting-for-readers" */

/* Where planned bytes came from. */
struct refit_supplied {
    uint64_t origin_bytes; /* the trainer, or replicas that serve in its place */
    uint64_t domain_bytes; /* members in this member's domain */
    uint64_t fleet_bytes;  /* members in other domains */
    uint64_t excess_bytes; /* of origin_bytes: it was another member's turn, which failed */
    uint64_t kept_bytes;   /* not moved: unchanged, or landed before an earlier attempt broke off */
};

enum refit_holder_condition {
    REFIT_HOLDER_ABSENT, REFIT_HOLDER_CONNECTED, REFIT_HOLDER_LOST, REFIT_HOLDER_PASSED_BY
};
const char *refit_holder_condition_name(enum refit_holder_condition condition); /* "passed-by" */
#define REFIT_HOLDERS_SHOWN 64
struct refit_holder_view {
    char name[96]; /* "source rank 3", "member NAME" */
    enum refit_holder_condition condition;
    uint32_t owed;  /* batches granted and not landed */
    uint64_t bytes; /* landed from it */
};

/* A refit as it is now. */
struct refit_session_snapshot {
    char id[REFIT_REFIT_ID_MAX];
    uint64_t version;
    char label[64];
    uint64_t epoch;
    char publish_id[REFIT_PUBLISH_ID_MAX];
    enum refit_phase phase;
    enum refit_phase failed_in;          /* aborted: the phase it was in */
    struct refit_error error;            /* aborted: why */
    char digest[REFIT_SHA256_HEX_MAX];   /* of what landed; empty until verified */
    char transport[16];                  /* the path in use: "tcp", "local", "nccl", "file" */
    uint64_t bytes_due, bytes_done;      /* planned bytes of this replica, and those landed and verified */
    struct refit_supplied supplied;
    uint32_t members;                    /* of its fleet; 0: none */
    uint32_t serving;                    /* members that may still come for bytes of it */
    struct refit_endpoint_stats stats;
    int64_t phase_ns[REFIT_PHASE_COUNT]; /* time spent in each so far */
    struct refit_bank_waiting waiting;   /* while waiting for readers */
    uint64_t sequence;                   /* grows with every change of phase or progress step */
    int64_t deadline_left_ms;
};

struct refit_receiver;

/* Opens bank and listener. *out is new. */
REFIT_MUST_CHECK enum refit_status refit_receiver_open(const struct refit_receiver_config *config,
                                                       struct refit_receiver **out, struct refit_error *err);
/* Aborts what runs, joins all threads. NULL is fine. */
void refit_receiver_close(struct refit_receiver *receiver);
struct refit_bank *refit_receiver_bank(struct refit_receiver *receiver); /* borrowed */
const char *refit_receiver_instance(const struct refit_receiver *receiver); /* random per process, borrowed */

/* How holders reach this replica over "tcp", "local" or "nccl", whatever refit runs. *out is new. REFIT_UNSUPPORTED. */
REFIT_MUST_CHECK enum refit_status refit_receiver_card(struct refit_receiver *receiver, const char *transport,
                                                       json_t **out, struct refit_error *err);

/* Called (no lock held, any thread) when a session or the bank changes. Set before the first request. */
void refit_receiver_set_notify(struct refit_receiver *receiver, void (*notify)(void *context), void *context);

/* A lead announces itself: *epoch is last + 1, kept in the state file. REFIT_CONFLICT names a live other lead, unless
 * takeover. The same name again gets a new epoch, too (it restarted). A lead is live while a refit of its runs here,
 * and for lead_ttl_ms after it was heard; once its refit has ended, the next one may come. Refits of older epochs are
 * aborted, unless they are committing. */
REFIT_MUST_CHECK enum refit_status refit_receiver_lead(struct refit_receiver *receiver, const char *name, bool takeover,
                                                       uint64_t *epoch, struct refit_error *err);

/* The lead of `epoch` leads no more: another may follow at once, and what it began is aborted, unless it is being
 * committed. Repeatable. REFIT_STALE: another epoch is current; REFIT_CONFLICT: it was issued to another name. */
REFIT_MUST_CHECK enum refit_status refit_receiver_resign(struct refit_receiver *receiver, const char *name,
                                                         uint64_t epoch, struct refit_error *err);

/* A source layout, once; checked against `digest` (of the canonical text). REFIT_MISMATCH when they differ. */
REFIT_MUST_CHECK enum refit_status refit_receiver_put_source(struct refit_receiver *receiver, const char *digest,
                                                             const void *text, size_t len, struct refit_error *err);

/* Dry run against the layout served here. A plan for the whole replica, totals only; new (refit_plan_release). */
REFIT_MUST_CHECK enum refit_status refit_receiver_plan(struct refit_receiver *receiver, const char *source_digest,
                                                       struct refit_plan **out, struct refit_error *err);

/* Starts a refit, or finds the one that this identity (epoch, version, publish_id) already started; out->existing tells
 * which. Card and token are there when this returns: holders may dial at once, the listener parks them until there is
 * a slot to land in. A checkpoint's request without publish_id names its refit only while that runs.
 *   REFIT_STALE      the epoch is not the current one (412)
 *   REFIT_MISMATCH   same identity, another body
 *   REFIT_INVALID    a member is not what it must be
 *   REFIT_CONFLICT   held, quarantined, another refit is staged or committing, version not newer than the active one
 *   REFIT_NOT_FOUND  source digest unknown (put it, then retry); checkpoint not below the root
 *   REFIT_BUSY       no layout yet: no engine has attached; slots are being handed back after a restart; too many
 *                    superseded refits are still unwinding
 */
struct refit_ticket {
    char id[REFIT_REFIT_ID_MAX];
    bool existing;
    bool unchanged; /* what the request says is unchanged is taken from here: both sides plan without it */
    uint8_t token[REFIT_TOKEN_BYTES];
    json_t *card; /* new; NULL for a checkpoint */
};
REFIT_MUST_CHECK enum refit_status refit_receiver_begin(struct refit_receiver *receiver,
                                                        const struct refit_request *request, struct refit_ticket *out,
                                                        struct refit_error *err);

/* The lead's word that all replicas are staged. `digest` is the trainers' sum; another than ours aborts the refit
 * (REFIT_CORRUPT). Repeatable: committed already is REFIT_OK. The swap runs on the session's thread. `digest` may be
 * empty for a refit whose request named one. REFIT_BUSY: not staged yet; REFIT_CONFLICT: aborted; REFIT_NOT_FOUND. */
REFIT_MUST_CHECK enum refit_status refit_receiver_commit(struct refit_receiver *receiver, const char *id,
                                                         uint64_t version, const char *digest, struct refit_error *err);
/* What this part of a replica has as `version` with `digest` is a part of the model `model`: who leads all parts has
 * added their digests up. Shown with the version from now on, and kept in the state file (blocks for an fsync). Of a
 * whole replica both must be the same (REFIT_CORRUPT). REFIT_CONFLICT: that model is in quarantine. */
REFIT_MUST_CHECK enum refit_status refit_receiver_attest(struct refit_receiver *receiver, uint64_t version,
                                                         const char *digest, const char *model,
                                                         struct refit_error *err);
/* By tensor of the layout served here (*layout, retained): what is here of a version that is staged, served or
 * retained; *out is new. Reads the slot when nobody knows them any more. REFIT_NOT_FOUND. */
REFIT_MUST_CHECK enum refit_status refit_receiver_digests(struct refit_receiver *receiver, uint64_t version,
                                                          struct refit_layout **layout, struct refit_tally **out,
                                                          struct refit_error *err);
/* Repeatable. REFIT_CONFLICT ("committed") after the swap, REFIT_BUSY during it. Returns before the refit has ended. */
REFIT_MUST_CHECK enum refit_status refit_receiver_abort(struct refit_receiver *receiver, const char *id,
                                                        const char *reason, struct refit_error *err);
struct refit_rollback {
    uint64_t version;   /* 0: the one active before the current one */
    const char *kv;     /* NULL or "": flush */
    bool quarantine;    /* the digest that is rolled back from */
    bool open;          /* no hold: newer versions may come, and what runs goes on; `version` must be given. For a lead that takes
                         * back a part of a replica or a canary. */
};
/* Blocks up to the deadline. Also sets hold (nothing newer is installed until release) and aborts the refit that
 * runs, unless `open`; when it fails, neither. Repeatable: while held, version 0 and the active version are the
 * rollback that was done; an open one finds its version active. */
REFIT_MUST_CHECK enum refit_status refit_receiver_rollback(struct refit_receiver *receiver,
                                                           const struct refit_rollback *rollback,
                                                           struct refit_deadline deadline, struct refit_version *now,
                                                           struct refit_error *err);
/* Nothing newer is installed until release; the refit that runs is aborted unless it is being committed. Repeatable. */
void refit_receiver_hold(struct refit_receiver *receiver);
void refit_receiver_release_hold(struct refit_receiver *receiver);
/* A model digest that is refused from now on (at verify, before it is staged); kept in the state file. */
REFIT_MUST_CHECK enum refit_status refit_receiver_quarantine(struct refit_receiver *receiver, const char *digest,
                                                             bool on, struct refit_error *err);

/* By id; an empty or NULL id is the latest refit. The last 32 are remembered. REFIT_NOT_FOUND. */
REFIT_MUST_CHECK enum refit_status refit_receiver_session(struct refit_receiver *receiver, const char *id,
                                                          struct refit_session_snapshot *out, struct refit_error *err);

/* Its holders as they were when it was last told, the first REFIT_HOLDERS_SHOWN; `out` has room for that many. `id` as
 * above. */
REFIT_MUST_CHECK enum refit_status refit_receiver_holders(struct refit_receiver *receiver, const char *id,
                                                          struct refit_holder_view *out, uint32_t *count,
                                                          struct refit_error *err);

/* --- this replica as a source for one with another layout --- */

struct refit_serve_request {
    uint64_t version;
    char refit[129];                     /* the id that the receiver's endpoint is known by, and its token */
    uint8_t token[REFIT_TOKEN_BYTES];
    uint32_t holder;                     /* our number there */
    char transport[16];
    const json_t *card;                  /* the receiver's; retained */
    char layout[REFIT_SHA256_HEX_MAX];   /* the receiver's, put before */
    uint32_t first_rank, rank_count;     /* its ranks; count 0: all */
    int64_t deadline_ms;                 /* 0: the default of refits */
};
enum refit_serve_state { REFIT_SERVE_DIALLING, REFIT_SERVE_SERVING, REFIT_SERVE_DONE, REFIT_SERVE_FAILED };
const char *refit_serve_state_name(enum refit_serve_state state);
struct refit_serve_snapshot {
    char id[REFIT_REFIT_ID_MAX];
    uint64_t version;
    uint32_t slot;
    char refit[129];
    enum refit_serve_state state;
    uint64_t bytes; /* sent so far */
    struct refit_error error; /* failed: why */
};
#define REFIT_SERVES_SHOWN 64

/* Plans (which may take a while), then dials and serves on a thread of its own until that receiver needs no more, or
 * the deadline. The version's slot (active, retained, or being filled) is not given up meanwhile. The same request
 * again gives the same id. REFIT_NOT_FOUND: the version is not here, or the layout unknown; REFIT_MISMATCH: layouts
 * don't fit; REFIT_BUSY: too many. */
REFIT_MUST_CHECK enum refit_status refit_receiver_serve(struct refit_receiver *receiver,
                                                        const struct refit_serve_request *request,
                                                        char id[static REFIT_REFIT_ID_MAX], struct refit_error *err);
/* Those that run and those that ended last; `out` has room for REFIT_SERVES_SHOWN. Returns how many. */
uint32_t refit_receiver_serves(struct refit_receiver *receiver, struct refit_serve_snapshot *out);
/* Ends one; repeatable. REFIT_NOT_FOUND. */
REFIT_MUST_CHECK enum refit_status refit_receiver_serve_end(struct refit_receiver *receiver, const char *id,
                                                            struct refit_error *err);

struct refit_receiver_snapshot {
    struct refit_bank_snapshot bank;
    char instance[REFIT_INSTANCE_MAX];
    char model[REFIT_SLOTS_MAX][REFIT_SHA256_HEX_MAX]; /* by slot: digest of the whole replica's; empty: not known */
    char layout[REFIT_SHA256_HEX_MAX]; /* digest of the layout served; empty: none yet */
    uint64_t model_bytes;              /* its canonical bytes */
    bool held;
    uint64_t epoch;
    char lead[REFIT_LEAD_NAME_MAX];    /* empty: none */
    uint32_t quarantined;
    char session[REFIT_REFIT_ID_MAX];  /* running or latest; empty: none */
    uint64_t committed, aborted, superseded; /* refits since start */
    uint64_t aborted_by[16];           /* by enum refit_status */
    uint64_t bytes_landed;
    struct refit_supplied supplied;    /* of all refits that have ended */
    uint32_t serving;                  /* requests to serve that run */
    uint64_t served_bytes;             /* by those that have ended */
    uint64_t plan_hits, plan_misses;
};
void refit_receiver_read(struct refit_receiver *receiver, struct refit_receiver_snapshot *out);

#endif
