/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/ranks.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cursor.h"
#include "base/io.h"
#include "base/json.h"
#include "base/log.h"
#include "sender/hub.h"
#include "sender/rank_address.h"
#include "sender/rank_wire.h"
#include "sender/seats.h"
#include "sender/trust.h"

#define RANKS_FORMAT "refit-ranks/1"
#define REFUSAL_MS 100
#define NO_LINK SIZE_MAX
#define OWN_LINK 0 /* the lead's first: to rank 0 */

/* What a stranger has said so far, by its link; the hub's thread's. A link that is used again is greeted anew. */
struct greeting {
    bool challenged;
    uint32_t rank;
    char boot_id[REFIT_BOOT_ID_MAX];
    char rank_nonce[REFIT_NONCE_HEX_MAX], lead_nonce[REFIT_NONCE_HEX_MAX];
};

struct refit_ranks {
    struct refit_ranks_handlers handlers;
    const struct refit_trust *trust; /* borrowed; NULL: none */
    struct greeting *greetings;      /* lead: by link */
    struct refit_hub *hub;
    struct refit_seats *seats;
    uint32_t ranks;     /* of the mesh */
    uint32_t seat_count;
    bool lead;
    _Atomic(size_t) *link_of; /* by seat; lead: written by the hub's thread before the seat gets its HELLO */
    _Atomic(uint64_t) turn;
    char (*boot_ids)[REFIT_BOOT_ID_MAX]; /* lead: by rank */
    char lead_address[INET6_ADDRSTRLEN];
};

/* ---- frames ---- */

static bool has_secret(const struct refit_ranks *ranks)
{
    return ranks->trust && ranks->trust->secret_len > 0;
}

/* Both ends have the job's secret, or neither: a rank that was not given it would be trusted by nobody. */
static enum refit_status check_nonce(const struct refit_ranks *ranks, const char *nonce, struct refit_error *err)
{
    if (*nonce && !refit_nonce_is_one(nonce))
        return refit_fail(err, REFIT_INVALID, "its nonce is not well formed");
    if (has_secret(ranks) && !*nonce)
        return refit_fail(err, REFIT_INVALID, "has no job secret, and rank 0 demands one; give every rank the same "
                          "REFIT_JOB_SECRET or REFIT_JOB_SECRET_FILE");
    if (!has_secret(ranks) && *nonce)
        return refit_fail(err, REFIT_INVALID, "has a job secret, and rank 0 has none; give every rank the same "
                          "REFIT_JOB_SECRET or REFIT_JOB_SECRET_FILE");
    return REFIT_OK;
}

static enum refit_status read_hello(const struct refit_ranks *ranks, const void *body, size_t len, struct greeting *out,
                                    struct refit_error *err)
{
    json_t *hello = NULL;
    const char *format = NULL, *boot = "", *nonce = "";
    int64_t number = 0, count = 0;
    enum refit_status status = refit_json_parse(body, len, "greeting", &hello, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(hello, "format", "greeting", &format, err);
    if (status == REFIT_OK && strcmp(format, RANKS_FORMAT) != 0)
        status = refit_fail(err, REFIT_UNSUPPORTED, "speaks \"%s\", this lead speaks " RANKS_FORMAT, format);
    if (status == REFIT_OK)
        status = refit_json_get_int(hello, "ranks", "greeting", 1, UINT32_MAX, &count, err);
    if (status == REFIT_OK && count != ranks->ranks)
        status = refit_fail(err, REFIT_MISMATCH, "is one of %lld ranks, the lead was opened with %u", (long long)count,
                            ranks->ranks);
    if (status == REFIT_OK)
        status = refit_json_get_int(hello, "rank", "greeting", 0, (int64_t)ranks->ranks - 1, &number, err);
    if (status == REFIT_OK)
        status = refit_json_opt_string(hello, "boot_id", "greeting", &boot, err);
    if (status == REFIT_OK)
        status = refit_json_opt_string(hello, "nonce", "greeting", &nonce, err);
    *out = (struct greeting){.rank = (uint32_t)number};
    if (status == REFIT_OK) {
        snprintf(out->boot_id, sizeof out->boot_id, "%s", boot);
        snprintf(out->rank_nonce, sizeof out->rank_nonce, "%s", nonce);
    }
    json_decref(hello);
    return status;
}

/* Tells the stranger why, then drops it. */
static bool refuse(struct refit_ranks *ranks, size_t link, const struct refit_error *why)
{
    struct refit_buf body;
    refit_buf_init(&body, REFIT_HUB_GREETING_BYTES);
    refit_buf_append_u32(&body, (uint32_t)why->status);
    refit_buf_append(&body, why->text, strlen(why->text));
    struct refit_frame frame = {.type = REFIT_MESSAGE_WELCOME, .body = body.data, .len = body.len};
    enum refit_status sent = refit_hub_send(ranks->hub, link, &frame, refit_deadline_in_ms(REFUSAL_MS), NULL);
    refit_buf_release(&body);
    if (sent != REFIT_OK)
        refit_log_limited(REFIT_LOG_DEBUG, "a rank that was refused did not stay to hear why", REFIT_LOG_CAUSE(why));
    return false;
}

static bool take_in(struct refit_ranks *ranks, size_t link, uint64_t turn, struct refit_error *why)
{
    const struct greeting *greeting = &ranks->greetings[link];
    uint32_t rank = greeting->rank;
    if (ranks->link_of[rank] != NO_LINK) {
        refit_fail(why, REFIT_CONFLICT, "rank %u is here already; is another process started with this rank?", rank);
        return refuse(ranks, link, why);
    }
    ranks->link_of[rank] = link;
    memcpy(ranks->boot_ids[rank], greeting->boot_id, sizeof greeting->boot_id);
    refit_hub_trust(ranks->hub, link);
    return refit_seats_put(ranks->seats, rank, REFIT_MESSAGE_HELLO, turn, NULL, 0);
}

static struct refit_proof_of proof_of(const struct refit_ranks *ranks, const struct greeting *greeting, bool lead)
{
    return (struct refit_proof_of){.lead = lead, .rank = greeting->rank, .ranks = ranks->ranks,
                                   .rank_nonce = greeting->rank_nonce, .lead_nonce = greeting->lead_nonce};
}

static enum refit_status send_json(struct refit_ranks *ranks, size_t link, enum refit_message type, json_t *json,
                                   int64_t timeout_ms, struct refit_error *err)
{
    size_t len = 0;
    char *text = json ? refit_json_canonical(json, &len) : NULL;
    json_decref(json);
    if (!text)
        return refit_fail_alloc(err, "a greeting", 256);
    struct refit_frame frame = {.type = (uint8_t)type, .body = text, .len = len};
    enum refit_status status = refit_hub_send(ranks->hub, link, &frame, refit_deadline_in_ms(timeout_ms), err);
    free(text);
    return status;
}

/* Short enough for the socket's buffer: the hub's thread does not wait for a stranger. */
static bool challenge(struct refit_ranks *ranks, size_t link, struct refit_error *why)
{
    struct greeting *greeting = &ranks->greetings[link];
    char proof[REFIT_NONCE_HEX_MAX];
    refit_nonce_make(greeting->lead_nonce);
    greeting->challenged = true;
    const struct refit_proof_of of = proof_of(ranks, greeting, true);
    refit_proof_make(ranks->trust, &of, proof);
    json_t *json = json_pack("{s:s, s:s}", "nonce", greeting->lead_nonce, "proof", proof);
    return send_json(ranks, link, REFIT_MESSAGE_CHALLENGE, json, REFUSAL_MS, why) == REFIT_OK;
}

static bool on_hello(struct refit_ranks *ranks, size_t link, const struct refit_frame *frame, struct refit_error *why)
{
    struct greeting *greeting = &ranks->greetings[link];
    enum refit_status status = read_hello(ranks, frame->body, frame->len, greeting, why);
    bool own = link == OWN_LINK; /* rank 0 itself, over a pair of sockets */
    if (status == REFIT_OK && !own)
        status = check_nonce(ranks, greeting->rank_nonce, why);
    if (status != REFIT_OK)
        return refuse(ranks, link, why);
    return own || !has_secret(ranks) ? take_in(ranks, link, frame->turn, why) : challenge(ranks, link, why);
}

static bool on_proof(struct refit_ranks *ranks, size_t link, const struct refit_frame *frame, struct refit_error *why)
{
    struct greeting *greeting = &ranks->greetings[link];
    json_t *json = NULL;
    const char *proof = "";
    enum refit_status status = refit_json_parse(frame->body, frame->len, "proof", &json, why);
    if (status == REFIT_OK)
        status = refit_json_get_string(json, "proof", "proof", &proof, why);
    const struct refit_proof_of of = proof_of(ranks, greeting, false);
    bool good = status == REFIT_OK && greeting->challenged && refit_proof_holds(ranks->trust, &of, proof);
    greeting->challenged = false;
    json_decref(json);
    if (good)
        return take_in(ranks, link, frame->turn, why);
    refit_fail(why, REFIT_INVALID, "rank %u has another job secret than rank 0", greeting->rank);
    refit_log_limited(REFIT_LOG_WARN, "a rank was refused", refit_log_u64("rank", greeting->rank),
                      REFIT_LOG_CAUSE(why));
    return refuse(ranks, link, why);
}

static uint32_t seat_of(const struct refit_ranks *ranks, size_t link)
{
    uint32_t seat = 0;
    while (seat < ranks->seat_count && ranks->link_of[seat] != link)
        seat++;
    return seat;
}

static bool on_frame(void *context, size_t link, const struct refit_frame *frame, struct refit_error *why)
{
    struct refit_ranks *ranks = context;
    uint32_t seat = ranks->lead ? seat_of(ranks, link) : 0;
    if (ranks->lead && seat == ranks->seat_count && frame->type == REFIT_MESSAGE_HELLO)
        return on_hello(ranks, link, frame, why);
    if (ranks->lead && seat == ranks->seat_count && frame->type == REFIT_MESSAGE_PROOF && has_secret(ranks))
        return on_proof(ranks, link, frame, why);
    if (seat == ranks->seat_count) {
        refit_fail(why, REFIT_PEER, "did not greet");
        return false;
    }
    if (frame->type >= REFIT_MESSAGE_SERVE) {
        ranks->handlers.message(ranks->handlers.context, seat, (enum refit_message)frame->type, frame->body,
                                frame->len);
        return true;
    }
    if (refit_seats_put(ranks->seats, seat, frame->type, frame->turn, frame->body, frame->len))
        return true;
    refit_fail(why, REFIT_PEER, "sent more messages than the protocol has");
    return false;
}

static void on_lost(void *context, size_t link, const struct refit_error *why)
{
    struct refit_ranks *ranks = context;
    uint32_t seat = ranks->lead ? seat_of(ranks, link) : 0;
    if (seat == ranks->seat_count)
        return;
    refit_seats_lose(ranks->seats, seat, why);
    ranks->handlers.lost(ranks->handlers.context, seat, why);
}

/* ---- opening ---- */

static struct refit_ranks *create(uint32_t ranks, uint32_t seats, bool lead, const struct refit_trust *trust,
                                  const struct refit_ranks_handlers *handlers)
{
    struct refit_ranks *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    *self = (struct refit_ranks){.handlers = *handlers, .trust = trust, .ranks = ranks, .seat_count = seats,
                                 .lead = lead};
    self->seats = refit_seats_create(seats);
    self->link_of = calloc(seats, sizeof *self->link_of);
    self->boot_ids = calloc(seats, sizeof *self->boot_ids);
    self->greetings = calloc((size_t)seats + REFIT_HUB_STRANGERS, sizeof *self->greetings);
    if (!self->seats || !self->link_of || !self->boot_ids || !self->greetings) {
        refit_ranks_close(self);
        return NULL;
    }
    for (uint32_t i = 0; i < seats; i++)
        atomic_init(&self->link_of[i], NO_LINK);
    return self;
}

void refit_ranks_set_turn(struct refit_ranks *ranks, uint64_t turn)
{
    atomic_store_explicit(&ranks->turn, turn, memory_order_relaxed);
}

void refit_ranks_close(struct refit_ranks *ranks)
{
    if (!ranks)
        return;
    refit_hub_stop(ranks->hub);
    refit_seats_destroy(ranks->seats);
    free(ranks->link_of);
    free(ranks->boot_ids);
    free(ranks->greetings);
    free(ranks);
}

static bool is_loopback(int listener)
{
    char address[INET6_ADDRSTRLEN];
    refit_rank_address_name(listener, getsockname, address);
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

/* What launchers expect is that ranks find each other by an address alone, so it is not refused. */
static void warn_of_strangers(int listener, const struct refit_trust *trust)
{
    if (listener < 0 || is_loopback(listener) || (trust && (trust->secret_len > 0 || trust->tls)))
        return;
    refit_log_write(REFIT_LOG_WARN, "ranks are not authenticated: whoever reaches rank 0's port may pass for one; set "
                    "REFIT_JOB_SECRET, or certificates", NULL, 0);
}

static enum refit_status start_hub(struct refit_ranks *self, int listener, struct refit_rank_wire *first, size_t links,
                                   struct refit_error *err)
{
    struct refit_tls *tls = listener >= 0 && self->trust ? self->trust->tls : NULL;
    struct refit_hub_config config = {.listener = listener, .tls = tls,
                                      .first = first, .links_max = links, .frame_max = REFIT_MESSAGE_MAX,
                                      .frame = on_frame, .lost = on_lost, .context = self};
    return refit_hub_start(&config, &self->hub, err);
}

enum refit_status refit_ranks_listen(const char *address, uint32_t ranks, int own, const struct refit_trust *trust,
                                     const struct refit_ranks_handlers *handlers, struct refit_ranks **out,
                                     struct refit_error *err)
{
    int listener = -1;
    struct refit_ranks *self = NULL;
    struct refit_rank_wire wire = {.fd = -1};
    enum refit_status status = address ? refit_rank_address_listen(address, &listener, err) : REFIT_OK;
    if (status == REFIT_OK && !(self = create(ranks, ranks, true, trust, handlers)))
        status = refit_fail_alloc(err, "the ranks' seats", ranks);
    if (!self) {
        refit_io_close(&listener);
        refit_io_close(&own);
        return status;
    }
    warn_of_strangers(listener, trust);
    status = refit_rank_wire_open(&wire, own, NULL, err);
    if (status == REFIT_OK)
        status = start_hub(self, listener, &wire, ranks, err);
    else
        refit_io_close(&listener);
    if (status != REFIT_OK)
        refit_ranks_close(self);
    else
        *out = self;
    return status;
}

/* ---- a member's end ---- */

static enum refit_status greet(struct refit_ranks *self, struct greeting *greeting, struct refit_error *err)
{
    refit_boot_id(greeting->boot_id);
    json_t *hello = json_pack("{s:s, s:I, s:I, s:s}", "format", RANKS_FORMAT, "rank", (json_int_t)greeting->rank,
                              "ranks",
                              (json_int_t)self->ranks, "boot_id", greeting->boot_id);
    if (hello && has_secret(self)) {
        refit_nonce_make(greeting->rank_nonce);
        json_object_set_new(hello, "nonce", json_string(greeting->rank_nonce));
    }
    return send_json(self, 0, REFIT_MESSAGE_HELLO, hello, REFIT_HUB_GREETING_MS, err);
}

/* Rank 0 says why it refuses a greeting where others would wait to be welcome. */
static enum refit_status take_refusal(struct refit_ranks *self, struct refit_error *err)
{
    struct refit_buf welcome;
    struct refit_error said;
    enum refit_status status = err->status;
    if (refit_ranks_take(self, REFIT_MESSAGE_WELCOME, refit_deadline_in_ms(0), &welcome, &said) != REFIT_OK)
        return status;
    if (refit_outcome_read(&welcome, NULL, NULL, &said) != REFIT_OK)
        status = refit_fail(err, said.status, "%s", said.text);
    refit_buf_release(&welcome);
    return status;
}

static enum refit_status read_challenge(const struct refit_ranks *self, struct greeting *greeting,
                                        const struct refit_buf *body, struct refit_error *err)
{
    json_t *json = NULL;
    const char *nonce = "", *proof = "";
    enum refit_status status = refit_json_parse(body->data, body->len, "rank 0's challenge", &json, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(json, "nonce", "rank 0's challenge", &nonce, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(json, "proof", "rank 0's challenge", &proof, err);
    if (status == REFIT_OK && !refit_nonce_is_one(nonce))
        status = refit_fail(err, REFIT_INVALID, "rank 0's challenge is not well formed");
    if (status == REFIT_OK)
        snprintf(greeting->lead_nonce, sizeof greeting->lead_nonce, "%s", nonce);
    const struct refit_proof_of of = proof_of(self, greeting, true);
    if (status == REFIT_OK && !refit_proof_holds(self->trust, &of, proof))
        status = refit_fail(err, REFIT_INVALID, "what listens as rank 0 does not have this rank's job secret");
    json_decref(json);
    return status;
}

static enum refit_status prove(struct refit_ranks *self, struct greeting *greeting, struct refit_deadline deadline,
                               struct refit_error *err)
{
    struct refit_buf body;
    char proof[REFIT_NONCE_HEX_MAX];
    deadline = refit_deadline_earlier(deadline, refit_deadline_in_ms(REFIT_HUB_GREETING_MS));
    if (refit_ranks_take(self, REFIT_MESSAGE_CHALLENGE, deadline, &body, err) != REFIT_OK)
        return take_refusal(self, err);
    enum refit_status status = read_challenge(self, greeting, &body, err);
    refit_buf_release(&body);
    if (status != REFIT_OK)
        return status;
    const struct refit_proof_of of = proof_of(self, greeting, false);
    refit_proof_make(self->trust, &of, proof);
    return send_json(self, 0, REFIT_MESSAGE_PROOF, json_pack("{s:s}", "proof", proof), REFIT_HUB_GREETING_MS, err);
}

static enum refit_status join_over(struct refit_rank_wire *wire, uint32_t rank, uint32_t ranks,
                                   const struct refit_trust *trust,
                                   const struct refit_ranks_handlers *handlers, struct refit_deadline deadline,
                                   struct refit_ranks **out, struct refit_error *err)
{
    struct greeting greeting = {.rank = rank};
    struct refit_ranks *self = create(ranks, 1, false, trust, handlers);
    if (!self) {
        refit_rank_wire_close(wire);
        return refit_fail_alloc(err, "a rank's seat", sizeof *self);
    }
    self->link_of[0] = 0;
    enum refit_status status = start_hub(self, -1, wire, 1, err);
    if (status == REFIT_OK)
        status = greet(self, &greeting, err);
    if (status == REFIT_OK && has_secret(self))
        status = prove(self, &greeting, deadline, err);
    if (status != REFIT_OK)
        refit_ranks_close(self);
    else
        *out = self;
    return status;
}

enum refit_status refit_ranks_join_over(int fd, uint32_t rank, uint32_t ranks,
                                        const struct refit_ranks_handlers *handlers, struct refit_ranks **out,
                                        struct refit_error *err)
{
    struct refit_rank_wire wire;
    enum refit_status status = refit_rank_wire_open(&wire, fd, NULL, err);
    return status == REFIT_OK
               ? join_over(&wire, rank, ranks, NULL, handlers, refit_deadline_in_ms(REFIT_HUB_GREETING_MS), out, err)
               : status;
}

/* The handshake, and a hint where the other end may not have expected one. */
static enum refit_status open_wire(struct refit_rank_wire *wire, int fd, const struct refit_trust *trust,
                                   struct refit_deadline deadline, struct refit_error *err)
{
    enum refit_status status = refit_rank_wire_open(wire, fd, trust ? trust->tls : NULL, err);
    if (status != REFIT_OK)
        return status;
    deadline = refit_deadline_earlier(deadline, refit_deadline_in_ms(REFIT_HUB_GREETING_MS));
    status = refit_rank_wire_shake(wire, deadline, err);
    if (status == REFIT_OK)
        return REFIT_OK;
    refit_rank_wire_close(wire);
    return refit_error_prefix(err, status, "TLS with rank 0 (every rank needs the certificates, or none)");
}

enum refit_status refit_ranks_join(const char *address, uint32_t rank, uint32_t ranks, const struct refit_trust *trust,
                                   const struct refit_ranks_handlers *handlers, struct refit_deadline deadline,
                                   struct refit_ranks **out, struct refit_error *err)
{
    int fd = -1;
    enum refit_status status = refit_rank_address_dial(address, deadline, &fd, err);
    if (status != REFIT_OK)
        return status == REFIT_TIMEOUT ? refit_error_prefix(err, status, "rank %u", rank) : status;
    char found_at[INET6_ADDRSTRLEN];
    struct refit_rank_wire wire;
    refit_rank_address_name(fd, getpeername, found_at);
    status = open_wire(&wire, fd, trust, deadline, err);
    if (status == REFIT_OK)
        status = join_over(&wire, rank, ranks, trust, handlers, deadline, out, err);
    if (status == REFIT_OK)
        memcpy((*out)->lead_address, found_at, sizeof found_at);
    return status;
}

const char *refit_ranks_lead_address(const struct refit_ranks *ranks)
{
    return ranks->lead_address;
}

enum refit_status refit_ranks_wait_all(struct refit_ranks *ranks, struct refit_deadline deadline,
                                       struct refit_error *err)
{
    struct refit_buf *bodies = calloc(ranks->ranks, sizeof *bodies);
    if (!bodies)
        return refit_fail_alloc(err, "greetings", ranks->ranks * sizeof *bodies);
    enum refit_status status = refit_ranks_take(ranks, REFIT_MESSAGE_HELLO, deadline, bodies, err);
    for (uint32_t i = 0; i < ranks->ranks; i++)
        refit_buf_release(&bodies[i]);
    free(bodies);
    refit_hub_close_listener(ranks->hub);
    if (status != REFIT_OK)
        refit_error_prefix(err, status, "waiting for all %u ranks to connect", ranks->ranks);
    return status;
}

bool refit_ranks_on_host(const struct refit_ranks *ranks, const char *boot_id)
{
    for (uint32_t i = 0; i < ranks->seat_count; i++)
        if (!*boot_id || strcmp(ranks->boot_ids[i], boot_id) != 0)
            return false;
    return true;
}

/* ---- messages ---- */

enum refit_status refit_ranks_send(struct refit_ranks *ranks, uint32_t rank, enum refit_message type, const void *body,
                                   size_t len, struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_frame frame = {.type = (uint8_t)type, .body = body, .len = len,
                                .turn = atomic_load_explicit(&ranks->turn, memory_order_relaxed)};
    size_t link = rank < ranks->seat_count ? ranks->link_of[rank] : NO_LINK;
    if (link == NO_LINK)
        return refit_fail(err, REFIT_PEER, "rank %u is not connected", rank);
    enum refit_status status = refit_hub_send(ranks->hub, link, &frame, deadline, err);
    return status == REFIT_OK ? status : refit_error_prefix(err, status, "rank %u", rank);
}

enum refit_status refit_ranks_broadcast(struct refit_ranks *ranks, enum refit_message type, const void *body,
                                        size_t len, struct refit_deadline deadline, struct refit_error *err)
{
    enum refit_status first = REFIT_OK;
    struct refit_error why;
    for (uint32_t i = 0; i < ranks->seat_count; i++) {
        enum refit_status status = refit_ranks_send(ranks, i, type, body, len, deadline, &why);
        if (status != REFIT_OK && first == REFIT_OK) {
            first = status;
            if (err)
                *err = why;
        }
    }
    return first;
}

enum refit_status refit_ranks_take(struct refit_ranks *ranks, enum refit_message type, struct refit_deadline deadline,
                                   struct refit_buf *bodies, struct refit_error *err)
{
    return refit_seats_take(ranks->seats, (uint8_t)type, atomic_load_explicit(&ranks->turn, memory_order_relaxed),
                            deadline, bodies, err);
}

enum refit_status refit_outcome_send(struct refit_ranks *ranks, uint32_t rank, enum refit_message type,
                                     const struct refit_error *outcome, const void *body, size_t len,
                                     struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_buf message;
    bool ok = outcome->status == REFIT_OK;
    refit_buf_init(&message, REFIT_MESSAGE_MAX);
    refit_buf_append_u32(&message, (uint32_t)outcome->status);
    if (ok ? !refit_buf_append(&message, body, len)
           : !refit_buf_append(&message, outcome->text, strlen(outcome->text))) {
        refit_buf_release(&message);
        return refit_fail_alloc(err, "a message to a rank", len);
    }
    enum refit_status status = rank == UINT32_MAX
                                   ? refit_ranks_broadcast(ranks, type, message.data, message.len, deadline, err)
                                   : refit_ranks_send(ranks, rank, type, message.data, message.len, deadline, err);
    refit_buf_release(&message);
    return status;
}

enum refit_status refit_outcome_read(const struct refit_buf *message, const void **body, size_t *len,
                                     struct refit_error *err)
{
    struct refit_cursor cursor = refit_cursor_over(message->data, message->len);
    uint32_t code = refit_cursor_u32(&cursor);
    size_t left = refit_cursor_left(&cursor);
    if (cursor.failed || code > REFIT_SYSTEM)
        return refit_fail(err, REFIT_PEER, "a message between ranks is not well formed");
    if (code != REFIT_OK)
        return refit_fail(err, (enum refit_status)code, "%.*s", (int)left, (const char *)cursor.at);
    if (body)
        *body = cursor.at;
    if (len)
        *len = left;
    return REFIT_OK;
}
