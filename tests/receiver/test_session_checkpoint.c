/* SPDX-License-Identifier: Apache-2.0
 *
 * Refits without a trainer: from checkpoint files below the root.
 */
#include "world.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/safetensors_writer.h"

static struct world world;

static int set_up(void **state)
{
    world_init(&world, 64);
    world_start(&world);
    world_publish(&world, 1, 1, "tcp");
    return 0;
}

static int tear_down(void **state)
{
    world_close(&world);
    return 0;
}

static void path_of(char path[static 256], const char *name)
{
    snprintf(path, 256, "%s/%s", world.root, name);
}

static void make_directory(const char *name)
{
    char path[256];
    path_of(path, name);
    assert_int_equal(mkdir(path, 0755), 0);
}

#define W 1u
#define B 2u
#define E 4u
#define EXTRA 8u

static void make_file(const char *name, unsigned tensors, uint64_t seed)
{
    char path[256];
    struct safetensors_writer writer;
    path_of(path, name);
    safetensors_begin(&writer, seed);
    if (tensors & W)
        safetensors_add(&writer, "w", REFIT_DTYPE_F32, 2, (const int64_t[]){64, 256});
    if (tensors & B)
        safetensors_add(&writer, "b", REFIT_DTYPE_F32, 1, (const int64_t[]){300});
    if (tensors & E)
        safetensors_add(&writer, "e", REFIT_DTYPE_BF16, 2, (const int64_t[]){130, 32});
    if (tensors & EXTRA)
        safetensors_add(&writer, "extra.weight", REFIT_DTYPE_F32, 1, (const int64_t[]){4});
    assert_true(safetensors_write(&writer, path));
}

static void make_link(const char *target, const char *name)
{
    char path[256];
    path_of(path, name);
    assert_int_equal(symlink(target, path), 0);
}

static struct refit_request checkpoint_request(const char *path, uint64_t version)
{
    struct refit_request request = {.version = version, .commit = REFIT_COMMIT_AUTO};
    snprintf(request.checkpoint, sizeof request.checkpoint, "%s", path);
    refit_sha256_hex(path, strlen(path), request.body_digest);
    return request;
}

static void loads(const char *path, uint64_t version, uint64_t seed)
{
    char digest[REFIT_SHA256_HEX_MAX];
    struct refit_request request = checkpoint_request(path, version);
    struct refit_ticket ticket = world_begin(&world, &request);
    assert_null(ticket.card);
    struct refit_session_snapshot end = world_wait_phase(&world, ticket.id, REFIT_PHASE_COMMITTED);
    world_digest(&world, seed, digest);
    assert_string_equal(end.digest, digest);
    assert_string_equal(end.transport, "file");
    assert_int_equal(end.bytes_done, end.bytes_due);
    world.served_version = version;
    world.served_seed = seed;
    world_assert_served(&world);
}

/* Refused at once or aborted; either way the reason names `because` and no descriptor's path. */
static void fails(const char *path, enum refit_status status, const char *because)
{
    struct refit_request request = checkpoint_request(path, world.served_version + 1);
    struct refit_ticket ticket;
    struct refit_error err;
    if (refit_receiver_begin(world.receiver, &request, &ticket, &err) == REFIT_OK)
        err = world_wait_aborted(&world, ticket.id, status).error;
    assert_int_equal(err.status, status);
    if (!strstr(err.text, because))
        fail_msg("expected '%s' in: %s", because, err.text);
    assert_null(strstr(err.text, "/proc/self"));
    world_assert_survives(&world);
}

static void one_file(void **state)
{
    make_directory("step-2");
    make_file("step-2/model.safetensors", W | B | E, 2);
    loads("step-2", 2, 2);
}

static void file_by_its_name(void **state)
{
    make_file("two.safetensors", W | B | E, 2);
    loads("two.safetensors", 2, 2);
}

static void sharded_with_its_index(void **state)
{
    char path[256];
    const struct safetensors_place places[] = {{"w", "a.safetensors"}, {"b", "b.safetensors"}, {"e", "b.safetensors"}};
    make_directory("step-2");
    make_file("step-2/a.safetensors", W, 2);
    make_file("step-2/b.safetensors", B | E, 2);
    path_of(path, "step-2/model.safetensors.index.json");
    assert_true(safetensors_write_index(path, places, 3));
    loads("step-2", 2, 2);
}

static void files_that_are_links_out_of_the_root(void **state)
{
    char blob[256];
    make_directory("snapshot");
    make_file("../blob", W | B | E, 2);
    path_of(blob, "../blob");
    make_link(blob, "snapshot/model.safetensors");
    loads("snapshot", 2, 2);
}

static void same_words_find_it_while_it_runs_and_conflict_afterwards(void **state)
{
    struct refit_ticket ticket;
    struct refit_error err;
    make_file("two.safetensors", W | B | E, 2);
    struct refit_request request = checkpoint_request("two.safetensors", 2);
    request.commit = REFIT_COMMIT_BARRIER;
    struct refit_ticket first = world_begin(&world, &request);
    world_wait_phase(&world, first.id, REFIT_PHASE_STAGED);
    ticket = world_begin(&world, &request);
    assert_true(ticket.existing);
    assert_string_equal(ticket.id, first.id);
    assert_int_equal(refit_receiver_abort(world.receiver, first.id, "", NULL), REFIT_OK);
    world_wait_aborted(&world, first.id, REFIT_ABORTED);
    /* It failed, so the same words ask for another one. */
    loads("two.safetensors", 2, 2);
    assert_int_equal(refit_receiver_begin(world.receiver, &request, &ticket, &err), REFIT_CONFLICT);
    world_assert_survives(&world);
}

static void cut_short(void **state)
{
    char path[256];
    struct stat info;
    make_directory("cut");
    make_file("cut/model.safetensors", W | B | E, 2);
    path_of(path, "cut/model.safetensors");
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 1), 0);
    fails("cut", REFIT_CORRUPT, "cut/model.safetensors");
    assert_int_equal(truncate(path, 4), 0);
    fails("cut", REFIT_CORRUPT, "cut/model.safetensors");
}

static void lacks_a_tensor(void **state)
{
    make_file("lacks.safetensors", W | E, 2);
    fails("lacks.safetensors", REFIT_MISMATCH, "\"b\"");
}

static void has_a_tensor_that_nobody_wants(void **state)
{
    make_file("extra.safetensors", W | B | E | EXTRA, 2);
    fails("extra.safetensors", REFIT_MISMATCH, "extra.weight");
}

static void paths_that_lead_out(void **state)
{
    make_link("/etc", "out");
    fails("../checkpoints", REFIT_INVALID, "../checkpoints");
    fails("/etc", REFIT_INVALID, "/etc");
    fails("out", REFIT_INVALID, "out");
    fails("out/passwd", REFIT_INVALID, "out/passwd");
    fails("nothing", REFIT_NOT_FOUND, "nothing");
}

static void directory_without_a_checkpoint(void **state)
{
    make_directory("empty");
    fails("empty", REFIT_NOT_FOUND, "empty");
}

static void expected_digest_is_checked(void **state)
{
    make_file("two.safetensors", W | B | E, 2);
    struct refit_request request = checkpoint_request("two.safetensors", 2);
    world_digest(&world, 3, request.digest);
    struct refit_ticket ticket = world_begin(&world, &request);
    assert_int_equal(world_wait_aborted(&world, ticket.id, REFIT_CORRUPT).failed_in, REFIT_PHASE_VERIFY);
    world_assert_survives(&world);
}

static void checkpoint_supersedes_a_publish(void **state)
{
    make_file("two.safetensors", W | B | E, 3);
    world_lead(&world);
    world_put_source(&world);
    struct refit_request publish = world_request(&world, 2, "p");
    struct refit_ticket first = world_begin(&world, &publish);
    world_wait_phase(&world, first.id, REFIT_PHASE_TRANSFER);
    loads("two.safetensors", 3, 3);
    world_wait_aborted(&world, first.id, REFIT_ABORTED);
    ticket_release(&first);
    world_assert_survives(&world);
}

/* --- words from many threads ------------------------------------------------------------------------------------ */

#define TALKERS 4
#define WORDS 60

static atomic_ullong next_version = 2;

static void say(unsigned word)
{
    struct refit_receiver *receiver = world.receiver;
    struct refit_session_snapshot latest = {.id = ""};
    struct refit_receiver_snapshot snapshot;
    struct refit_ticket ticket;
    char path[32];
    (void)!refit_receiver_session(receiver, "", &latest, NULL);
    if (word % 8 < 3) {
        uint64_t version = atomic_fetch_add(&next_version, 1);
        snprintf(path, sizeof path, "%llu.safetensors", (unsigned long long)version % 2);
        struct refit_request request = checkpoint_request(path, version);
        request.commit = word % 8 < 2 ? REFIT_COMMIT_AUTO : REFIT_COMMIT_BARRIER;
        (void)!refit_receiver_begin(receiver, &request, &ticket, NULL);
    } else if (word % 8 == 3)
        (void)!refit_receiver_commit(receiver, latest.id, latest.version, latest.digest, NULL);
    else if (word % 8 == 4)
        (void)!refit_receiver_abort(receiver, latest.id, "said so", NULL);
    else if (word % 8 == 5)
        (void)!refit_receiver_rollback(receiver, &(struct refit_rollback){.kv = NULL}, refit_deadline_in_ms(1000), NULL, NULL);
    else if (word % 8 == 6)
        refit_receiver_release_hold(receiver);
    else
        refit_receiver_read(receiver, &snapshot);
}

static void *talk(void *arg)
{
    unsigned random = *(unsigned *)arg;
    for (unsigned i = 0; i < WORDS; i++) {
        random = random * 1664525u + 1013904223u;
        say(random >> 16);
    }
    return NULL;
}

static bool is_over(const struct refit_session_snapshot *snapshot, void *context)
{
    return snapshot->phase == REFIT_PHASE_COMMITTED || snapshot->phase == REFIT_PHASE_ABORTED;
}

static void words_from_many_threads_leave_a_whole_version(void **state)
{
    pthread_t threads[TALKERS];
    unsigned seeds[TALKERS] = {11, 22, 33, 44};
    struct refit_session_snapshot latest;
    struct refit_bank_snapshot bank;
    make_file("0.safetensors", W | B | E, 0);
    make_file("1.safetensors", W | B | E, 1);
    atomic_store(&next_version, 2);
    for (unsigned i = 0; i < TALKERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, talk, &seeds[i]), 0);
    for (unsigned i = 0; i < TALKERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(refit_receiver_session(world.receiver, "", &latest, NULL), REFIT_OK);
    (void)!refit_receiver_abort(world.receiver, latest.id, "the end", NULL);
    world_wait(&world, latest.id, is_over, NULL);
    refit_receiver_release_hold(world.receiver);
    refit_bank_read(refit_receiver_bank(world.receiver), &bank);
    assert_int_not_equal(bank.active, REFIT_SLOT_NONE);
    world.served_version = bank.slot[bank.active].version.version;
    world.served_seed = world.served_version % 2;
    world_assert_survives(&world);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_file),
        TEST(file_by_its_name),
        TEST(sharded_with_its_index),
        TEST(files_that_are_links_out_of_the_root),
        TEST(same_words_find_it_while_it_runs_and_conflict_afterwards),
        TEST(cut_short),
        TEST(lacks_a_tensor),
        TEST(has_a_tensor_that_nobody_wants),
        TEST(paths_that_lead_out),
        TEST(directory_without_a_checkpoint),
        TEST(expected_digest_is_checked),
        TEST(checkpoint_supersedes_a_publish),
        TEST(words_from_many_threads_leave_a_whole_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
