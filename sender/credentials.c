/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/credentials.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"

#define TOKEN_FILE_MAX 4096

struct refit_credentials {
    char *cacert, *cert, *key, *token_file;
    bool plaintext_tokens;
    pthread_mutex_t lock;
    struct refit_tls *tls, *data; /* NULL: not needed yet */
};

static char *choose(const char *given, const char *variable)
{
    const char *value = given ? given : getenv(variable);
    return strdup(value ? value : "");
}

static enum refit_status open_tls(const struct refit_credentials *c, enum refit_tls_use use, struct refit_tls **out,
                                  struct refit_error *err)
{
    const struct refit_tls_config config = {
        .end = REFIT_TLS_CLIENT, .use = use, .cert = c->cert, .key = c->key, .ca = c->cacert};
    return refit_tls_open(&config, out, err);
}

static enum refit_status try_files(struct refit_credentials *c, struct refit_error *err)
{
    char token[REFIT_TOKEN_TEXT_MAX];
    enum refit_status status = refit_credentials_token(c, "", true, token, err);
    explicit_bzero(token, sizeof token);
    if (status == REFIT_OK && (c->cacert[0] || c->cert[0] || c->key[0]))
        status = open_tls(c, REFIT_TLS_CONTROL, &c->tls, err);
    return status;
}

enum refit_status refit_credentials_open(const struct refit_credentials_config *config, struct refit_credentials **out,
                                         struct refit_error *err)
{
    const char *insecure = getenv("REFIT_INSECURE_PLAINTEXT_TOKENS");
    struct refit_credentials *c = calloc(1, sizeof *c);
    if (!c)
        return refit_fail_alloc(err, "credentials", sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    c->cacert = choose(config->cacert, "REFIT_CACERT");
    c->cert = choose(config->cert, "REFIT_CERT");
    c->key = choose(config->key, "REFIT_KEY");
    c->token_file = choose(config->token_file, "REFIT_TOKEN_FILE");
    c->plaintext_tokens = config->plaintext_tokens || (insecure && strcmp(insecure, "1") == 0);
    bool copied = c->cacert && c->cert && c->key && c->token_file;
    enum refit_status status = copied ? try_files(c, err) : refit_fail_alloc(err, "credentials", 0);
    if (status == REFIT_OK)
        *out = c;
    else
        refit_credentials_close(c);
    return status;
}

void refit_credentials_close(struct refit_credentials *c)
{
    if (!c)
        return;
    refit_tls_close(c->tls);
    refit_tls_close(c->data);
    free(c->cacert);
    free(c->cert);
    free(c->key);
    free(c->token_file);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static enum refit_status get_tls(struct refit_credentials *c, enum refit_tls_use use, struct refit_tls **kept,
                                 struct refit_tls **out, struct refit_error *err)
{
    pthread_mutex_lock(&c->lock);
    enum refit_status status = *kept ? REFIT_OK : open_tls(c, use, kept, err);
    *out = *kept;
    pthread_mutex_unlock(&c->lock);
    return status;
}

enum refit_status refit_credentials_tls(struct refit_credentials *c, struct refit_tls **out, struct refit_error *err)
{
    return get_tls(c, REFIT_TLS_CONTROL, &c->tls, out, err);
}

enum refit_status refit_credentials_data_tls(struct refit_credentials *c, struct refit_tls **out,
                                             struct refit_error *err)
{
    return get_tls(c, REFIT_TLS_DATA, &c->data, out, err);
}

enum refit_status refit_credentials_ranks_tls(struct refit_credentials *c, bool server, struct refit_tls **out,
                                              struct refit_error *err)
{
    const char *insecure = getenv("REFIT_INSECURE_RANKS");
    *out = NULL;
    if (!c->cert[0] || !c->key[0] || !c->cacert[0] || (insecure && strcmp(insecure, "1") == 0))
        return REFIT_OK;
    const struct refit_tls_config config = {.end = server ? REFIT_TLS_SERVER : REFIT_TLS_CLIENT, .use = REFIT_TLS_DATA,
                                            .cert = c->cert, .key = c->key, .ca = c->cacert, .any_purpose = true};
    return refit_tls_open(&config, out, err);
}

static bool is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &v6) == 1)
        return IN6_IS_ADDR_LOOPBACK(&v6);
    return strcmp(host, "localhost") == 0;
}

/* The first line that says something, behind its last colon: refitd's own list (ROLE:NAME:TOKEN) will do, too. */
static bool copy_token(const char *text, char out[static REFIT_TOKEN_TEXT_MAX])
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~+/=";
    while (text += strspn(text, " \t\r\n"), *text == '#')
        text += strcspn(text, "\n");
    const char *colon = memrchr(text, ':', strcspn(text, "\r\n"));
    if (colon)
        text = colon + 1;
    size_t len = strspn(text, plain), tail = len + strspn(text + len, " \t\r");
    if (len == 0 || len >= REFIT_TOKEN_TEXT_MAX || (text[tail] && text[tail] != '\n'))
        return false;
    memcpy(out, text, len);
    out[len] = '\0';
    return true;
}

enum refit_status refit_credentials_token(struct refit_credentials *c, const char *host, bool secure,
                                          char out[static REFIT_TOKEN_TEXT_MAX], struct refit_error *err)
{
    char *text;
    size_t len;
    out[0] = '\0';
    if (!c->token_file[0])
        return REFIT_OK;
    if (!secure && !c->plaintext_tokens && !is_loopback(host))
        return refit_fail(err, REFIT_INVALID,
                          "%s: the token would cross the network in the clear; use https://, or allow it with "
                          "--insecure-plaintext-tokens (REFIT_INSECURE_PLAINTEXT_TOKENS=1)", host);
    enum refit_status status = refit_io_read_file(c->token_file, TOKEN_FILE_MAX, &text, &len, err);
    if (status)
        return refit_error_prefix(err, status, "token file");
    if (!copy_token(text, out))
        status = refit_fail(err, REFIT_INVALID, "token file %s: expected a token of 1 to 256 letters, digits and "
                            "-._~+/=, found something else (not shown)", c->token_file);
    explicit_bzero(text, len);
    free(text);
    return status;
}
