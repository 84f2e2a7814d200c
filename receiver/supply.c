/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/supply.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

struct domain {
    uint32_t first, count; /* in `listed` */
};

struct refit_supply {
    uint32_t members, domains, self;
    uint32_t *domain_of; /* by member */
    struct domain *domain;
    uint32_t *listed;    /* members by domain, in the lead's order */
    uint32_t *home;      /* by batch: its home domain */
};

/* --- building --------------------------------------------------------------------------------------------------- */

/* Domains are numbered by their first member. */
static void number_domains(struct refit_supply *s, const char *const *names)
{
    for (uint32_t i = 0; i < s->members; i++) {
        uint32_t j = 0;
        while (j < i && strcmp(names[j], names[i]) != 0)
            j++;
        s->domain_of[i] = j < i ? s->domain_of[j] : s->domains++;
        s->domain[s->domain_of[i]].count++;
    }
}

static void list_members(struct refit_supply *s)
{
    for (uint32_t d = 1; d < s->domains; d++)
        s->domain[d].first = s->domain[d - 1].first + s->domain[d - 1].count;
    for (uint32_t d = 0; d < s->domains; d++)
        s->domain[d].count = 0;
    for (uint32_t i = 0; i < s->members; i++) {
        struct domain *d = &s->domain[s->domain_of[i]];
        s->listed[d->first + d->count++] = i;
    }
}

/* The domain with the fewest bytes so far, the first of equals: round robin while batches are of one size. */
static void sift(uint32_t *heap, const uint64_t *bytes, uint32_t count)
{
    for (uint32_t at = 0, child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && (bytes[heap[child + 1]] < bytes[heap[child]] ||
                                  (bytes[heap[child + 1]] == bytes[heap[child]] && heap[child + 1] < heap[child])))
            child++;
        if (bytes[heap[at]] < bytes[heap[child]] ||
            (bytes[heap[at]] == bytes[heap[child]] && heap[at] < heap[child]))
            return;
        uint32_t swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
    }
}

static enum refit_status find_homes(struct refit_supply *s, const struct refit_supply_config *config,
                                    struct refit_error *err)
{
    uint64_t *bytes = calloc(s->domains, sizeof *bytes);
    uint32_t *heap = calloc(s->domains, sizeof *heap);
    if (bytes && heap) {
        for (uint32_t d = 0; d < s->domains; d++)
            heap[d] = d;
        for (uint64_t i = 0; i < config->batches; i++) {
            s->home[i] = heap[0];
            bytes[heap[0]] += config->batch_bytes[i];
            sift(heap, bytes, s->domains);
        }
    }
    enum refit_status status = bytes && heap ? REFIT_OK : refit_fail_alloc(err, "the shares of a fleet", s->domains);
    free(bytes);
    free(heap);
    return status;
}

enum refit_status refit_supply_create(const struct refit_supply_config *config, struct refit_supply **out,
                                      struct refit_error *err)
{
    size_t members = (size_t)config->members + 1; /* never nothing */
    struct refit_supply *s = calloc(1, sizeof *s);
    if (!s)
        return refit_fail_alloc(err, "the order of a fleet", sizeof *s);
    s->members = config->members;
    s->self = config->self;
    s->domain_of = calloc(members, sizeof *s->domain_of);
    s->domain = calloc(members, sizeof *s->domain);
    s->listed = calloc(members, sizeof *s->listed);
    s->home = calloc(config->members ? config->batches + 1 : 1, sizeof *s->home);
    enum refit_status status = REFIT_OK;
    if (!s->domain_of || !s->domain || !s->listed || !s->home)
        status = refit_fail_alloc(err, "the order of a fleet", config->batches * sizeof *s->home);
    else if (s->members > 0) {
        number_domains(s, config->domains);
        list_members(s);
        status = find_homes(s, config, err);
    }
    if (status == REFIT_OK)
        *out = s;
    else
        refit_supply_destroy(s);
    return status;
}

void refit_supply_destroy(struct refit_supply *supply)
{
    if (!supply)
        return;
    free(supply->domain_of);
    free(supply->domain);
    free(supply->listed);
    free(supply->home);
    free(supply);
}

/* --- choosing --------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Where something stands in a batch's order: the seed first, the rest by a hash, so that what a lost one would have
 * done is shared by all that are left. */
struct rank {
    uint64_t hash;
    uint32_t which;
};

#define OF_DOMAINS UINT64_C(0x646f6d61696e73)
#define OF_MEMBERS UINT64_C(0x6d656d62657273)

static struct rank rank_of(uint64_t batch, uint64_t what, uint32_t which, uint32_t first)
{
    return (struct rank){which == first ? 0 : mix(mix(batch ^ what) + which) | 1, which};
}

static bool precedes(struct rank a, struct rank b)
{
    return a.hash < b.hash || (a.hash == b.hash && a.which < b.which);
}

static uint32_t seed_of(const struct refit_supply *s, uint64_t batch, uint32_t domain)
{
    const struct domain *d = &s->domain[domain];
    return s->listed[d->first + (batch / s->domains) % d->count];
}

enum side { BEFORE, AFTER, ANYWHERE }; /* of this member, or its domain */

static bool on_side(struct rank a, struct rank own, enum side side)
{
    return side == ANYWHERE || (side == BEFORE ? precedes(a, own) : precedes(own, a));
}

/* The first usable member of a domain; NONE. */
static uint32_t ask_domain(const struct refit_supply *s, uint64_t batch, uint32_t domain, const bool *usable,
                           enum side side)
{
    const struct domain *d = &s->domain[domain];
    uint32_t seed = seed_of(s, batch, domain), best = NONE;
    struct rank own = rank_of(batch, OF_MEMBERS, s->self, seed);
    if (usable[seed] && seed != s->self && on_side(rank_of(batch, OF_MEMBERS, seed, seed), own, side))
        return seed;
    for (uint32_t i = d->first; i < d->first + d->count; i++) {
        uint32_t member = s->listed[i];
        struct rank rank = rank_of(batch, OF_MEMBERS, member, seed);
        if (member != s->self && usable[member] && on_side(rank, own, side) &&
            (best == NONE || precedes(rank, rank_of(batch, OF_MEMBERS, best, seed))))
            best = member;
    }
    return best;
}

/* The first usable member of the other domains on one side of our own; NONE. */
static uint32_t ask_others(const struct refit_supply *s, uint64_t batch, const bool *usable, enum side side)
{
    uint32_t home = s->home[batch], own = s->domain_of[s->self], found = NONE;
    struct rank own_rank = rank_of(batch, OF_DOMAINS, own, home), best = {0, 0};
    if (own == home && side == BEFORE)
        return NONE;
    if (own != home && side == BEFORE)
        found = ask_domain(s, batch, home, usable, ANYWHERE);
    if (found != NONE)
        return found;
    for (uint32_t d = 0; d < s->domains; d++) {
        struct rank rank = rank_of(batch, OF_DOMAINS, d, home);
        if (d == own || d == home || !on_side(rank, own_rank, side) || (found != NONE && !precedes(rank, best)))
            continue;
        uint32_t member = ask_domain(s, batch, d, usable, ANYWHERE);
        if (member == NONE)
            continue;
        found = member;
        best = rank;
    }
    return found;
}

uint32_t refit_supply_home_seed(const struct refit_supply *supply, uint64_t batch)
{
    return seed_of(supply, batch, supply->home[batch]);
}

bool refit_supply_same_domain(const struct refit_supply *supply, uint32_t member)
{
    return supply->domain_of[member] == supply->domain_of[supply->self];
}

struct refit_supply_answer refit_supply_choose(const struct refit_supply *supply, uint64_t batch, const bool *usable,
                                               bool origin)
{
    const struct refit_supply *s = supply;
    struct refit_supply_answer answer = {.from = REFIT_SUPPLY_ORIGIN};
    if (s->members == 0) {
        answer.from = origin ? REFIT_SUPPLY_ORIGIN : REFIT_SUPPLY_NOBODY;
        return answer;
    }
    uint32_t own = s->domain_of[s->self];
    uint32_t member = ask_domain(s, batch, own, usable, BEFORE);
    if (member == NONE)
        member = ask_others(s, batch, usable, BEFORE);
    if (member == NONE && origin) {
        answer.excess = refit_supply_home_seed(s, batch) != s->self;
        return answer;
    }
    /* Whoever is left may have it, though it was not meant to bring it here. */
    if (member == NONE)
        member = ask_domain(s, batch, own, usable, AFTER);
    if (member == NONE)
        member = ask_others(s, batch, usable, AFTER);
    answer.from = member == NONE ? REFIT_SUPPLY_NOBODY : REFIT_SUPPLY_MEMBER;
    answer.member = member;
    return answer;
}

/* --- among equals ----------------------------------------------------------------------------------------------- */

/* Both deliver for the same time, so bytes stand for speed. */
bool refit_supply_before(struct refit_supply_load a, struct refit_supply_load b, uint32_t batch_bytes)
{
    const double head_start = 8.0 * batch_bytes;
    return (a.owed + 1.0) * ((double)b.delivered + head_start) < (b.owed + 1.0) * ((double)a.delivered + head_start);
}
