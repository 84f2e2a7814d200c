/* SPDX-License-Identifier: Apache-2.0 */
#include "tls/secrets.h"

#include <pthread.h>
#include <string.h>

#include "tls/tls.h"

static int secrets_index = -1;
static pthread_once_t index_once = PTHREAD_ONCE_INIT;

static void make_index(void)
{
    secrets_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
}

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* 0: `hex` is something else, or too long. */
static size_t decode(const char *hex, uint8_t out[static REFIT_TLS_SECRET_MAX])
{
    size_t len = 0;
    for (; hex[0]; hex += 2, len++) {
        int high = digit(hex[0]), low = high < 0 ? -1 : digit(hex[1]);
        if (low < 0 || len == REFIT_TLS_SECRET_MAX)
            return 0;
        out[len] = (uint8_t)(high << 4 | low);
    }
    return len;
}

/* A line is "LABEL client_random secret", in hexadecimal. */
static void on_line(const SSL *ssl, const char *line)
{
    static const char *const labels[] = {[REFIT_TLS_SERVER] = "SERVER_TRAFFIC_SECRET_0 ",
                                         [REFIT_TLS_CLIENT] = "CLIENT_TRAFFIC_SECRET_0 "};
    struct refit_tls_secrets *secrets = SSL_get_ex_data(ssl, secrets_index);
    const char *last = strrchr(line, ' ');
    for (int i = 0; secrets && last && i < 2; i++)
        if (strncmp(line, labels[i], strlen(labels[i])) == 0)
            secrets->len[i] = decode(last + 1, secrets->bytes[i]);
}

void refit_tls_secrets_ask(SSL_CTX *context)
{
    pthread_once(&index_once, make_index);
    SSL_CTX_set_keylog_callback(context, on_line);
}

void refit_tls_secrets_attach(SSL *ssl, struct refit_tls_secrets *secrets)
{
    pthread_once(&index_once, make_index);
    SSL_set_ex_data(ssl, secrets_index, secrets);
}
