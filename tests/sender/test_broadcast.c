/* SPDX-License-Identifier: Apache-2.0
 *
 * The strategy "broadcast" against real refitd processes: a model of several buckets, one of them a tensor that is larger
 * than a bucket, from ranks that hold shards of it or from a callback that fills one tensor after the other.
 */
#include "tests/sidecar/refitd.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include <refit/sender.h>

#include "base/io.h"
#include "layouts/dense.h"
#include "layouts/tally.h"
#include "tests/support/port.h"
#include "tests/tls/pki.h"

#define RANKS_MAX 3
#define TENSORS 10
#define COLUMNS 1024

static const struct tensor {
    const char *name;
    uint32_t rows, columns; /* 0 columns: one dimension */
} tensors[TENSORS] = {{"big", 1280, COLUMNS}, {"t0", 256, COLUMNS}, {"t1", 256, COLUMNS}, {"t2", 256, COLUMNS},
                      {"t3", 256, COLUMNS},   {"t4", 256, COLUMNS}, {"t5", 256, COLUMNS}, {"t6", 256, COLUMNS},
                      {"t7", 256, COLUMNS},   {"b", 300, 0}};

static size_t elements(const struct tensor *tensor)
{
    return (size_t)tensor->rows * (tensor->columns ? tensor->columns : 1);
}

static size_t model_bytes(void)
{
    size_t bytes = 0;
    for (size_t i = 0; i < TENSORS; i++)
        bytes += elements(&tensors[i]) * sizeof(uint32_t);
    return bytes;
}

static uint32_t element(uint32_t seed, size_t tensor, size_t i)
{
    uint32_t x = seed * 2654435761u ^ (uint32_t)tensor * 40503u ^ (uint32_t)i * 2246822519u;
    return (x ^ x >> 15) & 0x3fffffffu;
}

/* `placement` is that of the tensors of two dimensions, and of the other one. */
static void write_layout(char *out, size_t size, unsigned ranks, const char *placement, const char *of_b)
{
    size_t used = (size_t)snprintf(out, size, "{\"format\":\"refit-layout/1\",\"ranks\":%u,\"meshes\":{\"m\":{\"axes\":[\"x\"],"
                                   "\"shape\":[%u]}},\"entries\":[", ranks, ranks);
    for (size_t i = 0; i < TENSORS; i++) {
        char shape[32];
        snprintf(shape, sizeof shape, tensors[i].columns ? "%u,%u" : "%u", tensors[i].rows, tensors[i].columns);
        used += (size_t)snprintf(out + used, size - used, "%s{\"tensor\":\"%s\",\"dtype\":\"F32\",\"shape\":[%s],\"mesh\":\"m\","
                                 "\"placements\":[\"%s\"]}", i ? "," : "", tensors[i].name, shape,
                                 tensors[i].columns ? placement : of_b);
    }
    snprintf(out + used, size - used, "]}");
}

/* --- the world: two replicas, one of them of two ranks, and a trainer --------------------------------------------- */

static struct refitd whole, halves;
static char whole_url[64], halves_url[64];
static const char *const urls[] = {whole_url, halves_url};

static struct {
    uint32_t ranks;
    char layout[4096], address[64];
    struct refit_sender *sender[RANKS_MAX];
    uint32_t *memory[RANKS_MAX][TENSORS];
    const char *transport;
    const struct refit_publish *publish;
    void (*between)(void);
    enum refit_status status[RANKS_MAX];
    struct refit_error err[RANKS_MAX];
    struct refit_report report;
    struct refit_replica_report replicas[2];
} trainer;

static void start_replicas(const char *rate)
{
    const char *const alone[] = {"--rate", rate, NULL}, *const two[] = {"--ranks", "2", "--rate", rate, NULL};
    refitd_start(&whole, alone);
    refitd_start(&halves, two);
    snprintf(whole_url, sizeof whole_url, "http://127.0.0.1:%u", (unsigned)whole.control);
    snprintf(halves_url, sizeof halves_url, "http://127.0.0.1:%u", (unsigned)halves.control);
}

static int setup(void **state)
{
    char layout[4096];
    memset(&trainer, 0, sizeof trainer);
    refitd_prepare(&whole);
    refitd_prepare(&halves);
    write_layout(layout, sizeof layout, 1, "Replicate", "Replicate");
    assert_int_equal(refit_io_replace_file(whole.layout, layout, strlen(layout), 0644, NULL), REFIT_OK);
    write_layout(layout, sizeof layout, 2, "Shard(1)", "Shard(0)");
    assert_int_equal(refit_io_replace_file(halves.layout, layout, strlen(layout), 0644, NULL), REFIT_OK);
    return 0;
}

static void *close_rank(void *context)
{
    refit_sender_close(trainer.sender[(uintptr_t)context]);
    return NULL;
}

static void on_ranks(void *(*body)(void *))
{
    pthread_t threads[RANKS_MAX];
    for (uintptr_t rank = 0; rank < trainer.ranks; rank++)
        assert_int_equal(pthread_create(&threads[rank], NULL, body, (void *)rank), 0);
    for (uint32_t rank = 0; rank < trainer.ranks; rank++)
        pthread_join(threads[rank], NULL);
}

static void close_trainer(void)
{
    on_ranks(close_rank);
    for (uint32_t rank = 0; rank < RANKS_MAX; rank++)
        for (size_t i = 0; i < TENSORS; i++)
            free(trainer.memory[rank][i]);
    memset(&trainer, 0, sizeof trainer);
}

static int teardown(void **state)
{
    close_trainer();
    refitd_cleanup(&whole);
    refitd_cleanup(&halves);
    return 0;
}

/* Rows as "Shard(0)" cuts them: whole chunks first. */
static void rows_of(uint32_t rank, const struct tensor *tensor, uint32_t *first, uint32_t *count)
{
    uint32_t chunk = (tensor->rows + trainer.ranks - 1) / trainer.ranks;
    *first = tensor->columns ? rank * chunk : 0;
    *count = tensor->columns && *first + chunk > tensor->rows ? tensor->rows - *first : tensor->columns ? chunk : tensor->rows;
}

static void fill(uint32_t seed)
{
    for (uint32_t rank = 0; rank < trainer.ranks; rank++)
        for (size_t t = 0; t < TENSORS; t++) {
            uint32_t first, count, columns = tensors[t].columns ? tensors[t].columns : 1;
            rows_of(rank, &tensors[t], &first, &count);
            for (size_t i = 0; i < (size_t)count * columns; i++)
                trainer.memory[rank][t][i] = element(seed, t, (size_t)first * columns + i);
        }
}

static struct refit_sender_config config_of(uint32_t rank)
{
    return (struct refit_sender_config){.rank = rank, .ranks = trainer.ranks, .lead_address = trainer.address,
                                        .replicas = urls, .replica_count = 2, .name = "test", .takeover = 1,
                                        .transport = trainer.transport, .connect_timeout_ms = 10000};
}

static void *open_rank(void *context)
{
    uint32_t rank = (uint32_t)(uintptr_t)context;
    struct refit_sender_buffer buffers[TENSORS];
    struct refit_sender_config config = config_of(rank);
    for (size_t t = 0; t < TENSORS; t++) {
        uint32_t first, count;
        rows_of(rank, &tensors[t], &first, &count);
        size_t bytes = (size_t)count * (tensors[t].columns ? tensors[t].columns : 1) * sizeof(uint32_t);
        trainer.memory[rank][t] = malloc(bytes);
        buffers[t] = (struct refit_sender_buffer){
            .name = tensors[t].name, .data = trainer.memory[rank][t], .bytes = bytes};
    }
    trainer.status[rank] = refit_sender_open(&config, &trainer.sender[rank], &trainer.err[rank]);
    if (trainer.status[rank] == REFIT_OK)
        trainer.status[rank] = refit_sender_register(trainer.sender[rank], trainer.layout, strlen(trainer.layout), buffers,
                                                     TENSORS, &trainer.err[rank]);
    return NULL;
}

static void open_trainer(uint32_t ranks, const char *transport)
{
    trainer.ranks = ranks;
    trainer.transport = transport;
    snprintf(trainer.address, sizeof trainer.address, "127.0.0.1:%u", (unsigned)port_reserve());
    write_layout(trainer.layout, sizeof trainer.layout, ranks, "Shard(0)", "Replicate");
    on_ranks(open_rank);
    for (uint32_t rank = 0; rank < ranks; rank++)
        if (trainer.status[rank] != REFIT_OK)
            fail_msg("rank %u: %s", rank, trainer.err[rank].text);
}

static void *publish_rank(void *context)
{
    uint32_t rank = (uint32_t)(uintptr_t)context;
    struct refit_report report = {0};
    struct refit_error *err = &trainer.err[rank];
    *err = (struct refit_error){0};
    trainer.status[rank] = refit_sender_publish_begin(trainer.sender[rank], trainer.publish, err);
    if (trainer.status[rank] != REFIT_OK)
        return NULL;
    if (rank == 0 && trainer.between)
        trainer.between();
    trainer.status[rank] = refit_sender_publish_wait_report(trainer.sender[rank], &report, err);
    if (rank != 0)
        return NULL;
    trainer.report = report;
    for (size_t i = 0; i < report.replica_count; i++)
        trainer.replicas[i] = report.replicas[i];
    return NULL;
}

static void publish(const struct refit_publish *wanted, uint32_t seed, void (*between)(void))
{
    trainer.publish = wanted;
    trainer.between = between;
    memset(trainer.replicas, 0, sizeof trainer.replicas);
    if (trainer.memory[0][0])
        fill(seed);
    on_ranks(publish_rank);
}

static void broadcast(uint64_t version, uint32_t seed)
{
    const struct refit_publish wanted = {.version = version, .deadline_ms = 60000, .strategy = "broadcast", .check_source = 1};
    publish(&wanted, seed, NULL);
}

static void expect_ok(void)
{
    for (uint32_t rank = 0; rank < trainer.ranks; rank++)
        if (trainer.status[rank] != REFIT_OK)
            fail_msg("rank %u: %s", rank, trainer.err[rank].text);
}

static void digest_of(uint32_t seed, char hex[static REFIT_SHA256_HEX_MAX])
{
    char text[4096];
    struct refit_layout *layout;
    struct refit_tally *tally = refit_tally_create(TENSORS);
    write_layout(text, sizeof text, 1, "Replicate", "Replicate");
    assert_int_equal(refit_layout_parse(text, strlen(text), "layout", &layout, NULL), REFIT_OK);
    for (size_t t = 0; t < TENSORS; t++) {
        struct refit_digest digest = {{0}};
        uint32_t *content = malloc(elements(&tensors[t]) * sizeof *content), id;
        for (size_t i = 0; i < elements(&tensors[t]); i++)
            content[i] = element(seed, t, i);
        refit_digest_add(&digest, content, elements(&tensors[t]) * sizeof *content, 0);
        assert_true(refit_layout_find(layout, tensors[t].name, &id));
        refit_tally_add(tally, id, digest);
        free(content);
    }
    assert_int_equal(refit_model_digest(layout, tally, "exact", hex, NULL), REFIT_OK);
    refit_tally_destroy(tally);
    refit_layout_release(layout);
}

static void expect_served(const struct refitd *refitd, uint64_t version, uint32_t seed)
{
    char wanted[REFIT_SHA256_HEX_MAX];
    json_t *weights = http_json(refitd->control, "GET", "/v1/weights", NULL, 200);
    json_t *active = json_object_get(weights, "active");
    assert_int_equal(json_integer_value(json_object_get(active, "version")), version);
    if (version > 0) {
        digest_of(seed, wanted);
        assert_string_equal(json_string_value(json_object_get(active, "digest")), wanted);
    }
    json_decref(weights);
}

/* --- from ranks --------------------------------------------------------------------------------------------------- */

static void every_strategy_brings_the_same_bytes(void **state)
{
    static const char *const strategies[] = {"broadcast", "direct", "broadcast", "relay"};
    start_replicas("0");
    open_trainer(3, "tcp");
    for (uint32_t i = 0; i < 4; i++) {
        const struct refit_publish wanted = {.version = i + 1, .deadline_ms = 60000, .strategy = strategies[i],
                                             .check_source = 1};
        publish(&wanted, 10 + i, NULL);
        expect_ok();
        expect_served(&whole, i + 1, 10 + i);
        expect_served(&halves, i + 1, 10 + i);
    }
}

/* Both get all of it, whatever they want; what they want is counted as ever. */
static void every_member_is_sent_every_byte(void **state)
{
    start_replicas("0");
    open_trainer(2, "tcp");
    broadcast(1, 1);
    expect_ok();
    assert_int_equal(trainer.report.bytes_sent, 2 * model_bytes());
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(trainer.replicas[i].bytes_moved, model_bytes());
        assert_int_equal(trainer.replicas[i].bytes_needed, model_bytes());
        assert_string_equal(trainer.replicas[i].transport, "tcp");
    }
}

/* Rows of rank 1, as they came out of a socket of this process. Stands before the C library's. */
static const uint32_t *_Atomic rows_to_find; /* NULL: nobody looks */
static atomic_uint rows_read;

static void look_for_rows(const void *data, ssize_t len)
{
    const uint32_t *rows = atomic_load(&rows_to_find);
    for (size_t row = 0; rows && len > 0 && row < tensors[1].rows / 2; row++)
        if (memmem(data, (size_t)len, rows + row * COLUMNS, 64))
            atomic_fetch_add(&rows_read, 1);
}

ssize_t recv(int fd, void *data, size_t size, int flags)
{
    ssize_t (*real)(int, void *, size_t, int);
    *(void **)&real = dlsym(RTLD_NEXT, "recv");
    ssize_t len = real(fd, data, size, flags);
    look_for_rows(data, len);
    return len;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t (*real)(int, struct msghdr *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "recvmsg");
    ssize_t len = real(fd, message, flags), left = len;
    for (size_t i = 0; i < message->msg_iovlen && left > 0; i++) {
        ssize_t part = left < (ssize_t)message->msg_iov[i].iov_len ? left : (ssize_t)message->msg_iov[i].iov_len;
        look_for_rows(message->msg_iov[i].iov_base, part);
        left -= part;
    }
    return len;
}

/* Where ranks have certificates, what they bring to rank 0 can't be read on its way; where they have none, it can. */
static void what_ranks_bring_together_is_as_secret_as_what_they_say(void **state)
{
    static const char *const variables[] = {"REFIT_CACERT", "REFIT_CERT", "REFIT_KEY"}, *const files[] = {"ca.pem", "job.pem", "job.key"};
    char directory[] = "/tmp/refit-pki.XXXXXX", path[sizeof directory + 16];
    struct pki_leaf leaf = {.name = "job", .ca = "ca"};
    start_replicas("0");
    open_trainer(2, "tcp");
    atomic_store(&rows_to_find, trainer.memory[1][1]);
    broadcast(1, 1);
    expect_ok();
    assert_true(atomic_exchange(&rows_read, 0) > 0);
    atomic_store(&rows_to_find, NULL);
    close_trainer();
    assert_non_null(mkdtemp(directory));
    assert_true(pki_make_ca(directory, "ca") && pki_make_leaf(directory, &leaf));
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, files[i]);
        setenv(variables[i], path, 1);
    }
    open_trainer(2, "tcp");
    for (size_t i = 0; i < 3; i++)
        unsetenv(variables[i]);
    atomic_store(&rows_to_find, trainer.memory[1][1]);
    broadcast(2, 2);
    expect_ok();
    atomic_store(&rows_to_find, NULL);
    expect_served(&halves, 2, 2);
    assert_int_equal(atomic_load(&rows_read), 0);
    snprintf(path, sizeof path, "rm -rf %s", directory);
    assert_int_equal(system(path), 0);
}

static void on_one_host_it_goes_the_local_way(void **state)
{
    start_replicas("0");
    open_trainer(2, "auto");
    broadcast(1, 1);
    expect_ok();
    assert_string_equal(trainer.replicas[0].transport, "local");
    assert_int_equal(trainer.replicas[0].wire_bytes, 0);
    expect_served(&halves, 1, 1);
}

static void one_rank_alone_broadcasts_too(void **state)
{
    start_replicas("0");
    open_trainer(1, "tcp");
    for (uint32_t version = 1; version <= 3; version++) {
        broadcast(version, version);
        expect_ok();
        expect_served(&whole, version, version);
        expect_served(&halves, version, version);
    }
}

static void nothing_is_taken_as_unchanged(void **state)
{
    static const char *const names[] = {"big"};
    const struct refit_publish wanted = {.version = 2, .deadline_ms = 60000, .strategy = "broadcast", .unchanged_since = 1,
                                         .unchanged = names, .unchanged_count = 1};
    start_replicas("0");
    open_trainer(2, "tcp");
    broadcast(1, 1);
    publish(&wanted, 2, NULL);
    expect_ok();
    assert_int_equal(trainer.report.bytes_saved, 0);
    expect_served(&whole, 2, 2);
}

/* --- who fails ---------------------------------------------------------------------------------------------------- */

/* Some of it has come, and not all. */
static void await_bytes(const struct refitd *refitd, uint64_t version)
{
    for (int i = 0; i < REFITD_WAIT_MS / 5; i++) {
        struct answer answer;
        http_call(refitd->control, "GET", "/refit", NULL, &answer);
        json_t *now = answer.status == 200 ? json_loads(answer.body, 0, NULL) : NULL;
        bool moving = json_integer_value(json_object_get(now, "version")) == (json_int_t)version &&
                      json_integer_value(json_object_get(now, "bytes_done")) > 0;
        json_decref(now);
        if (moving)
            return;
        poll(NULL, 0, 5);
    }
    fail_msg("nothing came");
}

static void kill_halves(void)
{
    await_bytes(&halves, 2);
    kill(halves.pid, SIGKILL);
}

static void a_member_that_dies_costs_only_itself(void **state)
{
    const struct refit_publish wanted = {.version = 2, .deadline_ms = 60000, .strategy = "broadcast"};
    start_replicas("16MiB");
    open_trainer(2, "tcp");
    broadcast(1, 1);
    expect_ok();
    publish(&wanted, 2, kill_halves);
    assert_int_equal(trainer.replicas[0].outcome, REFIT_OUTCOME_COMMITTED);
    assert_int_equal(trainer.replicas[1].outcome, REFIT_OUTCOME_ABORTED);
    assert_int_equal(trainer.report.outcome, REFIT_FLEET_PARTLY_COMMITTED);
    expect_served(&whole, 2, 2);
    refitd_wait(&halves);
}

static void let_halves_go_on(void)
{
    await_bytes(&whole, 2);
    assert_int_equal(kill(halves.pid, SIGCONT), 0);
}

/* The first round's member compares what landed while the second round gathers. */
static void a_member_that_comes_later_has_a_round_of_its_own(void **state)
{
    const struct refit_publish wanted = {.version = 2, .deadline_ms = 60000, .strategy = "broadcast", .check_source = 1};
    start_replicas("16MiB");
    open_trainer(2, "tcp");
    broadcast(1, 1);
    expect_ok();
    assert_int_equal(kill(halves.pid, SIGSTOP), 0);
    publish(&wanted, 2, let_halves_go_on);
    expect_ok();
    expect_served(&whole, 2, 2);
    expect_served(&halves, 2, 2);
}

static void a_deadline_ends_it_and_the_next_one_succeeds(void **state)
{
    const struct refit_publish hasty = {.version = 2, .deadline_ms = 1500, .strategy = "broadcast"};
    start_replicas("4MiB");
    open_trainer(2, "tcp");
    publish(&hasty, 2, NULL);
    assert_int_equal(trainer.status[0], REFIT_TIMEOUT);
    assert_int_equal(trainer.status[1], REFIT_TIMEOUT);
    expect_served(&whole, 0, 0);
    expect_served(&halves, 0, 0);
    broadcast(3, 3);
    expect_ok();
    expect_served(&halves, 3, 3);
}

static void scribble(void)
{
    await_bytes(&whole, 2);
    memset(trainer.memory[1][0], 0x55, 1024);
}

static void a_trainer_that_writes_meanwhile_is_found_out(void **state)
{
    const struct refit_publish wanted = {.version = 2, .deadline_ms = 60000, .strategy = "broadcast", .check_source = 1};
    start_replicas("16MiB");
    open_trainer(2, "tcp");
    broadcast(1, 1);
    publish(&wanted, 2, scribble);
    assert_int_equal(trainer.status[0], REFIT_CORRUPT);
    assert_non_null(strstr(trainer.err[0].text, "tensor big was written"));
    expect_served(&whole, 1, 1);
    expect_served(&halves, 1, 1);
}

/* --- from a callback ---------------------------------------------------------------------------------------------- */

static struct {
    uint32_t seed;
    size_t calls;
    size_t fails_at; /* TENSORS: nowhere */
    size_t slow_at;  /* likewise */
    int64_t busy_ns; /* processor time of this process while that call took its time */
    bool in_order;
} called;

#define SLOW_MS 500

static int64_t processor_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

static int gather(void *context, const char *name, void *destination, size_t bytes)
{
    size_t t = called.calls++ % TENSORS;
    uint32_t *out = destination;
    called.in_order &= strcmp(name, tensors[t].name) == 0 && bytes == elements(&tensors[t]) * sizeof *out;
    assert_ptr_equal(context, &called);
    if (t == called.fails_at)
        return 7;
    if (t == called.slow_at) {
        called.busy_ns -= processor_ns();
        poll(NULL, 0, SLOW_MS);
        called.busy_ns += processor_ns();
    }
    for (size_t i = 0; i < elements(&tensors[t]); i++)
        out[i] = element(called.seed, t, i);
    return 0;
}

static void open_gatherer(void)
{
    static int64_t shapes[TENSORS][2];
    struct refit_sender_tensor described[TENSORS];
    struct refit_error err;
    trainer.ranks = 1;
    trainer.transport = "tcp";
    struct refit_sender_config config = config_of(0);
    called.calls = 0;
    called.fails_at = called.slow_at = TENSORS;
    called.in_order = true;
    for (size_t t = 0; t < TENSORS; t++) {
        shapes[t][0] = tensors[t].rows;
        shapes[t][1] = tensors[t].columns;
        described[t] = (struct refit_sender_tensor){tensors[t].name, "F32", shapes[t], tensors[t].columns ? 2 : 1};
    }
    if (refit_sender_open(&config, &trainer.sender[0], &err) != REFIT_OK ||
        refit_sender_register_gather(trainer.sender[0], described, TENSORS, gather, &called, &err) != REFIT_OK)
        fail_msg("%s", err.text);
}

static void publish_gathered(uint64_t version, uint32_t seed, void (*between)(void))
{
    const struct refit_publish wanted = {.version = version, .deadline_ms = 60000};
    called.seed = seed;
    publish(&wanted, seed, between);
}

static void tensors_of_a_callback_are_broadcast(void **state)
{
    start_replicas("0");
    open_gatherer();
    for (uint32_t version = 1; version <= 2; version++) {
        publish_gathered(version, 20 + version, NULL);
        expect_ok();
        expect_served(&whole, version, 20 + version);
        expect_served(&halves, version, 20 + version);
    }
    assert_true(called.in_order);
    assert_int_equal(called.calls, 2 * TENSORS);
    assert_int_equal(trainer.report.bytes_sent, 2 * model_bytes());
}

static void a_callback_that_fails_is_named_with_its_tensor(void **state)
{
    start_replicas("0");
    open_gatherer();
    publish_gathered(1, 1, NULL);
    expect_ok();
    called.calls = 0;
    called.fails_at = 4;
    publish_gathered(2, 2, NULL);
    assert_int_equal(trainer.status[0], REFIT_ABORTED);
    assert_non_null(strstr(trainer.err[0].text, "gather callback failed for tensor t3 (7)"));
    assert_int_equal(called.calls, 5);
    expect_served(&whole, 1, 1);
    expect_served(&halves, 1, 1);
}

static void kill_both(void)
{
    await_bytes(&whole, 1);
    kill(halves.pid, SIGKILL);
    kill(whole.pid, SIGKILL);
}

/* The ranks of a collective must not be left waiting in it. */
static void a_callback_is_called_for_every_tensor_also_when_nobody_is_left(void **state)
{
    start_replicas("4MiB");
    open_gatherer();
    publish_gathered(1, 1, kill_both);
    assert_int_not_equal(trainer.status[0], REFIT_OK);
    assert_int_equal(called.calls, TENSORS);
    refitd_wait(&whole);
    refitd_wait(&halves);
    called.slow_at = 3;
    publish_gathered(2, 2, NULL);
    assert_int_not_equal(trainer.status[0], REFIT_OK);
    assert_int_equal(called.calls, 2 * TENSORS);
    assert_true(called.in_order);
    assert_true(called.busy_ns < (int64_t)SLOW_MS * 1000000 / 2); /* nobody spins until the callback returns */
}

static void a_callbacks_tensors_go_no_other_way(void **state)
{
    const struct refit_publish wanted = {.version = 1, .strategy = "direct"};
    start_replicas("0");
    open_gatherer();
    publish(&wanted, 1, NULL);
    assert_int_equal(trainer.status[0], REFIT_UNSUPPORTED);
    assert_int_equal(called.calls, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(every_strategy_brings_the_same_bytes),
        TEST(every_member_is_sent_every_byte),
        TEST(what_ranks_bring_together_is_as_secret_as_what_they_say),
        TEST(on_one_host_it_goes_the_local_way),
        TEST(one_rank_alone_broadcasts_too),
        TEST(nothing_is_taken_as_unchanged),
        TEST(a_member_that_dies_costs_only_itself),
        TEST(a_member_that_comes_later_has_a_round_of_its_own),
        TEST(a_deadline_ends_it_and_the_next_one_succeeds),
        TEST(a_trainer_that_writes_meanwhile_is_found_out),
        TEST(tensors_of_a_callback_are_broadcast),
        TEST(a_callback_that_fails_is_named_with_its_tensor),
        TEST(a_callback_is_called_for_every_tensor_also_when_nobody_is_left),
        TEST(a_callbacks_tensors_go_no_other_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
