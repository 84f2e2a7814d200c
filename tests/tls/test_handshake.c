/* SPDX-License-Identifier: Apache-2.0
 *
 * Who gets in and who does not, and that both ends say why.
 */
#include "pair.h"

#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct tls_pair pair;

static void make(const char *name, const char *ca, const char *san, long from_s, long to_s)
{
    const struct pki_leaf leaf = {.name = name, .ca = ca, .san = san, .from_s = from_s, .to_s = to_s, .serial = 9};
    assert_true(pki_make_leaf(tls_dir, &leaf));
}

static void meet(const struct refit_tls_config *server, const struct refit_tls_config *client, const char *host)
{
    tls_pair_open(&pair, server, client, host);
    tls_pair_handshake(&pair);
}

static void assert_met(void)
{
    if (pair.step[0] != REFIT_TLS_DONE || pair.step[1] != REFIT_TLS_DONE)
        fail_msg("server: %s; client: %s", pair.err[0].text, pair.err[1].text);
}

static void assert_parted(const char *server_says, const char *client_says)
{
    assert_int_equal(pair.step[0], REFIT_TLS_FAILED);
    assert_int_equal(pair.step[1], REFIT_TLS_FAILED);
    assert_says(&pair.err[0], server_says);
    assert_says(&pair.err[1], client_says);
    tls_pair_close(&pair);
}

static void data_is_tls13_with_aes_gcm(void **state)
{
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    struct refit_tls_stream_info info;
    meet(&server, &client, "localhost");
    assert_met();
    refit_tls_stream_read_info(pair.stream[AT_CLIENT], &info);
    assert_string_equal(info.version, "TLSv1.3");
    assert_string_equal(info.cipher, "TLS_AES_128_GCM_SHA256");
    tls_pair_close(&pair);
}

static void names_are_those_of_the_certificate(void **state)
{
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    struct refit_tls_peer peer;
    meet(&server, &client, "127.0.0.1");
    assert_met();
    refit_tls_stream_peer(pair.stream[AT_SERVER], &peer);
    assert_true(peer.verified);
    assert_int_equal(peer.count, 3);
    assert_string_equal(peer.names[0], "uri:spiffe://cluster/trainer");
    assert_string_equal(peer.names[1], "dns:trainer.example");
    assert_string_equal(peer.names[2], "cn:client");
    refit_tls_stream_peer(pair.stream[AT_CLIENT], &peer);
    assert_true(peer.verified);
    assert_string_equal(peer.names[1], "ip:127.0.0.1");
    tls_pair_close(&pair);
}

static void a_server_of_another_ca_is_refused(void **state)
{
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    client.ca = tls_path("other.pem");
    meet(&server, &client, "localhost");
    assert_parted("unknown CA", "check the CA file");
}

static void a_client_of_another_ca_is_refused(void **state)
{
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    make("stranger", "other", NULL, 0, 0);
    client.cert = tls_path("stranger.pem");
    client.key = tls_path("stranger.key");
    meet(&server, &client, "localhost");
    assert_parted("check the CA file", "does not know who signed our certificate");
}

static void a_client_without_a_certificate_is_refused_unless_optional(void **state)
{
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    struct refit_tls_peer peer;
    client.cert = client.key = "";
    meet(&server, &client, "localhost");
    assert_parted("a client certificate is demanded here", "it demands a certificate and got none");
    server.client_optional = true;
    meet(&server, &client, "localhost");
    assert_met();
    refit_tls_stream_peer(pair.stream[AT_SERVER], &peer);
    assert_false(peer.verified);
    assert_int_equal(peer.count, 0);
    tls_pair_close(&pair);
}

static void an_unknown_client_is_refused_even_where_certificates_are_optional(void **state)
{
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    make("stranger", "other", NULL, 0, 0);
    client.cert = tls_path("stranger.pem");
    client.key = tls_path("stranger.key");
    server.client_optional = true;
    meet(&server, &client, "localhost");
    assert_parted("check the CA file", "does not know who signed our certificate");
}

static void expired_certificates_are_refused_by_name(void **state)
{
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    make("late", "ca", "DNS:localhost", -7200, -3600);
    server.cert = tls_path("late.pem");
    server.key = tls_path("late.key");
    meet(&server, &client, "localhost");
    assert_parted("expired", "\"CN=late\" does not verify: certificate has expired");
    server = tls_server_config();
    client.cert = tls_path("late.pem");
    client.key = tls_path("late.key");
    meet(&server, &client, "localhost");
    assert_parted("\"CN=late\" does not verify: certificate has expired", "our certificate has expired: renew it");
}

static void a_certificate_of_tomorrow_is_refused_by_name(void **state)
{
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    make("early", "ca", "DNS:localhost", 3600, 7200);
    server.cert = tls_path("early.pem");
    server.key = tls_path("early.key");
    meet(&server, &client, "localhost");
    assert_parted("alert", "not yet valid; check the clocks");
}

static void another_host_name_or_address_is_refused(void **state)
{
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    meet(&server, &client, "replica-7.example");
    assert_parted("alert", "its subject alternative names must hold the host that is dialled");
    meet(&server, &client, "127.0.0.2");
    assert_parted("alert", "its subject alternative names must hold the host that is dialled");
}

static void a_common_name_is_not_a_host_name(void **state)
{
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    make("localhost", "ca", NULL, 0, 0);
    server.cert = tls_path("localhost.pem");
    server.key = tls_path("localhost.key");
    meet(&server, &client, "localhost");
    assert_parted("alert", "subject alternative names");
}

/* --- peers that are not ours ------------------------------------------------------------------------------------- */

/* A client of raw OpenSSL with these settings against a server of `use`; what the server says. */
static void raw_client(enum refit_tls_use use, int version, const char *ciphers, struct refit_error *err)
{
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    server.use = use;
    server.ca = "";
    tls_pair_open(&pair, &server, &client, NULL);
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_security_level(context, 0);
    assert_int_equal(SSL_CTX_set_min_proto_version(context, 0), 1);
    assert_int_equal(SSL_CTX_set_max_proto_version(context, version), 1);
    if (ciphers)
        assert_int_equal(SSL_CTX_set_cipher_list(context, ciphers), 1);
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, pair.fds[AT_CLIENT]);
    for (int i = 0; i < 10 && pair.step[AT_SERVER] == REFIT_TLS_AGAIN; i++) {
        SSL_connect(ssl);
        pair.step[AT_SERVER] = refit_tls_stream_handshake(pair.stream[AT_SERVER], err);
    }
    SSL_free(ssl);
    SSL_CTX_free(context);
}

static void old_versions_are_refused(void **state)
{
    struct refit_error err;
    raw_client(REFIT_TLS_CONTROL, TLS1_1_VERSION, NULL, &err);
    assert_int_equal(pair.step[AT_SERVER], REFIT_TLS_FAILED);
    assert_says(&err, "too old");
    tls_pair_close(&pair);
    raw_client(REFIT_TLS_DATA, TLS1_2_VERSION, NULL, &err);
    assert_int_equal(pair.step[AT_SERVER], REFIT_TLS_FAILED);
    assert_says(&err, "too old");
    tls_pair_close(&pair);
}

static void control_takes_tls12_with_good_ciphers_only(void **state)
{
    struct refit_error err;
    raw_client(REFIT_TLS_CONTROL, TLS1_2_VERSION, NULL, &err);
    assert_int_equal(pair.step[AT_SERVER], REFIT_TLS_DONE);
    tls_pair_close(&pair);
    static const char *const weak[] = {"AES128-SHA", "AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-SHA", "NULL:aNULL:eNULL"};
    for (size_t i = 0; i < sizeof weak / sizeof *weak; i++) {
        raw_client(REFIT_TLS_CONTROL, TLS1_2_VERSION, weak[i], &err);
        assert_int_equal(pair.step[AT_SERVER], REFIT_TLS_FAILED);
        assert_says(&err, "no cipher in common");
        tls_pair_close(&pair);
    }
}

static void plain_text_on_either_end_is_named(void **state)
{
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    struct refit_error err;
    static const char request[] = "GET / HTTP/1.1\r\nHost: a\r\n\r\n", answer[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    tls_pair_open(&pair, &server, &client, NULL);
    assert_int_equal(write(pair.fds[AT_CLIENT], request, sizeof request - 1), (ssize_t)sizeof request - 1);
    assert_int_equal(refit_tls_stream_handshake(pair.stream[AT_SERVER], &err), REFIT_TLS_FAILED);
    assert_says(&err, "plain HTTP came in on a TLS port");
    tls_pair_close(&pair);
    tls_pair_open(&pair, &server, &client, NULL);
    assert_int_equal(write(pair.fds[AT_SERVER], answer, sizeof answer - 1), (ssize_t)sizeof answer - 1);
    assert_int_equal(refit_tls_stream_handshake(pair.stream[AT_CLIENT], &err), REFIT_TLS_FAILED);
    assert_says(&err, "the peer does not speak TLS");
    tls_pair_close(&pair);
}

static void a_peer_that_goes_half_way_is_a_failure(void **state)
{
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    struct refit_error err;
    tls_pair_open(&pair, &server, &client, NULL);
    assert_int_equal(refit_tls_stream_handshake(pair.stream[AT_CLIENT], &err), REFIT_TLS_AGAIN);
    assert_int_equal(refit_tls_stream_handshake(pair.stream[AT_SERVER], &err), REFIT_TLS_AGAIN);
    shutdown(pair.fds[AT_CLIENT], SHUT_RDWR);
    assert_int_equal(refit_tls_stream_handshake(pair.stream[AT_SERVER], &err), REFIT_TLS_FAILED);
    assert_int_equal(err.status, REFIT_PEER);
    assert_int_equal(refit_tls_stream_handshake(pair.stream[AT_SERVER], &err), REFIT_TLS_FAILED);
    tls_pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_is_tls13_with_aes_gcm),
        cmocka_unit_test(names_are_those_of_the_certificate),
        cmocka_unit_test(a_server_of_another_ca_is_refused),
        cmocka_unit_test(a_client_of_another_ca_is_refused),
        cmocka_unit_test(a_client_without_a_certificate_is_refused_unless_optional),
        cmocka_unit_test(an_unknown_client_is_refused_even_where_certificates_are_optional),
        cmocka_unit_test(expired_certificates_are_refused_by_name),
        cmocka_unit_test(a_certificate_of_tomorrow_is_refused_by_name),
        cmocka_unit_test(another_host_name_or_address_is_refused),
        cmocka_unit_test(a_common_name_is_not_a_host_name),
        cmocka_unit_test(old_versions_are_refused),
        cmocka_unit_test(control_takes_tls12_with_good_ciphers_only),
        cmocka_unit_test(plain_text_on_either_end_is_named),
        cmocka_unit_test(a_peer_that_goes_half_way_is_a_failure),
    };
    return cmocka_run_group_tests_name("tls/handshake", tests, tls_dir_create, tls_dir_remove);
}
