/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/siblings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRESH_NS 120000000000ll /* what was heard before counts no more */
#define FAILED_MIN_MS 1000
#define FAILED_MAX_MS 60000
#define FAILED_MATE_MS 2000 /* this replica is not ready without it */

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
            snprintf(item[at].member, sizeof item[at].member, "%s", membership->members[i].urls[0]);
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

/* Of a refitd that can't tell: a whole replica's digest is the model's. */
static void read_model(const json_t *active, char out[static REFIT_SHA256_HEX_MAX])
{
    const char *model = json_string_value(json_object_get(active, "model"));
    out[0] = '\0';
    if (model && strlen(model) == REFIT_SHA256_HEX_MAX - 1 &&
        strspn(model, "0123456789abcdef") == REFIT_SHA256_HEX_MAX - 1)
        memcpy(out, model, REFIT_SHA256_HEX_MAX);
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
    read_model(json_object_get(weights, "active"), sibling->model);
    if (active.version || !json_is_true(json_object_get(weights, "adopting")))
        sibling->holds = active.version;
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
    int64_t most_ms = sibling->mate ? FAILED_MATE_MS : FAILED_MAX_MS;
    sibling->pause_ms = pause_ms < most_ms ? pause_ms : most_ms;
    sibling->due_ns = now_ns + sibling->pause_ms * 1000000;
    sibling->heard_ns = 0;
}

/* --- pods of one replica ------------------------------------------------------------------------------------------ */

static bool counts(const struct refit_sibling *sibling, int64_t now_ns)
{
    return !sibling->self && !sibling->twin && sibling->heard_ns != 0 && now_ns - sibling->heard_ns < FRESH_NS;
}

static bool same_replica(const struct refit_sibling *a, const struct refit_sibling *b)
{
    if (a->replica[0] || b->replica[0])
        return strcmp(a->replica, b->replica) == 0;
    return strcmp(a->member, b->member) == 0;
}

static bool is_part(const struct refit_siblings_own *own)
{
    return own->rank_count != 0 && own->rank_count < own->ranks;
}

static const struct refit_sibling *find_self(const struct refit_siblings *siblings)
{
    for (size_t i = 0; i < siblings->count; i++)
        if (siblings->item[i].self)
            return &siblings->item[i];
    return NULL;
}

/* The list names this process, beside others, as a pod of one replica. */
static bool is_listed_with_others(const struct refit_siblings *siblings, const struct refit_sibling *self)
{
    for (size_t i = 0; i < siblings->count; i++)
        if (!siblings->item[i].self && strcmp(siblings->item[i].member, self->member) == 0)
            return true;
    return false;
}

bool refit_siblings_know_replica(const struct refit_siblings *siblings, const struct refit_siblings_own *own)
{
    const struct refit_sibling *self = find_self(siblings);
    return (own->replica && *own->replica) || (self && is_listed_with_others(siblings, self));
}

static bool is_mate(const struct refit_sibling *sibling, const struct refit_siblings_own *own,
                    const struct refit_sibling *self)
{
    if (!is_part(own) || sibling->self || sibling->whole || sibling->rank_count == 0)
        return false;
    if (own->replica && *own->replica)
        return strcmp(sibling->replica, own->replica) == 0;
    return self && !sibling->replica[0] && strcmp(sibling->member, self->member) == 0;
}

/* One process may be behind several addresses: an IPv4 and an IPv6 one of the same name. */
static bool is_twin(const struct refit_siblings *siblings, size_t index)
{
    const struct refit_sibling *sibling = &siblings->item[index];
    for (size_t i = 0; i < index && sibling->instance[0]; i++)
        if (strcmp(siblings->item[i].instance, sibling->instance) == 0 && siblings->item[i].heard_ns != 0)
            return true;
    return false;
}

/* The pod of that replica which begins with this rank and serves the same as `like`; NULL: none is known. */
static struct refit_sibling *find_pod(const struct refit_siblings *siblings, const struct refit_sibling *like,
                                      uint32_t first_rank, int64_t now_ns)
{
    for (size_t i = 0; i < siblings->count; i++) {
        struct refit_sibling *sibling = &siblings->item[i];
        if (counts(sibling, now_ns) && !sibling->mate && !sibling->whole && sibling->rank_count > 0 &&
            sibling->first_rank == first_rank && same_replica(sibling, like) &&
            sibling->active.version == like->active.version && strcmp(sibling->model, like->model) == 0 &&
            strcmp(sibling->layout, like->layout) == 0)
            return sibling;
    }
    return NULL;
}

static bool all_pods_serve(const struct refit_siblings *siblings, const struct refit_sibling *like, int64_t now_ns)
{
    uint32_t covered = 0;
    while (covered < like->ranks) {
        const struct refit_sibling *pod = find_pod(siblings, like, covered, now_ns);
        if (!pod)
            return false;
        covered += pod->rank_count;
    }
    return like->ranks > 0;
}

static void find_offer(const struct refit_siblings *siblings, struct refit_sibling *sibling, int64_t now_ns)
{
    sibling->offer = (struct refit_control_version){.version = 0};
    if (!counts(sibling, now_ns) || sibling->mate || sibling->active.version == 0)
        return;
    if (!sibling->whole && (!sibling->model[0] || !all_pods_serve(siblings, sibling, now_ns)))
        return;
    sibling->offer = sibling->active;
    if (!sibling->whole)
        memcpy(sibling->offer.digest, sibling->model, sizeof sibling->offer.digest);
}

static void look_at_all(struct refit_siblings *siblings, const struct refit_siblings_own *own, int64_t now_ns)
{
    const struct refit_sibling *self = find_self(siblings);
    for (size_t i = 0; i < siblings->count; i++) {
        siblings->item[i].twin = is_twin(siblings, i);
        siblings->item[i].mate = is_mate(&siblings->item[i], own, self);
    }
    for (size_t i = 0; i < siblings->count; i++)
        find_offer(siblings, &siblings->item[i], now_ns);
}

static struct refit_sibling *find_mate(const struct refit_siblings *siblings, uint32_t first_rank)
{
    for (size_t i = 0; i < siblings->count; i++)
        if (siblings->item[i].mate && !siblings->item[i].twin && siblings->item[i].first_rank == first_rank)
            return &siblings->item[i];
    return NULL;
}

bool refit_siblings_mates(struct refit_siblings *siblings, const struct refit_siblings_own *own,
                          struct refit_sibling **out,
                          size_t *count, uint32_t *lacking)
{
    *count = 0;
    for (*lacking = 0; *lacking < own->ranks;) {
        if (*lacking == own->first_rank) {
            *lacking += own->rank_count;
            continue;
        }
        struct refit_sibling *mate = find_mate(siblings, *lacking);
        if (!mate || *count == REFIT_MATES_MAX)
            return false;
        out[(*count)++] = mate;
        *lacking += mate->rank_count;
    }
    return true;
}

size_t refit_siblings_pods(struct refit_siblings *siblings, struct refit_sibling *head, struct refit_sibling **out)
{
    size_t count = 0;
    out[0] = head;
    if (head->whole)
        return 1;
    for (uint32_t covered = 0; covered < head->ranks; covered += out[count++]->rank_count)
        if (count == REFIT_MATES_MAX || !(out[count] = find_pod(siblings, head, covered, head->heard_ns)))
            return 0;
    return count;
}

/* --- what follows ------------------------------------------------------------------------------------------------ */

/* The highest version below `limit` that a whole replica serves. */
static const struct refit_control_version *highest_below(const struct refit_siblings *siblings, uint64_t limit)
{
    const struct refit_control_version *found = NULL;
    for (size_t i = 0; i < siblings->count; i++) {
        const struct refit_control_version *offer = &siblings->item[i].offer;
        if (offer->version != 0 && offer->version < limit && (!found || offer->version > found->version))
            found = offer;
    }
    return found;
}

static bool is_disputed(const struct refit_siblings *siblings, const struct refit_control_version *version)
{
    for (size_t i = 0; i < siblings->count; i++) {
        const struct refit_control_version *offer = &siblings->item[i].offer;
        if (offer->version == version->version && strcmp(offer->digest, version->digest) != 0)
            return true;
    }
    return false;
}

/* What a pod of this replica has staged or was taken back from is of a try that broke off; the pod with rank 0 knows
 * what the replica went back from. */
static bool is_withheld(const struct refit_siblings *siblings, const struct refit_siblings_own *own, uint64_t version,
                        int64_t now_ns)
{
    if (own->back_from == version)
        return true;
    for (size_t i = 0; i < siblings->count; i++) {
        const struct refit_sibling *sibling = &siblings->item[i];
        bool leads = sibling->whole || sibling->first_rank == 0;
        if (counts(sibling, now_ns) && !sibling->mate &&
            (sibling->staged == version || (leads && sibling->back_from == version)))
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

/* What is newer than this is wanted: what all pods serve, or what some of them serve and others lack. */
static uint64_t floor_of(const struct refit_siblings *siblings, const struct refit_siblings_own *own)
{
    uint64_t highest = own->version;
    bool alike = true;
    for (size_t i = 0; i < siblings->count; i++) {
        const struct refit_sibling *sibling = &siblings->item[i];
        if (!sibling->mate || sibling->twin)
            continue;
        alike = alike && sibling->holds == own->version;
        highest = sibling->holds > highest ? sibling->holds : highest;
    }
    return alike || highest == 0 ? highest : highest - 1;
}

void refit_siblings_choose(struct refit_siblings *siblings, const struct refit_siblings_own *own, int64_t now_ns,
                           struct refit_siblings_choice *out)
{
    const struct refit_control_version *found;
    *out = (struct refit_siblings_choice){.newest = 0};
    look_at_all(siblings, own, now_ns);
    look_around(siblings, now_ns, out);
    uint64_t floor = floor_of(siblings, own);
    for (uint64_t limit = UINT64_MAX; (found = highest_below(siblings, limit)) && found->version > floor;
         limit = found->version) {
        if (is_withheld(siblings, own, found->version, now_ns)) {
            out->withheld = out->withheld ? out->withheld : found->version;
        } else if (is_disputed(siblings, found)) {
            out->disputed = out->disputed ? out->disputed : found->version;
        } else {
            out->version = *found;
            return;
        }
    }
}

static bool is_source(const struct refit_sibling *sibling, const struct refit_control_version *version)
{
    return sibling->offer.version == version->version && strcmp(sibling->offer.digest, version->digest) == 0 &&
           sibling->layout[0] != '\0' && (sibling->whole || sibling->first_rank == 0);
}

size_t refit_siblings_sources(struct refit_siblings *siblings, const struct refit_control_version *version,
                              const char *domain, struct refit_sibling **out, size_t max)
{
    size_t count = 0;
    for (int near = 1; near >= 0; near--)
        for (size_t i = 0; i < siblings->count && count < max; i++) {
            struct refit_sibling *sibling = &siblings->item[i];
            bool same = domain[0] && strcmp(sibling->domain, domain) == 0;
            if (is_source(sibling, version) && same == (near == 1) &&
                (count == 0 || strcmp(sibling->layout, out[0]->layout) == 0))
                out[count++] = sibling;
        }
    return count;
}
