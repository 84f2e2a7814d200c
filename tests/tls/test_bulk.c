/* SPDX-License-Identifier: Apache-2.0
 *
 * Records as a peer of ill will would make them: one end is the code that is tried, the other has the same secrets and
 * seals what it likes. Against OpenSSL: test_interop.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tls/bulk.h"

#define SUITE 0x1301
#define KEEP_KEY ((uint64_t)1 << 20)

static struct {
    int fds[2]; /* ours, the peer's */
    struct refit_tls_socket socket;
    struct refit_tls_report report;
    struct refit_tls_bulk *bulk;
    struct refit_tls_keys seals, opens; /* the peer's */
    uint8_t got[65536];
} t;

static void make_secrets(struct refit_tls_secrets *secrets)
{
    for (int end = 0; end < 2; end++) {
        secrets->len[end] = 32;
        for (uint8_t i = 0; i < 32; i++)
            secrets->bytes[end][i] = (uint8_t)(end * 100 + i);
    }
}

static void open_as(enum refit_tls_end end, uint64_t records_per_key)
{
    struct refit_tls_secrets secrets;
    memset(&t, 0, sizeof t);
    make_secrets(&secrets);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, t.fds), 0);
    assert_true(refit_tls_socket_open(&t.socket, t.fds[0]));
    const struct refit_tls_bulk_config config = {
        .end = end, .suite = SUITE, .records_per_key = records_per_key, .socket = &t.socket, .report = &t.report};
    t.bulk = refit_tls_bulk_open(&config, &secrets);
    assert_non_null(t.bulk);
    assert_true(refit_tls_keys_open(&t.seals, refit_tls_suite(SUITE), secrets.bytes[!end], true));
    assert_true(refit_tls_keys_open(&t.opens, refit_tls_suite(SUITE), secrets.bytes[end], false));
}

static void close_all(void)
{
    refit_tls_bulk_free(t.bulk);
    refit_tls_socket_release(&t.socket);
    refit_tls_keys_wipe(&t.seals);
    refit_tls_keys_wipe(&t.opens);
    for (int i = 0; i < 2; i++)
        close(t.fds[i]);
}

/* --- the peer ---------------------------------------------------------------------------------------------------- */

struct record {
    uint8_t bytes[REFIT_TLS_RECORD_MAX];
    size_t len;
};

static struct record sealed(unsigned type, const void *data, size_t len)
{
    struct record record;
    const struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    struct refit_tls_pieces pieces = {.iov = &iov, .count = 1};
    size_t content;
    record.len = refit_tls_seal(&t.seals, (enum refit_tls_content)type, &pieces, record.bytes, &content);
    assert_true(record.len == len + REFIT_TLS_OVERHEAD && content == len);
    return record;
}

static void put(const void *bytes, size_t len)
{
    assert_int_equal(send(t.fds[1], bytes, len, 0), (ssize_t)len);
}

static void put_record(const struct record *record)
{
    put(record->bytes, record->len);
}

static void say(unsigned type, const void *data, size_t len)
{
    const struct record record = sealed(type, data, len);
    put_record(&record);
}

/* The next record of ours; its type, 0: none. */
static uint8_t hear(uint8_t *content, size_t *len)
{
    static uint8_t bytes[REFIT_TLS_RECORD_MAX];
    size_t whole;
    uint8_t type;
    if (recv(t.fds[1], bytes, REFIT_TLS_HEADER, 0) != REFIT_TLS_HEADER)
        return 0;
    assert_null(refit_tls_measure(bytes, REFIT_TLS_HEADER, &whole));
    whole -= REFIT_TLS_HEADER;
    assert_int_equal(recv(t.fds[1], bytes + REFIT_TLS_HEADER, whole, 0), (ssize_t)whole);
    assert_null(refit_tls_unseal(&t.opens, bytes, whole + REFIT_TLS_HEADER, content, len, &type));
    return type;
}

static void expect_alert(int alert)
{
    uint8_t content[REFIT_TLS_CONTENT_MAX];
    size_t len;
    assert_int_equal(hear(content, &len), REFIT_TLS_ALERT);
    assert_int_equal(len, 2);
    assert_int_equal(content[0], SSL3_AL_FATAL);
    assert_int_equal(content[1], alert);
    assert_int_equal(hear(content, &len), 0);
}

/* --- our end ----------------------------------------------------------------------------------------------------- */

static void expect(enum refit_tls_step step, const char *text)
{
    size_t done;
    assert_int_equal(refit_tls_bulk_read(t.bulk, t.got, sizeof t.got, &done), step);
    assert_int_equal(done, text ? strlen(text) : 0);
    assert_memory_equal(t.got, text ? text : "", done);
}

static void expect_refused(int reason, int alert)
{
    expect(REFIT_TLS_FAILED, NULL);
    assert_int_equal(ERR_GET_REASON(t.report.reason), reason);
    expect_alert(alert);
    close_all();
}

static void write_all(const char *text)
{
    size_t done;
    const struct iovec iov = {.iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text)};
    assert_int_equal(refit_tls_bulk_write(t.bulk, &iov, 1, false, &done), REFIT_TLS_DONE);
    assert_int_equal(done, strlen(text));
}

/* --- records ----------------------------------------------------------------------------------------------------- */

static void unhex(const char *hex, uint8_t *out)
{
    for (; hex[0]; hex += 2) {
        const char two[] = {hex[0], hex[1], '\0'};
        *out++ = (uint8_t)strtoul(two, NULL, 16);
    }
}

/* RFC 8448, 3: the first record of application data that the client sends. */
static void a_record_of_the_standard_is_opened_and_made(void **state)
{
    uint8_t secret[32], expected[72], bytes[72], content[50], type;
    struct refit_tls_keys keys;
    size_t len;
    unhex("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5", secret);
    unhex("1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b62974e1f5a"
          "6292a2977014bd1e3deae63aeebb21694915e4", expected);
    assert_true(refit_tls_keys_open(&keys, refit_tls_suite(SUITE), secret, false));
    assert_null(refit_tls_unseal(&keys, expected, sizeof expected, content, &len, &type));
    assert_int_equal(type, REFIT_TLS_APPLICATION);
    assert_int_equal(len, sizeof content);
    for (uint8_t i = 0; i < sizeof content; i++)
        assert_int_equal(content[i], i);
    refit_tls_keys_wipe(&keys);
    assert_true(refit_tls_keys_open(&keys, refit_tls_suite(SUITE), secret, true));
    const struct iovec iov[] = {{content, 7}, {content + 7, 0}, {content + 7, sizeof content - 7}};
    struct refit_tls_pieces pieces = {.iov = iov, .count = 3};
    assert_int_equal(refit_tls_seal(&keys, REFIT_TLS_APPLICATION, &pieces, bytes, &len), sizeof bytes);
    assert_memory_equal(bytes, expected, sizeof bytes);
    refit_tls_keys_wipe(&keys);
}

static void only_known_suites_with_whole_secrets_are_taken(void **state)
{
    struct refit_tls_secrets secrets;
    struct refit_tls_bulk_config config = {.suite = 0x1304, .socket = &t.socket, .report = &t.report};
    make_secrets(&secrets);
    assert_null(refit_tls_bulk_open(&config, &secrets)); /* AES-CCM */
    config.suite = 0x1302;
    assert_null(refit_tls_bulk_open(&config, &secrets)); /* needs 48 bytes */
    config.suite = SUITE;
    secrets.len[1] = 0;
    assert_null(refit_tls_bulk_open(&config, &secrets));
}

static void every_changed_byte_is_seen(void **state)
{
    static const char text[] = "some weights";
    const size_t whole = sizeof text - 1 + REFIT_TLS_OVERHEAD;
    for (size_t at = 0; at < whole; at++) {
        open_as(REFIT_TLS_SERVER, KEEP_KEY);
        struct record record = sealed(REFIT_TLS_APPLICATION, text, sizeof text - 1);
        record.bytes[at] ^= at == 3 ? 0x40 : at == 4 ? 4 : 0x11;
        put_record(&record);
        shutdown(t.fds[1], SHUT_WR);
        if (at == 0)
            expect_refused(SSL_R_BAD_RECORD_TYPE, SSL_AD_UNEXPECTED_MESSAGE);
        else if (at == 3)
            expect_refused(SSL_R_ENCRYPTED_LENGTH_TOO_LONG, SSL_AD_RECORD_OVERFLOW);
        else
            expect_refused(SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC, SSL_AD_BAD_RECORD_MAC);
    }
}

static void a_cut_record_is_no_record(void **state)
{
    for (size_t cut = 0; cut < 5 + REFIT_TLS_OVERHEAD; cut++) {
        open_as(REFIT_TLS_SERVER, KEEP_KEY);
        const struct record record = sealed(REFIT_TLS_APPLICATION, "bytes", 5);
        put(record.bytes, cut);
        expect(REFIT_TLS_AGAIN, NULL);
        shutdown(t.fds[1], SHUT_WR);
        expect(REFIT_TLS_FAILED, NULL);
        assert_int_equal(t.report.reason, 0); /* the peer closed without a word */
        assert_int_equal(errno, 0);
        close_all();
    }
}

static void a_record_may_come_byte_by_byte(void **state)
{
    open_as(REFIT_TLS_SERVER, KEEP_KEY);
    const struct record record = sealed(REFIT_TLS_APPLICATION, "bytes", 5);
    for (size_t i = 0; i + 1 < record.len; i++) {
        put(record.bytes + i, 1);
        expect(REFIT_TLS_AGAIN, NULL);
    }
    put(record.bytes + record.len - 1, 1);
    expect(REFIT_TLS_DONE, "bytes");
    close_all();
}

static void replayed_reordered_and_missing_records_are_seen(void **state)
{
    for (int kind = 0; kind < 3; kind++) {
        open_as(REFIT_TLS_CLIENT, KEEP_KEY);
        const struct record first = sealed(REFIT_TLS_APPLICATION, "first", 5);
        const struct record second = sealed(REFIT_TLS_APPLICATION, "other", 5);
        if (kind == 0) { /* twice */
            put_record(&first);
            expect(REFIT_TLS_DONE, "first");
            put_record(&first);
        } else if (kind == 1) { /* the wrong way round */
            put_record(&second);
            put_record(&first);
        } else { /* one is missing */
            put_record(&first);
            expect(REFIT_TLS_DONE, "first");
            (void)sealed(REFIT_TLS_APPLICATION, "third", 5);
            say(REFIT_TLS_APPLICATION, "fifth", 5);
        }
        expect_refused(SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC, SSL_AD_BAD_RECORD_MAC);
    }
}

static void our_own_records_sent_back_are_refused(void **state)
{
    static uint8_t bytes[1000];
    open_as(REFIT_TLS_CLIENT, KEEP_KEY);
    write_all("weights");
    ssize_t len = recv(t.fds[1], bytes, sizeof bytes, 0);
    put(bytes, (size_t)len);
    t.opens.sequence++;
    expect_refused(SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC, SSL_AD_BAD_RECORD_MAC);
}

static void lengths_out_of_range_are_refused_before_the_bytes_come(void **state)
{
    static const struct {
        size_t len;
        int reason, alert;
    } cases[] = {{65535, SSL_R_ENCRYPTED_LENGTH_TOO_LONG, SSL_AD_RECORD_OVERFLOW},
                 {16384 + 256 + 1, SSL_R_ENCRYPTED_LENGTH_TOO_LONG, SSL_AD_RECORD_OVERFLOW},
                 {16384 + 18, SSL_R_ENCRYPTED_LENGTH_TOO_LONG, SSL_AD_RECORD_OVERFLOW},
                 {16, SSL_R_LENGTH_TOO_SHORT, SSL_AD_DECODE_ERROR},
                 {0, SSL_R_LENGTH_TOO_SHORT, SSL_AD_DECODE_ERROR}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint8_t header[] = {23, 3, 3, (uint8_t)(cases[i].len >> 8), (uint8_t)cases[i].len};
        open_as(REFIT_TLS_SERVER, KEEP_KEY);
        put(header, sizeof header);
        expect_refused(cases[i].reason, cases[i].alert);
    }
}

static void the_longest_record_is_taken_whatever_room_there_is(void **state)
{
    static uint8_t data[REFIT_TLS_CONTENT_MAX], got[REFIT_TLS_CONTENT_MAX + 1];
    static const size_t rooms[] = {1, 40, 16383, 16384, 16385};
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7 >> 3);
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        size_t at = 0, done;
        open_as(REFIT_TLS_SERVER, KEEP_KEY);
        say(REFIT_TLS_APPLICATION, data, sizeof data);
        while (at < sizeof data) {
            size_t room = rooms[i] < sizeof got - at ? rooms[i] : sizeof got - at;
            assert_int_equal(refit_tls_bulk_read(t.bulk, got + at, room, &done), REFIT_TLS_DONE);
            at += done;
            assert_true(refit_tls_bulk_holds(t.bulk) == (at < sizeof data));
        }
        assert_int_equal(at, sizeof data);
        assert_memory_equal(got, data, sizeof data);
        close_all();
    }
}

static void records_without_data_are_skipped_but_not_without_end(void **state)
{
    open_as(REFIT_TLS_SERVER, KEEP_KEY);
    for (int i = 0; i < 100; i++) {
        say(REFIT_TLS_APPLICATION, "", 0);
        if (i % 20 == 0)
            say(REFIT_TLS_APPLICATION, "x", 1);
    }
    for (int i = 0; i < 5; i++)
        expect(REFIT_TLS_DONE, "x");
    for (int i = 0; i < 14; i++)
        say(REFIT_TLS_APPLICATION, "", 0);
    expect_refused(SSL_R_RECORD_TOO_SMALL, SSL_AD_UNEXPECTED_MESSAGE);
}

/* Padding is zeros behind the type: a record of "type" 0 whose content ends with the true one. */
static void padding_is_taken_off(void **state)
{
    static const uint8_t padded[] = {'a', 0, 'b', 0, REFIT_TLS_APPLICATION, 0, 0, 0}, empty[100];
    size_t done;
    open_as(REFIT_TLS_SERVER, KEEP_KEY);
    say(0, padded, sizeof padded);
    assert_int_equal(refit_tls_bulk_read(t.bulk, t.got, sizeof t.got, &done), REFIT_TLS_DONE);
    assert_int_equal(done, 4);
    assert_memory_equal(t.got, "a\0b", 4);
    say(0, padded, sizeof padded);
    for (size_t at = 0; at < 4; at += done) /* without room for it, too */
        assert_int_equal(refit_tls_bulk_read(t.bulk, t.got + at, 3, &done), REFIT_TLS_DONE);
    assert_memory_equal(t.got, "a\0b", 4);
    say(0, empty, sizeof empty);
    expect_refused(SSL_R_BAD_RECORD_TYPE, SSL_AD_UNEXPECTED_MESSAGE);
}

static void other_types_are_refused(void **state)
{
    static const uint8_t inner[] = {1, 20, 24, 255}, outer[] = {20, 21, 22, 24, 0, 0x80};
    for (size_t i = 0; i < sizeof inner; i++) {
        open_as(REFIT_TLS_SERVER, KEEP_KEY);
        say(inner[i], "\1", 1);
        expect_refused(SSL_R_UNEXPECTED_RECORD, SSL_AD_UNEXPECTED_MESSAGE);
    }
    for (size_t i = 0; i < sizeof outer; i++) { /* in the clear: a warning that the peer closes, say */
        open_as(REFIT_TLS_SERVER, KEEP_KEY);
        put((const uint8_t[]){outer[i], 3, 3, 0, 2, 1, 0}, 7);
        expect_refused(SSL_R_BAD_RECORD_TYPE, SSL_AD_UNEXPECTED_MESSAGE);
    }
}

/* --- alerts ------------------------------------------------------------------------------------------------------ */

static void close_notify_is_the_end_and_nothing_is_read_behind_it(void **state)
{
    open_as(REFIT_TLS_SERVER, KEEP_KEY);
    say(REFIT_TLS_APPLICATION, "last", 4);
    say(REFIT_TLS_ALERT, "\1\x5a", 2); /* user_canceled: says that the next one follows */
    say(REFIT_TLS_ALERT, "\1\0", 2);
    say(REFIT_TLS_APPLICATION, "more", 4);
    expect(REFIT_TLS_DONE, "last");
    expect(REFIT_TLS_END, NULL);
    expect(REFIT_TLS_END, NULL);
    write_all("the other direction goes on");
    close_all();
}

static void other_alerts_are_failures_whatever_their_level(void **state)
{
    for (char level = 1; level <= 2; level++) {
        const char alert[] = {level, SSL_AD_INTERNAL_ERROR};
        uint8_t content[2];
        size_t len;
        open_as(REFIT_TLS_SERVER, KEEP_KEY);
        say(REFIT_TLS_APPLICATION, "first", 5);
        say(REFIT_TLS_ALERT, alert, 2);
        expect(REFIT_TLS_DONE, "first");
        expect(REFIT_TLS_FAILED, NULL);
        assert_int_equal(t.report.alert, SSL_AD_INTERNAL_ERROR);
        assert_int_equal(hear(content, &len), 0); /* no answer to it */
        close_all();
    }
}

static void alerts_of_another_length_are_refused(void **state)
{
    for (size_t len = 0; len < 5; len += len == 1 ? 2 : 1) {
        open_as(REFIT_TLS_SERVER, KEEP_KEY);
        say(REFIT_TLS_ALERT, "\1\0\1\0\0", len);
        expect_refused(SSL_R_BAD_LENGTH, SSL_AD_DECODE_ERROR);
    }
}

static void nothing_is_written_behind_our_own_close_notify(void **state)
{
    uint8_t content[REFIT_TLS_CONTENT_MAX];
    size_t len, done;
    const struct iovec iov = {.iov_base = content, .iov_len = 1};
    open_as(REFIT_TLS_CLIENT, KEEP_KEY);
    write_all("x");
    assert_int_equal(refit_tls_bulk_shutdown(t.bulk), REFIT_TLS_DONE);
    assert_int_equal(refit_tls_bulk_shutdown(t.bulk), REFIT_TLS_DONE);
    assert_int_equal(refit_tls_bulk_write(t.bulk, &iov, 1, false, &done), REFIT_TLS_FAILED);
    assert_int_equal(hear(content, &len), REFIT_TLS_APPLICATION);
    assert_int_equal(hear(content, &len), REFIT_TLS_ALERT);
    assert_memory_equal(content, "\1\0", 2);
    assert_int_equal(hear(content, &len), 0);
    close_all();
}

/* --- keys -------------------------------------------------------------------------------------------------------- */

static void renew_peer(bool asks)
{
    const uint8_t update[] = {24, 0, 0, 1, asks};
    say(REFIT_TLS_HANDSHAKE, update, sizeof update);
    assert_true(refit_tls_keys_renew(&t.seals));
}

static void the_peer_may_renew_its_key(void **state)
{
    uint8_t content[REFIT_TLS_CONTENT_MAX];
    size_t len;
    open_as(REFIT_TLS_SERVER, KEEP_KEY);
    for (int i = 0; i < 5; i++) {
        say(REFIT_TLS_APPLICATION, "old", 3);
        renew_peer(false);
        say(REFIT_TLS_APPLICATION, "new", 3);
        expect(REFIT_TLS_DONE, "old");
        expect(REFIT_TLS_DONE, "new");
    }
    write_all("x"); /* nobody asked for ours */
    assert_int_equal(hear(content, &len), REFIT_TLS_APPLICATION);
    assert_int_equal(refit_tls_bulk_key_updates(t.bulk), 0);
    close_all();
}

static void a_key_that_is_asked_for_is_renewed_once_before_the_next_data(void **state)
{
    uint8_t content[REFIT_TLS_CONTENT_MAX];
    size_t len;
    open_as(REFIT_TLS_CLIENT, KEEP_KEY);
    renew_peer(true);
    renew_peer(true);
    expect(REFIT_TLS_AGAIN, NULL);
    write_all("x");
    write_all("y");
    assert_int_equal(hear(content, &len), REFIT_TLS_HANDSHAKE);
    assert_int_equal(len, 5);
    assert_memory_equal(content, "\x18\0\0\1\0", 5);
    assert_true(refit_tls_keys_renew(&t.opens));
    for (int i = 0; i < 2; i++)
        assert_int_equal(hear(content, &len), REFIT_TLS_APPLICATION);
    assert_int_equal(refit_tls_bulk_key_updates(t.bulk), 1);
    close_all();
}

static void records_under_the_old_key_are_refused(void **state)
{
    open_as(REFIT_TLS_SERVER, KEEP_KEY);
    say(REFIT_TLS_HANDSHAKE, "\x18\0\0\1\0", 5);
    say(REFIT_TLS_APPLICATION, "old", 3);
    expect_refused(SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC, SSL_AD_BAD_RECORD_MAC);
}

static void no_key_seals_more_records_than_it_may(void **state)
{
    uint8_t content[REFIT_TLS_CONTENT_MAX];
    size_t len;
    unsigned under_key = 0, data = 0;
    open_as(REFIT_TLS_SERVER, 3);
    for (int i = 0; i < 20; i++)
        write_all("x");
    for (uint8_t type; (type = hear(content, &len)) != 0; under_key++) {
        assert_true(under_key < 3 || type == REFIT_TLS_HANDSHAKE);
        data += type == REFIT_TLS_APPLICATION;
        if (type != REFIT_TLS_HANDSHAKE)
            continue;
        assert_true(refit_tls_keys_renew(&t.opens));
        under_key = (unsigned)-1;
    }
    assert_int_equal(data, 20);
    assert_int_equal(refit_tls_bulk_key_updates(t.bulk), 6);
    close_all();
}

/* --- messages ---------------------------------------------------------------------------------------------------- */

static void tickets_are_skipped_by_clients_and_refused_by_servers(void **state)
{
    static const uint8_t ticket[] = {4, 0, 0, 3, 1, 2, 3}, two[] = {4, 0, 0, 0, 4, 0, 0, 1, 9};
    open_as(REFIT_TLS_CLIENT, KEEP_KEY);
    say(REFIT_TLS_HANDSHAKE, ticket, sizeof ticket);
    say(REFIT_TLS_HANDSHAKE, two, sizeof two);
    say(REFIT_TLS_APPLICATION, "data", 4);
    expect(REFIT_TLS_DONE, "data");
    close_all();
    open_as(REFIT_TLS_SERVER, KEEP_KEY);
    say(REFIT_TLS_HANDSHAKE, ticket, sizeof ticket);
    expect_refused(SSL_R_UNEXPECTED_MESSAGE, SSL_AD_UNEXPECTED_MESSAGE);
}

static void broken_messages_are_refused(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
        int reason, alert;
    } cases[] = {
        {"", 0, SSL_R_UNEXPECTED_MESSAGE, SSL_AD_UNEXPECTED_MESSAGE},
        {"\x18\0\0", 3, SSL_R_UNEXPECTED_MESSAGE, SSL_AD_UNEXPECTED_MESSAGE},   /* cut in its header */
        {"\x18\0\0\1", 4, SSL_R_UNEXPECTED_MESSAGE, SSL_AD_UNEXPECTED_MESSAGE}, /* cut behind it */
        {"\x18\0\0\0", 4, SSL_R_BAD_LENGTH, SSL_AD_DECODE_ERROR},
        {"\x18\0\0\2\0\0", 6, SSL_R_BAD_LENGTH, SSL_AD_DECODE_ERROR},
        {"\x18\0\0\1\2", 5, SSL_R_INVALID_KEY_UPDATE_TYPE, SSL_AD_ILLEGAL_PARAMETER},
        /* not the last of its record */
        {"\x18\0\0\1\0\x18\0\0\1\0", 10, SSL_R_UNEXPECTED_MESSAGE, SSL_AD_UNEXPECTED_MESSAGE},
        {"\4\0\0\4abc", 7, SSL_R_UNEXPECTED_MESSAGE, SSL_AD_UNEXPECTED_MESSAGE},
        {"\4\xff\xff\xff", 4, SSL_R_UNEXPECTED_MESSAGE, SSL_AD_UNEXPECTED_MESSAGE},
        {"\xd\0\0\0", 4, SSL_R_UNEXPECTED_MESSAGE, SSL_AD_UNEXPECTED_MESSAGE}, /* CertificateRequest, not offered */
        {"\x14\0\0\0", 4, SSL_R_UNEXPECTED_MESSAGE, SSL_AD_UNEXPECTED_MESSAGE}, /* Finished, once more */
        {"\1\0\0\0", 4, SSL_R_UNEXPECTED_MESSAGE, SSL_AD_UNEXPECTED_MESSAGE},  /* ClientHello: a renegotiation */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_as(REFIT_TLS_CLIENT, KEEP_KEY);
        say(REFIT_TLS_HANDSHAKE, cases[i].bytes, cases[i].len);
        say(REFIT_TLS_APPLICATION, "data", 4);
        expect_refused(cases[i].reason, cases[i].alert);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_of_the_standard_is_opened_and_made),
        cmocka_unit_test(only_known_suites_with_whole_secrets_are_taken),
        cmocka_unit_test(every_changed_byte_is_seen),
        cmocka_unit_test(a_cut_record_is_no_record),
        cmocka_unit_test(a_record_may_come_byte_by_byte),
        cmocka_unit_test(replayed_reordered_and_missing_records_are_seen),
        cmocka_unit_test(our_own_records_sent_back_are_refused),
        cmocka_unit_test(lengths_out_of_range_are_refused_before_the_bytes_come),
        cmocka_unit_test(the_longest_record_is_taken_whatever_room_there_is),
        cmocka_unit_test(records_without_data_are_skipped_but_not_without_end),
        cmocka_unit_test(padding_is_taken_off),
        cmocka_unit_test(other_types_are_refused),
        cmocka_unit_test(close_notify_is_the_end_and_nothing_is_read_behind_it),
        cmocka_unit_test(other_alerts_are_failures_whatever_their_level),
        cmocka_unit_test(alerts_of_another_length_are_refused),
        cmocka_unit_test(nothing_is_written_behind_our_own_close_notify),
        cmocka_unit_test(the_peer_may_renew_its_key),
        cmocka_unit_test(a_key_that_is_asked_for_is_renewed_once_before_the_next_data),
        cmocka_unit_test(records_under_the_old_key_are_refused),
        cmocka_unit_test(no_key_seals_more_records_than_it_may),
        cmocka_unit_test(tickets_are_skipped_by_clients_and_refused_by_servers),
        cmocka_unit_test(broken_messages_are_refused),
    };
    return cmocka_run_group_tests_name("tls/bulk", tests, NULL, NULL);
}
