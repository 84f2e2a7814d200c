/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/siblings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRESH_NS 120000000000ll /* what was heard before counts no more */
#define FAILED_MIN_MS 1000
#define FAILED_MAX_MS 60000

/* --- who they are ------------------------------------------------------------------------------------------------ */

/* FNV-1a, and then mixed, so that neighbouring addresses are far apart. */
static uint64_t place_of(uint64_t seed, const char *url)
{
    uint64_t hash = seed ^ UINT64_C(0xcbf29ce484222325);
    for (; *url; url++)
        hash = (hash ^ (unsigned char)*url) * UINT64_C(0x100000001b3);
    hash = (hash ^ (hash >> 31)) * UINT64_C(0x7fb5d329728ea185);
    return hash ^ (hash >> 27);
}

static struct refit_sibling *find(const struct refit_siblings *siblings, const char *url)
{
    for (size_t i = 0; i < siblings->count; i++)
        if (strcmp(siblings->item[i].url, url) == 0)
            return &siblings->item[i];
    return NULL;
}

static int by_place(const void *a, const void *b)
{
    const struct refit_sibling *x = a, *y = b;
    return x->place < y->place ? -1 : x->place > y->place ? 1 : strcmp(x->url, y->url);
}

enum refit_status refit_siblings_follow(struct refit_siblings *siblings, const struct refit_membership *membership,
                                        struct refit_error *err)
{
    size_t count = 0, at = 0;
    if (siblings->epoch == membership->epoch && siblings->item)
        return REFIT_OK;
    for (size_t i = 0; i < membership->count; i++)
        count += membership->members[i].count;
    struct refit_sibling *item = calloc(count + 1, sizeof *item);
    if (!item)
        return refit_fail_alloc(err, "the siblings", (count + 1) * sizeof *item);
    for (size_t i = 0; i < membership->count; i++)
        for (size_t pod = 0; pod < membership->members[i].count; pod++) {
            const char *url = membership->members[i].urls[pod];
            const struct refit_sibling *known = find(siblings, url);
            if (known)
                item[at] = *known;
            snprintf(item[at].url, sizeof item[at].url, "%s", url);
            item[at++].place = place_of(siblings->seed, url);
        }
    qsort(item, count, sizeof *item, by_place);
    free(siblings->item);
    siblings->item = item;
    siblings->count = count;
    siblings->epoch = membership->epoch;
    return REFIT_OK;
}

void refit_siblings_release(struct refit_siblings *siblings)
{
    free(siblings->item);
    *siblings = (struct refit_siblings){.seed = siblings->seed};
}

/* --- what they say ----------------------------------------------------------------------------------------------- */

struct refit_sibling *refit_siblings_due(struct refit_siblings *siblings, int64_t now_ns)
{
    struct refit_sibling *found = NULL;
    for (size_t i = 0; i < siblings->count; i++) {
        struct refit_sibling *sibling = &siblings->item[i];
        if (sibling->due_ns <= now_ns && (!found || sibling->due_ns < found->due_ns))
            found = sibling;
    }
    return found;
}

static enum refit_status read_version(const json_t *json, struct refit_control_version *out, struct refit_error *err)
{
    const char *label = "", *digest = "";
    *out = (struct refit_control_version){.version = 0};
    if (!json || json_is_null(json))
        return REFIT_OK;
    enum refit_status status = refit_json_get_u64(json, "version", "active", &out->version, err);
    if (status == REFIT_OK)
        status = refit_json_opt_string(json, "label", "active", &label, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(json, "digest", "active", &digest, err);
    if (status != REFIT_OK)
        return status;
    if (strlen(digest) != REFIT_SHA256_HEX_MAX - 1 || strspn(digest, "0123456789abcdef") != REFIT_SHA256_HEX_MAX - 1)
        return refit_fail(err, REFIT_INVALID, "active: \"digest\" must be 64 lower-case hex digits, found \"%.80s\"", digest);
    snprintf(out->label, sizeof out->label, "%s", label);
    snprintf(out->digest, sizeof out->digest, "%s", digest);
    return REFIT_OK;
}

static uint64_t went_back_from(const json_t *retained, uint64_t active)
{
    uint64_t highest = 0, version;
    size_t index;
    const json_t *item;
    json_array_foreach(retained, index, item)
        if (refit_json_get_u64(item, "version", "retained", &version, NULL) == REFIT_OK && version > active &&
            version > highest)
            highest = version;
    return highest;
}

enum refit_status refit_sibling_heard(struct refit_sibling *sibling, const json_t *weights, int64_t now_ns,
                                      int64_t pause_ms, struct refit_error *err)
{
    const char *layout = "";
    const json_t *staged = json_object_get(weights, "staged");
    struct refit_control_version active;
    uint64_t number = 0;
    if (!json_is_object(weights))
        return refit_fail(err, REFIT_INVALID, "GET /v1/weights: expected an object");
    enum refit_status status = read_version(json_object_get(weights, "active"), &active, err);
    if (status == REFIT_OK)
        status = refit_json_opt_string(weights, "layout", "weights", &layout, err);
    if (status == REFIT_OK && json_is_object(staged))
        status = refit_json_get_u64(staged, "version", "staged", &number, err);
    if (status != REFIT_OK)
        return status;
    sibling->active = active;
    snprintf(sibling->layout, sizeof sibling->layout, "%.64s", layout);
    sibling->staged = number;
    sibling->back_from = active.version ? went_back_from(json_object_get(weights, "retained"), active.version) : 0;
    sibling->heard_ns = now_ns;
    sibling->due_ns = now_ns + pause_ms * 1000000;
    sibling->pause_ms = 0;
    return REFIT_OK;
}

void refit_sibling_failed(struct refit_sibling *sibling, int64_t now_ns)
{
    int64_t pause_ms = sibling->pause_ms ? sibling->pause_ms * 2 : FAILED_MIN_MS;
    sibling->pause_ms = pause_ms < FAILED_MAX_MS ? pause_ms : FAILED_MAX_MS;
    sibling->due_ns = now_ns + sibling->pause_ms * 1000000;
    sibling->heard_ns = 0;
}

/* --- what follows ------------------------------------------------------------------------------------------------ */

static bool counts(const struct refit_sibling *sibling, int64_t now_ns)
{
    return !sibling->self && sibling->heard_ns != 0 && now_ns - sibling->heard_ns < FRESH_NS;
}

static bool serves(const struct refit_sibling *sibling, int64_t now_ns)
{
    return counts(sibling, now_ns) && sibling->whole && sibling->active.version != 0;
}

/* The highest version below `limit` that a whole sibling serves. */
static const struct refit_control_version *highest_below(const struct refit_siblings *siblings, uint64_t limit,
                                                         int64_t now_ns)
{
    const struct refit_control_version *found = NULL;
    for (size_t i = 0; i < siblings->count; i++) {
        const struct refit_sibling *sibling = &siblings->item[i];
        if (serves(sibling, now_ns) && sibling->active.version < limit &&
            (!found || sibling->active.version > found->version))
            found = &sibling->active;
    }
    return found;
}

static bool is_disputed(const struct refit_siblings *siblings, const struct refit_control_version *version, int64_t now_ns)
{
    for (size_t i = 0; i < siblings->count; i++) {
        const struct refit_sibling *sibling = &siblings->item[i];
        if (serves(sibling, now_ns) && sibling->active.version == version->version &&
            strcmp(sibling->active.digest, version->digest) != 0)
            return true;
    }
    return false;
}

static bool is_withheld(const struct refit_siblings *siblings, const struct refit_siblings_own *own, uint64_t version,
                        int64_t now_ns)
{
    if (own->back_from == version)
        return true;
    for (size_t i = 0; i < siblings->count; i++) {
        const struct refit_sibling *sibling = &siblings->item[i];
        if (counts(sibling, now_ns) && (sibling->staged == version || sibling->back_from == version))
            return true;
    }
    return false;
}

static void look_around(const struct refit_siblings *siblings, int64_t now_ns, struct refit_siblings_choice *out)
{
    for (size_t i = 0; i < siblings->count; i++) {
        const struct refit_sibling *sibling = &siblings->item[i];
        if (!counts(sibling, now_ns))
            continue;
        out->heard++;
        if (sibling->active.version > out->newest)
            out->newest = sibling->active.version;
    }
}

void refit_siblings_choose(const struct refit_siblings *siblings, const struct refit_siblings_own *own, int64_t now_ns,
                           struct refit_siblings_choice *out)
{
    const struct refit_control_version *found;
    *out = (struct refit_siblings_choice){.newest = 0};
    look_around(siblings, now_ns, out);
    for (uint64_t limit = UINT64_MAX; (found = highest_below(siblings, limit, now_ns)) && found->version > own->version;
         limit = found->version) {
        if (is_withheld(siblings, own, found->version, now_ns)) {
            out->withheld = out->withheld ? out->withheld : found->version;
        } else if (is_disputed(siblings, found, now_ns)) {
            out->disputed = out->disputed ? out->disputed : found->version;
        } else {
            out->version = *found;
            return;
        }
    }
}

static bool is_source(const struct refit_sibling *sibling, const struct refit_control_version *version, int64_t now_ns)
{
    return serves(sibling, now_ns) && sibling->active.version == version->version &&
           strcmp(sibling->active.digest, version->digest) == 0 && sibling->layout[0] != '\0';
}

size_t refit_siblings_sources(struct refit_siblings *siblings, const struct refit_control_version *version,
                              const char *domain, int64_t now_ns, struct refit_sibling **out, size_t max)
{
    size_t count = 0;
    for (int near = 1; near >= 0; near--)
        for (size_t i = 0; i < siblings->count && count < max; i++) {
            struct refit_sibling *sibling = &siblings->item[i];
            bool same = domain[0] && strcmp(sibling->domain, domain) == 0;
            if (is_source(sibling, version, now_ns) && same == (near == 1) &&
                (count == 0 || strcmp(sibling->layout, out[0]->layout) == 0))
                out[count++] = sibling;
        }
    return count;
}
