/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/agree.h"

#include <string.h>

static enum refit_status compare(const struct refit_replica *a, const struct refit_replica *b, struct refit_error *err)
{
    struct refit_tensor tensor;
    bool same_layout = strcmp(refit_layout_digest(a->layout), refit_layout_digest(b->layout)) == 0;
    for (uint32_t i = 0; i < refit_layout_tensor_count(a->layout); i++) {
        uint32_t other = i;
        if (!same_layout) {
            refit_layout_tensor(a->layout, i, &tensor);
            if (!refit_layout_find(b->layout, tensor.name, &other))
                continue;
        }
        if (refit_digest_equal(refit_tally_get(a->tally, i), refit_tally_get(b->tally, other)))
            continue;
        refit_layout_tensor(a->layout, i, &tensor);
        return refit_fail(err, REFIT_CORRUPT, "%s and %s were sent different bytes of tensor %s: it was written while it "
                          "was being published; keep the memory unchanged until the sources are free", a->report.url,
                          b->report.url, tensor.name);
    }
    return REFIT_OK;
}

/* The digest is filled when the tally is whole. */
static const struct refit_replica *first_whole(const struct refit_lead *lead, const struct refit_replica *except)
{
    for (size_t i = 0; i < lead->replica_count; i++)
        if (&lead->replicas[i] != except && lead->replicas[i].digest[0])
            return &lead->replicas[i];
    return NULL;
}

enum refit_status refit_agree_one(const struct refit_replica *replica, struct refit_error *err)
{
    const struct refit_replica *other = first_whole(replica->lead, replica);
    return other && replica->digest[0] ? compare(other, replica, err) : REFIT_OK;
}

enum refit_status refit_agree_all(const struct refit_lead *lead, struct refit_error *err)
{
    const struct refit_replica *first = first_whole(lead, NULL);
    for (size_t i = 0; i < lead->replica_count; i++) {
        const struct refit_replica *replica = &lead->replicas[i];
        enum refit_status status = replica->digest[0] && replica != first ? compare(first, replica, err) : REFIT_OK;
        if (status != REFIT_OK)
            return status;
    }
    return REFIT_OK;
}
