/* SPDX-License-Identifier: Apache-2.0
 *
 * librefit-sender: what a trainer links to publish new weights to inference replicas.
 *
 * Every rank of the mesh opens a sender. Rank 0 leads: the others find it by address, it gathers their layouts, leads
 * every replica's `refitd`, commits, and hands each rank the report. A publish is collective: every rank calls the
 * same functions in the same order.
 *
 *     refit_sender_open(&config, &sender, &err);
 *     refit_sender_register(sender, layout, layout_len, buffers, count, &err);      once
 *     for each step:
 *         refit_sender_publish(sender, &publish, &report, &err);
 *     refit_sender_close(sender);
 *
 * refit_sender_publish is begin + wait_sources_free + wait_report; a trainer that wants to go on training earlier calls
 * the parts. No function returns, even at its deadline, before the transports have stopped touching the registered
 * memory, except begin, after which the memory must stay unchanged until wait_sources_free has returned.
 *
 * Threads: one thread at a time per sender. The library runs threads of its own for control and bulk bytes.
 */
#ifndef REFIT_SENDER_H
#define REFIT_SENDER_H

#include <stddef.h>
#include <stdint.h>

#include <refit/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct refit_sender;

struct refit_sender_config {
    uint32_t rank, ranks;
    const char *lead_address;       /* "host:port" where rank 0 listens for the other ranks; may be NULL when ranks is 1 */
    /* rank 0: who the replicas are. Each is the base URL of a control API, "https://10.0.0.7:7070"; several of them for a replica
     * that spans pods, the one with its rank 0 first, "https://a:7070+https://b:7070"; "file:PATH", a file with one of these in
     * each line; or "dns:NAME:PORT", every address behind a name ("dns:https://NAME:PORT", where each must have NAME in its
     * certificate). Files and names are looked at when a publish begins. */
    const char *const *replicas;
    size_t replica_count;
    const char *members;            /* rank 0: more of the same, separated by commas or white space; NULL: none */
    const char *name;               /* rank 0: who leads, in messages; NULL: host name and process id */
    int takeover;                   /* rank 0: replace a lead that still seems alive */
    unsigned streams;               /* tcp connections per edge pair; 0: 2 */
    const char *transport;          /* NULL or "auto": nccl where both ends are on GPUs and the replica offers it, else local on
                                     * the same host, else tcp; "tcp"; "local"; "nccl" */
    int64_t connect_timeout_ms;     /* for ranks to find the lead, and all to be there; 0: 60000 */
    /* What replicas are shown, and which are trusted; the files of certificates by every rank, for bulk bytes, the token by
     * rank 0. Paths of PEM files, read again when they change. NULL: by the environment (REFIT_CACERT, REFIT_CERT, REFIT_KEY,
     * REFIT_TOKEN_FILE), and "" none. */
    const char *cacert;             /* who signs replicas; none: the system's store */
    const char *cert, *key;         /* the certificate shown to replicas, and its key */
    const char *token_file;         /* its first line is the bearer token */
    int insecure_plaintext_tokens;  /* send it over http:// beyond loopback, too */
    /* Between ranks, on lead_address: with cacert, cert and key all given the ranks speak TLS and show each other the
     * certificate (unless REFIT_INSECURE_RANKS=1); with a secret each proves to rank 0, and rank 0 to it, that it has
     * the same. The same for every rank. With neither, whoever reaches the port may pass for a rank. */
    /* NULL: by the environment (REFIT_JOB_SECRET_FILE, or the secret in REFIT_JOB_SECRET); "" none */
    const char *job_secret_file;
};

/* Ranks other than 0 connect to the lead here, and rank 0 waits for all of them. *out is new. */
REFIT_API enum refit_status refit_sender_open(const struct refit_sender_config *config, struct refit_sender **out,
                                              struct refit_error *err);
/* Frees everything; aborts a publish that is under way. NULL is fine. */
REFIT_API void refit_sender_close(struct refit_sender *sender);

/* Memory that `local` transport can hand to a receiver on the same host without a copy. Freed by close. */
REFIT_API enum refit_status refit_sender_alloc(struct refit_sender *sender, size_t bytes, void **out,
                                               struct refit_error *err);

/* Where registered memory is; all of one rank's in the same place. */
enum refit_sender_memory {
    REFIT_SENDER_HOST, /* `data` is an address of this process; `device` is not looked at */
    REFIT_SENDER_CUDA, /* `data` is a device address (a CUdeviceptr, torch's data_ptr()) of GPU number `device`, as this
                        * process sees them; from cudaMalloc, a memory pool or a mapping, in the device's primary context,
                        * which is that of CUDA's runtime */
};

/* Bytes must be complete when a publish begins, and stay until its sources are free. For CUDA that means that the work that
 * writes them is done, not queued: synchronize its stream before. Refit reads them on streams of its own at the least
 * priority and leaves the calling thread's context and device as they were. */
struct refit_sender_buffer {
    const char *name;  /* as in the layout: "model.layers.0.mlp.down_proj.weight" */
    const void *data;  /* borrowed until close or the next register; only read */
    size_t bytes;      /* must be what the layout says for this rank */
    enum refit_sender_memory memory; /* 0: host */
    int device;
};

/* The layout (docs/layouts.md) of the whole mesh, or of this rank alone (entries with "rank"), and this rank's memory.
 * Collective: rank 0 merges. Every buffer of this rank in the layout must be given. */
REFIT_API enum refit_status refit_sender_register(struct refit_sender *sender, const char *layout, size_t layout_len,
                                                  const struct refit_sender_buffer *buffers, size_t count,
                                                  struct refit_error *err);
/* A safetensors checkpoint instead of memory (one rank): file or directory. */
REFIT_API enum refit_status refit_sender_register_checkpoint(struct refit_sender *sender, const char *path,
                                                             struct refit_error *err);

/* Tensors whose shards nobody describes: a callback brings them together, one after the other, and every publish broadcasts
 * them (see refit_publish.strategy). One rank opens the sender; the trainer's others have their part in what the callback
 * does (a collective "full tensor", say) and none in the publish. */
struct refit_sender_tensor {
    const char *name;     /* its checkpoint name */
    const char *dtype;    /* as in layouts: "BF16" */
    const int64_t *shape; /* elements */
    size_t dims;
};
/* Writes all of `tensor`, dense and row-major, to `destination`; 0, or anything else to end the publish. Called on a thread of
 * the library's, one tensor at a time, in the order in which they were registered: in each publish that has begun
 * once for each, also when replicas fail meanwhile or nobody is left, so that all ranks of a collective stay in step; not
 * again in a publish once it has failed. No publish returns while it runs; it must not call the sender. */
typedef int (*refit_gather_fn)(void *context, const char *tensor, void *destination, size_t bytes);
REFIT_API enum refit_status refit_sender_register_gather(struct refit_sender *sender,
                                                         const struct refit_sender_tensor *tensors, size_t count,
                                                         refit_gather_fn gather, void *context, struct refit_error *err);

/* Progress of one replica, while wait_* runs; called on the caller's thread on rank 0, about ten times a second. */
struct refit_replica_progress {
    const char *url;
    const char *phase;
    uint64_t bytes_done, bytes_due;
};
typedef void (*refit_progress_fn)(void *context, const struct refit_replica_progress *replicas, size_t count);

struct refit_publish {
    uint64_t version;      /* >= 1, newer than what is served; the same on all ranks */
    const char *label;     /* NULL: none */
    const char *kv;        /* NULL: "flush"; "keep"; "namespace" */
    int64_t deadline_ms;   /* of the whole publish; 0: 600000 */
    int check_source;      /* digest the registered memory again at the end: catches a trainer that wrote meanwhile */
    int stage_only;        /* stop at staged, do not commit (the lead aborts them at close, or a later call commits) */
    refit_progress_fn progress;
    void *progress_context;
    /* Who commits when; NULL: "each". Replicas that are staged wait for their turn, then commit.
     *   "each"      every replica when it is staged; one that fails does so alone
     *   "all"       none before all are staged; when one fails, all are aborted
     *   "quorum:N"  once N are staged; when N can't be any more, all are aborted
     *   "canary:N[,wait=TIME][,check=URL]"  the first N; after TIME, and when GET URL answers 2xx, the rest; else the N are
     *               taken back and the rest is aborted */
    const char *policy;
    /* NULL: "relay" with two or more members, else "direct".
     *   "relay"     the trainer sends each byte once, replicas pass it on
     *   "direct"    the trainer sends to each replica all it needs
     *   "broadcast" rank 0 gathers the whole model and sends all of it to every replica, bucket by bucket: what the other two
     *               save is not saved, nothing is taken as unchanged or resumed. The default for tensors that a callback gathers. */
    const char *strategy;
    /* Tensors whose bytes are those of version `unchanged_since`: names, or beginnings of names with a trailing "*". A replica that
     * serves that version keeps them, its copy checked by digest; to any other they are moved like all others. That they have not
     * changed here is the caller's word, which check_source proves. 0: none. */
    uint64_t unchanged_since;
    const char *const *unchanged;
    size_t unchanged_count;
    /* The last publish of this version broke, and the registered memory is as it was then: what has landed is not moved again. */
    int resume;
};

enum refit_outcome {
    REFIT_OUTCOME_COMMITTED,  /* serves the version */
    REFIT_OUTCOME_ABORTED,    /* serves what it served before; `error` tells why */
    REFIT_OUTCOME_STAGED,     /* stage_only */
    REFIT_OUTCOME_UNKNOWN,    /* the replica stopped answering between commit and its result: ask it */
};
REFIT_API const char *refit_outcome_name(enum refit_outcome outcome);

/* Of all replicas together. */
enum refit_fleet_outcome {
    REFIT_FLEET_COMMITTED,        /* all serve the version */
    REFIT_FLEET_ABORTED,          /* none does */
    REFIT_FLEET_STAGED,           /* stage_only: all are staged */
    REFIT_FLEET_PARTLY_COMMITTED, /* some do, the others serve what they served before */
    REFIT_FLEET_UNKNOWN,          /* of some it is not known */
};
REFIT_API const char *refit_fleet_outcome_name(enum refit_fleet_outcome outcome);
/* What to do about it: a sentence. */
REFIT_API const char *refit_fleet_outcome_action(enum refit_fleet_outcome outcome);

/* One control API: a replica, or a pod of one. */
struct refit_replica_report {
    char url[256];
    uint32_t replica;           /* pods of one replica have the same number */
    enum refit_outcome outcome;
    struct refit_error error;   /* when not committed */
    char refit_id[64];
    char digest[65];            /* the replica's, of what landed */
    char transport[16];         /* the path that was used */
    uint64_t bytes_needed;      /* by the plan */
    uint64_t bytes_moved;       /* payload that it took in, retries included */
    uint64_t bytes_sent;        /* payload that trainer ranks sent to it, retries included */
    uint64_t bytes_saved;       /* not moved: they were there already */
    uint64_t bytes_excess;      /* asked of the trainer only because others failed */
    uint64_t wire_bytes;        /* that trainer ranks sent to it, with framing */
    double seconds;             /* from request to outcome */
    double plan_s, wait_readers_s, transfer_s, verify_s, prepare_s, staged_s, swap_s;
};

struct refit_report {
    uint64_t version;
    char digest[65];            /* the model's; empty when nothing was staged */
    enum refit_fleet_outcome outcome;
    uint64_t membership_epoch;  /* grows when the members are others than at the last publish */
    int relayed;                /* replicas passed bytes on */
    uint64_t bytes_sent, bytes_saved, bytes_excess; /* of all */
    double sources_free_s;      /* from begin until training may write again */
    double seconds;
    size_t replica_count;       /* members: pods count each */
    const struct refit_replica_report *replicas; /* owned by the sender, until the next publish or close */
};

/* REFIT_OK: under way. The error names the replica or rank. */
REFIT_API enum refit_status refit_sender_publish_begin(struct refit_sender *sender, const struct refit_publish *publish,
                                                       struct refit_error *err);
/* Until no replica reads this rank's memory any more. */
REFIT_API enum refit_status refit_sender_publish_wait_sources_free(struct refit_sender *sender, struct refit_error *err);
/* REFIT_OK when every replica committed, or as many as the policy's quorum; otherwise the status of the first that did not, with
 * the report filled. Rank 0's report is given to every rank. One that could not be heard is `unknown`, and has no replicas. */
REFIT_API enum refit_status refit_sender_publish_wait_report(struct refit_sender *sender, struct refit_report *report,
                                                             struct refit_error *err);
/* All three. Where nothing could begin, the report is `aborted` and has no replicas. */
REFIT_API enum refit_status refit_sender_publish(struct refit_sender *sender, const struct refit_publish *publish,
                                                 struct refit_report *report, struct refit_error *err);

#ifdef __cplusplus
}
#endif
#endif
