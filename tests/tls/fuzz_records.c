/* SPDX-License-Identifier: Apache-2.0
 *
 * What comes in behind a handshake: bytes as they are, and records that are sealed as a peer would, of any type and
 * content, in any cut. Data of sealed records comes out as it went in, up to the first thing that is refused.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tls/bulk.h"

#define ROUNDS_MAX 64

static struct {
    int fds[2];
    struct refit_tls_socket socket;
    struct refit_tls_report report;
    struct refit_tls_bulk *bulk;
    struct refit_tls_keys peer;
    uint8_t expected[1 << 16];
    size_t sent, got;
    bool raw; /* bytes that were not sealed went in: what comes out then is not known here */
} t;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool good)
{
    if (!good)
        abort();
}

static void begin(enum refit_tls_end end)
{
    struct refit_tls_secrets secrets = {.len = {32, 32}};
    memset(secrets.bytes[0], 1, 32);
    memset(secrets.bytes[1], 2, 32);
    memset(&t, 0, sizeof t);
    const struct refit_tls_bulk_config config = {
        .end = end, .suite = 0x1301, .records_per_key = 4, .socket = &t.socket, .report = &t.report};
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, t.fds) == 0 && refit_tls_socket_open(&t.socket, t.fds[0]));
    t.bulk = refit_tls_bulk_open(&config, &secrets);
    must(t.bulk && refit_tls_keys_open(&t.peer, refit_tls_suite(0x1301), secrets.bytes[!end], true));
}

static void end_all(void)
{
    refit_tls_bulk_free(t.bulk);
    refit_tls_socket_release(&t.socket);
    refit_tls_keys_wipe(&t.peer);
    close(t.fds[0]);
    close(t.fds[1]);
}

static void put_raw(const uint8_t *bytes, size_t len)
{
    t.raw |= len > 0;
    (void)!send(t.fds[1], bytes, len, MSG_NOSIGNAL);
}

static void put_sealed(uint8_t type, const uint8_t *bytes, size_t len)
{
    uint8_t record[256 + REFIT_TLS_OVERHEAD];
    size_t content;
    const struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = len};
    struct refit_tls_pieces pieces = {.iov = &iov, .count = 1};
    size_t whole = refit_tls_seal(&t.peer, (enum refit_tls_content)type, &pieces, record, &content);
    must(whole > 0);
    (void)!send(t.fds[1], record, whole, MSG_NOSIGNAL);
    if (type == REFIT_TLS_APPLICATION) {
        memcpy(t.expected + t.sent, bytes, len);
        t.sent += len;
    } else if (type == REFIT_TLS_HANDSHAKE && len == 5 && bytes[0] == 24) {
        must(refit_tls_keys_renew(&t.peer)); /* a peer of good will, if the rest is right too */
    } else if (type == 0) {
        t.raw = true; /* what was meant stands behind the padding */
    }
}

/* False: it has ended. */
static bool take(size_t room)
{
    uint8_t out[256];
    size_t done;
    enum refit_tls_step step;
    while ((step = refit_tls_bulk_read(t.bulk, out, room, &done)) == REFIT_TLS_DONE) {
        must(done > 0 && done <= room);
        if (!t.raw)
            must(done <= t.sent - t.got && memcmp(out, t.expected + t.got, done) == 0);
        t.got += done;
    }
    must(done == 0);
    return step == REFIT_TLS_AGAIN;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t at = 1, done;
    bool open = size > 0;
    if (!open)
        return 0;
    begin(data[0] & 1 ? REFIT_TLS_CLIENT : REFIT_TLS_SERVER);
    for (int i = 0; i < ROUNDS_MAX && open && at + 3 <= size; i++) {
        uint8_t kind = data[at], type = data[at + 1], len = data[at + 2];
        at += 3;
        len = len < size - at ? len : (uint8_t)(size - at);
        if (kind & 1)
            put_sealed(type, data + at, len);
        else
            put_raw(data + at, len);
        at += len;
        if (kind & 2)
            open = take(1 + (size_t)(kind >> 2));
        if (open && kind & 64)
            must(refit_tls_bulk_write(t.bulk, &(struct iovec){.iov_base = t.expected, .iov_len = 9}, 1, false, &done) !=
                 REFIT_TLS_END);
    }
    if (open)
        (void)take(sizeof(uint8_t[256]));
    end_all();
    return 0;
}
