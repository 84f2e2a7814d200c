/* SPDX-License-Identifier: Apache-2.0
 *
 * The control API of one `refitd` (docs/api.md) as functions. Blocking, each with a deadline.
 *
 * Errors carry the peer's own text (problem+json) behind its URL, and the status it named. Answers are checked like
 * anything from outside; members this version does not know are ignored.
 *
 * A control remembers the instance of the last answer, so that a caller sees when the process behind the URL is another
 * one. One thread at a time per control.
 */
#ifndef REFIT_SENDER_CONTROL_H
#define REFIT_SENDER_CONTROL_H

#include "base/json.h"
#include "layouts/tally.h"
#include "sender/http_client.h"
#include "transport/transport.h"

#define REFIT_ID_MAX 64

struct refit_control {
    struct refit_http_url url;
    struct refit_credentials *credentials; /* borrowed; NULL: none */
    char instance[REFIT_HTTP_HEADER_MAX]; /* of the last answer; empty before the first */
};
/* With the credentials of refit_control_set_default; a caller that has its own sets them after this. */
REFIT_MUST_CHECK enum refit_status refit_control_init(struct refit_control *control, const char *url,
                                                      struct refit_error *err);
/* For programs, whose every call shows the same: before the first control is made. Borrowed. */
void refit_control_set_default(struct refit_credentials *credentials);

/* Any call. `body` (may be NULL) is borrowed; *out (may be NULL) is new, JSON null for an empty answer. Every answer
 * beyond 2xx is an error. */
REFIT_MUST_CHECK enum refit_status refit_control_call(struct refit_control *control, enum refit_http_method method,
                                                      const char *path, const json_t *body,
                                                      struct refit_deadline deadline, json_t **out,
                                                      struct refit_error *err);

REFIT_MUST_CHECK enum refit_status refit_control_lead(struct refit_control *control, const char *name, bool takeover,
                                                      struct refit_deadline deadline, uint64_t *epoch,
                                                      struct refit_error *err);
/* Leads no more. REFIT_STALE: another epoch is current. */
REFIT_MUST_CHECK enum refit_status refit_control_resign(struct refit_control *control, const char *name, uint64_t epoch,
                                                        struct refit_deadline deadline, struct refit_error *err);
/* `text` is canonical, its SHA-256 is `digest`. */
REFIT_MUST_CHECK enum refit_status refit_control_put_source(struct refit_control *control, const char *digest,
                                                            const char *text, size_t len,
                                                            struct refit_deadline deadline, struct refit_error *err);
/* The layout served there; *out is new. */
REFIT_MUST_CHECK enum refit_status refit_control_layout(struct refit_control *control, struct refit_deadline deadline,
                                                        struct refit_layout **out, struct refit_error *err);

struct refit_control_version {
    uint64_t version; /* 0: none */
    char label[64];
    char digest[REFIT_SHA256_HEX_MAX];
};
struct refit_control_weights {
    char layout[REFIT_SHA256_HEX_MAX]; /* empty: no engine has attached yet */
    struct refit_control_version active;
    uint64_t rollback_version; /* retained; 0: none */
    bool held;                 /* newer versions are refused */
};
REFIT_MUST_CHECK enum refit_status refit_control_weights(struct refit_control *control, struct refit_deadline deadline,
                                                         struct refit_control_weights *out, struct refit_error *err);
/* {"boot_id": ..., "transports": {...}}; *out is new. */
REFIT_MUST_CHECK enum refit_status refit_control_host(struct refit_control *control, struct refit_deadline deadline,
                                                      json_t **out, struct refit_error *err);

struct refit_control_ticket {
    char id[REFIT_ID_MAX];
    char token[2 * REFIT_TOKEN_BYTES + 1]; /* hex */
    bool unchanged;                        /* what the request says is unchanged is not to be sent */
    json_t *card;                          /* new */
};
REFIT_MUST_CHECK enum refit_status refit_control_begin(struct refit_control *control, const json_t *request,
                                                       struct refit_deadline deadline,
                                                       struct refit_control_ticket *out, struct refit_error *err);

/* Phases as the API names them; those after STAGED are in order. */
enum refit_control_phase {
    REFIT_CONTROL_REQUESTED, REFIT_CONTROL_PREFLIGHT, REFIT_CONTROL_WAITING_FOR_READERS, REFIT_CONTROL_TRANSFER,
    REFIT_CONTROL_VERIFY, REFIT_CONTROL_PREPARE, REFIT_CONTROL_STAGED, REFIT_CONTROL_COMMITTING,
    REFIT_CONTROL_COMMITTED, REFIT_CONTROL_ABORTED, REFIT_CONTROL_PHASES
};
const char *refit_control_phase_name(enum refit_control_phase phase);

struct refit_control_state {
    char id[REFIT_ID_MAX];
    uint64_t version;
    char publish_id[REFIT_ID_MAX];
    enum refit_control_phase phase;
    bool terminal;
    char digest[REFIT_SHA256_HEX_MAX];
    char transport[16];
    uint64_t bytes_due, bytes_done, sequence, payload_bytes, wire_bytes;
    int64_t phase_us[REFIT_CONTROL_PHASES];
    char waiting[256];        /* for whom, when it waits for readers; else empty */
    struct refit_error error; /* REFIT_OK: none */
};
/* id NULL or empty: the running or latest one. With `after` >= 0: returns once the sequence differs from it, or after
 * wait_ms. */
REFIT_MUST_CHECK enum refit_status refit_control_state(struct refit_control *control, const char *id, int64_t after,
                                                       int64_t wait_ms, struct refit_deadline deadline,
                                                       struct refit_control_state *out, struct refit_error *err);
/* Where the bytes of a refit came from. */
struct refit_control_supply {
    uint64_t kept_bytes;   /* not moved: they were there */
    uint64_t excess_bytes; /* of the trainer, because others failed */
};
REFIT_MUST_CHECK enum refit_status refit_control_supply(struct refit_control *control, const char *id,
                                                        struct refit_deadline deadline,
                                                        struct refit_control_supply *out, struct refit_error *err);
/* `model`: the digest of the whole replica, for a part of one; NULL or empty: not said. */
REFIT_MUST_CHECK enum refit_status refit_control_commit(struct refit_control *control, const char *id,
                                                        uint64_t version, const char *digest, const char *model,
                                                        struct refit_deadline deadline, struct refit_error *err);
/* Adds the digests of what is there of a version (staged, served or retained) to `sum`, by tensor of `layout`, which
 * must be the one served there. REFIT_NOT_FOUND: that version is not there, or it is a refitd that can't tell. */
REFIT_MUST_CHECK enum refit_status refit_control_digests(struct refit_control *control, uint64_t version,
                                                         const struct refit_layout *layout, struct refit_tally *sum,
                                                         struct refit_deadline deadline, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_control_abort(struct refit_control *control, const char *id,
                                                       const char *reason, struct refit_deadline deadline,
                                                       struct refit_error *err);
/* Back to `version`, which is retained, without a hold; active already is REFIT_OK. */
REFIT_MUST_CHECK enum refit_status refit_control_take_back(struct refit_control *control, uint64_t version,
                                                           struct refit_deadline deadline, struct refit_error *err);
/* `order`: what POST /v1/serve takes; borrowed. */
REFIT_MUST_CHECK enum refit_status refit_control_serve(struct refit_control *control, const json_t *order,
                                                       struct refit_deadline deadline, struct refit_error *err);

#endif
