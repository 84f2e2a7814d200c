/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/quarantine.h"

#include <string.h>

bool refit_is_sha256_hex(const char *text)
{
    return strspn(text, "0123456789abcdef") == REFIT_SHA256_HEX_MAX - 1 && text[REFIT_SHA256_HEX_MAX - 1] == '\0';
}

static uint32_t find(const struct refit_quarantine *set, const char *digest)
{
    uint32_t i = 0;
    while (i < set->count && strcmp(set->digests[i], digest) != 0)
        i++;
    return i;
}

bool refit_quarantine_has(const struct refit_quarantine *set, const char *digest)
{
    return digest[0] != '\0' && find(set, digest) < set->count;
}

enum refit_status refit_quarantine_set(struct refit_quarantine *set, const char *digest, bool on,
                                       struct refit_error *err)
{
    if (!digest || !refit_is_sha256_hex(digest))
        return refit_fail(err, REFIT_INVALID, "quarantine: expected a model digest of 64 lower-case hex digits, found "
                          "'%.80s'", digest ? digest : "");
    uint32_t at = find(set, digest);
    if (on && at == REFIT_QUARANTINE_MAX)
        return refit_fail(err, REFIT_NO_MEMORY, "quarantine: %d digests are in it already; take one out first",
                          REFIT_QUARANTINE_MAX);
    if (on && at == set->count)
        memcpy(set->digests[set->count++], digest, REFIT_SHA256_HEX_MAX);
    else if (!on && at < set->count)
        memmove(set->digests[at], set->digests[--set->count], REFIT_SHA256_HEX_MAX);
    return REFIT_OK;
}
