/* SPDX-License-Identifier: Apache-2.0
 *
 * Sources in this process: the workers of local_work.c without any connection. They are holder 0.
 */
#include <string.h>

#include "transport/local_receiver.h"

/* Every edge whose boxes some source has. */
static void offer(struct refit_grants *grants, struct refit_peer *peer, const struct refit_view *view)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(view->plan, &count);
    for (size_t i = 0; i < count; i++) {
        const struct refit_arena *arena;
        struct refit_walk walk;
        uint8_t digest[sizeof edges[i].digest];
        memcpy(digest, &edges[i].digest, sizeof digest);
        if (refit_view_window(view, &edges[i], 0, &arena, &walk))
            refit_peer_offers(grants, peer, digest, 1);
    }
}

static enum refit_status add_source(struct refit_local_receiver *receiver, const struct refit_view *view,
                                    struct refit_error *err)
{
    struct refit_peer *peer = refit_grants_peer(&receiver->base.grants, 0);
    struct refit_local_supply *supply = peer ? refit_local_supply_of(view) : NULL;
    struct refit_local_flow *flow = supply ? refit_local_flow_create(receiver, -1, peer, supply) : NULL;
    if (!flow) {
        refit_local_supply_release(supply);
        return refit_fail_alloc(err, "a source", sizeof *flow);
    }
    refit_local_flow_ready(flow);
    offer(&receiver->base.grants, peer, view);
    return REFIT_OK;
}

enum refit_status refit_local_open_source(const struct refit_endpoint_config *config,
                                          const struct refit_plan *source_plan, struct refit_arena *const *sources,
                                          size_t source_count, struct refit_endpoint **out, struct refit_error *err)
{
    struct refit_endpoint_config own = *config;
    struct refit_local_receiver *receiver;
    struct refit_view view;
    own.role = REFIT_RECEIVER;
    own.listener = NULL;
    own.holder = 1;
    enum refit_status status = refit_view_of(source_plan, sources, source_count, &view, err);
    if (status == REFIT_OK)
        status = refit_local_receiver_create(&own, &receiver, err);
    if (status != REFIT_OK)
        return status;
    pthread_mutex_lock(&receiver->base.grants.lock);
    status = add_source(receiver, &view, err);
    pthread_mutex_unlock(&receiver->base.grants.lock);
    if (status != REFIT_OK) {
        refit_transport_local.close(&receiver->base.base);
        return status;
    }
    *out = &receiver->base.base;
    return REFIT_OK;
}
