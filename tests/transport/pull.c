/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/transport/pull.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void must(enum refit_status status, const struct refit_error *err)
{
    if (status != REFIT_OK)
        fail_msg("%s: %s", refit_status_name(status), err->text);
}

unsigned plan_batches(const struct refit_plan *plan)
{
    size_t count;
    unsigned batches = 0;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    for (size_t i = 0; i < count; i++)
        batches += edges[i].batches;
    return batches;
}

/* Batches still to be posted, as a list of (edge, batch). */
struct todo {
    const struct refit_edge **edges;
    uint32_t *batches;
    unsigned count, next;
};

static struct todo todo_of(const struct refit_plan *plan, unsigned again)
{
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(plan, &count);
    unsigned total = plan_batches(plan) * (again + 1);
    struct todo todo = {.edges = calloc(total + 1, sizeof *todo.edges), .batches = calloc(total + 1, sizeof(uint32_t))};
    assert_true(todo.edges && todo.batches);
    for (size_t i = 0; i < count; i++) {
        for (uint32_t b = 0; b < edges[i].batches; b++) {
            todo.edges[todo.count] = &edges[i];
            todo.batches[todo.count++] = b;
        }
    }
    return todo;
}

static unsigned collect(const struct refit_transport *transport, struct refit_endpoint *receiver,
                        const struct refit_plan *plan, struct todo *todo, unsigned *retries, struct pull *result)
{
    struct refit_transfer_completion done[8];
    struct refit_error err;
    size_t count;
    must(transport->poll(receiver, done, 8, &count, refit_deadline_in_ms(PULL_MS), &err), &err);
    for (size_t i = 0; i < count; i++) {
        result->ok += done[i].status == REFIT_OK;
        result->corrupt += done[i].status == REFIT_CORRUPT;
        result->peer += done[i].status == REFIT_PEER;
        result->other += done[i].status != REFIT_OK && done[i].status != REFIT_CORRUPT && done[i].status != REFIT_PEER;
        if (done[i].status != REFIT_OK && *retries > 0) {
            (*retries)--;
            todo->edges[todo->count] = refit_plan_edge(plan, done[i].source_rank, done[i].destination_rank);
            todo->batches[todo->count++] = done[i].batch;
        }
    }
    return (unsigned)count;
}

struct pull pull_all(const struct refit_transport *transport, struct refit_endpoint *receiver,
                     const struct refit_plan *plan, unsigned again)
{
    struct pull result = {0};
    struct todo todo = todo_of(plan, again);
    struct refit_deadline deadline = refit_deadline_in_ms(PULL_MS);
    unsigned out = 0, retries = again * plan_batches(plan);
    while (todo.next < todo.count || out > 0) {
        struct refit_error err;
        assert_false(refit_deadline_passed(deadline));
        enum refit_status status =
            todo.next < todo.count
                ? transport->post(receiver, todo.edges[todo.next], todo.batches[todo.next], &err)
                : REFIT_BUSY;
        if (status == REFIT_OK) {
            todo.next++;
            out++;
        } else if (status == REFIT_BUSY || status == REFIT_NOT_FOUND || (status == REFIT_PEER && again > 0)) {
            out -= collect(transport, receiver, plan, &todo, &retries, &result);
        } else if (status == REFIT_PEER) {
            todo.next++;
            result.peer++;
        } else {
            must(status, &err);
        }
    }
    free(todo.edges);
    free(todo.batches);
    return result;
}

struct refit_listener *listener_open(char directory[static 32])
{
    char path[64];
    struct refit_error err;
    struct refit_listener *listener;
    strcpy(directory, "/tmp/refit-t-XXXXXX");
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/bulk.sock", directory);
    struct refit_listener_config config = {.tcp_address = "127.0.0.1", .local_path = path};
    must(refit_listener_start(&config, &listener, &err), &err);
    return listener;
}

void listener_close(struct refit_listener *listener, const char *directory)
{
    refit_listener_stop(listener);
    assert_int_equal(rmdir(directory), 0);
}

void pair_open(struct pair *pair, struct world *world, const struct refit_transport *transport, unsigned streams,
               bool verify)
{
    struct refit_error err;
    *pair = (struct pair){.transport = transport, .world = world};
    pair->listener = listener_open(pair->directory);
    struct refit_endpoint_config config = world_receiver(world, pair->listener, streams);
    config.verify = verify;
    must(transport->open(&config, &pair->receiver, &err), &err);
    must(transport->card(pair->receiver, &pair->card, &err), &err);
    for (uint32_t i = 0; i < world->sources; i++) {
        config = world_holder(world, i, streams);
        config.verify = verify;
        must(transport->open(&config, &pair->holders[i], &err), &err);
        must(transport->connect(pair->holders[i], pair->card, refit_deadline_in_ms(PULL_MS), &err), &err);
    }
}

void pair_finish(struct pair *pair)
{
    struct refit_error err;
    must(pair->transport->finish(pair->receiver, refit_deadline_in_ms(PULL_MS), &err), &err);
    for (uint32_t i = 0; i < pair->world->sources; i++)
        must(pair->transport->wait_done(pair->holders[i], refit_deadline_in_ms(PULL_MS), &err), &err);
}

void pair_close(struct pair *pair)
{
    for (uint32_t i = 0; i < pair->world->sources; i++)
        pair->transport->close(pair->holders[i]);
    pair->transport->close(pair->receiver);
    json_decref(pair->card);
    listener_close(pair->listener, pair->directory);
}
