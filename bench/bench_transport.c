/* SPDX-License-Identifier: Apache-2.0
 *
 * Moving bytes between two processes on this machine, against what bare sockets and memcpy do here: interleaved rounds
 * in one run, ratios within each round, medians and quartiles over the rounds, CPU seconds of both processes.
 *
 *   bench_transport [--mib N] [--rounds N] [--streams N] [--only WAY]
 *
 * WAY is the number of a row, from 1; the two bases always run.
 *
 * plain      one blocking send loop and one receive loop per stream, from touched memory into the touched memfd
 * tcp        contiguous shards: one source rank, one destination rank, whole tensors
 * tls        the same over TLS 1.3, against `tcp`: what encryption costs on this path
 * tcp rows   rows of 3,584 bytes: one source rank cut by columns to two destination ranks, at 1.00x the bytes
 * memcpy     one thread, from the sender's mapping to the memfd's
 * local      the same bytes, pulled by one thread and digested by both processes
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "tests/tls/pki.h"
#include "tls/tls.h"
#include "transport/transport.h"

#define ROUNDS_MAX 101
#define STREAMS_MAX 8
#define WAIT_MS 60000
#define PLAIN_PIECE (1u << 20)
#define COPY_PIECE (4u << 20)
#define ROW_ELEMENTS 1792 /* BF16: 3,584 bytes */
#define TENSORS 16
#define INBOX 256 /* completions, more than are ever owed */

enum way { PLAIN, TCP, TCP_OFF, TLS, ROWS, ROWS_OFF, MEMCPY, LOCAL, LOCAL_OFF, WAYS };

struct shape { /* one model, in two layouts */
    struct refit_layout *source, *destination;
    struct refit_plan *holder_plan, *receiver_plan;
    struct refit_arena *from, *to[2];
    uint32_t destinations;
    uint64_t bytes;
};

struct result {
    double seconds, cpu_seconds;
};

static struct options {
    size_t mib;
    unsigned rounds, streams, only;
} options = {.mib = 1024, .rounds = 15, .streams = 1};

static uint8_t *source_bytes, *destination_bytes;
static int source_fd, destination_fd;
static struct shape whole, rows;
static char directory[] = "/tmp/refit-bench-XXXXXX";
static struct result results[ROUNDS_MAX][WAYS];
static struct refit_tls *tls[2]; /* server, client */

static void must(bool ok, const char *what)
{
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static void must_refit(enum refit_status status, const struct refit_error *err)
{
    if (status != REFIT_OK) {
        fprintf(stderr, "%s: %s\n", refit_status_name(status), err->text);
        exit(1);
    }
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static double now_s(void)
{
    return 1e-9 * (double)refit_clock_ns();
}

/* ---- setting up, before the sender is forked ---- */

static uint8_t *touched_memfd(const char *name, size_t bytes, int value, int *fd)
{
    *fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    must(*fd >= 0 && ftruncate(*fd, (off_t)bytes) == 0, name);
    must(fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0, name);
    uint8_t *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    must(data != MAP_FAILED, name);
    memset(data, value, bytes);
    return data;
}

static struct refit_layout *layout(unsigned ranks, const char *placement, size_t row_count, size_t columns)
{
    char text[8192];
    struct refit_error err;
    struct refit_layout *out;
    int n = snprintf(text, sizeof text,
                     "{\"format\":\"refit-layout/1\",\"ranks\":%u,\"meshes\":{\"m\":{\"axes\":[\"t\"],\"shape\":[%u]}},"
                     "\"entries\":[{\"tensor\":\"layers.{l}.weight\",\"for\":{\"l\":[0,%d]},\"dtype\":\"BF16\","
                     "\"shape\":[%zu,%zu],\"mesh\":\"m\",\"placements\":[\"%s\"]}]}",
                     ranks, ranks, TENSORS, row_count, columns, placement);
    must_refit(refit_layout_parse(text, (size_t)n, "bench layout", &out, &err), &err);
    return out;
}

static struct refit_arena *bind_rank(const struct refit_layout *of, uint32_t rank, uint8_t *memory, int fd,
                                     uint64_t *used)
{
    struct refit_error err;
    struct refit_arena *arena;
    uint64_t bytes = refit_layout_arena_bytes(of, rank);
    must_refit(refit_arena_create(REFIT_ARENA_HOST, bytes, &arena, &err), &err);
    must_refit(refit_arena_bind_host(arena, 0, memory + *used, bytes, fd, *used, &err), &err);
    *used += bytes;
    return arena;
}

static void shape_open(struct shape *shape, uint32_t destinations, size_t row_count, size_t columns)
{
    struct refit_error err;
    uint64_t used = 0;
    shape->destinations = destinations;
    shape->source = layout(1, "Replicate", row_count, columns);
    shape->destination = layout(destinations, "Shard(1)", row_count, columns);
    struct refit_plan_scope source = {.side = REFIT_SOURCE, .rank = 0};
    struct refit_plan_scope destination = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS};
    must_refit(refit_plan_build(shape->source, shape->destination, source, &shape->holder_plan, &err), &err);
    must_refit(refit_plan_build(shape->source, shape->destination, destination, &shape->receiver_plan, &err), &err);
    shape->bytes = refit_plan_bytes(shape->receiver_plan);
    shape->from = bind_rank(shape->source, 0, source_bytes, source_fd, &used);
    used = 0;
    for (uint32_t i = 0; i < destinations; i++)
        shape->to[i] = bind_rank(shape->destination, i, destination_bytes, destination_fd, &used);
}

/* They are read once, before the sender is forked. */
static void open_tls(void)
{
    const struct pki_leaf leaf = {.name = "node", .ca = "ca", .san = "IP:127.0.0.1", .serial = 1};
    static const char *const names[] = {"node.pem", "node.key", "ca.pem", "ca.key"};
    char path[4][64];
    struct refit_error err;
    must(pki_make_ca(directory, "ca") && pki_make_leaf(directory, &leaf), "certificates");
    for (int i = 0; i < 4; i++)
        snprintf(path[i], sizeof path[i], "%s/%s", directory, names[i]);
    for (int i = 0; i < 2; i++) {
        const struct refit_tls_config config = {.end = i == 0 ? REFIT_TLS_SERVER : REFIT_TLS_CLIENT,
                                                .use = REFIT_TLS_DATA,
                                                .cert = path[0], .key = path[1], .ca = path[2]};
        must_refit(refit_tls_open(&config, &tls[i], &err), &err);
    }
}

static void set_up(void)
{
    size_t row_count = (options.mib << 20) / TENSORS / (2 * ROW_ELEMENTS * 2);
    size_t bytes = row_count * TENSORS * 2 * ROW_ELEMENTS * 2 + (1u << 20);
    source_bytes = touched_memfd("bench-source", bytes, 1, &source_fd);
    destination_bytes = touched_memfd("bench-destination", bytes, 2, &destination_fd);
    uint64_t *word = (uint64_t *)(void *)source_bytes;
    for (size_t i = 0; i < bytes / 8; i++)
        word[i] = i * 0x9e3779b97f4a7c15u;
    shape_open(&whole, 1, row_count, 2 * ROW_ELEMENTS);
    shape_open(&rows, 2, row_count, 2 * ROW_ELEMENTS);
    must(mkdtemp(directory) != NULL, directory);
    open_tls();
}

static bool runs(int way)
{
    bool base = way == PLAIN || way == MEMCPY || (way == TCP && options.only == TLS + 1);
    return options.only == 0 || base || way == (int)options.only - 1;
}

static void remove_files(void)
{
    static const char *const names[] = {"node.pem", "node.key", "ca.pem", "ca.key"};
    char path[64];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        unlink(path);
    }
    rmdir(directory);
}

/* ---- messages between the two processes ---- */

struct order {
    int way; /* -1: leave */
    uint16_t port;
    uint8_t token[REFIT_TOKEN_BYTES];
};

static void put(int fd, const void *data, size_t len)
{
    must(write(fd, data, len) == (ssize_t)len, "pipe between the processes");
}

static void get(int fd, void *data, size_t len)
{
    must(read(fd, data, len) == (ssize_t)len, "pipe between the processes");
}

static bool is_rows(int way)
{
    return way == ROWS || way == ROWS_OFF;
}

static bool is_local(int way)
{
    return way == LOCAL || way == LOCAL_OFF;
}

static bool is_off(int way)
{
    return way == TCP_OFF || way == ROWS_OFF || way == LOCAL_OFF;
}

/* ---- plain sockets ---- */

struct part {
    pthread_t thread;
    int fd;
    uint8_t *at;
    size_t len;
};

static void *plain_send(void *arg)
{
    struct part *part = arg;
    for (size_t done = 0; done < part->len;) {
        size_t len = part->len - done < PLAIN_PIECE ? part->len - done : PLAIN_PIECE;
        ssize_t n = send(part->fd, part->at + done, len, MSG_NOSIGNAL);
        must(n > 0, "send");
        done += (size_t)n;
    }
    return NULL;
}

static void *plain_receive(void *arg)
{
    struct part *part = arg;
    for (size_t done = 0; done < part->len;) {
        size_t len = part->len - done < PLAIN_PIECE ? part->len - done : PLAIN_PIECE;
        ssize_t n = recv(part->fd, part->at + done, len, 0);
        must(n > 0, "recv");
        done += (size_t)n;
    }
    return NULL;
}

static void run_parts(struct part *parts, uint8_t *memory, void *(*run)(void *))
{
    size_t step = whole.bytes / options.streams;
    for (unsigned i = 0; i < options.streams; i++) {
        parts[i].at = memory + i * step;
        parts[i].len = i + 1 == options.streams ? whole.bytes - i * step : step;
        must(pthread_create(&parts[i].thread, NULL, run, &parts[i]) == 0, "thread");
    }
    for (unsigned i = 0; i < options.streams; i++) {
        pthread_join(parts[i].thread, NULL);
        close(parts[i].fd);
    }
}

static void sender_plain(int control, uint16_t port)
{
    struct part parts[STREAMS_MAX];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (unsigned i = 0; i < options.streams; i++) {
        parts[i].fd = socket(AF_INET, SOCK_STREAM, 0);
        must(connect(parts[i].fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    }
    char go;
    get(control, &go, 1);
    double cpu = cpu_seconds();
    run_parts(parts, source_bytes, plain_send);
    cpu = cpu_seconds() - cpu;
    put(control, &cpu, sizeof cpu);
}

static struct result receiver_plain(int control)
{
    struct part parts[STREAMS_MAX];
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    must(bind(listening, (struct sockaddr *)&address, sizeof address) == 0 && listen(listening, STREAMS_MAX) == 0 &&
             getsockname(listening, (struct sockaddr *)&address, &len) == 0,
         "listen");
    struct order order = {.way = PLAIN, .port = ntohs(address.sin_port)};
    put(control, &order, sizeof order);
    for (unsigned i = 0; i < options.streams; i++)
        must((parts[i].fd = accept(listening, NULL, NULL)) >= 0, "accept");
    double cpu = cpu_seconds(), start = now_s(), other;
    put(control, "", 1);
    run_parts(parts, destination_bytes, plain_receive);
    struct result result = {.seconds = now_s() - start, .cpu_seconds = cpu_seconds() - cpu};
    get(control, &other, sizeof other);
    result.cpu_seconds += other;
    close(listening);
    return result;
}

/* ---- the transports ---- */

static struct refit_endpoint_config config_of(int way, const uint8_t *token)
{
    struct shape *shape = is_rows(way) ? &rows : &whole;
    struct refit_endpoint_config config = {.refit_id = "bench",
                                           .plan = shape->holder_plan,
                                           .role = REFIT_HOLDER,
                                           .arenas = &shape->from,
                                           .arena_count = 1,
                                           .verify = !is_off(way),
                                           .streams = options.streams,
                                           .tls = tls[1]};
    memcpy(config.token, token, REFIT_TOKEN_BYTES);
    return config;
}

static const struct refit_transport *transport_of(int way)
{
    return is_local(way) ? &refit_transport_local : &refit_transport_tcp;
}

static json_t *card_of(int way, uint16_t port)
{
    if (is_local(way))
        return json_pack("{s:s, s:s+}", "transport", "local", "path", directory, "/bulk");
    return json_pack("{s:s, s:s, s:i, s:b}", "transport", "tcp", "address", "127.0.0.1", "port", (int)port, "tls",
                     (int)(way == TLS));
}

static void sender_refit(int control, const struct order *order)
{
    struct refit_error err;
    struct refit_endpoint *holder;
    const struct refit_transport *transport = transport_of(order->way);
    struct refit_endpoint_config config = config_of(order->way, order->token);
    json_t *card = card_of(order->way, order->port);
    must_refit(transport->open(&config, &holder, &err), &err);
    must_refit(transport->connect(holder, card, refit_deadline_in_ms(WAIT_MS), &err), &err);
    double cpu = cpu_seconds();
    put(control, "", 1);
    must_refit(transport->wait_done(holder, refit_deadline_in_ms(WAIT_MS), &err), &err);
    cpu = cpu_seconds() - cpu;
    put(control, &cpu, sizeof cpu);
    transport->close(holder);
    json_decref(card);
}

static void pull_all(const struct refit_transport *transport, struct refit_endpoint *receiver,
                     struct refit_inbox *inbox, struct shape *shape)
{
    size_t edge_count, edge = 0, out = 0;
    uint32_t batch = 0;
    struct refit_error err;
    struct refit_transfer_completion done[16];
    const struct refit_edge *edges = refit_plan_edges(shape->receiver_plan, &edge_count);
    while (edge < edge_count || out > 0) {
        enum refit_status status =
            edge < edge_count ? transport->post(receiver, 0, &edges[edge], batch, &err) : REFIT_BUSY;
        if (status == REFIT_OK) {
            out++;
            if (++batch == edges[edge].batches) {
                batch = 0;
                edge++;
            }
        } else if (status == REFIT_BUSY) {
            size_t count = refit_inbox_take(inbox, done, 16, refit_deadline_in_ms(WAIT_MS));
            for (size_t i = 0; i < count; i++)
                must(done[i].status == REFIT_OK, "a batch did not land");
            out -= count;
        } else {
            must_refit(status, &err);
        }
    }
}

static struct result receiver_refit(int control, int way, struct refit_listener *listener)
{
    struct refit_error err;
    struct refit_endpoint *receiver;
    const struct refit_transport *transport = transport_of(way);
    struct shape *shape = is_rows(way) ? &rows : &whole;
    struct order order = {.way = way, .port = refit_listener_tcp_port(listener)};
    char ready;
    refit_io_random(order.token, sizeof order.token);
    struct refit_endpoint_config config = config_of(way, order.token);
    struct refit_inbox *inbox;
    must_refit(refit_inbox_create(INBOX, &inbox, &err), &err);
    config.role = REFIT_RECEIVER;
    config.holder = 1;
    config.inbox = inbox;
    config.plan = shape->receiver_plan;
    config.arenas = shape->to;
    config.arena_count = shape->destinations;
    config.listener = listener;
    must_refit(transport->open(&config, &receiver, &err), &err);
    put(control, &order, sizeof order);
    get(control, &ready, 1);
    double cpu = cpu_seconds(), start = now_s(), other;
    pull_all(transport, receiver, inbox, shape);
    struct result result = {.seconds = now_s() - start, .cpu_seconds = cpu_seconds() - cpu};
    must_refit(transport->finish(receiver, refit_deadline_in_ms(WAIT_MS), &err), &err);
    get(control, &other, sizeof other);
    result.cpu_seconds += other;
    transport->close(receiver);
    refit_inbox_destroy(inbox);
    return result;
}

static struct result run_memcpy(void)
{
    double cpu = cpu_seconds(), start = now_s();
    for (size_t done = 0; done < whole.bytes;) {
        size_t len = whole.bytes - done < COPY_PIECE ? whole.bytes - done : COPY_PIECE;
        memcpy(destination_bytes + done, source_bytes + done, len);
        done += len;
    }
    return (struct result){.seconds = now_s() - start, .cpu_seconds = cpu_seconds() - cpu};
}

/* ---- the two processes ---- */

static void sender(int control)
{
    for (;;) {
        struct order order;
        get(control, &order, sizeof order);
        if (order.way < 0)
            exit(0);
        if (order.way == PLAIN)
            sender_plain(control, order.port);
        else
            sender_refit(control, &order);
    }
}

static void receiver(int control)
{
    struct refit_error err;
    struct refit_listener *listener, *secure;
    char path[64];
    snprintf(path, sizeof path, "%s/bulk", directory);
    struct refit_listener_config config = {.tcp_address = "127.0.0.1", .local_path = path};
    struct refit_listener_config with_tls = {.tcp_address = "127.0.0.1", .tls = tls[0]};
    must_refit(refit_listener_start(&config, &listener, &err), &err);
    must_refit(refit_listener_start(&with_tls, &secure, &err), &err);
    for (unsigned round = 0; round <= options.rounds; round++) {
        /* The first round warms up, and is overwritten. */
        struct result *row = results[round == 0 ? 0 : round - 1];
        for (int way = 0; way < WAYS; way++)
            if (runs(way))
                row[way] = way == PLAIN    ? receiver_plain(control)
                       : way == MEMCPY ? run_memcpy()
                                       : receiver_refit(control, way, way == TLS ? secure : listener);
        fprintf(stderr, "round %u of %u\r", round, options.rounds);
    }
    struct order leave = {.way = -1};
    put(control, &leave, sizeof leave);
    refit_listener_stop(listener);
    refit_listener_stop(secure);
    remove_files();
}

/* ---- the table ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void quartiles(double *values, double out[static 3])
{
    qsort(values, options.rounds, sizeof *values, by_value);
    for (unsigned i = 0; i < 3; i++)
        out[i] = values[(options.rounds - 1) * (i + 1) / 4];
}

static void print_row(const char *name, int way, int base, const char *goal)
{
    if (!runs(way))
        return;
    double speed[ROUNDS_MAX], ratio[ROUNDS_MAX], cpu[ROUNDS_MAX], cpu_ratio[ROUNDS_MAX], s[3], r[3], c[3], cr[3];
    for (unsigned i = 0; i < options.rounds; i++) {
        const struct result *a = &results[i][way], *b = &results[i][base];
        speed[i] = 1e-9 * (double)whole.bytes / a->seconds;
        ratio[i] = b->seconds / a->seconds;
        cpu[i] = a->cpu_seconds / (1e-9 * (double)whole.bytes);
        cpu_ratio[i] = a->cpu_seconds / b->cpu_seconds;
    }
    quartiles(speed, s);
    quartiles(ratio, r);
    quartiles(cpu, c);
    quartiles(cpu_ratio, cr);
    printf("| %s | %.2f | %.2f (%.2f - %.2f) | %s | %.2f | %.2f |\n", name, s[1], r[1], r[0], r[2], goal, c[1], cr[1]);
}

static void print_table(void)
{
    printf("\n%u rounds, %.2f GB each, %u stream(s); ratio: median (quartiles) of the rounds\n\n", options.rounds,
           1e-9 * (double)whole.bytes, options.streams);
    printf("| way | GB/s | ratio to its base | goal | CPU s/GB | CPU ratio |\n|---|---|---|---|---|---|\n");
    print_row("plain sockets (base)", PLAIN, PLAIN, "");
    print_row("tcp, contiguous, verified", TCP, PLAIN, ">= 0.80, CPU <= 1.5");
    print_row("tcp, contiguous, not verified", TCP_OFF, PLAIN, ">= 0.95");
    print_row("tcp with TLS, contiguous, verified (base: tcp)", TLS, TCP, ">= 0.60");
    print_row("tcp, 3.5 KB rows, verified", ROWS, PLAIN, ">= 0.75, CPU <= 1.5");
    print_row("tcp, 3.5 KB rows, not verified", ROWS_OFF, PLAIN, "");
    print_row("memcpy, one thread (base)", MEMCPY, MEMCPY, "");
    print_row("local, verified", LOCAL, MEMCPY, ">= 0.80");
    print_row("local, not verified", LOCAL_OFF, MEMCPY, "");
}

static void parse_options(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        size_t value = strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--mib") == 0)
            options.mib = value;
        else if (strcmp(argv[i], "--rounds") == 0)
            options.rounds = (unsigned)value;
        else if (strcmp(argv[i], "--streams") == 0)
            options.streams = (unsigned)value;
        else if (strcmp(argv[i], "--only") == 0 && value >= 1 && value <= WAYS)
            options.only = (unsigned)value;
        else
            options.rounds = 0;
    }
    if (argc % 2 == 0 || options.mib < 16 || options.rounds < 1 || options.rounds > ROUNDS_MAX ||
        options.streams < 1 || options.streams > STREAMS_MAX) {
        fprintf(stderr, "usage: %s [--mib N] [--rounds 1..%d] [--streams 1..%d] [--only 1..%d]\n", argv[0],
                ROUNDS_MAX, STREAMS_MAX, WAYS);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    int control[2];
    parse_options(argc, argv);
    set_up();
    must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, control) == 0, "socketpair");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        close(control[0]);
        sender(control[1]);
    }
    close(control[1]);
    receiver(control[0]);
    waitpid(child, NULL, 0);
    print_table();
    return 0;
}
