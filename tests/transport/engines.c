/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/transport/engines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "base/io.h"

/* The engines of a receiver. */
struct set {
    struct set *next;
    struct refit_endpoint *endpoint;
    size_t count;
    struct refit_remote_engine engines[REFIT_REMOTE_ENGINES_MAX];
    struct refit_remote_host *hosts[REFIT_REMOTE_ENGINES_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct set *sets;

static enum refit_status start(struct set *set, const struct refit_plan *plan, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    uint32_t count = refit_plan_rank_count(plan);
    for (uint32_t i = 0; i < count && status == REFIT_OK; i++) {
        int ends[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
        set->engines[set->count++] = (struct refit_remote_engine){
            .rank = refit_plan_first_rank(plan) + i, .pidfd = -1, .sock = ends[0]};
        status = refit_remote_host_create(&set->hosts[i], err);
        if (status == REFIT_OK)
            status = refit_remote_host_serve(set->hosts[i], ends[1], err);
        else
            refit_io_close(&ends[1]);
    }
    return status;
}

static void end(struct set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        if (set->hosts[i])
            refit_remote_host_stop(set->hosts[i]);
        refit_remote_host_destroy(set->hosts[i]);
        assert_true(refit_remote_ended(&set->engines[i]));
        refit_io_close(&set->engines[i].sock);
    }
    free(set);
}

static enum refit_status open_endpoint(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                       struct refit_error *err)
{
    if (config->role != REFIT_RECEIVER)
        return refit_transport_nccl.open(config, out, err);
    struct set *set = calloc(1, sizeof *set);
    assert_non_null(set);
    enum refit_status status = start(set, config->plan, err);
    if (status == REFIT_OK)
        status = refit_remote_open(config, set->engines, set->count, refit_deadline_in_ms(60000), NULL, &set->endpoint, err);
    if (status != REFIT_OK) {
        end(set);
        return status;
    }
    pthread_mutex_lock(&lock);
    set->next = sets;
    sets = set;
    pthread_mutex_unlock(&lock);
    *out = set->endpoint;
    return REFIT_OK;
}

static struct set **find(const struct refit_endpoint *endpoint)
{
    struct set **at = &sets;
    while (*at && (*at)->endpoint != endpoint)
        at = &(*at)->next;
    return at;
}

static void close_endpoint(struct refit_endpoint *endpoint)
{
    pthread_mutex_lock(&lock);
    struct set **at = find(endpoint), *set = endpoint ? *at : NULL;
    if (set)
        *at = set->next;
    pthread_mutex_unlock(&lock);
    refit_transport_nccl.close(endpoint);
    for (size_t i = 0; set && i < set->count; i++)
        assert_true(set->engines[i].ended);
    if (set)
        end(set);
}

void engines_in_card(json_t *card, size_t count)
{
    if (engines_wanted())
        assert_int_equal(json_object_set_new(card, "engines", json_integer((json_int_t)count)), 0);
}

static enum refit_status card(struct refit_endpoint *endpoint, json_t **out, struct refit_error *err)
{
    enum refit_status status = refit_transport_nccl.card(endpoint, out, err);
    if (status == REFIT_OK)
        engines_in_card(*out, refit_plan_rank_count(endpoint->config.plan));
    return status;
}

static enum refit_status probe(struct refit_error *err)
{
    return refit_transport_nccl.probe(err);
}

static enum refit_status connect_holder(struct refit_endpoint *endpoint, const json_t *json, struct refit_deadline deadline,
                                        struct refit_error *err)
{
    return refit_transport_nccl.connect(endpoint, json, deadline, err);
}

static enum refit_status post(struct refit_endpoint *endpoint, uint32_t holder, const struct refit_edge *edge,
                              uint32_t batch, struct refit_error *err)
{
    return refit_transport_nccl.post(endpoint, holder, edge, batch, err);
}

static void look(struct refit_endpoint *endpoint, uint32_t holder, struct refit_holder_state *out)
{
    refit_transport_nccl.look(endpoint, holder, out);
}

static void drop(struct refit_endpoint *endpoint, uint32_t holder)
{
    refit_transport_nccl.drop(endpoint, holder);
}

static enum refit_status wait_done(struct refit_endpoint *endpoint, struct refit_deadline deadline, struct refit_error *err)
{
    return refit_transport_nccl.wait_done(endpoint, deadline, err);
}

static enum refit_status finish(struct refit_endpoint *endpoint, struct refit_deadline deadline, struct refit_error *err)
{
    return refit_transport_nccl.finish(endpoint, deadline, err);
}

static void stats(struct refit_endpoint *endpoint, struct refit_endpoint_stats *out)
{
    refit_transport_nccl.stats(endpoint, out);
}

static void abort_endpoint(struct refit_endpoint *endpoint)
{
    refit_transport_nccl.abort(endpoint);
}

const struct refit_transport engines_transport = {
    .name = "nccl",
    .traits = REFIT_TRAIT_DEVICE | REFIT_TRAIT_STATIC_ORDER,
    .probe = probe,
    .open = open_endpoint,
    .card = card,
    .connect = connect_holder,
    .post = post,
    .look = look,
    .drop = drop,
    .wait_done = wait_done,
    .finish = finish,
    .stats = stats,
    .abort = abort_endpoint,
    .close = close_endpoint,
};

bool engines_wanted(void)
{
    return getenv("REFIT_TEST_IN_ENGINE") != NULL;
}

const struct refit_transport *engines_or_nccl(void)
{
    return engines_wanted() ? &engines_transport : &refit_transport_nccl;
}
