/* SPDX-License-Identifier: Apache-2.0
 *
 * One stream pair over loopback TCP, plain and with TLS 1.3, in turns: GB/s of each and the ratio of the medians. "Data
 * path" is what transport/tcp does with bytes that it verifies: digested in memory that no cache holds, then sent;
 * received into a buffer, and from there copied to such memory and digested in one pass. Then both ends by one thread,
 * piece by piece: nothing waits, and the fastest fifth of the pieces shows what the work itself takes on a machine with
 * other load, too.
 *   bench_tls [SECONDS_PER_TURN [ROUNDS]]
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "layouts/digest.h"
#include "tests/tls/pki.h"
#include "tls/gcm.h"
#include "tls/stream.h"

#define ARENA_BYTES ((size_t)256 << 20)
#define PIECE_BYTES ((size_t)512 << 10) /* of a send, and the receiver's buffer: it stays in cache */
#define ROUNDS_MAX 64
#define PUMPED 1000 /* pieces */

struct end {
    int fd;
    struct refit_tls_stream *stream; /* NULL: plain */
    char *arena, *buffer;
    bool data_path, more; /* more: a send follows each */
    struct refit_digest digest;
    int64_t until_ns;
    size_t moved;
    double cpu_s;
    bool kernel;
};

static void die(const char *what)
{
    fprintf(stderr, "bench_tls: %s\n", what);
    exit(1);
}

static void wait_for(int fd, short events)
{
    struct pollfd polled = {.fd = fd, .events = events};
    if (poll(&polled, 1, 10000) != 1)
        die("nothing moves");
}

static void settle(struct end *end)
{
    struct refit_error err = {0};
    struct refit_tls_stream_info info;
    enum refit_tls_step step;
    while ((step = refit_tls_stream_handshake(end->stream, &err)) == REFIT_TLS_AGAIN)
        wait_for(end->fd, refit_tls_stream_events(end->stream));
    if (step != REFIT_TLS_DONE)
        die(err.text);
    refit_tls_stream_read_info(end->stream, &info);
    end->kernel = info.kernel_sends;
}

static size_t put(struct end *end, char *data, size_t len)
{
    struct refit_error err = {0};
    const struct iovec piece = {.iov_base = data, .iov_len = len};
    size_t done = 0;
    if (!end->stream) {
        ssize_t sent = send(end->fd, data, len, MSG_NOSIGNAL | (end->more ? MSG_MORE : 0));
        if (sent < 0 && errno != EAGAIN)
            die(strerror(errno));
        return sent > 0 ? (size_t)sent : 0;
    }
    if (refit_tls_stream_writev(end->stream, &piece, 1, end->more, &done, &err) == REFIT_TLS_FAILED)
        die(err.text);
    return done;
}

static double cpu_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void *send_all(void *context)
{
    struct end *end = context;
    struct refit_error err = {0};
    if (end->stream)
        settle(end);
    for (size_t piece = 0; refit_clock_ns() < end->until_ns; piece++) {
        char *data = end->arena + (end->data_path ? piece * PIECE_BYTES % ARENA_BYTES : 0);
        if (end->data_path)
            refit_digest_add(&end->digest, data, PIECE_BYTES, piece * PIECE_BYTES);
        for (size_t at = 0, done; at < PIECE_BYTES; at += done) {
            done = put(end, data + at, PIECE_BYTES - at);
            if (done == 0)
                wait_for(end->fd, POLLOUT);
        }
    }
    while (end->stream && refit_tls_stream_flush(end->stream, &err) == REFIT_TLS_AGAIN)
        wait_for(end->fd, POLLOUT);
    while (end->stream && refit_tls_stream_shutdown(end->stream, &err) == REFIT_TLS_AGAIN)
        wait_for(end->fd, POLLOUT);
    shutdown(end->fd, SHUT_WR);
    end->cpu_s = cpu_now();
    return NULL;
}

/* What is there, up to `room` bytes. */
static enum refit_tls_step fetch(struct end *end, size_t room, size_t *got)
{
    struct refit_error err = {0};
    enum refit_tls_step step = REFIT_TLS_DONE;
    *got = 0;
    if (!end->stream) {
        ssize_t n = recv(end->fd, end->buffer, room, 0);
        if (n < 0 && errno != EAGAIN)
            die(strerror(errno));
        *got = n > 0 ? (size_t)n : 0;
        return n > 0 ? REFIT_TLS_DONE : n == 0 ? REFIT_TLS_END : REFIT_TLS_AGAIN;
    }
    for (size_t done; *got < room && step == REFIT_TLS_DONE; *got += done)
        step = refit_tls_stream_read(end->stream, end->buffer + *got, room - *got, &done, &err);
    if (step == REFIT_TLS_FAILED)
        die(err.text);
    return step;
}

static enum refit_tls_step take(struct end *end)
{
    size_t at = end->moved % ARENA_BYTES, done;
    enum refit_tls_step step = fetch(end, PIECE_BYTES - at % PIECE_BYTES, &done);
    if (end->data_path && done > 0)
        refit_digest_copy(&end->digest, end->arena + at, end->buffer, done, end->moved);
    end->moved += done;
    return step;
}

/* False at the end. */
static bool get(struct end *end)
{
    enum refit_tls_step step = take(end);
    if (step == REFIT_TLS_AGAIN)
        wait_for(end->fd, POLLIN);
    return step != REFIT_TLS_END;
}

static void *receive_all(void *context)
{
    struct end *end = context;
    const int low_water = PIECE_BYTES;
    if (end->stream)
        settle(end);
    setsockopt(end->fd, SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof low_water); /* a close wakes it as well */
    while (get(end))
        ;
    end->cpu_s = cpu_now();
    return NULL;
}

static void join_loopback(int fds[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    fds[1] = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &len) ||
        connect(fds[1], (struct sockaddr *)&address, sizeof address) || (fds[0] = accept(listener, NULL, NULL)) < 0)
        die("can't make a connection over loopback");
    close(listener);
}

struct figures {
    double gb_per_s, send_ns, receive_ns; /* CPU time per byte of each end's thread */
};

static char *arenas[2], *buffer;

static void open_pair(struct end ends[2], struct refit_tls *const tls[2], bool data_path, bool more)
{
    struct refit_error err;
    int fds[2];
    join_loopback(fds);
    for (int i = 0; i < 2; i++) {
        ends[i] = (struct end){
            .fd = fds[i], .arena = arenas[i], .buffer = buffer, .data_path = data_path, .more = more};
        if (fcntl(fds[i], F_SETFL, O_NONBLOCK) != 0)
            die("can't make a socket non-blocking");
        if (tls[i] && refit_tls_stream_open(tls[i], fds[i], NULL, &ends[i].stream, &err))
            die(err.text);
    }
}

static void close_pair(struct end ends[2])
{
    if (ends[0].data_path && memcmp(&ends[0].digest, &ends[1].digest, sizeof ends[0].digest) != 0)
        die("what came in is not what was sent");
    for (int i = 0; i < 2; i++) {
        refit_tls_stream_free(ends[i].stream);
        close(ends[i].fd);
    }
}

static struct figures turn(struct refit_tls *const tls[2], bool data_path, double seconds, bool *kernel)
{
    struct end ends[2];
    pthread_t threads[2];
    open_pair(ends, tls, data_path, true);
    int64_t start = refit_clock_ns();
    ends[1].until_ns = start + (int64_t)(seconds * 1e9);
    pthread_create(&threads[0], NULL, receive_all, &ends[0]);
    pthread_create(&threads[1], NULL, send_all, &ends[1]);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    double took = (double)(refit_clock_ns() - start) / 1e9;
    *kernel = ends[1].kernel;
    close_pair(ends);
    double moved = (double)ends[0].moved;
    return (struct figures){moved / took / 1e9, ends[1].cpu_s / moved * 1e9, ends[0].cpu_s / moved * 1e9};
}

static int by_speed(const void *a, const void *b)
{
    double x = ((const struct figures *)a)->gb_per_s, y = ((const struct figures *)b)->gb_per_s;
    return (x > y) - (x < y);
}

static struct figures show(const char *name, struct figures *all, int count)
{
    qsort(all, (size_t)count, sizeof *all, by_speed);
    struct figures median = all[count / 2];
    printf("  %-5s %.2f GB/s (%.2f to %.2f); CPU per byte: sender %.3f ns, receiver %.3f ns\n", name, median.gb_per_s,
           all[0].gb_per_s, all[count - 1].gb_per_s, median.send_ns, median.receive_ns);
    return median;
}

/* --- both ends by one thread ------------------------------------------------------------------------------------- */

static void shake(struct end ends[2])
{
    enum refit_tls_step steps[2] = {REFIT_TLS_AGAIN, REFIT_TLS_AGAIN};
    struct refit_error err;
    while (steps[0] == REFIT_TLS_AGAIN || steps[1] == REFIT_TLS_AGAIN)
        for (int i = 0; i < 2; i++) {
            steps[i] = refit_tls_stream_handshake(ends[i].stream, &err);
            if (steps[i] == REFIT_TLS_FAILED)
                die(err.text);
        }
}

static void pump_piece(struct end ends[2], size_t number, double ns[2])
{
    struct refit_error err;
    char *data = ends[1].arena + number * PIECE_BYTES % ARENA_BYTES;
    size_t at = 0;
    int64_t start = refit_clock_ns(), now;
    ns[0] = ns[1] = 0;
    refit_digest_add(&ends[1].digest, data, PIECE_BYTES, number * PIECE_BYTES);
    while (ends[0].moved < (number + 1) * PIECE_BYTES) {
        for (size_t done = 1; at < PIECE_BYTES && done > 0; at += done)
            done = put(&ends[1], data + at, PIECE_BYTES - at);
        if (ends[1].stream && refit_tls_stream_flush(ends[1].stream, &err) == REFIT_TLS_FAILED)
            die(err.text);
        now = refit_clock_ns();
        ns[1] += (double)(now - start);
        (void)take(&ends[0]);
        start = refit_clock_ns();
        ns[0] += (double)(start - now);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void pump(const char *name, struct refit_tls *const tls[2])
{
    static double ns[2][PUMPED];
    struct end ends[2];
    double one[2];
    open_pair(ends, tls, true, false);
    if (tls[0])
        shake(ends);
    for (size_t i = 0; i < PUMPED; i++) {
        pump_piece(ends, i, one);
        ns[0][i] = one[0];
        ns[1][i] = one[1];
    }
    close_pair(ends);
    for (int i = 0; i < 2; i++)
        qsort(ns[i], PUMPED, sizeof ns[i][0], by_value);
    printf("  %-5s sender %.3f ns, receiver %.3f ns\n", name, ns[1][PUMPED / 5] / PIECE_BYTES,
           ns[0][PUMPED / 5] / PIECE_BYTES);
}

static void open_ends(const char *directory, struct refit_tls *tls[2])
{
    const struct pki_leaf leaf = {.name = "node", .ca = "ca"};
    char cert[96], key[96], ca[96];
    struct refit_error err;
    if (!pki_make_ca(directory, "ca") || !pki_make_leaf(directory, &leaf))
        die("can't make certificates");
    snprintf(cert, sizeof cert, "%s/node.pem", directory);
    snprintf(key, sizeof key, "%s/node.key", directory);
    snprintf(ca, sizeof ca, "%s/ca.pem", directory);
    for (int i = 0; i < 2; i++) {
        const struct refit_tls_config config = {.end = i == 0 ? REFIT_TLS_SERVER : REFIT_TLS_CLIENT,
                                                .use = REFIT_TLS_DATA, .cert = cert, .key = key, .ca = ca};
        if (refit_tls_open(&config, &tls[i], &err))
            die(err.text);
    }
}

static void remove_files(const char *directory)
{
    static const char *const names[] = {"node.pem", "node.key", "ca.pem", "ca.key"};
    char path[96];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        unlink(path);
    }
    rmdir(directory);
}

static void compare(const char *name, struct refit_tls *const tls[2], bool data_path, double seconds, int rounds)
{
    static struct figures plain[ROUNDS_MAX], secure[ROUNDS_MAX];
    struct refit_tls *const none[2] = {NULL, NULL};
    bool kernel = false;
    turn(none, data_path, seconds, &kernel);
    for (int i = 0; i < rounds; i++) {
        plain[i] = turn(none, data_path, seconds, &kernel);
        secure[i] = turn(tls, data_path, seconds, &kernel);
    }
    printf("%s\n", name);
    struct figures a = show("plain", plain, rounds), b = show(kernel ? "ktls" : "tls", secure, rounds);
    printf("  ratio %.2f\n", b.gb_per_s / a.gb_per_s);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 1.0;
    int rounds = argc > 2 ? atoi(argv[2]) : 7;
    char directory[] = "/tmp/refit-bench-tls.XXXXXX";
    struct refit_tls *tls[2];
    if (seconds <= 0 || rounds < 1 || rounds > ROUNDS_MAX || !mkdtemp(directory)) {
        fprintf(stderr, "usage: bench_tls [SECONDS_PER_TURN [ROUNDS]]\n");
        return 2;
    }
    open_ends(directory, tls);
    buffer = malloc(PIECE_BYTES);
    if (!buffer)
        die("no memory");
    for (int i = 0; i < 2; i++) {
        arenas[i] = malloc(ARENA_BYTES);
        if (!arenas[i])
            die("no memory");
        memset(arenas[i], 7 + i, ARENA_BYTES);
    }
    compare("data path", tls, true, seconds, rounds);
    compare("socket to socket", tls, false, seconds, rounds);
    printf("data path, both ends by one thread: time per byte\n");
    pump("plain", (struct refit_tls *[]){NULL, NULL});
    pump("tls", tls);
    printf("AES-GCM by %s\n", refit_tls_gcm_library() ? refit_tls_gcm_library() : OpenSSL_version(OPENSSL_VERSION));
    for (int i = 0; i < 2; i++) {
        refit_tls_close(tls[i]);
        free(arenas[i]);
    }
    free(buffer);
    remove_files(directory);
    return 0;
}
