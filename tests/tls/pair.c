/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"

#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"

#define WAIT_MS 20000

char tls_dir[64];

int tls_dir_create(void **state)
{
    (void)state;
    snprintf(tls_dir, sizeof tls_dir, "/tmp/refit-tls.XXXXXX");
    const struct pki_leaf server = {.name = "server", .ca = "ca", .san = "DNS:localhost,IP:127.0.0.1", .serial = 1};
    const struct pki_leaf client = {.name = "client", .ca = "ca", .san = "URI:spiffe://cluster/trainer,DNS:trainer.example",
                                    .serial = 2};
    return mkdtemp(tls_dir) && pki_make_ca(tls_dir, "ca") && pki_make_ca(tls_dir, "other") &&
                   pki_make_leaf(tls_dir, &server) && pki_make_leaf(tls_dir, &client)
               ? 0
               : -1;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

int tls_dir_remove(void **state)
{
    (void)state;
    return nftw(tls_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *tls_path(const char *name)
{
    static char paths[32][160];
    static unsigned next;
    char *path = paths[next++ % 32];
    snprintf(path, sizeof paths[0], "%s/%s", tls_dir, name);
    return path;
}

void tls_write(const char *name, const char *text)
{
    struct refit_error err;
    if (refit_io_replace_file(tls_path(name), text, strlen(text), 0600, &err))
        fail_msg("%s", err.text);
}

void tls_copy(const char *from, const char *to)
{
    char *text;
    size_t len;
    struct refit_error err;
    if (refit_io_read_file(tls_path(from), 1 << 20, &text, &len, &err))
        fail_msg("%s", err.text);
    tls_write(to, text);
    free(text);
}

struct refit_tls_config tls_server_config(void)
{
    return (struct refit_tls_config){.end = REFIT_TLS_SERVER,
                                     .use = REFIT_TLS_DATA,
                                     .cert = tls_path("server.pem"),
                                     .key = tls_path("server.key"),
                                     .ca = tls_path("ca.pem")};
}

struct refit_tls_config tls_client_config(void)
{
    return (struct refit_tls_config){.end = REFIT_TLS_CLIENT,
                                     .use = REFIT_TLS_DATA,
                                     .cert = tls_path("client.pem"),
                                     .key = tls_path("client.key"),
                                     .ca = tls_path("ca.pem")};
}

void tls_pair_open(struct tls_pair *pair, const struct refit_tls_config *server, const struct refit_tls_config *client,
                   const char *host)
{
    const struct refit_tls_config *configs[] = {server, client};
    memset(pair, 0, sizeof *pair);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair->fds), 0);
    for (int i = 0; i < 2; i++) {
        if (refit_tls_open(configs[i], &pair->tls[i], &pair->err[i]))
            fail_msg("%s", pair->err[i].text);
        if (refit_tls_stream_open(pair->tls[i], pair->fds[i], i == AT_CLIENT ? host : NULL, &pair->stream[i], &pair->err[i]))
            fail_msg("%s", pair->err[i].text);
        pair->step[i] = REFIT_TLS_AGAIN;
    }
}

/* A client of TLS 1.3 is done before the server has looked at its certificate: only a read shows what that thinks. */
static void hear(struct tls_pair *pair, int end)
{
    char byte;
    size_t done;
    if (pair->step[end] == REFIT_TLS_FAILED)
        return;
    refit_tls_stream_free(pair->stream[!end]);
    pair->stream[!end] = NULL;
    refit_io_close(&pair->fds[!end]);
    for (int i = 0; i < 8 && pair->step[end] != REFIT_TLS_FAILED; i++) {
        if (pair->step[end] == REFIT_TLS_DONE)
            pair->step[end] = refit_tls_stream_read(pair->stream[end], &byte, 1, &done, &pair->err[end]);
        else
            pair->step[end] = refit_tls_stream_handshake(pair->stream[end], &pair->err[end]);
    }
}

void tls_pair_handshake(struct tls_pair *pair)
{
    struct refit_deadline deadline = refit_deadline_in_ms(WAIT_MS);
    while (pair->step[0] == REFIT_TLS_AGAIN || pair->step[1] == REFIT_TLS_AGAIN) {
        struct pollfd polls[2];
        for (int i = 0; i < 2; i++) {
            if (pair->step[i] == REFIT_TLS_AGAIN)
                pair->step[i] = refit_tls_stream_handshake(pair->stream[i], &pair->err[i]);
            short events = pair->step[i] == REFIT_TLS_AGAIN ? refit_tls_stream_events(pair->stream[i]) : 0;
            polls[i] = (struct pollfd){.fd = events ? pair->fds[i] : -1, .events = events};
        }
        if (pair->step[0] == REFIT_TLS_FAILED || pair->step[1] == REFIT_TLS_FAILED)
            break;
        if ((polls[0].events || polls[1].events) && poll(polls, 2, refit_deadline_left_ms(deadline)) < 1)
            fail_msg("the handshake stands still");
    }
    if (pair->step[AT_SERVER] == REFIT_TLS_FAILED)
        hear(pair, AT_CLIENT);
    else if (pair->step[AT_CLIENT] == REFIT_TLS_FAILED)
        hear(pair, AT_SERVER);
}

void tls_pair_close(struct tls_pair *pair)
{
    for (int i = 0; i < 2; i++) {
        refit_tls_stream_free(pair->stream[i]);
        refit_tls_close(pair->tls[i]);
        refit_io_close(&pair->fds[i]);
    }
}

void assert_says(const struct refit_error *err, const char *part)
{
    if (!strstr(err->text, part))
        fail_msg("expected \"%s\" in \"%s\"", part, err->text);
}
