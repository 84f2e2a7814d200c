/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/transport/side.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/transport/pull.h"

void side_open(struct side *side, const struct refit_transport *transport, uint64_t rate)
{
    struct refit_error err;
    side->transport = transport;
    side->listener = listener_open(side->directory);
    struct refit_endpoint_config config = world_receiver(&side->world, side->listener, 1);
    config.rate_bytes_per_s = rate;
    must(transport->open(&config, &side->receiver, &err), &err);
    must(transport->card(side->receiver, &side->card, &err), &err);
    side->edge = world_edge(&side->world, 0, 0);
}

void side_close(struct side *side)
{
    side->transport->close(side->receiver);
    json_decref(side->card);
    listener_close(side->listener, side->directory);
    world_close(&side->world);
}

struct refit_endpoint *side_hold(struct side *side, uint32_t holder, uint64_t rate)
{
    struct refit_error err;
    struct refit_endpoint *endpoint;
    struct refit_endpoint_config config = world_holder(&side->world, 0, 1);
    config.holder = holder;
    config.rate_bytes_per_s = rate;
    must(side->transport->open(&config, &endpoint, &err), &err);
    must(side->transport->connect(endpoint, side->card, refit_deadline_in_ms(PULL_MS), &err), &err);
    return endpoint;
}

void side_post(struct side *side, uint32_t holder, uint32_t batch)
{
    struct refit_transfer_completion done;
    struct refit_error err;
    enum refit_status status;
    while ((status = side->transport->post(side->receiver, holder, side->edge, batch, &err)) == REFIT_NOT_FOUND)
        assert_int_equal(refit_inbox_take(side->world.inbox, &done, 1, refit_deadline_in_ms(PULL_MS)), 0);
    must(status, &err);
}

void side_until_crossed(struct side *side, uint64_t bytes)
{
    struct refit_endpoint_stats stats;
    struct refit_transfer_completion done;
    do {
        assert_int_equal(refit_inbox_take(side->world.inbox, &done, 1, refit_deadline_in_ms(1)), 0);
        side->transport->stats(side->receiver, &stats);
    } while (stats.wire_bytes < bytes);
}

uint64_t world_batch_bytes(const struct world *world)
{
    return refit_batch_bytes(world->plan, world_edge(world, 0, 0), 0);
}

uint64_t world_slow_rate(const struct world *world)
{
    return world_batch_bytes(world) * 3 / 4;
}
