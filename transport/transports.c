/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables, and the step from a table's operation to that of the endpoint's role.
 */
#include <string.h>

#include "transport/endpoint.h"
#include "transport/local.h"
#include "transport/nccl.h"
#include "transport/tcp.h"

static enum refit_status wrong_role(const char *operation, struct refit_error *err)
{
    return refit_fail(err, REFIT_INVALID, "%s: not an operation of this endpoint's role", operation);
}

static enum refit_status endpoint_card(struct refit_endpoint *endpoint, json_t **out, struct refit_error *err)
{
    return endpoint->ops->card ? endpoint->ops->card(endpoint, out, err) : wrong_role("card", err);
}

static enum refit_status endpoint_connect(struct refit_endpoint *endpoint, const json_t *card,
                                          struct refit_deadline deadline, struct refit_error *err)
{
    return endpoint->ops->connect ? endpoint->ops->connect(endpoint, card, deadline, err) : wrong_role("connect", err);
}

static enum refit_status endpoint_post(struct refit_endpoint *endpoint, uint32_t holder, const struct refit_edge *edge,
                                       uint32_t batch, struct refit_error *err)
{
    return endpoint->ops->post ? endpoint->ops->post(endpoint, holder, edge, batch, err) : wrong_role("post", err);
}

static void endpoint_look(struct refit_endpoint *endpoint, uint32_t holder, struct refit_holder_state *out)
{
    *out = (struct refit_holder_state){.owed = 0};
    if (endpoint->ops->look)
        endpoint->ops->look(endpoint, holder, out);
}

static void endpoint_drop(struct refit_endpoint *endpoint, uint32_t holder)
{
    if (endpoint->ops->drop)
        endpoint->ops->drop(endpoint, holder);
}

static enum refit_status endpoint_wait_done(struct refit_endpoint *endpoint, struct refit_deadline deadline,
                                            struct refit_error *err)
{
    return endpoint->ops->wait_done ? endpoint->ops->wait_done(endpoint, deadline, err) : wrong_role("wait_done", err);
}

static enum refit_status endpoint_finish(struct refit_endpoint *endpoint, struct refit_deadline deadline,
                                         struct refit_error *err)
{
    return endpoint->ops->finish ? endpoint->ops->finish(endpoint, deadline, err) : wrong_role("finish", err);
}

static void endpoint_stats(struct refit_endpoint *endpoint, struct refit_endpoint_stats *out)
{
    const struct refit_endpoint_counters *c = &endpoint->counters;
    *out = (struct refit_endpoint_stats){
        .payload_bytes = atomic_load_explicit(&c->payload_bytes, memory_order_relaxed),
        .wire_bytes = atomic_load_explicit(&c->wire_bytes, memory_order_relaxed),
        .copied_bytes = atomic_load_explicit(&c->copied_bytes, memory_order_relaxed),
        .pack_ns = atomic_load_explicit(&c->pack_ns, memory_order_relaxed),
        .verify_ns = atomic_load_explicit(&c->verify_ns, memory_order_relaxed),
    };
}

static void endpoint_abort(struct refit_endpoint *endpoint)
{
    endpoint->ops->abort(endpoint);
}

static void endpoint_close(struct refit_endpoint *endpoint)
{
    if (!endpoint)
        return;
    endpoint->ops->abort(endpoint);
    endpoint->ops->close(endpoint);
}

/* Of every transport: what its endpoints do, their own tables say. */
#define ENDPOINT_OPERATIONS                                                                                            \
    .card = endpoint_card, .connect = endpoint_connect, .post = endpoint_post, .look = endpoint_look,                  \
    .drop = endpoint_drop, .wait_done = endpoint_wait_done, .finish = endpoint_finish, .stats = endpoint_stats,        \
    .abort = endpoint_abort, .close = endpoint_close

const struct refit_transport refit_transport_tcp = {
    .name = "tcp",
    .traits = 0,
    .probe = refit_tcp_probe,
    .open = refit_tcp_open,
    ENDPOINT_OPERATIONS,
};

const struct refit_transport refit_transport_local = {
    .name = "local",
    .traits = REFIT_TRAIT_SAME_HOST,
    .probe = refit_local_probe,
    .open = refit_local_open,
    ENDPOINT_OPERATIONS,
};

const struct refit_transport refit_transport_nccl = {
    .name = "nccl",
    .traits = REFIT_TRAIT_DEVICE | REFIT_TRAIT_STATIC_ORDER,
    .probe = refit_nccl_probe,
    .open = refit_nccl_open,
    ENDPOINT_OPERATIONS,
};

/* A copy within the host beats a socket wherever it is possible; so does what goes from GPU to GPU. */
static const struct refit_transport *const transports[] = {&refit_transport_local, &refit_transport_nccl,
                                                           &refit_transport_tcp, NULL};

const struct refit_transport *const *refit_transports(void)
{
    return transports;
}

const struct refit_transport *refit_transport_find(const char *name)
{
    for (size_t i = 0; transports[i]; i++)
        if (strcmp(transports[i]->name, name) == 0)
            return transports[i];
    return NULL;
}
