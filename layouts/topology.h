/* SPDX-License-Identifier: Apache-2.0
 *
 * A topology: which domain each rank of one side is in. A domain is a set of ranks that reach each other over a fast
 * path (one host, one NVLink domain); two sides share a domain when it has the same name. Apart from the layout, so that
 * a rank that moves to another host does not make another layout, and no plan is lost.
 *
 *     {"format": "refit-topology/1", "ranks": 4, "domains": [{"name": "host-a", "ranks": [0, 1]}, {"name": "host-b", "ranks": [2, 3]}]}
 *
 * Every rank is in exactly one domain. Immutable once parsed; thread-safe.
 */
#ifndef REFIT_LAYOUTS_TOPOLOGY_H
#define REFIT_LAYOUTS_TOPOLOGY_H

#include "base/json.h"

#define REFIT_DOMAIN_NAME_MAX 64

struct refit_topology;

/* `what` names the document in errors. *out is new (refit_topology_release). */
REFIT_MUST_CHECK enum refit_status refit_topology_parse(const void *text, size_t len, const char *what,
                                                        struct refit_topology **out, struct refit_error *err);
/* The same from a parsed document, which is borrowed. */
REFIT_MUST_CHECK enum refit_status refit_topology_from_json(const json_t *document, const char *what,
                                                            struct refit_topology **out, struct refit_error *err);
void refit_topology_release(struct refit_topology *topology); /* NULL is fine */

uint32_t refit_topology_ranks(const struct refit_topology *topology);
uint32_t refit_topology_domains(const struct refit_topology *topology);
/* The domain of a rank below refit_topology_ranks. */
uint32_t refit_topology_domain_of(const struct refit_topology *topology, uint32_t rank);
const char *refit_topology_name(const struct refit_topology *topology, uint32_t domain); /* borrowed */

/* A document in which every rank is in the domain named `domain`; new, NULL when out of memory. */
json_t *refit_topology_of_one(const char *domain, uint32_t ranks);

#endif
