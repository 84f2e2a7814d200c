/* SPDX-License-Identifier: Apache-2.0
 *
 * A directory with certificates, and a server's and a client's stream joined by a socket pair.
 */
#ifndef REFIT_TESTS_TLS_PAIR_H
#define REFIT_TESTS_TLS_PAIR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/tls/pki.h"
#include "tls/stream.h"

/* Group setup and teardown: `tls_dir` with CAs "ca" and "other", and "server" (localhost, 127.0.0.1) and "client". */
extern char tls_dir[64];
int tls_dir_create(void **state);
int tls_dir_remove(void **state);
/* The path of a file there; 32 at a time. */
const char *tls_path(const char *name);
void tls_copy(const char *from, const char *to);
void tls_write(const char *name, const char *text);

struct tls_pair {
    int fds[2]; /* server, client */
    struct refit_tls *tls[2];
    struct refit_tls_stream *stream[2];
    struct refit_error err[2];
    enum refit_tls_step step[2];
};
enum { AT_SERVER, AT_CLIENT };

struct refit_tls_config tls_server_config(void); /* data; demands clients of "ca" */
struct refit_tls_config tls_client_config(void);
void tls_pair_open(struct tls_pair *pair, const struct refit_tls_config *server, const struct refit_tls_config *client,
                   const char *host);
/* Until both are done or one failed; then the other gets to see it. */
void tls_pair_handshake(struct tls_pair *pair);
void tls_pair_close(struct tls_pair *pair);
void assert_says(const struct refit_error *err, const char *part);

#endif
