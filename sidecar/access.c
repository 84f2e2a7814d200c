/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/access.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "sidecar/access_file.h"

static const struct {
    const char *method, *pattern;
    enum refit_access_role role;
} rules[] = {
    {"GET", "/v1/layout", REFIT_MAY_READ},
    {"GET", "/v1/host", REFIT_MAY_READ},
    {"GET", "/v1/weights", REFIT_MAY_READ},
    {"GET", "/v1/digests/{}", REFIT_MAY_READ},
    {"GET", "/refit", REFIT_MAY_READ},
    {"GET", "/refit/{}", REFIT_MAY_READ},
    {"GET", "/refit/{}/events", REFIT_MAY_READ},
    {"GET", "/refit/{}/holders", REFIT_MAY_READ},
    {"GET", "/v1/serve", REFIT_MAY_READ},
    {"GET", "/", REFIT_MAY_READ},
    {"GET", "/status", REFIT_MAY_READ},
    {"GET", "/traffic", REFIT_MAY_READ},
    {"POST", "/v1/plan", REFIT_MAY_READ},
    {"POST", "/v1/lead", REFIT_MAY_REFIT},
    {"POST", "/v1/resign", REFIT_MAY_REFIT},
    {"PUT", "/v1/sources/{}", REFIT_MAY_REFIT},
    {"POST", "/refit", REFIT_MAY_REFIT},
    {"POST", "/refit/{}/commit", REFIT_MAY_REFIT},
    {"POST", "/refit/{}/abort", REFIT_MAY_REFIT},
    {"POST", "/v1/serve", REFIT_MAY_REFIT},
    {"POST", "/v1/serve/{}/end", REFIT_MAY_REFIT},
    {"POST", "/rollback", REFIT_MAY_REFIT}, /* back, as a lead goes that takes back; a hold needs more: versions.c */
    {"POST", "/v1/hold", REFIT_MAY_ADMIN},
    {"POST", "/v1/release", REFIT_MAY_ADMIN},
    {"POST", "/v1/quarantine", REFIT_MAY_ADMIN},
};

struct refit_access {
    bool certificates; /* clients are asked for them */
    enum refit_access_role unlisted;
    struct refit_access_file tokens, names;
};

enum refit_access_role refit_access_needs(const char *method, const char *pattern)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (strcmp(rules[i].method, method) == 0 && strcmp(rules[i].pattern, pattern) == 0)
            return rules[i].role;
    return REFIT_MAY_ADMIN;
}

enum refit_status refit_access_open(const struct refit_config *config, struct refit_access **out,
                                    struct refit_error *err)
{
    struct refit_access *access = calloc(1, sizeof *access);
    if (!access)
        return refit_fail_alloc(err, "the access lists", sizeof *access);
    access->certificates = config->tls_client_ca[0] != '\0';
    access->unlisted = (enum refit_access_role)config->tls_client_role;
    enum refit_status status = refit_access_file_open(&access->tokens, config->token_file, "--token-file",
                                                      refit_access_parse_tokens, err);
    if (status == REFIT_OK)
        status = refit_access_file_open(&access->names, config->tls_client_names, "--tls-client-names",
                                        refit_access_parse_names, err);
    if (status == REFIT_OK)
        *out = access;
    else
        refit_access_close(access);
    return status;
}

void refit_access_close(struct refit_access *access)
{
    if (!access)
        return;
    refit_access_file_close(&access->tokens);
    refit_access_file_close(&access->names);
    free(access);
}

void refit_access_refresh(struct refit_access *access)
{
    refit_access_file_refresh(&access->tokens);
    refit_access_file_refresh(&access->names);
}

bool refit_access_refused(const struct refit_access *access)
{
    return access->tokens.refused || access->names.refused;
}

/* Looks at every entry, whichever fits, so that the time says nothing about the tokens. */
static void try_token(const struct refit_access_list *list, const char *bearer, struct refit_identity *out)
{
    unsigned char digest[SHA256_DIGEST_LENGTH];
    const struct refit_access_entry *found = NULL;
    SHA256((const unsigned char *)bearer, strlen(bearer), digest);
    for (size_t i = 0; i < list->count; i++)
        if (CRYPTO_memcmp(list->entries[i].digest, digest, sizeof digest) == 0)
            found = &list->entries[i];
    if (found) {
        out->role = found->role;
        snprintf(out->name, sizeof out->name, "token:%.200s", found->name);
    } else {
        out->wrong_token = true;
    }
}

/* The largest role of the names listed; without any, what unlisted certificates get. */
static void try_certificate(const struct refit_access *access, const struct refit_tls_peer *peer,
                            struct refit_identity *out)
{
    const struct refit_access_list *list = access->names.list;
    const char *name = peer->count ? peer->names[0] : "certificate";
    enum refit_access_role role = access->unlisted;
    bool listed = false;
    for (size_t i = 0; list && i < list->count; i++)
        for (size_t n = 0; n < peer->count; n++)
            if (strcmp(list->entries[i].name, peer->names[n]) == 0 && (!listed || list->entries[i].role > role)) {
                role = list->entries[i].role;
                name = peer->names[n];
                listed = true;
            }
    if (role <= out->role && out->name[0])
        return;
    out->role = role;
    snprintf(out->name, sizeof out->name, "%s", name);
}

void refit_access_identify(const struct refit_access *access, const char *bearer, const struct refit_tls_peer *peer,
                           struct refit_identity *out)
{
    memset(out, 0, sizeof *out);
    if (!access->tokens.list && !access->certificates) {
        out->role = REFIT_MAY_ADMIN;
        return;
    }
    if (access->tokens.list && bearer[0])
        try_token(access->tokens.list, bearer, out);
    if (!out->wrong_token && access->certificates && peer && peer->verified)
        try_certificate(access, peer, out);
}
