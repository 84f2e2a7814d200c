/* SPDX-License-Identifier: Apache-2.0
 *
 * Which holder of a box sends it: the one with the least bytes so far. Many holders are kept in a heap whose keys may
 * be out of date; since loads only grow, a first entry that is up to date is the least of all.
 */
#include "layouts/plan_internal.h"

#define FEW 8u /* holders looked at one by one */

static bool before(const struct refit_holder *a, const struct refit_holder *b)
{
    return a->load != b->load ? a->load < b->load : a->rank < b->rank;
}

static void sift_down(struct refit_holder *heap, uint32_t count)
{
    const struct refit_holder moved = heap[0];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count) {
            break;
        }
        if (child + 1 < count && before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!before(&heap[child], &moved)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* Holders begin by rising rank with no load, which is a heap; few of them stay in that order. */
const struct refit_holder *refit_plan_choose(const struct refit_source_box *box, struct refit_holder *holders,
                                             const uint64_t *load)
{
    struct refit_holder *best = holders + box->first_holder;
    if (box->holders > FEW) {
        while (best->load != load[best->rank]) {
            best->load = load[best->rank];
            sift_down(best, box->holders);
        }
        return best;
    }
    const struct refit_holder *end = best + box->holders;
    for (struct refit_holder *holder = best + 1; holder < end; holder++) {
        if (load[holder->rank] < load[best->rank]) {
            best = holder;
        }
    }
    return best;
}
