/* SPDX-License-Identifier: Apache-2.0 */
#include "tls/bulk.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>

#define NEW_SESSION_TICKET 4
#define KEY_UPDATE 24
#define MESSAGE_HEADER 4u
#define UPDATE_BYTES (MESSAGE_HEADER + 1 + REFIT_TLS_OVERHEAD)
/* Records in a row without a byte of data: each costs us as much as one that is full, and no peer of good will sends so
 * many. */
#define IDLE_MAX 32

struct refit_tls_bulk {
    struct refit_tls_bulk_config config;
    struct refit_tls_keys seals, opens;
    uint64_t key_updates;
    bool owes_update; /* the peer asked for one */
    bool said_end, heard_end;
    unsigned idle;
    uint8_t *opened; /* content of a record that the caller had no room for */
    size_t opened_from, opened_to;
};

static const struct refit_tls_fault wrong_message = {SSL_R_UNEXPECTED_MESSAGE, SSL_AD_UNEXPECTED_MESSAGE};
static const struct refit_tls_fault wrong_record = {SSL_R_UNEXPECTED_RECORD, SSL_AD_UNEXPECTED_MESSAGE};
static const struct refit_tls_fault wrong_length = {SSL_R_BAD_LENGTH, SSL_AD_DECODE_ERROR};
static const struct refit_tls_fault wrong_update = {SSL_R_INVALID_KEY_UPDATE_TYPE, SSL_AD_ILLEGAL_PARAMETER};
static const struct refit_tls_fault too_idle = {SSL_R_RECORD_TOO_SMALL, SSL_AD_UNEXPECTED_MESSAGE};

struct refit_tls_bulk *refit_tls_bulk_open(const struct refit_tls_bulk_config *config,
                                           const struct refit_tls_secrets *secrets)
{
    const struct refit_tls_suite *suite = refit_tls_suite(config->suite);
    if (!suite || secrets->len[0] != refit_tls_suite_secret(suite) || secrets->len[1] != refit_tls_suite_secret(suite))
        return NULL;
    struct refit_tls_bulk *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->config = *config;
    b->opened = malloc(REFIT_TLS_CONTENT_MAX);
    if (b->opened && refit_tls_keys_open(&b->seals, suite, secrets->bytes[config->end], true) &&
        refit_tls_keys_open(&b->opens, suite, secrets->bytes[!config->end], false))
        return b;
    refit_tls_bulk_free(b);
    return NULL;
}

void refit_tls_bulk_free(struct refit_tls_bulk *b)
{
    if (!b)
        return;
    refit_tls_keys_wipe(&b->seals);
    refit_tls_keys_wipe(&b->opens);
    free(b->opened);
    free(b);
}

/* --- writing ----------------------------------------------------------------------------------------------------- */

/* Room for a record, and for a KeyUpdate before it. */
static bool has_room(const struct refit_tls_socket *socket)
{
    return REFIT_TLS_UNSENT - socket->unsent_to >= REFIT_TLS_RECORD_MAX + UPDATE_BYTES;
}

static bool seal(struct refit_tls_bulk *b, enum refit_tls_content type, struct refit_tls_pieces *pieces,
                 size_t *content)
{
    struct refit_tls_socket *socket = b->config.socket;
    size_t len = refit_tls_seal(&b->seals, type, pieces, socket->unsent + socket->unsent_to, content);
    socket->unsent_to += len;
    return len > 0;
}

static bool seal_bytes(struct refit_tls_bulk *b, enum refit_tls_content type, const uint8_t *bytes, size_t len)
{
    size_t content;
    const struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = len};
    struct refit_tls_pieces pieces = {.iov = &iov, .count = 1};
    return seal(b, type, &pieces, &content);
}

/* AES-GCM is good for 2^24.5 full records under one key (RFC 8446, 5.5). */
static bool renew_key(struct refit_tls_bulk *b)
{
    static const uint8_t update[] = {KEY_UPDATE, 0, 0, 1, 0}; /* the peer's key may stay */
    if (!b->owes_update && b->seals.sequence < b->config.records_per_key)
        return true;
    b->owes_update = false;
    b->key_updates++;
    return seal_bytes(b, REFIT_TLS_HANDSHAKE, update, sizeof update) && refit_tls_keys_renew(&b->seals);
}

static enum refit_tls_step fail(struct refit_tls_bulk *b, const struct refit_tls_fault *fault)
{
    if (!b->config.report->reason)
        b->config.report->reason = ERR_PACK(ERR_LIB_SSL, 0, fault->reason);
    const uint8_t alert[] = {SSL3_AL_FATAL, (uint8_t)fault->alert};
    bool can_say = !b->said_end && fault != &refit_tls_broken && has_room(b->config.socket);
    if (can_say && seal_bytes(b, REFIT_TLS_ALERT, alert, sizeof alert))
        (void)refit_tls_socket_drain(b->config.socket, false);
    errno = 0;
    return REFIT_TLS_FAILED;
}

/* Whether there is room for a record, after sending if need be. */
static enum refit_tls_step make_room(struct refit_tls_bulk *b)
{
    if (has_room(b->config.socket) || refit_tls_socket_drain(b->config.socket, true))
        return REFIT_TLS_DONE;
    return refit_tls_would_block(errno) ? REFIT_TLS_AGAIN : REFIT_TLS_FAILED;
}

static size_t skip_empty(struct refit_tls_pieces *pieces)
{
    while (pieces->count > 0 && pieces->iov->iov_len == pieces->skip) {
        pieces->iov++;
        pieces->count--;
        pieces->skip = 0;
    }
    return pieces->count;
}

enum refit_tls_step refit_tls_bulk_write(struct refit_tls_bulk *b, const struct iovec *iov, size_t count, bool more,
                                         size_t *done)
{
    struct refit_tls_pieces pieces = {.iov = iov, .count = count};
    enum refit_tls_step step = REFIT_TLS_DONE;
    size_t content;
    *done = 0;
    if (b->said_end) {
        errno = EPIPE;
        return REFIT_TLS_FAILED;
    }
    while (skip_empty(&pieces) > 0 && (step = make_room(b)) == REFIT_TLS_DONE) {
        if (!renew_key(b) || !seal(b, REFIT_TLS_APPLICATION, &pieces, &content))
            return fail(b, &refit_tls_broken);
        *done += content;
    }
    if (step != REFIT_TLS_FAILED && !refit_tls_socket_drain(b->config.socket, more) && !refit_tls_would_block(errno))
        step = REFIT_TLS_FAILED;
    if (step == REFIT_TLS_FAILED)
        *done = 0;
    return *done > 0 ? REFIT_TLS_DONE : step;
}

enum refit_tls_step refit_tls_bulk_flush(struct refit_tls_bulk *b)
{
    if (refit_tls_socket_drain(b->config.socket, false))
        return REFIT_TLS_DONE;
    return refit_tls_would_block(errno) ? REFIT_TLS_AGAIN : REFIT_TLS_FAILED;
}

enum refit_tls_step refit_tls_bulk_shutdown(struct refit_tls_bulk *b)
{
    static const uint8_t alert[] = {SSL3_AL_WARNING, SSL_AD_CLOSE_NOTIFY};
    enum refit_tls_step step = b->said_end ? REFIT_TLS_DONE : make_room(b);
    if (step != REFIT_TLS_DONE)
        return step;
    if (!b->said_end && !seal_bytes(b, REFIT_TLS_ALERT, alert, sizeof alert))
        return fail(b, &refit_tls_broken);
    b->said_end = true;
    return refit_tls_bulk_flush(b);
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

/* NULL, and the connection has ended well or badly; or what is wrong. */
static const struct refit_tls_fault *take_alert(struct refit_tls_bulk *b, const uint8_t *bytes, size_t len)
{
    if (len != 2)
        return &wrong_length;
    if (bytes[1] == SSL_AD_CLOSE_NOTIFY)
        b->heard_end = true;
    else if (bytes[1] != SSL_AD_USER_CANCELLED) /* whatever level it names, it is fatal (RFC 8446, 6.2) */
        b->config.report->alert = bytes[1];
    return NULL;
}

/* A new key is for the records after this one: nothing may follow in it. */
static const struct refit_tls_fault *take_key_update(struct refit_tls_bulk *b, const uint8_t *body, size_t len,
                                                     size_t left)
{
    if (len != 1)
        return &wrong_length;
    if (left != len)
        return &wrong_message;
    if (body[0] > 1)
        return &wrong_update;
    b->owes_update |= body[0] == 1;
    return refit_tls_keys_renew(&b->opens) ? NULL : &refit_tls_broken;
}

static const struct refit_tls_fault *take_messages(struct refit_tls_bulk *b, const uint8_t *bytes, size_t left)
{
    const struct refit_tls_fault *fault = left > 0 ? NULL : &wrong_message;
    while (left > 0 && !fault) {
        if (left < MESSAGE_HEADER)
            return &wrong_message;
        size_t len = (size_t)bytes[1] << 16 | (size_t)bytes[2] << 8 | bytes[3];
        uint8_t type = bytes[0];
        bytes += MESSAGE_HEADER;
        left -= MESSAGE_HEADER;
        if (type == KEY_UPDATE)
            fault = take_key_update(b, bytes, len, left);
        else if (type != NEW_SESSION_TICKET || b->config.end != REFIT_TLS_CLIENT || len > left)
            fault = &wrong_message;
        bytes += fault ? 0 : len;
        left -= fault ? 0 : len;
    }
    return fault;
}

/* A record that is no data, or holds none. DONE: go on. */
static enum refit_tls_step take_other(struct refit_tls_bulk *b, uint8_t type, const uint8_t *bytes, size_t len)
{
    const struct refit_tls_fault *fault = NULL;
    if (type == REFIT_TLS_ALERT)
        fault = take_alert(b, bytes, len);
    else if (type == REFIT_TLS_HANDSHAKE)
        fault = take_messages(b, bytes, len);
    else if (type != REFIT_TLS_APPLICATION)
        fault = &wrong_record;
    if (!fault && ++b->idle > IDLE_MAX)
        fault = &too_idle;
    if (fault)
        return fail(b, fault);
    errno = 0;
    return b->config.report->alert ? REFIT_TLS_FAILED : b->heard_end ? REFIT_TLS_END : REFIT_TLS_DONE;
}

/* The next record is whole, `*len` bytes of what is ahead. */
static enum refit_tls_step gather(struct refit_tls_bulk *b, size_t *len)
{
    struct refit_tls_socket *socket = b->config.socket;
    for (;;) {
        size_t have = socket->ahead_to - socket->ahead_from;
        const struct refit_tls_fault *fault = refit_tls_measure(socket->ahead + socket->ahead_from, have, len);
        if (fault)
            return fail(b, fault);
        if (*len > 0 && *len <= have)
            return REFIT_TLS_DONE;
        long got = refit_tls_socket_fetch(socket);
        if (got == 0)
            errno = 0;
        if (got <= 0)
            return got < 0 && refit_tls_would_block(errno) ? REFIT_TLS_AGAIN : REFIT_TLS_FAILED;
    }
}

/* One record, into `data` if it fits there. DONE with *done 0: go on. */
static enum refit_tls_step open_one(struct refit_tls_bulk *b, uint8_t *data, size_t room, size_t *done)
{
    struct refit_tls_socket *socket = b->config.socket;
    size_t len, content;
    uint8_t type;
    enum refit_tls_step step = gather(b, &len);
    if (step != REFIT_TLS_DONE)
        return step;
    bool fits = len - REFIT_TLS_OVERHEAD <= room;
    uint8_t *out = fits ? data : b->opened;
    const struct refit_tls_fault *fault =
        refit_tls_unseal(&b->opens, socket->ahead + socket->ahead_from, len, out, &content, &type);
    if (fault)
        return fail(b, fault);
    socket->ahead_from += len;
    if (type != REFIT_TLS_APPLICATION || content == 0)
        return take_other(b, type, out, content);
    b->idle = 0;
    if (fits)
        *done = content;
    else
        b->opened_to = content;
    return REFIT_TLS_DONE;
}

static size_t take_opened(struct refit_tls_bulk *b, void *data, size_t room)
{
    size_t have = b->opened_to - b->opened_from, take = have < room ? have : room;
    memcpy(data, b->opened + b->opened_from, take);
    b->opened_from += take;
    if (b->opened_from == b->opened_to)
        b->opened_from = b->opened_to = 0;
    return take;
}

enum refit_tls_step refit_tls_bulk_read(struct refit_tls_bulk *b, void *data, size_t len, size_t *done)
{
    enum refit_tls_step step = b->heard_end && b->opened_to == 0 ? REFIT_TLS_END : REFIT_TLS_DONE;
    *done = 0;
    while (step == REFIT_TLS_DONE && *done == 0 && len > 0) {
        if (b->opened_to > 0)
            *done = take_opened(b, data, len);
        else
            step = open_one(b, data, len, done);
    }
    return step;
}

/* --- looking ----------------------------------------------------------------------------------------------------- */

bool refit_tls_bulk_holds(const struct refit_tls_bulk *b)
{
    return b->opened_to > 0;
}

uint64_t refit_tls_bulk_key_updates(const struct refit_tls_bulk *b)
{
    return b->key_updates;
}
