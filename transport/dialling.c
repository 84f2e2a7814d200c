/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/dialling.h"

#include <stdio.h>

static enum refit_status parse_tls(const json_t *card, const struct refit_tls *tls, const char *host,
                                   struct refit_target *target, struct refit_error *err)
{
    enum refit_status status = refit_json_opt_bool(card, "tls", "card", &target->tls, err);
    if (status != REFIT_OK || !target->tls)
        return status;
    target->name = host;
    if (json_object_get(card, "name"))
        status = refit_json_get_string(card, "name", "card", &target->name, err);
    if (status == REFIT_OK && !tls)
        return refit_fail(err, REFIT_INVALID, "%s: the receiver demands TLS for bulk bytes, and no certificates are "
                          "configured here: a refitd needs --data-tls-ca (or --tls-cert), a sender its cacert",
                          target->text);
    return status;
}

enum refit_status refit_target_parse(const json_t *card, const struct refit_tls *tls, struct refit_target *target,
                                     struct refit_error *err)
{
    const char *host, *transport;
    int64_t port;
    *target = (struct refit_target){.tls = false};
    enum refit_status status = refit_json_get_string(card, "transport", "card", &transport, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(card, "address", "card", &host, err);
    if (status == REFIT_OK)
        status = refit_json_get_int(card, "port", "card", 1, 65535, &port, err);
    if (status != REFIT_OK)
        return status;
    snprintf(target->text, sizeof target->text, "%s port %d", host, (int)port);
    status = refit_address_parse(host, (uint16_t)port, &target->address, err);
    return status == REFIT_OK ? parse_tls(card, tls, host, target, err) : status;
}

static enum refit_status greet(const struct refit_endpoint *holder, struct refit_stream *stream, unsigned number,
                               uint32_t flags, struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_buf greeting;
    refit_buf_init(&greeting, REFIT_GREETING_HEAD_BYTES + REFIT_OFFER_MAX * (size_t)REFIT_GREETING_EDGE_BYTES);
    enum refit_status status = refit_greeting_encode(&holder->config, number, flags, &greeting, err);
    struct iovec iov = {.iov_base = greeting.data, .iov_len = greeting.len};
    if (status == REFIT_OK)
        status = refit_stream_send_by(stream, &iov, 1, 0, holder->wake, deadline, err);
    /* Refused before all was sent: the reason is there to be read. */
    if (status == REFIT_OK || status == REFIT_PEER)
        status = refit_greeting_await(stream, holder->wake, deadline, err);
    refit_buf_release(&greeting);
    return status;
}

/* The receiver's card demanded TLS, or it did not: nothing that comes from the connection itself changes that. */
static enum refit_status secure(const struct refit_endpoint *holder, const struct refit_target *target,
                                struct refit_stream *stream, struct refit_deadline deadline, struct refit_error *err)
{
    if (!target->tls)
        return REFIT_OK;
    const char *name = holder->config.tls_any_name ? NULL : target->name;
    enum refit_status status = refit_stream_secure(stream, holder->config.tls, name, err);
    return status == REFIT_OK ? refit_stream_shake(stream, holder->wake, deadline, err) : status;
}

enum refit_status refit_target_dial(const struct refit_target *target, const struct refit_endpoint *holder,
                                    unsigned number, uint32_t flags, struct refit_deadline deadline,
                                    struct refit_stream *out, struct refit_error *err)
{
    const struct refit_address *address = &target->address;
    *out = (struct refit_stream){.fd = -1};
    enum refit_status status = refit_address_dial(&address->any, address->len, SOCK_STREAM, target->text, holder->wake,
                                                  deadline, &out->fd, err);
    if (status == REFIT_OK) {
        refit_socket_tune(out->fd);
        status = secure(holder, target, out, deadline, err);
    }
    if (status == REFIT_OK)
        status = greet(holder, out, number, flags, deadline, err);
    if (status != REFIT_OK)
        refit_stream_close(out);
    return status;
}
