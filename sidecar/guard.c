/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

struct refit_guard {
    struct refit_tls *tls, *data, *peers; /* NULL: none */
    struct refit_access *access;
    uint64_t unauthenticated, forbidden;
};

static enum refit_status open_tls(const struct refit_config *config, struct refit_tls **out, struct refit_error *err)
{
    const struct refit_tls_config tls = {.end = REFIT_TLS_SERVER,
                                         .use = REFIT_TLS_CONTROL,
                                         .cert = config->tls_cert,
                                         .key = config->tls_key,
                                         .ca = config->tls_client_ca,
                                         .client_optional = config->tls_client_optional};
    enum refit_status status = config->tls_cert[0] ? refit_tls_open(&tls, out, err) : REFIT_OK;
    return status ? refit_error_prefix(err, status, "--tls-cert") : REFIT_OK;
}

static enum refit_status open_data_tls(struct refit_guard *guard, const struct refit_config *config,
                                       struct refit_error *err)
{
    struct refit_config_data_tls files;
    refit_config_read_data_tls(config, &files);
    const struct refit_tls_config server = {.end = REFIT_TLS_SERVER, .use = REFIT_TLS_DATA, .cert = files.cert,
                                            .key = files.key, .ca = files.client_ca,
                                            .client_optional = files.client_optional};
    const struct refit_tls_config client = {.end = REFIT_TLS_CLIENT, .use = REFIT_TLS_DATA, .cert = files.cert,
                                            .key = files.key, .ca = files.ca};
    enum refit_status status = files.demanded ? refit_tls_open(&server, &guard->data, err) : REFIT_OK;
    if (status == REFIT_OK && (files.cert[0] || files.ca[0]))
        status = refit_tls_open(&client, &guard->peers, err);
    return status ? refit_error_prefix(err, status, "--data-tls") : REFIT_OK;
}

enum refit_status refit_guard_open(const struct refit_config *config, struct refit_guard **out, struct refit_error *err)
{
    struct refit_guard *guard = calloc(1, sizeof *guard);
    if (!guard)
        return refit_fail_alloc(err, "the guard", sizeof *guard);
    enum refit_status status = open_tls(config, &guard->tls, err);
    if (status == REFIT_OK)
        status = open_data_tls(guard, config, err);
    if (status == REFIT_OK)
        status = refit_access_open(config, &guard->access, err);
    if (status == REFIT_OK)
        *out = guard;
    else
        refit_guard_close(guard);
    return status;
}

void refit_guard_close(struct refit_guard *guard)
{
    if (!guard)
        return;
    refit_tls_close(guard->tls);
    refit_tls_close(guard->data);
    refit_tls_close(guard->peers);
    refit_access_close(guard->access);
    free(guard);
}

struct refit_tls *refit_guard_tls(struct refit_guard *guard)
{
    return guard->tls;
}

struct refit_tls *refit_guard_data_tls(struct refit_guard *guard)
{
    return guard->data;
}

struct refit_tls *refit_guard_peer_tls(struct refit_guard *guard)
{
    return guard->peers;
}

static void refresh_tls(struct refit_tls *tls, const char *use)
{
    struct refit_tls_status now;
    struct refit_error err;
    switch (refit_tls_refresh(tls, &err)) {
    case REFIT_TLS_SAME: break;
    case REFIT_TLS_RELOADED:
        refit_tls_read_status(tls, &now);
        refit_log_event(REFIT_LOG_INFO, "TLS files read again", refit_log_text("use", use),
                        refit_log_text("subject", now.subject),
                        refit_log_i64("not_after", now.not_after_s));
        break;
    case REFIT_TLS_REFUSED:
        refit_log_event(REFIT_LOG_ERROR, "new TLS files are refused, the old ones are in use",
                        refit_log_text("use", use), REFIT_LOG_CAUSE(&err));
        break;
    }
}

void refit_guard_refresh(struct refit_guard *guard)
{
    if (guard->tls)
        refresh_tls(guard->tls, "control");
    if (guard->data)
        refresh_tls(guard->data, "data");
    if (guard->peers)
        refresh_tls(guard->peers, "peers");
    refit_access_refresh(guard->access);
}

static void refuse(struct refit_exchange *exchange, const struct refit_identity *who, enum refit_access_role needs,
                   struct refit_reply *reply)
{
    bool unknown = who->role == REFIT_MAY_NONE;
    if (unknown) {
        refit_reply_header(reply, "WWW-Authenticate", "Bearer%s", who->wrong_token ? " error=\"invalid_token\"" : "");
        refit_reply_problem(reply, 401, "unauthenticated", "%s",
                            who->wrong_token ? "this token is not known here"
                                             : "a bearer token (--token-file) or a client certificate (--cert, --key) "
                                               "that has a role here is needed");
    } else {
        refit_reply_problem(reply, 403, "forbidden", "%s has the role %s; the role %s is needed", who->name,
                            refit_access_role_name(who->role), refit_access_role_name(needs));
    }
    refit_log_limited(REFIT_LOG_WARN, "request refused", refit_log_text("by", exchange->by),
                      refit_log_text("method", exchange->head.method), refit_log_text("path", exchange->head.path),
                      refit_log_i64("http_status", reply->status));
}

bool refit_guard_admits(struct refit_guard *guard, struct refit_exchange *exchange, const char *method,
                        const char *pattern, struct refit_reply *reply)
{
    struct refit_identity who;
    enum refit_access_role needs = method ? refit_access_needs(method, pattern) : REFIT_MAY_READ;
    refit_access_identify(guard->access, exchange->head.bearer, exchange->peer, &who);
    snprintf(exchange->by, sizeof exchange->by, "%s%s%s", who.name, who.name[0] ? "@" : "", exchange->client);
    exchange->role = (int)who.role;
    if (who.role >= needs)
        return true;
    if (who.role == REFIT_MAY_NONE)
        guard->unauthenticated++;
    else
        guard->forbidden++;
    refuse(exchange, &who, needs, reply);
    return false;
}

void refit_guard_read(const struct refit_guard *guard, struct refit_guard_status *out)
{
    struct refit_tls_status peers = {.refused = false};
    *out = (struct refit_guard_status){.unauthenticated = guard->unauthenticated, .forbidden = guard->forbidden};
    if (guard->tls)
        refit_tls_read_status(guard->tls, &out->control);
    if (guard->data)
        refit_tls_read_status(guard->data, &out->data);
    if (guard->peers)
        refit_tls_read_status(guard->peers, &peers);
    out->refused = out->control.refused || out->data.refused || peers.refused || refit_access_refused(guard->access);
}
