/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes through a stream whose socket takes little at a time.
 */
#include "pair.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"

#define TOTAL ((size_t)9 << 20)
#define PIECES 700

static struct tls_pair pair;
static struct refit_error err;

static uint64_t records_per_key, key_updates;

static void meet(void)
{
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    client.records_per_key = records_per_key;
    const int small = 4096;
    tls_pair_open(&pair, &server, &client, "localhost");
    for (int i = 0; i < 2; i++)
        assert_int_equal(setsockopt(pair.fds[i], SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    tls_pair_handshake(&pair);
    if (pair.step[0] != REFIT_TLS_DONE || pair.step[1] != REFIT_TLS_DONE)
        fail_msg("server: %s; client: %s", pair.err[0].text, pair.err[1].text);
}

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i * 2654435761u >> 13);
}

/* Reads what is there; checks it against the pattern. */
static void take(struct refit_tls_stream *stream, size_t *at)
{
    static uint8_t buffer[50000];
    size_t done;
    enum refit_tls_step step;
    while ((step = refit_tls_stream_read(stream, buffer, sizeof buffer, &done, &err)) == REFIT_TLS_DONE) {
        for (size_t i = 0; i < done; i++)
            if (buffer[i] != byte_at(*at + i))
                fail_msg("byte %zu differs", *at + i);
        *at += done;
    }
    if (step != REFIT_TLS_AGAIN)
        fail_msg("%s", err.text);
}

/* Uneven pieces of the pattern from `at` on, small ones and some larger than a record. */
static size_t cut(const uint8_t *data, size_t at, struct iovec pieces[static PIECES])
{
    size_t count = 0;
    unsigned seed = (unsigned)at;
    while (count < PIECES && at < TOTAL) {
        size_t len = (size_t)(rand_r(&seed) % (count % 50 == 49 ? 60000 : 900));
        len = len < TOTAL - at ? len : TOTAL - at;
        pieces[count++] = (struct iovec){.iov_base = (void *)(uintptr_t)(data + at), .iov_len = len};
        at += len;
    }
    return count;
}

static void every_byte_arrives_through(bool gathered)
{
    struct iovec pieces[PIECES];
    size_t sent = 0, got = 0, done;
    bool flushed = false;
    uint8_t *data = malloc(TOTAL);
    assert_non_null(data);
    for (size_t i = 0; i < TOTAL; i++)
        data[i] = byte_at(i);
    meet();
    struct refit_tls_stream *from = pair.stream[AT_CLIENT];
    struct refit_deadline deadline = refit_deadline_in_ms(40000);
    while (got < TOTAL) {
        enum refit_tls_step step;
        if (sent < TOTAL && gathered)
            step = refit_tls_stream_writev(from, pieces, cut(data, sent, pieces), sent < TOTAL / 2, &done, &err);
        else if (sent < TOTAL)
            step = refit_tls_stream_write(from, data + sent, TOTAL - sent < 1000003 ? TOTAL - sent : 1000003, &done, &err);
        else
            step = refit_tls_stream_flush(from, &err), done = 0;
        if (step == REFIT_TLS_FAILED)
            fail_msg("%s", err.text);
        assert_true((step == REFIT_TLS_DONE) == (done > 0) || sent == TOTAL);
        sent += done;
        flushed = sent == TOTAL && refit_tls_stream_unsent(from) == 0;
        struct pollfd polls[] = {{pair.fds[AT_SERVER], POLLIN, 0}, {pair.fds[AT_CLIENT], refit_tls_stream_events(from), 0}};
        if (poll(polls, 2, refit_deadline_left_ms(deadline)) < 1)
            fail_msg("nothing moves: sent %zu, got %zu of %zu", sent, got, TOTAL);
        take(pair.stream[AT_SERVER], &got);
    }
    assert_true(flushed);
    struct refit_tls_stream_info info;
    refit_tls_stream_read_info(from, &info);
    key_updates = info.key_updates;
    assert_int_equal(got, TOTAL);
    tls_pair_close(&pair);
    free(data);
}

static void large_writes_arrive(void **state)
{
    every_byte_arrives_through(false);
}

static void scattered_pieces_arrive(void **state)
{
    every_byte_arrives_through(true);
}

static void keys_are_renewed_on_the_way(void **state)
{
    records_per_key = 7;
    every_byte_arrives_through(true);
    records_per_key = 0;
    assert_true(key_updates > TOTAL / 16384 / 7 - 2);
}

static void a_shutdown_is_an_end_and_a_bare_fin_is_a_failure(void **state)
{
    char byte;
    size_t done;
    meet();
    assert_int_equal(refit_tls_stream_shutdown(pair.stream[AT_CLIENT], &err), REFIT_TLS_DONE);
    assert_int_equal(refit_tls_stream_read(pair.stream[AT_SERVER], &byte, 1, &done, &err), REFIT_TLS_END);
    byte = 'x'; /* the other direction goes on */
    assert_int_equal(refit_tls_stream_write(pair.stream[AT_SERVER], &byte, 1, &done, &err), REFIT_TLS_DONE);
    byte = 0;
    assert_int_equal(refit_tls_stream_read(pair.stream[AT_CLIENT], &byte, 1, &done, &err), REFIT_TLS_DONE);
    assert_int_equal(byte, 'x');
    tls_pair_close(&pair);
    meet();
    shutdown(pair.fds[AT_CLIENT], SHUT_WR);
    assert_int_equal(refit_tls_stream_read(pair.stream[AT_SERVER], &byte, 1, &done, &err), REFIT_TLS_FAILED);
    assert_int_equal(err.status, REFIT_PEER);
    tls_pair_close(&pair);
}

static void changed_bytes_are_a_failure(void **state)
{
    char bytes[64] = "weights";
    size_t done;
    meet();
    assert_int_equal(refit_tls_stream_write(pair.stream[AT_CLIENT], bytes, sizeof bytes, &done, &err), REFIT_TLS_DONE);
    char record[256];
    ssize_t len = recv(pair.fds[AT_SERVER], record, sizeof record, 0);
    assert_true(len > 40);
    record[len / 2] ^= 1;
    assert_int_equal(send(pair.fds[AT_CLIENT], record, (size_t)len, 0), len);
    assert_int_equal(refit_tls_stream_read(pair.stream[AT_SERVER], bytes, sizeof bytes, &done, &err), REFIT_TLS_FAILED);
    assert_says(&err, "bad record mac");
    assert_int_equal(refit_tls_stream_read(pair.stream[AT_CLIENT], bytes, 1, &done, &err), REFIT_TLS_FAILED);
    tls_pair_close(&pair);
}

static void an_idle_stream_asks_to_read_only(void **state)
{
    char byte;
    size_t done;
    meet();
    assert_int_equal(refit_tls_stream_read(pair.stream[AT_SERVER], &byte, 1, &done, &err), REFIT_TLS_AGAIN);
    assert_int_equal(refit_tls_stream_events(pair.stream[AT_SERVER]), POLLIN);
    assert_int_equal(refit_tls_stream_write(pair.stream[AT_SERVER], "x", 1, &done, &err), REFIT_TLS_DONE);
    assert_int_equal(refit_tls_stream_events(pair.stream[AT_SERVER]), POLLIN);
    assert_int_equal(refit_tls_stream_unsent(pair.stream[AT_SERVER]), 0);
    tls_pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_writes_arrive),
        cmocka_unit_test(scattered_pieces_arrive),
        cmocka_unit_test(keys_are_renewed_on_the_way),
        cmocka_unit_test(a_shutdown_is_an_end_and_a_bare_fin_is_a_failure),
        cmocka_unit_test(changed_bytes_are_a_failure),
        cmocka_unit_test(an_idle_stream_asks_to_read_only),
    };
    return cmocka_run_group_tests_name("tls/stream", tests, tls_dir_create, tls_dir_remove);
}
