/* SPDX-License-Identifier: Apache-2.0 */
#include "layouts/topology.h"

#include <stdlib.h>
#include <string.h>

#include "layouts/layout.h"

#define FORMAT "refit-topology/1"
#define NOWHERE UINT32_MAX

struct refit_topology {
    uint32_t ranks, domains;
    uint32_t *domain_of;                 /* by rank */
    char (*names)[REFIT_DOMAIN_NAME_MAX]; /* by domain */
};

uint32_t refit_topology_ranks(const struct refit_topology *topology)
{
    return topology->ranks;
}

uint32_t refit_topology_domains(const struct refit_topology *topology)
{
    return topology->domains;
}

uint32_t refit_topology_domain_of(const struct refit_topology *topology, uint32_t rank)
{
    return topology->domain_of[rank];
}

const char *refit_topology_name(const struct refit_topology *topology, uint32_t domain)
{
    return topology->names[domain];
}

void refit_topology_release(struct refit_topology *topology)
{
    if (!topology)
        return;
    free(topology->domain_of);
    free(topology->names);
    free(topology);
}

static enum refit_status take_name(struct refit_topology *topology, const char *name, const char *what,
                                   struct refit_error *err)
{
    size_t len = strlen(name);
    if (len == 0 || len >= REFIT_DOMAIN_NAME_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: a domain's name must have 1 to %d bytes, found %zu", what,
                          REFIT_DOMAIN_NAME_MAX - 1, len);
    for (uint32_t i = 0; i < topology->domains; i++)
        if (strcmp(topology->names[i], name) == 0)
            return refit_fail(err, REFIT_INVALID, "%s: two domains are named \"%s\"", what, name);
    memcpy(topology->names[topology->domains], name, len + 1);
    return REFIT_OK;
}

static enum refit_status take_ranks(struct refit_topology *topology, const json_t *ranks, const char *what,
                                    struct refit_error *err)
{
    const char *name = topology->names[topology->domains];
    const json_t *item;
    size_t i;
    if (!json_is_array(ranks))
        return refit_fail(err, REFIT_INVALID, "%s: domain \"%s\": \"ranks\" must be an array", what, name);
    json_array_foreach(ranks, i, item) {
        json_int_t rank = json_is_integer(item) ? json_integer_value(item) : -1;
        if (rank < 0 || rank >= topology->ranks)
            return refit_fail(err, REFIT_INVALID, "%s: domain \"%s\": ranks must be from 0 to %u", what, name,
                              topology->ranks - 1);
        if (topology->domain_of[rank] != NOWHERE)
            return refit_fail(err, REFIT_INVALID, "%s: rank %lld is in two domains", what, (long long)rank);
        topology->domain_of[rank] = topology->domains;
    }
    return REFIT_OK;
}

static enum refit_status take_domain(struct refit_topology *topology, const json_t *domain, const char *what,
                                     struct refit_error *err)
{
    static const char *const known[] = {"name", "ranks", NULL};
    const char *name;
    enum refit_status status = refit_json_known(domain, what, known, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(domain, "name", what, &name, err);
    if (status == REFIT_OK)
        status = take_name(topology, name, what, err);
    if (status == REFIT_OK)
        status = take_ranks(topology, json_object_get(domain, "ranks"), what, err);
    if (status == REFIT_OK)
        topology->domains++;
    return status;
}

static enum refit_status take_domains(struct refit_topology *topology, const json_t *domains, const char *what,
                                      struct refit_error *err)
{
    const json_t *domain;
    size_t i;
    json_array_foreach(domains, i, domain) {
        enum refit_status status = take_domain(topology, domain, what, err);
        if (status != REFIT_OK)
            return status;
    }
    for (uint32_t rank = 0; rank < topology->ranks; rank++)
        if (topology->domain_of[rank] == NOWHERE)
            return refit_fail(err, REFIT_INVALID, "%s: rank %u is in no domain", what, rank);
    return REFIT_OK;
}

static struct refit_topology *create(uint32_t ranks, size_t domains)
{
    struct refit_topology *topology = calloc(1, sizeof *topology);
    if (!topology)
        return NULL;
    topology->ranks = ranks;
    topology->domain_of = malloc(ranks * sizeof *topology->domain_of);
    topology->names = calloc(domains + 1, sizeof *topology->names);
    if (!topology->domain_of || !topology->names) {
        refit_topology_release(topology);
        return NULL;
    }
    memset(topology->domain_of, 0xff, ranks * sizeof *topology->domain_of);
    return topology;
}

enum refit_status refit_topology_from_json(const json_t *document, const char *what, struct refit_topology **out,
                                           struct refit_error *err)
{
    static const char *const known[] = {"format", "ranks", "domains", NULL};
    const char *format;
    int64_t ranks;
    enum refit_status status = refit_json_known(document, what, known, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(document, "format", what, &format, err);
    if (status == REFIT_OK && strcmp(format, FORMAT) != 0)
        return refit_fail(err, REFIT_INVALID, "%s: \"format\" must be \"" FORMAT "\", found \"%.40s\"", what, format);
    if (status == REFIT_OK)
        status = refit_json_get_int(document, "ranks", what, 1, REFIT_RANKS_MAX, &ranks, err);
    if (status != REFIT_OK)
        return status;
    const json_t *domains = json_object_get(document, "domains");
    if (!json_is_array(domains))
        return refit_fail(err, REFIT_INVALID, "%s: \"domains\" must be an array", what);
    struct refit_topology *topology = create((uint32_t)ranks, json_array_size(domains));
    if (!topology)
        return refit_fail_alloc(err, what, (unsigned long long)ranks * sizeof(uint32_t));
    status = take_domains(topology, domains, what, err);
    if (status != REFIT_OK)
        refit_topology_release(topology);
    else
        *out = topology;
    return status;
}

enum refit_status refit_topology_parse(const void *text, size_t len, const char *what, struct refit_topology **out,
                                       struct refit_error *err)
{
    json_t *document;
    enum refit_status status = refit_json_parse(text, len, what, &document, err);
    if (status != REFIT_OK)
        return status;
    status = refit_topology_from_json(document, what, out, err);
    json_decref(document);
    return status;
}

json_t *refit_topology_of_one(const char *domain, uint32_t ranks)
{
    json_t *all = json_array();
    for (uint32_t rank = 0; rank < ranks; rank++)
        json_array_append_new(all, json_integer(rank));
    return json_pack("{s:s, s:I, s:[{s:s, s:o}]}", "format", FORMAT, "ranks", (json_int_t)ranks, "domains", "name",
                     domain, "ranks", all);
}
