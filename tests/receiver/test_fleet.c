/* SPDX-License-Identifier: Apache-2.0
 *
 * Several members in one process: what the trainer sends once reaches all of them, whoever dies, stands still, sends
 * wrong bytes or never comes.
 */
#include "world.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "receiver/fleet.h"
#include "tests/support/port.h"

#define MEMBERS_MAX 8
#define ROWS 4096 /* 4 MiB: 18 batches or so */
#define FLEET "fleet-1"
#define TOKEN "00112233445566778899aabbccddeeff"

static struct world worlds[MEMBERS_MAX];
static struct holder trainers[MEMBERS_MAX][WORLD_RANKS];
static struct refit_ticket tickets[MEMBERS_MAX];
static uint32_t members; /* that are really there */
static int64_t deadline_ms; /* of refits; 0: the default */

/* --- a fleet ---------------------------------------------------------------------------------------------------- */

static void open_worlds(uint32_t count, int64_t stall_ms, uint64_t rate)
{
    members = count;
    deadline_ms = 0;
    memset(trainers, 0, sizeof trainers);
    memset(tickets, 0, sizeof tickets);
    for (uint32_t i = 0; i < count; i++) {
        world_init(&worlds[i], ROWS);
        snprintf(worlds[i].fleet_id, sizeof worlds[i].fleet_id, FLEET);
        worlds[i].config.bank.slots = 2;
        worlds[i].config.streams = 1;
        worlds[i].config.deadline_ms = WORLD_WAIT_MS;
        worlds[i].config.relay_silence_ms = stall_ms < 5000 ? 1000 : 20000;
        worlds[i].config.relay_stall_ms = stall_ms;
        worlds[i].config.rate_bytes_per_s = rate;
    }
}

static void start_worlds(void)
{
    for (uint32_t i = 0; i < members; i++) {
        world_start(&worlds[i]);
        world_lead(&worlds[i]);
        world_put_source(&worlds[i]);
    }
}

static void open_members(uint32_t count, int64_t stall_ms, uint64_t rate)
{
    open_worlds(count, stall_ms, rate);
    start_worlds();
}

static json_t *card_of(uint32_t member, const char *transport)
{
    json_t *card = NULL;
    assert_int_equal(refit_receiver_card(worlds[member].receiver, transport, &card, NULL), REFIT_OK);
    return card;
}

static json_t *dead_card(void)
{
    json_t *card = card_of(0, "tcp");
    json_object_set_new(card, "port", json_integer(port_reserve()));
    return card;
}

/* `listed` members from world `first` on, of which the last may be there in name only; `domains` of them. */
static struct refit_fleet *make_fleet(uint32_t self, uint32_t first, uint32_t listed, uint32_t domains)
{
    struct refit_fleet *fleet = NULL;
    struct refit_error err;
    json_t *list = json_array();
    for (uint32_t i = first; i < first + listed; i++) {
        char name[32], domain[32];
        snprintf(name, sizeof name, "member-%u", i);
        snprintf(domain, sizeof domain, "host-%u", i % domains);
        json_t *member = json_pack("{s:s, s:s, s:o}", "name", name, "domain", domain, "tcp",
                                   i < members ? card_of(i, "tcp") : dead_card());
        if (i < members)
            json_object_set_new(member, "local", card_of(i, "local"));
        json_array_append_new(list, member);
    }
    json_t *json = json_pack("{s:s, s:s, s:i, s:o}", "id", worlds[self].fleet_id, "token", TOKEN, "self",
                             (int)(self - first), "members", list);
    if (refit_fleet_from_json(json, &fleet, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    json_decref(json);
    return fleet;
}

static void begin_as(uint32_t member, uint32_t first, uint32_t listed, uint32_t domains)
{
    struct world *world = &worlds[member];
    struct refit_request request = world_request(world, 7, FLEET);
    request.deadline_ms = deadline_ms;
    request.fleet = make_fleet(member, first, listed, domains);
    tickets[member] = world_begin(world, &request);
    refit_fleet_release(request.fleet);
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_start(&trainers[member][rank], world, &tickets[member], "tcp", rank, 5);
}

static void begin(uint32_t member, uint32_t listed, uint32_t domains)
{
    begin_as(member, 0, listed, domains);
}

static void begin_all(uint32_t listed, uint32_t domains)
{
    for (uint32_t i = 0; i < members; i++)
        begin(i, listed, domains);
}

static void stop_trainer(uint32_t member)
{
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++)
        holder_stop(&trainers[member][rank]);
}

static int close_members(void **state)
{
    for (uint32_t i = 0; i < members; i++) {
        stop_trainer(i);
        ticket_release(&tickets[i]);
        world_close(&worlds[i]);
    }
    return 0;
}

/* Planned bytes that left the trainer. */
static uint64_t egress(void)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < members; i++)
        for (uint32_t rank = 0; rank < WORLD_RANKS; rank++) {
            struct refit_endpoint_stats stats = {0};
            struct holder *holder = &trainers[i][rank];
            if (holder->endpoint)
                holder->transport->stats(holder->endpoint, &stats);
            sum += stats.payload_bytes;
        }
    return sum;
}

static struct refit_session_snapshot staged(uint32_t member)
{
    struct refit_session_snapshot now = world_wait_phase(&worlds[member], tickets[member].id, REFIT_PHASE_STAGED);
    const struct refit_supplied *s = &now.supplied;
    assert_int_equal(now.bytes_done, now.bytes_due);
    assert_int_equal(s->origin_bytes + s->domain_bytes + s->fleet_bytes, now.bytes_due);
    return now;
}

static void commit(uint32_t member)
{
    struct world *world = &worlds[member];
    struct refit_error err;
    char digest[REFIT_SHA256_HEX_MAX];
    world_digest(world, 5, digest);
    if (refit_receiver_commit(world->receiver, tickets[member].id, 7, digest, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    world_wait_phase(world, tickets[member].id, REFIT_PHASE_COMMITTED);
    world->served_version = 7;
    world->served_seed = 5;
    world_assert_served(world);
}

/* --- everyone lives --------------------------------------------------------------------------------------------- */

static void all_get_it_once(uint32_t count, uint32_t domains)
{
    open_members(count, 20000, 0);
    begin_all(count, domains);
    uint64_t due = 0, origin = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct refit_session_snapshot now = staged(i);
        due = now.bytes_due;
        origin += now.supplied.origin_bytes;
        assert_int_equal(now.supplied.excess_bytes, 0);
        assert_int_equal(now.members, count);
        assert_true(domains == count ? now.supplied.domain_bytes == 0 : now.supplied.domain_bytes > 0);
    }
    assert_int_equal(origin, due);
    assert_int_equal(egress(), due);
    for (uint32_t i = 0; i < count; i++)
        commit(i);
}

static void four_members_cost_one_egress(void **state)
{
    all_get_it_once(4, 4);
}

static void eight_members_cost_one_egress(void **state)
{
    all_get_it_once(8, 8);
}

static void members_of_a_domain_share_what_comes_in(void **state)
{
    all_get_it_once(4, 1);
}

static void domains_take_it_once_each(void **state)
{
    all_get_it_once(6, 2);
    uint64_t in[2] = {0, 0}, due = 0;
    for (uint32_t i = 0; i < members; i++) {
        struct refit_session_snapshot now;
        assert_int_equal(refit_receiver_session(worlds[i].receiver, tickets[i].id, &now, NULL), REFIT_OK);
        in[i % 2] += now.supplied.origin_bytes + now.supplied.fleet_bytes;
        due = now.bytes_due;
    }
    assert_int_equal(in[0], due);
    assert_int_equal(in[1], due);
}

static void holders_are_listed_by_name(void **state)
{
    struct refit_holder_view views[REFIT_HOLDERS_SHOWN];
    uint32_t count;
    all_get_it_once(4, 4);
    assert_int_equal(refit_receiver_holders(worlds[1].receiver, tickets[1].id, views, &count, NULL), REFIT_OK);
    assert_int_equal(count, WORLD_RANKS + 3);
    assert_string_equal(views[0].name, "source rank 0");
    assert_string_equal(views[2].name, "member member-0");
    assert_string_equal(views[3].name, "member member-2");
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += views[i].bytes;
    struct refit_session_snapshot now;
    assert_int_equal(refit_receiver_session(worlds[1].receiver, tickets[1].id, &now, NULL), REFIT_OK);
    assert_int_equal(sum, now.bytes_due);
}

/* A member that begins when the other has committed still gets its half from there. */
static void committed_member_serves_who_is_slower(void **state)
{
    open_worlds(2, 300, 0);
    worlds[1].config.relay_stall_ms = 20000;
    start_worlds();
    begin(0, 2, 2);
    staged(0);
    commit(0);
    begin(1, 2, 2);
    struct refit_session_snapshot now = staged(1);
    assert_true(now.supplied.fleet_bytes > now.bytes_due / 4);
    assert_int_equal(now.supplied.excess_bytes, 0);
    commit(1);
}

/* Two replicas, each of two parts: the same parts are a fleet of their own, and each part lands in its ranks. */
static void parts_of_replicas_are_fleets_of_their_own(void **state)
{
    struct refit_session_snapshot now[4];
    open_worlds(4, 20000, 0);
    for (uint32_t i = 0; i < members; i++) {
        worlds[i].config.bank.ranks = 1;
        worlds[i].config.bank.first_rank = i / 2;
        worlds[i].config.bank.ranks_total = WORLD_RANKS;
        snprintf(worlds[i].fleet_id, sizeof worlds[i].fleet_id, FLEET ".%u", i / 2);
    }
    start_worlds();
    for (uint32_t i = 0; i < members; i++)
        begin_as(i, i / 2 * 2, 2, 2);
    uint64_t due = 0;
    for (uint32_t i = 0; i < members; i++) {
        now[i] = staged(i);
        due += i % 2 ? 0 : now[i].bytes_due;
    }
    assert_int_equal(egress(), due);
    assert_string_equal(now[0].digest, now[1].digest);
    assert_string_equal(now[2].digest, now[3].digest);
    assert_string_not_equal(now[0].digest, now[2].digest);
    for (uint32_t i = 0; i < members; i++) {
        assert_int_equal(refit_receiver_commit(worlds[i].receiver, tickets[i].id, 7, now[i].digest, NULL), REFIT_OK);
        world_wait_phase(&worlds[i], tickets[i].id, REFIT_PHASE_COMMITTED);
        worlds[i].served_version = 7;
        worlds[i].served_seed = 5;
        world_assert_served(&worlds[i]);
    }
}

static void lead_that_takes_it_for_other_ranks_is_refused(void **state)
{
    struct refit_ticket ticket;
    struct refit_error err;
    open_members(1, 20000, 0);
    struct refit_request request = world_request(&worlds[0], 7, FLEET);
    request.first_rank = 1;
    request.rank_count = 1;
    assert_int_equal(refit_receiver_begin(worlds[0].receiver, &request, &ticket, &err), REFIT_INVALID);
    assert_non_null(strstr(err.text, "ranks"));
}

/* --- someone does not ------------------------------------------------------------------------------------------- */

static void member_that_never_comes_costs_only_excess(void **state)
{
    open_members(4, 300, 0);
    begin_all(5, 5);
    uint64_t due = 0, excess = 0, origin = 0;
    for (uint32_t i = 0; i < members; i++) {
        struct refit_session_snapshot now = staged(i);
        due = now.bytes_due;
        excess += now.supplied.excess_bytes;
        origin += now.supplied.origin_bytes;
    }
    assert_true(excess > 0);
    assert_true(origin - due <= excess); /* on a stalled machine others may be passed by, too */
    assert_true(egress() >= origin);
    for (uint32_t i = 0; i < members; i++)
        commit(i);
}

static bool is_half_way(const struct refit_session_snapshot *snapshot, void *context)
{
    if (snapshot->phase == REFIT_PHASE_COMMITTED || snapshot->phase == REFIT_PHASE_ABORTED)
        fail_msg("the refit ended before it was met half way: %s", snapshot->error.text);
    return snapshot->bytes_done > snapshot->bytes_due / 4 || snapshot->phase == REFIT_PHASE_STAGED;
}

static void seed_that_dies_is_passed_by(void **state)
{
    open_members(4, 20000, 2 << 20); /* two seconds or so */
    begin_all(4, 4);
    world_wait(&worlds[0], tickets[0].id, is_half_way, NULL);
    stop_trainer(3);
    refit_receiver_close(worlds[3].receiver);
    worlds[3].receiver = NULL;
    for (uint32_t i = 0; i < 3; i++)
        staged(i);
    for (uint32_t i = 0; i < 3; i++)
        commit(i);
}

static void trainer_that_dies_is_named(void **state)
{
    open_members(2, 500, 1 << 20);
    deadline_ms = 4000;
    begin_all(2, 2);
    world_wait(&worlds[0], tickets[0].id, is_half_way, NULL);
    stop_trainer(0);
    stop_trainer(1);
    for (uint32_t i = 0; i < members; i++) {
        struct refit_session_snapshot end = world_wait_phase(&worlds[i], tickets[i].id, REFIT_PHASE_ABORTED);
        assert_int_equal(end.error.status, REFIT_TIMEOUT);
        assert_non_null(strstr(end.error.text, "source rank"));
    }
}

/* --- members that are not what they should be -------------------------------------------------------------------- */

/* A holder with the right token that takes a member's number. */
struct fake {
    struct refit_plan *plan;
    struct refit_landed *landed;
    struct refit_arena *arena[WORLD_RANKS];
    uint8_t *memory[WORLD_RANKS];
    struct refit_endpoint *endpoint[MEMBERS_MAX];
    json_t *card[MEMBERS_MAX];
    pthread_t thread[MEMBERS_MAX];
    uint32_t dialled;
};
struct call {
    struct refit_endpoint *endpoint;
    json_t *card;
};
static struct call calls[MEMBERS_MAX];

static void *fake_dial(void *arg)
{
    struct call *call = arg;
    struct refit_deadline deadline = refit_deadline_in_ms(WORLD_WAIT_MS);
    struct refit_error err;
    enum refit_status status = REFIT_PEER;
    while (status != REFIT_OK && status != REFIT_ABORTED && !refit_deadline_passed(deadline)) {
        status = refit_transport_tcp.connect(call->endpoint, call->card, deadline, &err);
        if (status == REFIT_OK)
            status = refit_transport_tcp.wait_done(call->endpoint, deadline, &err);
        if (status != REFIT_OK)
            poll(NULL, 0, 5); /* whoever has ended its refit refuses at once */
    }
    return NULL;
}

static void fake_open(struct fake *fake)
{
    struct world *world = &worlds[0];
    struct refit_plan_scope scope = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS};
    memset(fake, 0, sizeof *fake);
    assert_int_equal(refit_plan_build(world->source, world->destination, scope, &fake->plan, NULL), REFIT_OK);
    assert_int_equal(refit_landed_create(fake->plan, &fake->landed, NULL), REFIT_OK);
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++) {
        uint64_t bytes = refit_layout_arena_bytes(world->destination, rank);
        fake->memory[rank] = calloc(1, bytes);
        world_write(world->destination, rank, 5, fake->memory[rank]);
        assert_int_equal(refit_arena_create(REFIT_ARENA_HOST, bytes, &fake->arena[rank], NULL), REFIT_OK);
        assert_int_equal(refit_arena_bind_host(fake->arena[rank], 0, fake->memory[rank], bytes, -1, 0, NULL), REFIT_OK);
    }
}

/* `card` is taken. */
static void fake_call(struct fake *fake, uint32_t number, json_t *card)
{
    struct refit_endpoint_config config = {.role = REFIT_HOLDER, .refit_id = FLEET, .plan = fake->plan,
                                           .holder = number, .arenas = fake->arena, .arena_count = WORLD_RANKS,
                                           .landed = fake->landed, .verify = true, .streams = 1};
    uint32_t i = fake->dialled++;
    assert_true(refit_token_parse(TOKEN, config.token));
    assert_int_equal(refit_transport_tcp.open(&config, &fake->endpoint[i], NULL), REFIT_OK);
    fake->card[i] = card;
    calls[i] = (struct call){fake->endpoint[i], card};
    assert_int_equal(pthread_create(&fake->thread[i], NULL, fake_dial, &calls[i]), 0);
}

static void fake_close(struct fake *fake)
{
    for (uint32_t i = 0; i < fake->dialled; i++) {
        refit_transport_tcp.abort(fake->endpoint[i]);
        pthread_join(fake->thread[i], NULL);
        refit_transport_tcp.close(fake->endpoint[i]);
        json_decref(fake->card[i]);
    }
    for (uint32_t rank = 0; rank < WORLD_RANKS; rank++) {
        refit_arena_release(fake->arena[rank]);
        free(fake->memory[rank]);
    }
    refit_landed_release(fake->landed);
    refit_plan_release(fake->plan);
}

/* It is connected, shows signs of life, and never has what it is asked for. */
static void member_that_stands_still_is_passed_by(void **state)
{
    struct fake fake;
    open_members(3, 300, 0);
    fake_open(&fake);
    begin_all(4, 4);
    for (uint32_t i = 0; i < members; i++)
        fake_call(&fake, WORLD_RANKS + 3, card_of(i, "tcp"));
    for (uint32_t i = 0; i < members; i++)
        staged(i);
    for (uint32_t i = 0; i < members; i++)
        commit(i);
    fake_close(&fake);
}

/* A connection in whose middle sits someone who changes a byte. */
struct tamperer {
    int listener, near, far;
    uint16_t port;
    uint64_t at; /* of what the holder sends */
    atomic_bool stop, changed;
    pthread_t thread;
};

static bool pass_on(int from, int to, struct tamperer *t, uint64_t *seen)
{
    static uint8_t data[65536];
    ssize_t n = recv(from, data, sizeof data, 0);
    if (n <= 0)
        return false;
    if (seen && *seen <= t->at && t->at < *seen + (uint64_t)n) {
        data[t->at - *seen] ^= 0x40;
        atomic_store(&t->changed, true);
    }
    if (seen)
        *seen += (uint64_t)n;
    for (ssize_t sent = 0; sent < n;) {
        ssize_t more = send(to, data + sent, (size_t)(n - sent), MSG_NOSIGNAL);
        if (more <= 0)
            return false;
        sent += more;
    }
    return true;
}

static void *tamper(void *arg)
{
    struct tamperer *t = arg;
    while (!atomic_load(&t->stop)) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(t->port),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        struct pollfd wait = {.fd = t->listener, .events = POLLIN};
        uint64_t seen = 0;
        if (poll(&wait, 1, 50) <= 0)
            continue;
        t->near = accept(t->listener, NULL, NULL);
        t->far = socket(AF_INET, SOCK_STREAM, 0);
        bool open = connect(t->far, (struct sockaddr *)&address, sizeof address) == 0;
        while (open && !atomic_load(&t->stop)) {
            struct pollfd fds[2] = {{.fd = t->near, .events = POLLIN}, {.fd = t->far, .events = POLLIN}};
            if (poll(fds, 2, 50) <= 0)
                continue;
            if (fds[0].revents)
                open = pass_on(t->near, t->far, t, &seen);
            if (open && fds[1].revents)
                open = pass_on(t->far, t->near, t, NULL);
        }
        close(t->near);
        close(t->far);
    }
    return NULL;
}

/* A card that leads through it; the card given is taken. */
static json_t *tamper_start(struct tamperer *t, json_t *card, uint64_t at)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    memset(t, 0, sizeof *t);
    t->at = at;
    t->port = (uint16_t)json_integer_value(json_object_get(card, "port"));
    t->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(t->listener, (struct sockaddr *)&address, len), 0);
    assert_int_equal(listen(t->listener, 4), 0);
    assert_int_equal(getsockname(t->listener, (struct sockaddr *)&address, &len), 0);
    json_object_set_new(card, "port", json_integer(ntohs(address.sin_port)));
    assert_int_equal(pthread_create(&t->thread, NULL, tamper, t), 0);
    return card;
}

static void tamper_stop(struct tamperer *t)
{
    atomic_store(&t->stop, true);
    pthread_join(t->thread, NULL);
    close(t->listener);
}

static void poisoned_batch_is_asked_of_the_trainer(void **state)
{
    struct fake fake;
    struct tamperer tamperer;
    open_members(3, 20000, 0);
    fake_open(&fake);
    refit_landed_mark_all(fake.landed);
    /* Inside the first batch, whose head and greeting are small. */
    json_t *card = tamper_start(&tamperer, card_of(0, "tcp"), 100000);
    begin_all(4, 4);
    fake_call(&fake, WORLD_RANKS + 3, card);
    for (uint32_t i = 1; i < members; i++)
        fake_call(&fake, WORLD_RANKS + 3, card_of(i, "tcp"));
    struct refit_session_snapshot first = staged(0);
    assert_true(atomic_load(&tamperer.changed));
    assert_true(first.supplied.excess_bytes > 0);
    for (uint32_t i = 1; i < members; i++)
        assert_int_equal(staged(i).supplied.excess_bytes, 0);
    for (uint32_t i = 0; i < members; i++)
        commit(i);
    fake_close(&fake);
    tamper_stop(&tamperer);
}

#define TEST(name) cmocka_unit_test_teardown(name, close_members)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(four_members_cost_one_egress),
        TEST(eight_members_cost_one_egress),
        TEST(members_of_a_domain_share_what_comes_in),
        TEST(domains_take_it_once_each),
        TEST(holders_are_listed_by_name),
        TEST(committed_member_serves_who_is_slower),
        TEST(parts_of_replicas_are_fleets_of_their_own),
        TEST(lead_that_takes_it_for_other_ranks_is_refused),
        TEST(member_that_never_comes_costs_only_excess),
        TEST(seed_that_dies_is_passed_by),
        TEST(trainer_that_dies_is_named),
        TEST(member_that_stands_still_is_passed_by),
        TEST(poisoned_batch_is_asked_of_the_trainer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
