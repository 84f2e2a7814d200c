/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/relay.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "receiver/dial.h"

/* One member that is served. */
struct link {
    struct refit_relay *relay;
    bool ready, runs; /* its dial was made, its thread started */
    pthread_t thread;
    struct refit_dial dial;
};

struct refit_relay {
    struct refit_relay_config config;
    atomic_uint left;
    uint32_t count;
    struct link links[];
};

static bool on_devices(const struct refit_relay_config *config)
{
    bool all = config->arena_count > 0;
    for (size_t i = 0; i < config->arena_count; i++)
        all = all && config->arenas[i] && refit_arena_device(config->arenas[i]) >= 0;
    return all;
}

/* The fast one first. */
static void set_paths(struct refit_dial *dial, const struct refit_relay_config *config, uint32_t index)
{
    struct refit_fleet *fleet = config->fleet;
    struct refit_member member = refit_fleet_member(fleet, index);
    if (member.nccl && config->nccl && on_devices(config))
        dial->path[dial->paths++] = (struct refit_dial_path){&refit_transport_nccl, member.nccl};
    if (member.local && refit_fleet_same_domain(fleet, index))
        dial->path[dial->paths++] = (struct refit_dial_path){&refit_transport_local, member.local};
    if (member.tcp)
        dial->path[dial->paths++] = (struct refit_dial_path){&refit_transport_tcp, member.tcp};
}

static void set_endpoint(struct refit_dial *dial, const struct refit_relay *relay)
{
    const struct refit_relay_config *c = &relay->config;
    dial->config = (struct refit_endpoint_config){
        .role = REFIT_HOLDER,
        .refit_id = refit_fleet_id(c->fleet),
        .plan = c->plan,
        .holder = c->holder,
        .arenas = c->arenas,
        .arena_count = c->arena_count,
        .landed = c->landed,
        .tls = c->tls,
        .verify = c->verify,
        .streams = 1,
        .rate_bytes_per_s = c->rate_bytes_per_s ? c->rate_bytes_per_s / relay->count + 1 : 0,
        .nice = c->nice,
    };
    memcpy(dial->config.token, refit_fleet_token(c->fleet), sizeof dial->config.token);
    dial->deadline = c->deadline;
}

static void *link_thread(void *arg)
{
    struct link *link = arg;
    struct refit_relay *relay = link->relay;
    struct refit_error err;
    /* However it ended: this member does not come any more. */
    enum refit_status status = refit_dial_run(&link->dial, &err);
    (void)status;
    if (atomic_fetch_sub_explicit(&relay->left, 1, memory_order_acq_rel) == 1 && relay->config.on_done)
        relay->config.on_done(relay->config.context);
    return NULL;
}

static enum refit_status start_link(struct refit_relay *relay, struct link *link, uint32_t member,
                                    struct refit_error *err)
{
    link->relay = relay;
    enum refit_status status = refit_dial_init(&link->dial, err);
    if (status != REFIT_OK)
        return status;
    link->ready = true;
    set_paths(&link->dial, &relay->config, member);
    set_endpoint(&link->dial, relay);
    status = refit_thread_start(&link->thread, link_thread, link, "the thread that serves a member", err);
    link->runs = status == REFIT_OK;
    return status;
}

static enum refit_status start_links(struct refit_relay *relay, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    uint32_t self = refit_fleet_self(relay->config.fleet);
    for (uint32_t i = 0; i < relay->count && status == REFIT_OK; i++)
        status = start_link(relay, &relay->links[i], i < self ? i : i + 1, err);
    return status;
}

enum refit_status refit_relay_start(const struct refit_relay_config *config, struct refit_relay **out,
                                    struct refit_error *err)
{
    uint32_t count = refit_fleet_members(config->fleet) - 1;
    struct refit_relay *relay = calloc(1, sizeof *relay + count * sizeof relay->links[0]);
    if (!relay)
        return refit_fail_alloc(err, "the relay of a fleet", sizeof *relay + count * sizeof relay->links[0]);
    relay->config = *config;
    relay->count = count;
    atomic_init(&relay->left, count);
    refit_fleet_retain(config->fleet);
    refit_plan_retain(config->plan);
    refit_landed_retain(config->landed);
    enum refit_status status = start_links(relay, err);
    if (status == REFIT_OK)
        *out = relay;
    else
        refit_relay_stop(relay);
    return status;
}

uint32_t refit_relay_left(struct refit_relay *relay)
{
    return atomic_load_explicit(&relay->left, memory_order_acquire);
}

void refit_relay_stop(struct refit_relay *relay)
{
    if (!relay)
        return;
    for (uint32_t i = 0; i < relay->count; i++)
        if (relay->links[i].ready)
            refit_dial_stop(&relay->links[i].dial);
    for (uint32_t i = 0; i < relay->count; i++) {
        struct link *link = &relay->links[i];
        if (link->runs)
            pthread_join(link->thread, NULL);
        if (link->ready)
            refit_dial_release(&link->dial);
    }
    refit_landed_release(relay->config.landed);
    refit_plan_release(relay->config.plan);
    refit_fleet_release(relay->config.fleet);
    free(relay);
}
