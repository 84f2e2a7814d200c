/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream of ours against one of OpenSSL's own, as either end: each cipher, key updates from both, tickets, padding,
 * small fragments, and how each tells the other that it is done. So an end that leaves its records to OpenSSL fits.
 */
#include "pair.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/io.h"

#define TOTAL ((size_t)3 << 20)
#define WAIT_MS 40000

struct manner { /* of OpenSSL's end */
    const char *suite;
    unsigned fragment; /* bytes of content in a record; 0: as many as fit */
    size_t padding;    /* records are padded to multiples of so much; 0: none */
    int update;        /* SSL_KEY_UPDATE_*, now and then; -1: none */
    bool tickets;
    uint64_t records_per_key; /* of our end */
};

static struct {
    struct tls_pair pair; /* of which OpenSSL's end is not used */
    int ours, theirs;
    SSL_CTX *context;
    SSL *ssl;
    size_t sent[2], got[2]; /* by us, by OpenSSL */
    unsigned writes;
} t;
static struct refit_error err;

static uint8_t byte_at(size_t i, int from)
{
    return (uint8_t)((i + (size_t)from * 77) * 2654435761u >> 13);
}

static void join(int ours, const struct manner *manner)
{
    const char *name = ours == AT_SERVER ? "client" : "server";
    char file[32];
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    server.records_per_key = client.records_per_key = manner->records_per_key;
    memset(&t, 0, sizeof t);
    t.ours = ours;
    t.theirs = !ours;
    tls_pair_open(&t.pair, &server, &client, "localhost");
    t.context = SSL_CTX_new(ours == AT_SERVER ? TLS_client_method() : TLS_server_method());
    SSL_CTX_set_mode(t.context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    snprintf(file, sizeof file, "%s.pem", name);
    assert_int_equal(SSL_CTX_use_certificate_chain_file(t.context, tls_path(file)), 1);
    snprintf(file, sizeof file, "%s.key", name);
    assert_int_equal(SSL_CTX_use_PrivateKey_file(t.context, tls_path(file), SSL_FILETYPE_PEM), 1);
    assert_int_equal(SSL_CTX_load_verify_locations(t.context, tls_path("ca.pem"), NULL), 1);
    SSL_CTX_set_verify(t.context, SSL_VERIFY_PEER, NULL);
    assert_int_equal(SSL_CTX_set_ciphersuites(t.context, manner->suite), 1);
    assert_int_equal(SSL_CTX_set_num_tickets(t.context, manner->tickets ? 2 : 0), 1);
    t.ssl = SSL_new(t.context);
    assert_int_equal(SSL_set_fd(t.ssl, t.pair.fds[t.theirs]), 1);
    if (manner->fragment)
        assert_int_equal(SSL_set_max_send_fragment(t.ssl, manner->fragment), 1);
    if (manner->padding)
        assert_int_equal(SSL_set_block_padding(t.ssl, manner->padding), 1);
    (ours == AT_SERVER ? SSL_set_connect_state : SSL_set_accept_state)(t.ssl);
}

static void shake(const struct manner *manner)
{
    struct refit_tls_stream_info info;
    enum refit_tls_step step = REFIT_TLS_AGAIN;
    int theirs = 0;
    for (int i = 0; i < 20 && (step != REFIT_TLS_DONE || theirs != 1); i++) {
        ERR_clear_error();
        if (theirs != 1)
            theirs = SSL_do_handshake(t.ssl);
        if (step != REFIT_TLS_DONE)
            step = refit_tls_stream_handshake(t.pair.stream[t.ours], &err);
        assert_int_not_equal(step, REFIT_TLS_FAILED);
    }
    assert_true(step == REFIT_TLS_DONE && theirs == 1);
    refit_tls_stream_read_info(t.pair.stream[t.ours], &info);
    assert_string_equal(info.cipher, manner->suite);
    assert_true(info.own_records);
}

static void part(void)
{
    SSL_free(t.ssl);
    SSL_CTX_free(t.context);
    tls_pair_close(&t.pair);
}

/* OpenSSL's steps; false: it has to wait. */

static bool they_write(const struct manner *manner)
{
    uint8_t data[20000];
    size_t len = TOTAL - t.sent[1] < sizeof data ? TOTAL - t.sent[1] : sizeof data, done = 0;
    for (size_t i = 0; i < len; i++)
        data[i] = byte_at(t.sent[1] + i, 1);
    if (manner->update >= 0 && t.writes++ % 16 == 7)
        assert_int_equal(SSL_key_update(t.ssl, manner->update), 1);
    ERR_clear_error();
    if (len == 0 || SSL_write_ex(t.ssl, data, len, &done) != 1)
        return false;
    t.sent[1] += done;
    return true;
}

static bool they_read(void)
{
    uint8_t data[20000];
    size_t done;
    ERR_clear_error();
    int rc = SSL_read_ex(t.ssl, data, sizeof data, &done);
    if (rc != 1) {
        assert_int_equal(SSL_get_error(t.ssl, rc), SSL_ERROR_WANT_READ);
        return false;
    }
    for (size_t i = 0; i < done; i++)
        assert_int_equal(data[i], byte_at(t.got[1] + i, 0));
    t.got[1] += done;
    return true;
}

static bool we_write(void)
{
    static uint8_t data[90000];
    size_t len = TOTAL - t.sent[0] < sizeof data ? TOTAL - t.sent[0] : sizeof data, done;
    for (size_t i = 0; i < len; i++)
        data[i] = byte_at(t.sent[0] + i, 0);
    const size_t first = len / 3;
    const struct iovec pieces[] = {{data, first}, {data + first, len - first}};
    enum refit_tls_step step = len > 0 ? refit_tls_stream_writev(t.pair.stream[t.ours], pieces, 2, false, &done, &err)
                                       : refit_tls_stream_flush(t.pair.stream[t.ours], &err);
    if (step == REFIT_TLS_FAILED)
        fail_msg("%s", err.text);
    t.sent[0] += len > 0 ? done : 0;
    return len > 0 && done > 0;
}

static bool we_read(void)
{
    uint8_t data[10007];
    size_t done;
    enum refit_tls_step step = refit_tls_stream_read(t.pair.stream[t.ours], data, sizeof data, &done, &err);
    if (step == REFIT_TLS_FAILED)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < done; i++)
        assert_int_equal(data[i], byte_at(t.got[0] + i, 1));
    t.got[0] += done;
    return step == REFIT_TLS_DONE;
}

static void exchange(const struct manner *manner)
{
    struct refit_deadline deadline = refit_deadline_in_ms(WAIT_MS);
    while (t.got[0] < TOTAL || t.got[1] < TOTAL) {
        bool moved = they_write(manner);
        moved = we_write() || moved;
        while (we_read())
            moved = true;
        while (they_read())
            moved = true;
        if (!moved && refit_deadline_left_ms(deadline) <= 0)
            fail_msg("nothing moves: we sent %zu and got %zu, they %zu and %zu", t.sent[0], t.got[0], t.sent[1],
                     t.got[1]);
    }
}

static void they_end_then_we(void)
{
    char byte;
    size_t done;
    struct refit_tls_stream *stream = t.pair.stream[t.ours];
    assert_int_equal(SSL_shutdown(t.ssl), 0);
    assert_int_equal(refit_tls_stream_read(stream, &byte, 1, &done, &err), REFIT_TLS_END);
    assert_int_equal(refit_tls_stream_shutdown(stream, &err), REFIT_TLS_DONE);
    ERR_clear_error();
    int rc = SSL_read_ex(t.ssl, &byte, 1, &done);
    assert_int_equal(SSL_get_error(t.ssl, rc), SSL_ERROR_ZERO_RETURN);
}

static void a_conversation(int ours, struct manner manner)
{
    join(ours, &manner);
    shake(&manner);
    exchange(&manner);
    if (manner.records_per_key || manner.update == SSL_KEY_UPDATE_REQUESTED) {
        struct refit_tls_stream_info info;
        refit_tls_stream_read_info(t.pair.stream[ours], &info);
        assert_true(info.key_updates >= (manner.records_per_key ? TOTAL / 16384 / manner.records_per_key - 1 : 1));
    }
    they_end_then_we();
    part();
}

static void as_either_end(struct manner manner)
{
    a_conversation(AT_SERVER, manner);
    a_conversation(AT_CLIENT, manner);
}

static void each_cipher_is_understood_both_ways(void **state)
{
    static const char *const suites[] = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384",
                                         "TLS_CHACHA20_POLY1305_SHA256"};
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++)
        as_either_end((struct manner){.suite = suites[i], .update = -1});
}

static void keys_change_both_ways(void **state)
{
    as_either_end((struct manner){.suite = "TLS_AES_128_GCM_SHA256", .update = SSL_KEY_UPDATE_NOT_REQUESTED});
    as_either_end((struct manner){.suite = "TLS_AES_256_GCM_SHA384", .update = SSL_KEY_UPDATE_REQUESTED});
    as_either_end((struct manner){.suite = "TLS_AES_128_GCM_SHA256", .update = -1, .records_per_key = 5});
    as_either_end((struct manner){.suite = "TLS_CHACHA20_POLY1305_SHA256",
                                  .update = SSL_KEY_UPDATE_REQUESTED,
                                  .records_per_key = 5});
}

static void tickets_padding_and_small_fragments_do_no_harm(void **state)
{
    as_either_end((struct manner){.suite = "TLS_AES_128_GCM_SHA256", .update = -1, .tickets = true});
    as_either_end((struct manner){.suite = "TLS_AES_256_GCM_SHA384", .update = -1, .padding = 4096, .tickets = true});
    as_either_end((struct manner){.suite = "TLS_AES_128_GCM_SHA256", .update = -1, .fragment = 600, .padding = 512});
}

static void we_may_end_first(void **state)
{
    const struct manner manner = {.suite = "TLS_AES_128_GCM_SHA256", .update = -1};
    for (int ours = 0; ours < 2; ours++) {
        char byte = 'x';
        size_t done;
        join(ours, &manner);
        shake(&manner);
        assert_int_equal(refit_tls_stream_shutdown(t.pair.stream[ours], &err), REFIT_TLS_DONE);
        int rc = SSL_read_ex(t.ssl, &byte, 1, &done);
        assert_int_equal(SSL_get_error(t.ssl, rc), SSL_ERROR_ZERO_RETURN);
        assert_int_equal(SSL_write_ex(t.ssl, "y", 1, &done), 1); /* the other direction goes on */
        assert_int_equal(refit_tls_stream_read(t.pair.stream[ours], &byte, 1, &done, &err), REFIT_TLS_DONE);
        assert_int_equal(byte, 'y');
        part();
    }
}

static void openssl_sees_what_we_found_wrong(void **state)
{
    const struct manner manner = {.suite = "TLS_AES_128_GCM_SHA256", .update = -1};
    uint8_t record[256], byte;
    size_t done;
    join(AT_SERVER, &manner);
    shake(&manner);
    assert_int_equal(SSL_write_ex(t.ssl, "weights", 7, &done), 1);
    ssize_t len = recv(t.pair.fds[AT_SERVER], record, sizeof record, 0);
    assert_true(len > 10);
    record[len - 1] ^= 1;
    assert_int_equal(send(t.pair.fds[AT_CLIENT], record, (size_t)len, 0), len);
    assert_int_equal(refit_tls_stream_read(t.pair.stream[AT_SERVER], &byte, 1, &done, &err), REFIT_TLS_FAILED);
    assert_says(&err, "bad record mac");
    ERR_clear_error();
    int rc = SSL_read_ex(t.ssl, &byte, 1, &done);
    assert_int_equal(SSL_get_error(t.ssl, rc), SSL_ERROR_SSL);
    assert_int_equal(ERR_GET_REASON(ERR_peek_error()), SSL_R_SSLV3_ALERT_BAD_RECORD_MAC);
    ERR_clear_error();
    part();
}

static void we_see_what_openssl_found_wrong(void **state)
{
    const struct manner manner = {.suite = "TLS_AES_128_GCM_SHA256", .update = -1};
    uint8_t record[256], byte;
    size_t done;
    join(AT_CLIENT, &manner);
    shake(&manner);
    assert_int_equal(refit_tls_stream_write(t.pair.stream[AT_CLIENT], "weights", 7, &done, &err), REFIT_TLS_DONE);
    ssize_t len = recv(t.pair.fds[AT_SERVER], record, sizeof record, 0);
    assert_true(len > 10);
    record[7] ^= 1;
    assert_int_equal(send(t.pair.fds[AT_CLIENT], record, (size_t)len, 0), len);
    assert_int_not_equal(SSL_read_ex(t.ssl, &byte, 1, &done), 1);
    ERR_clear_error();
    assert_int_equal(refit_tls_stream_read(t.pair.stream[AT_CLIENT], &byte, 1, &done, &err), REFIT_TLS_FAILED);
    assert_says(&err, "the peer refused with the alert \"bad record mac\"");
    part();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_cipher_is_understood_both_ways),
        cmocka_unit_test(keys_change_both_ways),
        cmocka_unit_test(tickets_padding_and_small_fragments_do_no_harm),
        cmocka_unit_test(we_may_end_first),
        cmocka_unit_test(openssl_sees_what_we_found_wrong),
        cmocka_unit_test(we_see_what_openssl_found_wrong),
    };
    return cmocka_run_group_tests_name("tls/interop", tests, tls_dir_create, tls_dir_remove);
}
