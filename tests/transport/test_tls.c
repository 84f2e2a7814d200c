/* SPDX-License-Identifier: Apache-2.0
 *
 * Bulk bytes over TLS: whole plans, what crosses the wire, who is refused and what they are told, crowds at the door,
 * and certificates that change meanwhile.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/io.h"
#include "tests/tls/pair.h"
#include "tests/transport/pull.h"
#include "tests/transport/relay.h"
#include "tests/transport/side.h"
#include "transport/address.h"

#define RELAY 40
#define CROWD 300 /* more than may shake hands at once */

static const struct refit_transport *const tcp = &refit_transport_tcp;

static struct refit_tls *open_tls(const struct refit_tls_config *config)
{
    struct refit_error err;
    struct refit_tls *tls;
    must(refit_tls_open(config, &tls, &err), &err);
    return tls;
}

/* A receiver that demands TLS, in a world of its own; and what its holders use. */
struct site {
    struct world world;
    struct refit_tls *server, *client;
    char directory[32];
    struct refit_listener *listener;
    struct refit_endpoint *receiver;
    json_t *card;
};

static void site_open_with(struct site *site, const struct refit_tls_config *server, const char *name, bool verify)
{
    struct refit_error err;
    char path[64];
    const struct refit_tls_config client = tls_client_config();
    world_open(&site->world, world_rows_source, world_rows_destination, WORLD_HEAP);
    site->server = server ? open_tls(server) : NULL;
    site->client = open_tls(&client);
    strcpy(site->directory, "/tmp/refit-t-XXXXXX");
    assert_non_null(mkdtemp(site->directory));
    snprintf(path, sizeof path, "%s/bulk.sock", site->directory);
    struct refit_listener_config listener = {
        .tcp_address = "127.0.0.1", .local_path = path, .tls = site->server, .tls_name = name};
    must(refit_listener_start(&listener, &site->listener, &err), &err);
    struct refit_endpoint_config config = world_receiver(&site->world, site->listener, 2);
    config.verify = verify;
    must(tcp->open(&config, &site->receiver, &err), &err);
    must(tcp->card(site->receiver, &site->card, &err), &err);
}

static void site_open(struct site *site)
{
    const struct refit_tls_config server = tls_server_config();
    site_open_with(site, &server, NULL, true);
}

static void site_close(struct site *site)
{
    tcp->close(site->receiver);
    json_decref(site->card);
    listener_close(site->listener, site->directory);
    refit_tls_close(site->server);
    refit_tls_close(site->client);
    world_close(&site->world);
}

static enum refit_status try_connect(struct site *site, struct refit_tls *tls, const json_t *card,
                                     struct refit_error *err)
{
    struct refit_endpoint *holder;
    struct refit_endpoint_config config = world_holder(&site->world, 0, 1);
    config.tls = tls;
    must(tcp->open(&config, &holder, err), err);
    enum refit_status status = tcp->connect(holder, card, refit_deadline_in_ms(PULL_MS), err);
    tcp->close(holder);
    return status;
}

static struct refit_endpoint *connect_with(const struct refit_endpoint_config *config, const json_t *card)
{
    struct refit_error err;
    struct refit_endpoint *holder;
    must(tcp->open(config, &holder, &err), &err);
    must(tcp->connect(holder, card, refit_deadline_in_ms(PULL_MS), &err), &err);
    return holder;
}

static void connect_sources(struct site *site, const json_t *card, unsigned streams, bool verify,
                            struct refit_endpoint **holders)
{
    for (uint32_t i = 0; i < site->world.sources; i++) {
        struct refit_endpoint_config config = world_holder(&site->world, i, streams);
        config.tls = site->client;
        config.verify = verify;
        holders[i] = connect_with(&config, card);
    }
}

static void close_sources(struct site *site, struct refit_endpoint **holders)
{
    for (uint32_t i = 0; i < site->world.sources; i++)
        tcp->close(holders[i]);
}

static void finish_sources(struct site *site, struct refit_endpoint **holders)
{
    struct refit_error err;
    must(tcp->finish(site->receiver, refit_deadline_in_ms(PULL_MS), &err), &err);
    for (uint32_t i = 0; i < site->world.sources; i++)
        must(tcp->wait_done(holders[i], refit_deadline_in_ms(PULL_MS), &err), &err);
}

static void pull_whole(struct site *site)
{
    struct pull pull = pull_all(tcp, site->receiver, &site->world, 0);
    assert_int_equal(pull.ok, plan_batches(site->world.plan));
    world_check_landed(&site->world);
}

/* ---- whole plans ---- */

static void a_whole(unsigned streams, bool verify, const struct refit_tls_config *server)
{
    struct site site;
    struct refit_endpoint *holders[WORLD_RANKS_MAX];
    site_open_with(&site, server, NULL, verify);
    assert_true(json_is_true(json_object_get(site.card, "tls")));
    connect_sources(&site, site.card, streams, verify, holders);
    pull_whole(&site);
    if (verify)
        world_check_tallies(&site.world);
    finish_sources(&site, holders);
    close_sources(&site, holders);
    site_close(&site);
}

static void whole_plans_land_over_tls(void **state)
{
    (void)state;
    const struct refit_tls_config server = tls_server_config();
    a_whole(1, true, &server);
    a_whole(4, true, &server); /* more connections than threads */
    a_whole(2, false, &server);
}

static void keys_change_under_way(void **state)
{
    (void)state;
    struct site site;
    struct refit_endpoint *holders[WORLD_RANKS_MAX];
    site_open(&site);
    refit_tls_close(site.client);
    struct refit_tls_config client = tls_client_config();
    client.records_per_key = 3;
    site.client = open_tls(&client);
    connect_sources(&site, site.card, 2, true, holders);
    pull_whole(&site);
    finish_sources(&site, holders);
    close_sources(&site, holders);
    site_close(&site);
}

static void relays_speak_tls_too(void **state)
{
    (void)state;
    struct site a, b;
    struct refit_endpoint *sources[WORLD_RANKS_MAX];
    site_open(&a);
    site_open(&b);
    connect_sources(&a, a.card, 1, true, sources);
    struct refit_endpoint_config config = world_relay(&a.world, &b.world, RELAY, 2);
    config.tls = a.client;
    struct refit_endpoint *relay = connect_with(&config, b.card);
    struct refit_error err;
    size_t count;
    const struct refit_edge *edges = refit_plan_edges(b.world.plan, &count);
    must(tcp->post(b.receiver, RELAY, &edges[0], 0, &err), &err); /* before it has landed there */
    pull_whole(&a);
    assert_int_equal(world_completion(&b.world).status, REFIT_OK);
    struct pull pull = pull_from(tcp, b.receiver, &b.world, RELAY);
    assert_int_equal(pull.ok, plan_batches(b.world.plan));
    world_check_landed(&b.world);
    tcp->close(relay);
    close_sources(&a, sources);
    site_close(&b);
    site_close(&a);
}

/* ---- the wire ---- */

struct wiretap {
    const uint8_t *sample; /* 32 bytes of the payload */
    bool seen;
    uint8_t tail[31]; /* of the read before */
    uint64_t cut_at;  /* 0: never */
    uint64_t flip_at; /* 0: never */
};

static size_t tap(void *ctx, uint64_t before, uint8_t *data, size_t len)
{
    struct wiretap *wire = ctx;
    if (wire->sample && memmem(data, len, wire->sample, 32))
        wire->seen = true;
    if (wire->flip_at >= before && wire->flip_at - before < len && wire->flip_at)
        data[wire->flip_at - before] ^= 1;
    if (wire->cut_at && before + len > wire->cut_at)
        return wire->cut_at > before ? (size_t)(wire->cut_at - before) : 0;
    return len;
}

static json_t *through(const struct relay *relay, const struct site *site)
{
    json_t *card = relay_card(relay);
    if (site->server)
        json_object_set_new(card, "tls", json_true());
    return card;
}

/* Whether bytes of a tensor crossed the wire as they are. */
static bool payload_shows(const struct refit_tls_config *server)
{
    struct site site;
    struct refit_endpoint *holders[WORLD_RANKS_MAX];
    uint64_t up, down;
    site_open_with(&site, server, NULL, true);
    struct wiretap wire = {.sample = site.world.source_ranks[0].bytes + 4096};
    struct relay *relay = relay_start(refit_listener_tcp_port(site.listener), tap, &wire);
    json_t *card = through(relay, &site);
    connect_sources(&site, card, 1, true, holders);
    pull_whole(&site);
    finish_sources(&site, holders);
    close_sources(&site, holders);
    relay_stop(relay, &up, &down);
    json_decref(card);
    assert_true(up > refit_plan_bytes(site.world.plan));
    site_close(&site);
    return wire.seen;
}

static void the_payload_does_not_cross_the_wire(void **state)
{
    (void)state;
    const struct refit_tls_config server = tls_server_config();
    assert_true(payload_shows(NULL)); /* the tap sees what is to be seen */
    assert_false(payload_shows(&server));
}

enum harm { NONE, CUT, CHANGED };

/* A holder behind a tap that does this in the middle of a batch; what came of the batch. */
static enum refit_status one_batch(enum harm harm, struct refit_holder_state *after)
{
    struct site site;
    struct refit_error err;
    uint64_t up, down;
    site_open(&site);
    uint64_t middle = world_batch_bytes(&site.world) / 2;
    struct wiretap wire = {.cut_at = harm == CUT ? middle : 0, .flip_at = harm == CHANGED ? middle : 0};
    struct relay *relay = relay_start(refit_listener_tcp_port(site.listener), tap, &wire);
    json_t *card = through(relay, &site);
    struct refit_endpoint_config config = world_holder(&site.world, 0, 1);
    config.tls = site.client;
    struct refit_endpoint *holder = connect_with(&config, card);
    must(tcp->post(site.receiver, 0, world_edge(&site.world, 0, 0), 0, &err), &err);
    enum refit_status status = world_completion(&site.world).status;
    tcp->look(site.receiver, 0, after);
    tcp->close(holder);
    relay_stop(relay, &up, &down);
    json_decref(card);
    site_close(&site);
    return status;
}

static void a_record_that_is_cut_or_changed_ends_its_connection(void **state)
{
    (void)state;
    struct refit_holder_state after;
    assert_int_equal(one_batch(NONE, &after), REFIT_OK);
    assert_int_equal(one_batch(CUT, &after), REFIT_PEER);
    assert_true(after.lost);
    assert_int_equal(after.payload_bytes, 0);
    assert_int_equal(one_batch(CHANGED, &after), REFIT_PEER);
    assert_true(after.lost);
    assert_int_equal(after.payload_bytes, 0);
}

/* ---- who is refused ---- */

static void is_refused(struct site *site, const struct refit_tls_config *client, const char *part)
{
    struct refit_error err = {.text = ""};
    struct refit_tls *tls = client ? open_tls(client) : NULL;
    assert_int_not_equal(try_connect(site, tls, site->card, &err), REFIT_OK);
    assert_says(&err, part);
    refit_tls_close(tls);
}

static void holders_that_cannot_prove_themselves_are_refused(void **state)
{
    (void)state;
    struct site site;
    struct refit_error err;
    site_open(&site);
    struct refit_tls_config wrong = tls_client_config();
    wrong.ca = tls_path("other.pem");
    is_refused(&site, &wrong, "no CA in the bundle here signed it");
    struct refit_tls_config nameless = tls_client_config();
    nameless.cert = nameless.key = NULL;
    is_refused(&site, &nameless, "it demands a certificate and got none");
    struct refit_tls_config stranger = tls_client_config();
    stranger.cert = tls_path("stranger.pem");
    stranger.key = tls_path("stranger.key");
    is_refused(&site, &stranger, "does not know who signed our certificate");
    struct refit_tls_config late = tls_client_config();
    late.cert = tls_path("late.pem");
    late.key = tls_path("late.key");
    is_refused(&site, &late, "expired");
    is_refused(&site, NULL, "no certificates are configured here");
    /* Nobody of these was in the way of this one. */
    must(try_connect(&site, site.client, site.card, &err), &err);
    site_close(&site);
}

static void receivers_that_cannot_prove_themselves_are_not_served(void **state)
{
    (void)state;
    struct site site;
    struct refit_tls_config late = tls_server_config();
    late.cert = tls_path("late.pem");
    late.key = tls_path("late.key");
    site_open_with(&site, &late, NULL, true);
    struct refit_tls_config client = tls_client_config();
    is_refused(&site, &client, "expired");
    site_close(&site);

    struct refit_tls_config server = tls_server_config();
    site_open_with(&site, &server, "replica-7.pool", true);
    is_refused(&site, &client, "subject alternative names");
    site_close(&site);

    struct refit_error err;
    site_open_with(&site, &server, "localhost", true);
    must(try_connect(&site, site.client, site.card, &err), &err);
    site_close(&site);
}

static void nothing_falls_back_to_plain(void **state)
{
    (void)state;
    struct site site;
    struct refit_error err;
    site_open(&site);
    json_object_del(site.card, "tls"); /* somebody took it away */
    assert_int_equal(try_connect(&site, site.client, site.card, &err), REFIT_UNSUPPORTED);
    assert_says(&err, "this port demands TLS");
    json_object_set_new(site.card, "tls", json_string("no"));
    assert_int_not_equal(try_connect(&site, site.client, site.card, &err), REFIT_OK);
    site_close(&site);

    site_open_with(&site, NULL, NULL, true);
    assert_null(json_object_get(site.card, "tls"));
    must(try_connect(&site, site.client, site.card, &err), &err);
    json_object_set_new(site.card, "tls", json_true());
    assert_int_equal(try_connect(&site, site.client, site.card, &err), REFIT_PEER);
    assert_says(&err, "does not speak TLS");
    site_close(&site);
}

static void the_token_is_still_needed(void **state)
{
    (void)state;
    struct site site;
    struct refit_error err;
    struct refit_endpoint *holder;
    site_open(&site);
    struct refit_endpoint_config config = world_holder(&site.world, 0, 1);
    config.tls = site.client;
    config.token[3] ^= 1;
    must(tcp->open(&config, &holder, &err), &err);
    assert_int_equal(tcp->connect(holder, site.card, refit_deadline_in_ms(PULL_MS), &err), REFIT_NOT_FOUND);
    assert_says(&err, "no refit with this id and token");
    tcp->close(holder);
    site_close(&site);
}

/* ---- crowds ---- */

static int knock(const struct site *site, const void *data, size_t len)
{
    struct refit_address address;
    struct refit_error err;
    int fd;
    must(refit_address_parse("127.0.0.1", refit_listener_tcp_port(site->listener), &address, &err), &err);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, &address.any, address.len), 0);
    assert_int_equal(send(fd, data, len, MSG_NOSIGNAL), (ssize_t)len);
    return fd;
}

/* The beginning of a ClientHello that says it is longer. */
static const uint8_t half[] = {0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03};

static void half_handshakes_hold_up_nobody(void **state)
{
    (void)state;
    static int crowd[CROWD];
    struct site site;
    struct refit_endpoint *holders[WORLD_RANKS_MAX];
    site_open(&site);
    for (int i = 0; i < CROWD; i++)
        crowd[i] = knock(&site, half, i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : sizeof half);
    connect_sources(&site, site.card, 2, true, holders);
    for (int i = 1; i < CROWD; i += 3) /* slow ones, a byte at a time */
        (void)!send(crowd[i], half + 1, 1, MSG_NOSIGNAL);
    pull_whole(&site);
    finish_sources(&site, holders);
    close_sources(&site, holders);
    for (int i = 0; i < CROWD; i++)
        close(crowd[i]);
    site_close(&site);
}

static void too_many_handshakes_push_the_oldest_out(void **state)
{
    (void)state;
    static int crowd[CROWD];
    struct site site;
    struct refit_error err;
    char end;
    site_open(&site);
    for (int i = 0; i < CROWD; i++)
        crowd[i] = knock(&site, half, sizeof half);
    must(try_connect(&site, site.client, site.card, &err), &err);
    while (recv(crowd[0], &end, 1, 0) > 0)
        ;
    assert_int_equal(recv(crowd[CROWD - 1], &end, 1, MSG_DONTWAIT), -1); /* still waited for */
    for (int i = 0; i < CROWD; i++)
        close(crowd[i]);
    site_close(&site);
}

/* ---- rotation ---- */

static void certificates_change_in_the_middle_of_a_refit(void **state)
{
    (void)state;
    struct site site;
    struct refit_error err;
    struct refit_endpoint *holders[WORLD_RANKS_MAX];
    struct refit_tls_config server = tls_server_config(), trusts = tls_client_config();
    server.cert = tls_path("rotated.pem");
    server.key = tls_path("rotated.key");
    tls_copy("server.pem", "rotated.pem");
    tls_copy("server.key", "rotated.key");
    site_open_with(&site, &server, NULL, true);
    connect_sources(&site, site.card, 1, true, holders);
    must(tcp->post(site.receiver, 0, world_edge(&site.world, 0, 0), 0, &err), &err);
    assert_int_equal(world_completion(&site.world).status, REFIT_OK);

    tls_copy("new.pem", "rotated.pem"); /* signed by "other" */
    tls_copy("new.key", "rotated.key");
    assert_int_equal(refit_tls_refresh(site.server, &err), REFIT_TLS_RELOADED);
    is_refused(&site, &trusts, "no CA in the bundle here signed it");
    trusts.ca = tls_path("other.pem");
    struct refit_tls *client = open_tls(&trusts);
    struct refit_endpoint_config late = world_holder(&site.world, 0, 1);
    late.tls = client;
    late.holder = RELAY;
    struct refit_endpoint *newcomer = connect_with(&late, site.card);

    pull_whole(&site); /* by those that were there before */
    finish_sources(&site, holders);
    tcp->close(newcomer);
    close_sources(&site, holders);
    refit_tls_close(client);
    site_close(&site);
}

/* ---- */

static int set_up(void **state)
{
    const struct pki_leaf late = {.name = "late", .ca = "ca", .san = "IP:127.0.0.1", .from_s = -7200, .to_s = -3600,
                                  .serial = 5};
    const struct pki_leaf stranger = {.name = "stranger", .ca = "other", .san = "DNS:trainer.example", .serial = 6};
    const struct pki_leaf fresh = {.name = "new", .ca = "other", .san = "IP:127.0.0.1", .serial = 7};
    int failed = tls_dir_create(state);
    return failed || !pki_make_leaf(tls_dir, &late) || !pki_make_leaf(tls_dir, &stranger) ||
                   !pki_make_leaf(tls_dir, &fresh)
               ? -1
               : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_plans_land_over_tls),
        cmocka_unit_test(keys_change_under_way),
        cmocka_unit_test(relays_speak_tls_too),
        cmocka_unit_test(the_payload_does_not_cross_the_wire),
        cmocka_unit_test(a_record_that_is_cut_or_changed_ends_its_connection),
        cmocka_unit_test(holders_that_cannot_prove_themselves_are_refused),
        cmocka_unit_test(receivers_that_cannot_prove_themselves_are_not_served),
        cmocka_unit_test(nothing_falls_back_to_plain),
        cmocka_unit_test(the_token_is_still_needed),
        cmocka_unit_test(half_handshakes_hold_up_nobody),
        cmocka_unit_test(too_many_handshakes_push_the_oldest_out),
        cmocka_unit_test(certificates_change_in_the_middle_of_a_refit),
    };
    return cmocka_run_group_tests(tests, set_up, tls_dir_remove);
}
