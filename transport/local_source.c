/* SPDX-License-Identifier: Apache-2.0
 *
 * Sources in this process: the workers of local_work.c without any connection.
 */
#include "transport/local_receiver.h"

static enum refit_status check_plans(const struct refit_endpoint_config *config, const struct refit_plan *source_plan,
                                     struct refit_error *err)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(config->plan, &count);
    for (size_t i = 0; i < count; i++) {
        const struct refit_edge *there =
            refit_plan_edge(source_plan, edges[i].source_rank, edges[i].destination_rank);
        if (there && there->digest != edges[i].digest)
            return refit_fail(err, REFIT_MISMATCH,
                              "local: the edge from rank %u to rank %u differs between the two plans", edges[i].source_rank,
                              edges[i].destination_rank);
    }
    return REFIT_OK;
}

static enum refit_status add_source(struct refit_local_receiver *receiver, struct refit_plan *plan,
                                    struct refit_arena *arena, uint32_t rank, struct refit_error *err)
{
    struct refit_peer *peer = refit_grants_peer(&receiver->grants, rank);
    struct refit_local_supply *supply = peer ? refit_local_supply_of(plan, arena) : NULL;
    struct refit_local_flow *flow = supply ? refit_local_flow_create(receiver, -1, rank, supply) : NULL;
    if (!flow) {
        refit_local_supply_release(supply);
        return refit_fail_alloc(err, "a source", sizeof *flow);
    }
    flow->peer = peer;
    flow->ready = true;
    peer->owner = flow;
    refit_peer_joined(&receiver->grants, peer);
    return REFIT_OK;
}

enum refit_status refit_local_open_source(const struct refit_endpoint_config *config,
                                          const struct refit_plan *source_plan, struct refit_arena *const *sources,
                                          size_t source_count, struct refit_endpoint **out, struct refit_error *err)
{
    struct refit_endpoint_config own = *config;
    struct refit_local_receiver *receiver;
    own.role = REFIT_RECEIVER;
    own.listener = NULL;
    enum refit_status status = check_plans(config, source_plan, err);
    if (status == REFIT_OK)
        status = refit_local_receiver_create(&own, &receiver, err);
    if (status != REFIT_OK)
        return status;
    pthread_mutex_lock(&receiver->grants.lock);
    for (size_t i = 0; i < source_count && i < receiver->grants.ranks && status == REFIT_OK; i++)
        if (sources[i])
            status = add_source(receiver, (struct refit_plan *)(uintptr_t)source_plan, sources[i], (uint32_t)i, err);
    pthread_mutex_unlock(&receiver->grants.lock);
    if (status != REFIT_OK) {
        refit_transport_local.close(&receiver->base);
        return status;
    }
    *out = &receiver->base;
    return REFIT_OK;
}
