/* SPDX-License-Identifier: Apache-2.0
 *
 * A binding: which process and which memory each rank of a layout is now. The one document that changes when a process is
 * restarted; neither layouts nor plans name it.
 *
 *     {"format": "refit-binding/1", "layout": "…digest…", "ranks": [
 *        {"rank": 0, "process": "minilm", "pid": 123, "attached": true, "kind": "host", "bytes": 46154752}]}
 *
 * `bytes` is the size of the rank's arena space. Plain data.
 */
#ifndef REFIT_LAYOUTS_BINDING_H
#define REFIT_LAYOUTS_BINDING_H

#include <stdbool.h>

#include "base/json.h"

struct refit_bound_rank {
    char process[64]; /* what it calls itself */
    int64_t pid;      /* 0: unknown here */
    bool attached;    /* false: no process is this rank now */
    char kind[8];     /* of its memory: "host", "file", "cuda" */
    uint64_t bytes;
};

struct refit_binding {
    char layout[REFIT_SHA256_HEX_MAX];
    uint32_t ranks;
    struct refit_bound_rank *rank; /* owned, by rank */
};

/* *out is filled (refit_binding_release). Every rank from 0 on, once, in order. */
REFIT_MUST_CHECK enum refit_status refit_binding_from_json(const json_t *document, const char *what,
                                                           struct refit_binding *out, struct refit_error *err);
void refit_binding_release(struct refit_binding *binding);
/* New; NULL when out of memory. */
json_t *refit_binding_to_json(const struct refit_binding *binding);

#endif
