/* SPDX-License-Identifier: Apache-2.0
 *
 * One HTTP request, blocking, with a deadline over the whole of it: name look-up, connect, sending and the answer.
 *
 * Each call has an event loop and a connection of its own, so calls from several threads never meet and a slow peer
 * holds up nobody else. Answers are bounded. `https` checks the peer's chain and that its certificate names the host.
 *
 * A connection that is dropped in the middle of its TLS handshake is tried again, a few times: nothing was sent yet.
 *
 * Call from a thread that blocks SIGPIPE, or in a process that ignores it.
 */
#ifndef REFIT_SENDER_HTTP_CLIENT_H
#define REFIT_SENDER_HTTP_CLIENT_H

#include <stdint.h>

#include "base/clock.h"
#include "base/error.h"
#include "sender/credentials.h"

#define REFIT_URL_MAX 256
#define REFIT_HTTP_ANSWER_MAX (1u << 20)
#define REFIT_HTTP_HEADER_MAX 128

/* A base URL, taken apart: "https://replica-0.pool:7070", "http://10.0.0.7:7070", "10.0.0.7:7070" (http),
 * "http://[::1]:7070/replica-a"; "https://10.0.0.7:7070#replicas.pool", whose certificate must hold that name instead of
 * the address. */
struct refit_http_url {
    char text[REFIT_URL_MAX]; /* normal form, for messages */
    char host[REFIT_URL_MAX]; /* without brackets */
    uint16_t port;
    bool secure; /* https */
    char name[REFIT_URL_MAX]; /* to be found in the certificate */
    char prefix[REFIT_URL_MAX]; /* path, without a trailing slash */
};
REFIT_MUST_CHECK enum refit_status refit_http_url_parse(const char *text, struct refit_http_url *out,
                                                        struct refit_error *err);

enum refit_http_method { REFIT_HTTP_GET, REFIT_HTTP_POST, REFIT_HTTP_PUT };

struct refit_http_request {
    enum refit_http_method method;
    const char *path;  /* "/v1/lead", with its query */
    const void *body;  /* borrowed; NULL: none */
    size_t body_bytes;
    size_t answer_max; /* 0: REFIT_HTTP_ANSWER_MAX */
    struct refit_deadline deadline;
    struct refit_credentials *credentials; /* borrowed; NULL: no token, and no https */
    bool without_token;                    /* its files are for TLS only: this server is none of ours */
};

struct refit_http_answer {
    int status;                               /* 200, ... */
    char instance[REFIT_HTTP_HEADER_MAX];     /* Refit-Instance; empty when the answer had none */
    char *body;                               /* new, NUL-terminated; never NULL after REFIT_OK */
    size_t body_bytes;
};

/* REFIT_OK: there was an answer, of whatever status. REFIT_PEER: no connection, no trust, or closed before its end;
 * REFIT_TIMEOUT; REFIT_INVALID: not HTTP, too large, or a token that must not be sent there. */
REFIT_MUST_CHECK enum refit_status refit_http_call(const struct refit_http_url *url,
                                                   const struct refit_http_request *request,
                                                   struct refit_http_answer *answer, struct refit_error *err);
void refit_http_answer_release(struct refit_http_answer *answer);

#endif
