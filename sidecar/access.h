/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may do what on the control listener.
 *
 * Whoever asks shows a bearer token (--token-file), a client certificate (--tls-client-ca), or both; each gives a role,
 * and the larger one counts. read < refit < admin: a role may do what those below it may. One table (access.c) says which
 * role each route needs; a route that is not in it needs admin, and nothing on the control listener is open to everybody.
 * With neither tokens nor a client CA nobody is asked, and everybody has the role admin: a configuration that binds such
 * a listener beyond loopback is refused unless it says so by name.
 *
 * A wrong token is refused also where a certificate would do. Tokens are compared by their SHA-256 in constant time, and
 * are kept as nothing else. Both files are read again when their bytes change; a bad new file keeps the old.
 */
#ifndef REFIT_SIDECAR_ACCESS_H
#define REFIT_SIDECAR_ACCESS_H

#include "base/error.h"
#include "sidecar/config.h"
#include "tls/tls.h"

enum refit_access_role { REFIT_MAY_NONE, REFIT_MAY_READ, REFIT_MAY_REFIT, REFIT_MAY_ADMIN };
const char *refit_access_role_name(enum refit_access_role role);

#define REFIT_ACCESS_NAME_MAX 280
#define REFIT_ACCESS_LIST_MAX 256

/* One file: lines ROLE:TOKEN or ROLE:NAME:TOKEN, or of names in certificates ROLE:KIND:NAME. */
struct refit_access_entry {
    enum refit_access_role role;
    unsigned char digest[32]; /* of the token; all 0 for a certificate's name */
    char name[REFIT_ACCESS_NAME_MAX]; /* for the audit; or what a certificate must hold */
};
struct refit_access_list {
    size_t count;
    struct refit_access_entry entries[REFIT_ACCESS_LIST_MAX];
};
/* `path` is for errors, which say the line and never what it holds. */
REFIT_MUST_CHECK enum refit_status refit_access_parse_tokens(const char *text, size_t len, const char *path,
                                                             struct refit_access_list *out, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_access_parse_names(const char *text, size_t len, const char *path,
                                                            struct refit_access_list *out, struct refit_error *err);

struct refit_access;
REFIT_MUST_CHECK enum refit_status refit_access_open(const struct refit_config *config, struct refit_access **out,
                                                     struct refit_error *err);
void refit_access_close(struct refit_access *access);
/* Reads the files again; logs what changed or why not. */
void refit_access_refresh(struct refit_access *access);
bool refit_access_refused(const struct refit_access *access); /* an older state of some file is in use */

struct refit_identity {
    enum refit_access_role role;
    bool wrong_token;
    char name[REFIT_ACCESS_NAME_MAX]; /* "token:ci", "uri:spiffe://..."; empty: nobody asked */
};
/* `bearer`: "" when none came. `peer` may be NULL: no certificate. */
void refit_access_identify(const struct refit_access *access, const char *bearer, const struct refit_tls_peer *peer,
                           struct refit_identity *out);
/* What a route needs: its method and its pattern as in the table of routes. */
enum refit_access_role refit_access_needs(const char *method, const char *pattern);

#endif
