/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- between replicas ---- */

static bool comparable(const struct refit_replica *a, const struct refit_replica *b)
{
    return refit_replica_same_ranks(a, b) || (refit_replica_is_whole(a) && refit_replica_is_whole(b));
}

/* The first tensor whose digests differ. */
static bool find_difference(const struct refit_replica *a, const struct refit_tally *of_a, const struct refit_replica *b,
                            const struct refit_tally *of_b, struct refit_tensor *tensor)
{
    for (uint32_t i = 0; i < refit_layout_tensor_count(a->layout); i++) {
        uint32_t other = i;
        refit_layout_tensor(a->layout, i, tensor);
        if (!refit_layout_find(b->layout, tensor->name, &other))
            continue;
        if (!refit_digest_equal(refit_tally_get(of_a, i), refit_tally_get(of_b, other)))
            return true;
    }
    return false;
}

static enum refit_status compare(const struct refit_replica *a, const struct refit_replica *b, struct refit_error *err)
{
    struct refit_tensor tensor;
    if (strcmp(a->digest, b->digest) == 0)
        return REFIT_OK;
    bool named = a->tally_whole && b->tally_whole && find_difference(a, a->tally, b, b->tally, &tensor);
    return refit_fail(err, REFIT_CORRUPT, "%s and %s were sent different bytes%s%s: it was written while it was being "
                      "published; keep the memory unchanged until the sources are free", a->report.url, b->report.url,
                      named ? " of tensor " : " of some tensor", named ? tensor.name : "");
}

static const struct refit_replica *first_comparable(const struct refit_replica *replica)
{
    const struct refit_lead *lead = replica->lead;
    for (size_t i = 0; i < lead->replica_count; i++)
        if (lead->replicas[i] != replica && lead->replicas[i]->digest[0] && comparable(lead->replicas[i], replica))
            return lead->replicas[i];
    return NULL;
}

enum refit_status refit_agree_one(const struct refit_replica *replica, struct refit_error *err)
{
    const struct refit_replica *other = replica->digest[0] ? first_comparable(replica) : NULL;
    return other ? compare(other, replica, err) : REFIT_OK;
}

/* ---- a replica that spans pods ---- */

static enum refit_status add_up(struct refit_unit *unit, struct refit_error *err)
{
    const struct refit_layout *layout = unit->pods[0]->layout;
    uint32_t tensors = refit_layout_tensor_count(layout);
    struct refit_tally *sum = refit_tally_create(tensors);
    if (!sum)
        return refit_fail_alloc(err, "a tally", tensors * sizeof(struct refit_digest));
    for (size_t i = 0; i < unit->pod_count; i++)
        for (uint32_t k = 0; k < tensors; k++)
            refit_tally_add(sum, k, refit_tally_get(unit->pods[i]->share, k));
    enum refit_status status = refit_model_digest(layout, sum, "exact", unit->model, err);
    refit_tally_destroy(sum);
    return status;
}

/* The pods are all of the replica: each begins where the one before it ends. */
static bool covers(const struct refit_unit *unit)
{
    uint32_t covered = 0;
    const struct refit_replica *first = unit->pods[0];
    for (uint32_t ranks = refit_layout_ranks(first->layout); covered < ranks;) {
        const struct refit_replica *next = NULL;
        for (size_t i = 0; i < unit->pod_count && !next; i++)
            if (unit->pods[i]->first_rank == covered && unit->pods[i]->rank_count > 0)
                next = unit->pods[i];
        if (!next)
            return false;
        covered += next->rank_count;
    }
    return true;
}

static bool all_have_told(const struct refit_unit *unit)
{
    bool told = true;
    for (size_t i = 0; i < unit->pod_count; i++)
        told = told && unit->pods[i]->share && unit->pods[i]->digest[0] &&
               strcmp(refit_layout_digest(unit->pods[i]->layout), refit_layout_digest(unit->pods[0]->layout)) == 0;
    return told;
}

static const char *model_of(const struct refit_unit *unit)
{
    const struct refit_replica *pod = unit->pods[0];
    return unit->pod_count == 1 && refit_replica_is_whole(pod) ? pod->digest : unit->model;
}

static enum refit_status agree_with_units(const struct refit_unit *unit, struct refit_error *err)
{
    const struct refit_lead *lead = unit->pods[0]->lead;
    const char *own = model_of(unit);
    for (size_t i = 0; i < lead->unit_count && *own; i++) {
        const char *other = model_of(&lead->units[i]);
        if (&lead->units[i] != unit && *other && strcmp(own, other) != 0)
            return refit_fail(err, REFIT_CORRUPT,
                              "%s and %s were sent different bytes: the model has digest %.16s... there, "
                              "%.16s... here", lead->units[i].pods[0]->report.url,
                              unit->pods[0]->report.url, other, own);
    }
    return REFIT_OK;
}

enum refit_status refit_agree_pods(struct refit_unit *unit, struct refit_error *err)
{
    if (unit->pod_count == 1)
        return REFIT_OK;
    enum refit_status status = REFIT_OK;
    if (!unit->model[0] && all_have_told(unit) && covers(unit))
        status = add_up(unit, err);
    return status == REFIT_OK ? agree_with_units(unit, err) : status;
}

/* ---- a class and its source ---- */

/* Where every batch left the trainer exactly once, the sum of what was sent is what each member has. */
static bool left_once(const struct refit_lead *lead, const struct refit_class *class, const struct refit_replica **member)
{
    uint64_t sent = 0;
    *member = NULL;
    for (size_t i = 0; i < lead->replica_count; i++) {
        const struct refit_replica *replica = lead->replicas[i];
        if (replica->class != class)
            continue;
        if (replica->report.bytes_excess > 0) /* one batch twice and another not at all would come to the same sum */
            return false;
        if (!replica->posted)
            continue;
        if (replica->served != lead->rank_count || replica->served_error.status != REFIT_OK)
            return false;
        sent += replica->sent_bytes;
        if (replica->digest[0])
            *member = replica;
    }
    return *member && sent == (*member)->report.bytes_needed;
}

static struct refit_tally *sum_of_class(const struct refit_lead *lead, const struct refit_class *class, uint32_t tensors)
{
    struct refit_tally *sum = refit_tally_create(tensors);
    for (size_t i = 0; sum && i < lead->replica_count; i++)
        for (uint32_t k = 0; lead->replicas[i]->class == class && lead->replicas[i]->posted && k < tensors; k++)
            refit_tally_add(sum, k, refit_tally_get(lead->replicas[i]->tally, k));
    return sum;
}

static enum refit_status agree_with_source(const struct refit_lead *lead, const struct refit_class *class,
                                           struct refit_error *err)
{
    const struct refit_replica *member;
    char hex[REFIT_SHA256_HEX_MAX];
    if (class->server_count || !left_once(lead, class, &member))
        return REFIT_OK;
    if (member->keeps)
        return REFIT_OK; /* the digest is also of what was not sent */
    uint32_t tensors = refit_layout_tensor_count(member->layout);
    struct refit_tally *sum = sum_of_class(lead, class, tensors);
    if (!sum)
        return refit_fail_alloc(err, "a tally", tensors * sizeof(struct refit_digest));
    enum refit_status status = refit_model_digest(member->layout, sum, "exact", hex, err);
    refit_tally_destroy(sum);
    if (status == REFIT_OK && strcmp(hex, member->digest) != 0)
        status = refit_fail(err, REFIT_CORRUPT, "%s: what landed has digest %.16s..., what the ranks sent to its class "
                            "%.16s...", member->report.url, member->digest, hex);
    return status;
}

enum refit_status refit_agree_all(const struct refit_lead *lead, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < lead->replica_count && status == REFIT_OK; i++)
        status = refit_agree_one(lead->replicas[i], err);
    for (size_t i = 0; i < lead->unit_count && status == REFIT_OK; i++)
        status = refit_agree_pods(&lead->units[i], err);
    for (size_t i = 0; i < lead->class_count && status == REFIT_OK; i++)
        status = agree_with_source(lead, &lead->classes[i], err);
    return status;
}

/* ---- a replica and its ranks ---- */

static enum refit_status fail_written(const struct refit_replica *replica, const struct refit_tensor *tensor,
                                      struct refit_error *err)
{
    char since[96] = "";
    if (replica->keeps)
        snprintf(since, sizeof since, " (or has changed, and is named as unchanged since version %" PRIu64 ")",
                 replica->lead->publish.unchanged_since);
    return refit_fail(err, REFIT_CORRUPT, "%s: %s%s was written while it was being published%s; keep the memory unchanged "
                      "until the sources are free", replica->report.url, tensor ? "tensor " : "some tensor or other",
                      tensor ? tensor->name : "", since);
}

static enum refit_status agree_with_memory(const struct refit_replica *replica, struct refit_error *err)
{
    char hex[REFIT_SHA256_HEX_MAX];
    struct refit_tensor tensor;
    enum refit_status status = refit_model_digest(replica->layout, replica->again, "exact", hex, err);
    if (status != REFIT_OK || strcmp(hex, replica->report.digest) == 0)
        return status;
    bool named = replica->tally_whole && find_difference(replica, replica->tally, replica, replica->again, &tensor);
    return fail_written(replica, named ? &tensor : NULL, err);
}

enum refit_status refit_agree_with_ranks(struct refit_replica *replica, bool checked, struct refit_error *err)
{
    char hex[REFIT_SHA256_HEX_MAX];
    enum refit_status status = refit_model_digest(replica->layout, replica->tally, "exact", hex, err);
    if (status != REFIT_OK)
        return status;
    replica->tally_whole = strcmp(hex, replica->report.digest) == 0;
    /* The digest is of what it keeps as well. */
    bool all_sent = !replica->keeps && replica->served_error.status == REFIT_OK &&
                      replica->sent_bytes == replica->report.bytes_needed;
    if (!replica->tally_whole && all_sent)
        return refit_fail(err, REFIT_CORRUPT, "%s: what landed has digest %.16s..., what was sent %.16s...",
                          replica->control.url.text, replica->report.digest, hex);
    return checked ? agree_with_memory(replica, err) : REFIT_OK;
}
