/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/transport/pull.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

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

struct drive {
    const struct refit_transport *transport;
    struct refit_endpoint *receiver;
    struct world *world;
    int64_t holder; /* -1: the source ranks */
    struct todo todo;
    unsigned retries;
    struct pull result;
};

static unsigned collect(struct drive *drive)
{
    struct refit_transfer_completion done[8];
    struct pull *result = &drive->result;
    size_t count = refit_inbox_take(drive->world->inbox, done, 8, refit_deadline_in_ms(PULL_MS));
    for (size_t i = 0; i < count; i++) {
        result->ok += done[i].status == REFIT_OK;
        result->corrupt += done[i].status == REFIT_CORRUPT;
        result->peer += done[i].status == REFIT_PEER;
        result->other += done[i].status != REFIT_OK && done[i].status != REFIT_CORRUPT && done[i].status != REFIT_PEER;
        if (done[i].status != REFIT_OK && drive->retries > 0) {
            drive->retries--;
            drive->todo.edges[drive->todo.count] = refit_plan_edge(drive->world->plan, done[i].edge);
            drive->todo.batches[drive->todo.count++] = done[i].batch;
        }
    }
    return (unsigned)count;
}

/* To whichever holder has room. */
static enum refit_status post_next(struct drive *drive, struct refit_error *err)
{
    const struct refit_edge *edge = drive->todo.edges[drive->todo.next];
    uint32_t batch = drive->todo.batches[drive->todo.next];
    if (drive->holder >= 0)
        return drive->transport->post(drive->receiver, (uint32_t)drive->holder, edge, batch, err);
    struct refit_group group = refit_plan_group(drive->world->plan, REFIT_SOURCE, edge->source_group);
    enum refit_status status = REFIT_BUSY;
    for (uint32_t i = 0; i < group.count; i++) {
        status = drive->transport->post(drive->receiver, group.ranks[(batch + i) % group.count], edge, batch, err);
        if (status != REFIT_BUSY && status != REFIT_NOT_FOUND && status != REFIT_PEER)
            break;
    }
    return status;
}

static struct pull run(struct drive *drive, unsigned again)
{
    struct refit_deadline deadline = refit_deadline_in_ms(PULL_MS);
    unsigned out = 0;
    drive->todo = todo_of(drive->world->plan, again);
    drive->retries = again * plan_batches(drive->world->plan);
    while (drive->todo.next < drive->todo.count || out > 0) {
        struct refit_error err;
        assert_false(refit_deadline_passed(deadline));
        enum refit_status status = drive->todo.next < drive->todo.count ? post_next(drive, &err) : REFIT_BUSY;
        if (status == REFIT_OK) {
            drive->todo.next++;
            out++;
        } else if (status == REFIT_BUSY || status == REFIT_NOT_FOUND || (status == REFIT_PEER && again > 0)) {
            unsigned came = collect(drive);
            out -= came;
            if (came > 0) /* it may take as long as it goes on */
                deadline = refit_deadline_in_ms(PULL_MS);
        } else if (status == REFIT_PEER) {
            drive->todo.next++;
            drive->result.peer++;
        } else {
            must(status, &err);
        }
    }
    free(drive->todo.edges);
    free(drive->todo.batches);
    return drive->result;
}

struct pull pull_all(const struct refit_transport *transport, struct refit_endpoint *receiver, struct world *world,
                     unsigned again)
{
    struct drive drive = {.transport = transport, .receiver = receiver, .world = world, .holder = -1};
    return run(&drive, again);
}

struct pull pull_from(const struct refit_transport *transport, struct refit_endpoint *receiver, struct world *world,
                      uint32_t holder)
{
    struct drive drive = {.transport = transport, .receiver = receiver, .world = world, .holder = holder};
    return run(&drive, 0);
}

struct refit_listener *listener_open(char directory[static 32])
{
    char path[64];
    struct refit_error err;
    struct refit_listener *listener;
    strcpy(directory, "/tmp/refit-t-XXXXXX");
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/bulk.sock", directory);
    struct refit_listener_config config = {.tcp_address = "127.0.0.1", .local_path = path,
                                           .nccl = true};
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
