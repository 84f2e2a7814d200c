/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/progress.h"

#include <inttypes.h>
#include <stdio.h>

#define NAMES_MAX 8

struct blamed {
    uint32_t holder[NAMES_MAX];
    uint32_t count;
    bool served; /* they are serving replicas, else source ranks */
};

static void blame(struct blamed *blamed, uint32_t holder)
{
    for (uint32_t i = 0; i < blamed->count; i++)
        if (blamed->holder[i] == holder)
            return;
    if (blamed->count < NAMES_MAX)
        blamed->holder[blamed->count++] = holder;
}

enum fault { ANY, ABSENT, LOST };

static bool has_fault(const struct refit_holder *h, enum fault fault)
{
    return fault == ANY || (fault == ABSENT ? !h->ever : h->ever && h->path < 0);
}

/* Replicas serve in the trainer's place, when it has not shown itself. */
static bool is_served(const struct refit_progress *p)
{
    for (uint32_t i = 0; i < p->holders.ranks; i++)
        if (p->holders.items[i].ever)
            return false;
    return p->holders.sources > 0;
}

static void blame_if(const struct refit_progress *p, uint32_t holder, enum fault fault, struct blamed *out)
{
    if (has_fault(&p->holders.items[holder], fault))
        blame(out, holder);
}

/* Who of the origin is to blame for what has not landed; a few are enough. */
static void find_blamed(const struct refit_progress *p, enum fault fault, struct blamed *out)
{
    *out = (struct blamed){.served = is_served(p)};
    for (uint32_t i = 0; out->served && i < p->holders.sources; i++)
        blame_if(p, p->holders.ranks + p->holders.members + i, fault, out);
    for (uint32_t i = 0; !out->served && i < p->batches.total && out->count < NAMES_MAX; i++) {
        uint32_t within;
        if (p->batches.items[i].state == REFIT_BATCH_DONE)
            continue;
        uint32_t group = refit_batches_edge(&p->batches, i, &within)->source_group;
        struct refit_group ranks = refit_progress_group(p, group);
        for (uint32_t k = 0; k < ranks.count; k++)
            blame_if(p, ranks.ranks[k], fault, out);
    }
}

static void print_blamed(const struct refit_progress *p, const struct blamed *blamed, char *out, size_t size)
{
    uint32_t base = blamed->served ? p->holders.ranks + p->holders.members : 0;
    size_t used = (size_t)snprintf(out, size, blamed->served ? "serving replica " : "source rank ");
    for (uint32_t i = 0; i < blamed->count; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%" PRIu32, i ? ", " : "", blamed->holder[i] - base);
    if (blamed->count == NAMES_MAX)
        snprintf(out + used, size - used, ", ...");
}

/* A member that owes. Appends its name. */
static void name_debtor(const struct refit_progress *p, char *out, size_t size)
{
    char name[REFIT_HOLDER_NAME_MAX];
    *out = '\0';
    for (uint32_t i = p->holders.ranks; i < p->holders.count; i++) {
        if (p->holders.items[i].owed == 0)
            continue;
        refit_holders_name(&p->holders, i, name);
        snprintf(out, size, "; %s owes %" PRIu32 " batches", name, p->holders.items[i].owed);
        return;
    }
}

enum refit_status refit_progress_explain(const struct refit_progress *progress, struct refit_error *err)
{
    const struct refit_progress *p = progress;
    struct blamed blamed;
    char names[NAMES_MAX * 12 + 32], debtor[REFIT_HOLDER_NAME_MAX + 32];
    find_blamed(p, ABSENT, &blamed);
    bool absent = blamed.count > 0;
    if (!absent)
        find_blamed(p, ANY, &blamed);
    print_blamed(p, &blamed, names, sizeof names);
    name_debtor(p, debtor, sizeof debtor);
    return refit_fail(err, REFIT_TIMEOUT, "deadline passed with %" PRIu64 " of %" PRIu64
                      " bytes landed; %s %s%s; publish again, with more time or a look at that rank", p->bytes_done,
                      refit_plan_bytes(p->transfer->plan), names, absent ? "never connected" : "did not send all",
                      debtor);
}

enum refit_status refit_progress_check(const struct refit_progress *progress, struct refit_error *err)
{
    const struct refit_progress *p = progress;
    struct blamed blamed;
    char names[NAMES_MAX * 12 + 32];
    bool lost = false;
    for (uint32_t group = 0; group < p->groups; group++)
        lost |= !p->origin[group];
    if (!lost)
        return REFIT_OK;
    bool stuck = p->holders.owed == 0 && p->batches.lists[p->nobody].count == p->batches.left;
    if (!stuck && refit_clock_ns() - p->landed_ns < REFIT_GRACE_NS)
        return REFIT_OK;
    find_blamed(p, LOST, &blamed);
    print_blamed(p, &blamed, names, sizeof names);
    return refit_fail(err, REFIT_PEER, "%s was lost with %" PRIu32 " of %" PRIu32
                      " batches landed and did not come back within %d s; publish again", names,
                      p->batches.total - p->batches.left, p->batches.total, (int)(REFIT_GRACE_NS / 1000000000));
}
