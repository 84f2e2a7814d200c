/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "tests/support/safetensors_writer.h"

/* --- contents --------------------------------------------------------------------------------------------------- */

struct visit {
    const struct refit_layout *layout;
    uint64_t seed;
    uint8_t *write;
    const uint8_t *read;
    uint64_t units, wrong;
};

static void visit_row(struct visit *visit, const struct refit_tensor *tensor, uint64_t at, int64_t stride,
                      uint64_t units, uint64_t offset)
{
    uint8_t expected[8];
    for (uint64_t i = 0; i < units; i++, at += (uint64_t)stride, offset += tensor->unit_bytes) {
        safetensors_content(visit->seed, tensor->name, offset, expected, tensor->unit_bytes);
        if (visit->write)
            memcpy(visit->write + at, expected, tensor->unit_bytes);
        else
            visit->wrong += memcmp(visit->read + at, expected, tensor->unit_bytes) != 0;
    }
    visit->units += units;
}

/* Tensors of one or two dimensions. */
static bool visit_region(void *ctx, const struct refit_region *region)
{
    struct visit *visit = ctx;
    struct refit_tensor tensor;
    refit_layout_tensor(visit->layout, region->tensor, &tensor);
    bool flat = tensor.dims == 1;
    int64_t columns = flat ? tensor.shape_units[0] : tensor.shape_units[1];
    int64_t rows = flat ? 1 : region->box.extent[0], row0 = flat ? 0 : region->box.start[0];
    int64_t width = region->box.extent[tensor.dims - 1], column0 = region->box.start[tensor.dims - 1];
    for (int64_t r = 0; r < rows; r++)
        visit_row(visit, &tensor, region->offset + (uint64_t)(flat ? 0 : r * region->stride[0]),
                  region->stride[tensor.dims - 1], (uint64_t)width,
                  (uint64_t)((row0 + r) * columns + column0) * tensor.unit_bytes);
    return true;
}

static void visit_rank(struct visit *visit, uint32_t rank)
{
    for (uint32_t tensor = 0; tensor < refit_layout_tensor_count(visit->layout); tensor++)
        refit_layout_regions(visit->layout, tensor, rank, visit_region, visit);
}

void world_write(const struct refit_layout *layout, uint32_t rank, uint64_t seed, uint8_t *memory)
{
    struct visit visit = {.layout = layout, .seed = seed, .write = memory};
    visit_rank(&visit, rank);
}

void world_digest(const struct world *world, uint64_t seed, char hex[static REFIT_SHA256_HEX_MAX])
{
    struct refit_tally *tally = refit_tally_create(refit_layout_tensor_count(world->destination));
    for (uint32_t id = 0; id < refit_layout_tensor_count(world->destination); id++) {
        struct refit_tensor tensor;
        refit_layout_tensor(world->destination, id, &tensor);
        uint8_t *bytes = malloc(tensor.bytes);
        safetensors_content(seed, tensor.name, 0, bytes, tensor.bytes);
        struct refit_digest digest = {{0, 0}};
        refit_digest_add(&digest, bytes, tensor.bytes, 0);
        refit_tally_add(tally, id, digest);
        free(bytes);
    }
    assert_int_equal(refit_model_digest(world->destination, tally, "exact", hex, NULL), REFIT_OK);
    refit_tally_destroy(tally);
}

/* --- layouts ---------------------------------------------------------------------------------------------------- */

#define MESH "\"format\":\"refit-layout/1\",\"ranks\":2,\"meshes\":{\"m\":{\"axes\":[\"tp\"],\"shape\":[2]}}"

static char *print(const char *format, unsigned rows, const char *extra)
{
    char *text = NULL;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    assert_true(asprintf(&text, format, rows, extra) > 0);
#pragma GCC diagnostic pop
    return text;
}

char *world_source_text(unsigned rows, const char *extra)
{
    return print("{" MESH ",\"entries\":["
                 "{\"tensor\":\"w\",\"dtype\":\"F32\",\"shape\":[%u,256],\"mesh\":\"m\",\"placements\":[\"Shard(1)\"]},"
                 "{\"tensor\":\"b\",\"dtype\":\"F32\",\"shape\":[300],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"]},"
                 "{\"tensor\":\"e\",\"dtype\":\"BF16\",\"shape\":[130,32],\"mesh\":\"m\","
                 "\"placements\":[\"Shard(1)\"]}%s]}",
                 rows, extra);
}

static char *destination_text(unsigned rows)
{
    return print("{" MESH ",\"entries\":["
                 "{\"tensor\":\"e\",\"dtype\":\"BF16\",\"shape\":[130,32],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"],"
                 "\"pad\":{\"dim\":0,\"to\":160,\"value\":0}},"
                 "{\"tensor\":\"b\",\"dtype\":\"F32\",\"shape\":[300],\"mesh\":\"m\",\"placements\":[\"Replicate\"]},"
                 "{\"tensor\":\"w\",\"dtype\":\"F32\",\"shape\":[%u,256],\"mesh\":\"m\","
                 "\"placements\":[\"Shard(0)\"]}%s]}",
                 rows, "");
}

struct refit_layout *world_layout(const char *text)
{
    struct refit_layout *layout = NULL;
    struct refit_error err;
    if (refit_layout_parse(text, strlen(text), "test layout", &layout, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    return layout;
}

static struct refit_layout *take_layout(char *text)
{
    struct refit_layout *layout = world_layout(text);
    free(text);
    return layout;
}

/* --- the receiver ----------------------------------------------------------------------------------------------- */

static void on_move(void *context)
{
    struct world *world = context;
    pthread_mutex_lock(&world->lock);
    world->moves++;
    pthread_cond_broadcast(&world->moved);
    pthread_mutex_unlock(&world->lock);
}

static void init_paths(struct world *world)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(world->dir, sizeof world->dir, "%.40s/refit-rcv-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(world->dir));
    snprintf(world->socket_path, sizeof world->socket_path, "%s/refitd.sock", world->dir);
    snprintf(world->data_path, sizeof world->data_path, "%s/data.sock", world->dir);
    snprintf(world->root, sizeof world->root, "%s/checkpoints", world->dir);
    assert_int_equal(mkdir(world->root, 0755), 0);
}

void world_init(struct world *world, unsigned rows)
{
    memset(world, 0, sizeof *world);
    refit_log_setup(REFIT_LOG_ERROR, REFIT_LOG_TEXT, "test"); /* aborted refits are what these tests are about */
    init_paths(world);
    pthread_mutex_init(&world->lock, NULL);
    refit_cond_init(&world->moved);
    snprintf(world->lead, sizeof world->lead, "trainer");
    world->source = take_layout(world_source_text(rows, ""));
    world->destination = take_layout(destination_text(rows));
    world->config = (struct refit_receiver_config){
        .bank = {.ranks = WORLD_RANKS, .slots = 3, .socket_path = world->socket_path, .layout = world->destination,
                 .protection = REFIT_PROTECT_UID},
        .listener = {.tcp_address = "127.0.0.1", .local_path = world->data_path},
        .checkpoint_root = world->root,
        .deadline_ms = 20000,
        .verify = true,
    };
}

void world_start(struct world *world)
{
    struct refit_error err;
    if (refit_receiver_open(&world->config, &world->receiver, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    refit_receiver_set_notify(world->receiver, on_move, world);
}

void world_restart(struct world *world)
{
    refit_receiver_close(world->receiver);
    world->receiver = NULL;
    world_start(world);
}

void world_close(struct world *world)
{
    char command[128];
    refit_receiver_close(world->receiver);
    refit_layout_release(world->source);
    refit_layout_release(world->destination);
    pthread_cond_destroy(&world->moved);
    pthread_mutex_destroy(&world->lock);
    snprintf(command, sizeof command, "rm -rf '%s'", world->dir);
    assert_int_equal(system(command), 0);
}

struct refit_session_snapshot world_wait(struct world *world, const char *id, world_predicate done, void *context)
{
    struct refit_session_snapshot snapshot;
    struct refit_deadline deadline = refit_deadline_in_ms(WORLD_WAIT_MS);
    struct timespec until = refit_deadline_timespec(deadline);
    for (;;) {
        pthread_mutex_lock(&world->lock);
        uint64_t seen = world->moves;
        pthread_mutex_unlock(&world->lock);
        assert_int_equal(refit_receiver_session(world->receiver, id, &snapshot, NULL), REFIT_OK);
        if (done(&snapshot, context))
            return snapshot;
        pthread_mutex_lock(&world->lock);
        while (world->moves == seen && !refit_deadline_passed(deadline))
            pthread_cond_timedwait(&world->moved, &world->lock, &until);
        pthread_mutex_unlock(&world->lock);
        if (refit_deadline_passed(deadline))
            fail_msg("refit %s stays in phase %s (%llu of %llu bytes)", id, refit_phase_name(snapshot.phase),
                     (unsigned long long)snapshot.bytes_done, (unsigned long long)snapshot.bytes_due);
    }
}

static bool is_in_phase(const struct refit_session_snapshot *snapshot, void *context)
{
    return snapshot->phase == *(enum refit_phase *)context || snapshot->phase == REFIT_PHASE_COMMITTED ||
           snapshot->phase == REFIT_PHASE_ABORTED;
}

struct refit_session_snapshot world_wait_phase(struct world *world, const char *id, enum refit_phase phase)
{
    struct refit_session_snapshot snapshot = world_wait(world, id, is_in_phase, &phase);
    if (snapshot.phase != phase)
        fail_msg("refit %s: expected phase %s, it is %s after %lld ms of transfer, %lld of verify, %lld of prepare: %s", id,
                 refit_phase_name(phase), refit_phase_name(snapshot.phase),
                 (long long)snapshot.phase_ns[REFIT_PHASE_TRANSFER] / 1000000,
                 (long long)snapshot.phase_ns[REFIT_PHASE_VERIFY] / 1000000,
                 (long long)snapshot.phase_ns[REFIT_PHASE_PREPARE] / 1000000, snapshot.error.text);
    return snapshot;
}

struct refit_session_snapshot world_wait_aborted(struct world *world, const char *id, enum refit_status status)
{
    struct refit_session_snapshot snapshot = world_wait_phase(world, id, REFIT_PHASE_ABORTED);
    if (snapshot.error.status != status)
        fail_msg("refit %s: expected to abort as %s, found %s: %s", id, refit_status_name(status),
                 refit_status_name(snapshot.error.status), snapshot.error.text);
    assert_int_not_equal(snapshot.error.text[0], '\0');
    return snapshot;
}

/* --- a lead ----------------------------------------------------------------------------------------------------- */

struct refit_request world_request(const struct world *world, uint64_t version, const char *publish_id)
{
    struct refit_request request = {.version = version, .epoch = world->epoch, .commit = REFIT_COMMIT_BARRIER};
    snprintf(request.label, sizeof request.label, "step-%llu", (unsigned long long)version);
    snprintf(request.publish_id, sizeof request.publish_id, "%s", publish_id);
    snprintf(request.source, sizeof request.source, "%s", refit_layout_digest(world->source));
    snprintf(request.transport, sizeof request.transport, "tcp");
    snprintf(request.kv, sizeof request.kv, "flush");
    refit_sha256_hex(publish_id, strlen(publish_id), request.body_digest);
    return request;
}

void world_lead(struct world *world)
{
    assert_int_equal(refit_receiver_lead(world->receiver, world->lead, false, &world->epoch, NULL), REFIT_OK);
}

void world_put_source(struct world *world)
{
    size_t len;
    struct refit_error err;
    const char *text = refit_layout_text(world->source, &len);
    if (refit_receiver_put_source(world->receiver, refit_layout_digest(world->source), text, len, &err) != REFIT_OK)
        fail_msg("%s", err.text);
}

struct refit_ticket world_begin(struct world *world, const struct refit_request *request)
{
    struct refit_ticket ticket;
    struct refit_error err;
    if (refit_receiver_begin(world->receiver, request, &ticket, &err) != REFIT_OK)
        fail_msg("begin: %s", err.text);
    return ticket;
}

void ticket_release(struct refit_ticket *ticket)
{
    json_decref(ticket->card);
    ticket->card = NULL;
}

/* --- holders ---------------------------------------------------------------------------------------------------- */

static void *dial(void *arg)
{
    struct holder *holder = arg;
    struct refit_error err;
    /* Refused or lost: the refit is over, which is what the test looks at. */
    struct refit_deadline deadline = refit_deadline_in_ms(WORLD_WAIT_MS);
    enum refit_status status;
    /* Not placed yet: the receiver waits for a slot. */
    while ((status = holder->transport->connect(holder->endpoint, holder->ticket.card, deadline, &err)) ==
           REFIT_NOT_FOUND)
        atomic_fetch_add(&holder->turned_away, 1);
    if (status == REFIT_OK)
        holder->transport->wait_done(holder->endpoint, deadline, &err);
    return NULL;
}

static void holder_memory(struct holder *holder, uint64_t seed)
{
    const struct refit_layout *layout = holder->world->source;
    holder->bytes = refit_layout_arena_bytes(layout, holder->rank);
    holder->memory = calloc(1, holder->bytes);
    world_write(layout, holder->rank, seed, holder->memory);
    assert_int_equal(refit_arena_create(REFIT_ARENA_HOST, holder->bytes, &holder->arena, NULL), REFIT_OK);
    assert_int_equal(refit_arena_bind_host(holder->arena, 0, holder->memory, holder->bytes, -1, 0, NULL), REFIT_OK);
}

void holder_start(struct holder *holder, struct world *world, const struct refit_ticket *ticket, const char *transport,
                  uint32_t rank, uint64_t seed)
{
    struct refit_error err;
    *holder = (struct holder){.world = world, .rank = rank, .ticket = *ticket};
    json_incref(holder->ticket.card); /* the test may release its ticket before it stops the holder */
    snprintf(holder->id, sizeof holder->id, "%s", world->fleet_id[0] ? world->fleet_id : ticket->id);
    holder->transport = refit_transport_find(transport);
    holder_memory(holder, seed);
    struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = rank};
    scope.first_rank = world->config.bank.first_rank;
    scope.rank_count = world->config.bank.ranks;
    scope.wanted = world->mask;
    assert_int_equal(refit_plan_build(world->source, world->destination, scope, &holder->plan, NULL), REFIT_OK);
    holder->tally = refit_tally_create(refit_layout_tensor_count(world->destination));
    struct refit_endpoint_config config = {.role = REFIT_HOLDER, .refit_id = holder->id, .plan = holder->plan,
                                           .holder = rank, .arenas = &holder->arena, .arena_count = 1,
                                           .tally = holder->tally, .verify = world->config.verify, .streams = 1};
    memcpy(config.token, ticket->token, sizeof config.token);
    if (holder->transport->open(&config, &holder->endpoint, &err) != REFIT_OK)
        fail_msg("holder %u: %s", rank, err.text);
    assert_int_equal(pthread_create(&holder->thread, NULL, dial, holder), 0);
}

void holder_stop(struct holder *holder)
{
    if (!holder->endpoint)
        return;
    holder->transport->abort(holder->endpoint);
    pthread_join(holder->thread, NULL);
    holder->transport->close(holder->endpoint);
    json_decref(holder->ticket.card);
    refit_plan_release(holder->plan);
    refit_arena_release(holder->arena);
    refit_tally_destroy(holder->tally);
    free(holder->memory);
    memset(holder, 0, sizeof *holder);
}

/* --- whole publishes -------------------------------------------------------------------------------------------- */

void world_publish(struct world *world, uint64_t version, uint64_t seed, const char *transport)
{
    char publish_id[32], digest[REFIT_SHA256_HEX_MAX];
    struct holder holders[WORLD_RANKS];
    struct refit_error err;
    snprintf(publish_id, sizeof publish_id, "publish-%llu", (unsigned long long)version);
    world_lead(world);
    world_put_source(world);
    struct refit_request request = world_request(world, version, publish_id);
    snprintf(request.transport, sizeof request.transport, "%s", transport);
    struct refit_ticket ticket = world_begin(world, &request);
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_start(&holders[rank], world, &ticket, transport, rank, seed);
    world_wait_phase(world, ticket.id, REFIT_PHASE_STAGED);
    world_digest(world, seed, digest);
    if (refit_receiver_commit(world->receiver, ticket.id, version, digest, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    struct refit_session_snapshot end = world_wait_phase(world, ticket.id, REFIT_PHASE_COMMITTED);
    assert_string_equal(end.digest, digest);
    assert_int_equal(end.bytes_done, end.bytes_due);
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_stop(&holders[rank]);
    ticket_release(&ticket);
    world->served_version = version;
    world->served_seed = seed;
    world_assert_served(world);
}

static bool check_fill(void *ctx, const struct refit_fill *fill)
{
    struct visit *visit = ctx;
    for (uint64_t row = 0; row < fill->count; row++)
        for (uint64_t i = 0; i < fill->row_bytes; i++) {
            visit->wrong += visit->read[fill->offset + row * fill->stride + i] != fill->value;
            visit->units++;
        }
    return true;
}

void world_assert_served(struct world *world)
{
    struct refit_bank_snapshot bank;
    refit_bank_read(refit_receiver_bank(world->receiver), &bank);
    if (world->served_version == 0) {
        assert_int_equal(bank.active, REFIT_SLOT_NONE);
        return;
    }
    assert_int_not_equal(bank.active, REFIT_SLOT_NONE);
    assert_int_equal(bank.slot[bank.active].version.version, world->served_version);
    struct refit_arena *const *arenas = refit_bank_arenas(refit_receiver_bank(world->receiver), bank.active);
    uint32_t first = world->config.bank.first_rank;
    for (uint32_t rank = first; rank < first + world->config.bank.ranks; rank++) {
        uint64_t bytes = refit_layout_arena_bytes(world->destination, rank);
        struct visit visit = {.layout = world->destination, .seed = world->served_seed,
                              .read = refit_arena_host(arenas[rank - first], 0, bytes)};
        assert_non_null(visit.read);
        visit_rank(&visit, rank);
        refit_layout_fills(world->destination, rank, check_fill, &visit);
        assert_true(visit.units > 0);
        assert_int_equal(visit.wrong, 0);
    }
}

void world_assert_survives(struct world *world)
{
    struct refit_bank_snapshot bank;
    world_assert_served(world);
    refit_bank_read(refit_receiver_bank(world->receiver), &bank);
    for (uint32_t i = 0; i < bank.slots; i++)
        assert_true(bank.slot[i].state != REFIT_SLOT_FILLING && bank.slot[i].state != REFIT_SLOT_STAGED);
    world_publish(world, world->served_version + 1000, world->served_seed + 1000, "tcp");
}
