/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/document.h"

#include <inttypes.h>
#include <stdatomic.h>

#include "base/json_heap.h"
#include "memory/slot.h"

#define SMALL (64u << 10) /* is parsed without a look at the limit, which takes longer */

static atomic_uint_least64_t taken;

enum refit_status refit_document_enter(const void *text, size_t len, unsigned copies, const char *what,
                                       uint64_t *bytes, struct refit_error *err)
{
    const char *limit = NULL;
    *bytes = 0;
    if (len <= SMALL)
        return REFIT_OK;
    uint64_t need = copies * refit_json_heap(text, len);
    uint64_t all = atomic_fetch_add_explicit(&taken, need, memory_order_relaxed) + need;
    uint64_t left = refit_memory_available(&limit);
    if (all <= left) {
        *bytes = need;
        return REFIT_OK;
    }
    refit_document_leave(need);
    return refit_fail(err, REFIT_NO_MEMORY, "%s: %zu bytes of text that may take %" PRIu64 " bytes of memory, %" PRIu64
                      " are left under %s for all that is read now; send less, or raise the limit", what, len, need,
                      left, limit ? limit : "the memory limit");
}

void refit_document_leave(uint64_t bytes)
{
    atomic_fetch_sub_explicit(&taken, bytes, memory_order_relaxed);
}
