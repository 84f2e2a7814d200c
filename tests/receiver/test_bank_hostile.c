/* SPDX-License-Identifier: Apache-2.0
 *
 * What a broken or hostile process can do to the bank: nothing but wait, and be dropped.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/receiver/bank_world.h"

#include "base/io.h"
#include "tests/receiver/bank_model.h"

static int dial(struct bank_world *world)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval wait = {.tv_sec = MODEL_WAIT_MS / 1000};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", world->socket_path);
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(sock >= 0);
    assert_int_equal(connect(sock, (const struct sockaddr *)&address, sizeof address), 0);
    setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    return sock;
}

static int sealed_text(const char *text, size_t len, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, len), (ssize_t)len);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static int layout_fd(uint32_t ranks)
{
    char text[1024];
    model_layout(text, sizeof text, ranks, RANK_BYTES, "w");
    return sealed_text(text, strlen(text), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
}

static enum refit_status hear(int sock, struct refit_attach_message *m)
{
    int fds[REFIT_SLOTS_MAX + 2];
    size_t count = 0;
    enum refit_status status = refit_attach_receive(sock, m, fds, REFIT_SLOTS_MAX + 2, &count, NULL);
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    return status;
}

static void assert_refused(int sock, enum refit_status why)
{
    struct refit_attach_message m;
    assert_int_equal(hear(sock, &m), REFIT_OK);
    assert_int_equal(m.type, REFIT_ATTACH_REFUSED);
    assert_int_equal(m.status, why);
    assert_int_equal(hear(sock, &m), REFIT_PEER);
    close(sock);
}

static void declare(int sock, struct refit_attach_message m, const int *fds, size_t count)
{
    m.type = REFIT_ATTACH_ATTACH;
    m.abi = m.abi ? m.abi : REFIT_CLAIM_ABI;
    assert_int_equal(refit_attach_send(sock, &m, fds, count, NULL), REFIT_OK);
}

static void assert_still_serves(struct bank_world *world, uint64_t version)
{
    struct refit_error error = {0};
    attach_rank(world, 0, 0, 1);
    if (model_put(world->bank, 1, version, MODEL_WAIT_MS, &error) != REFIT_OK)
        fail_msg("%s", error.text);
    assert_int_equal(command(world, 0, "acquire 0 0"), REFIT_OK);
    assert_int_equal(command(world, 0, "check 0"), REFIT_OK);
    assert_string_equal(world->answer, "0");
}

static void garbage_is_refused_and_forgotten(void **state)
{
    static const char *const garbage[] = {"x", "{}", "[1,2", "{\"type\":\"attach\"}", "{\"type\":\"prepared\"}",
                                          "{\"type\":\"detach\"}"};
    struct bank_world *world = *state;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        int sock = dial(world);
        assert_int_equal(send(sock, garbage[i], strlen(garbage[i]), MSG_NOSIGNAL), (ssize_t)strlen(garbage[i]));
        assert_refused(sock, REFIT_INVALID);
    }
    char *large = calloc(1, 3 * REFIT_ATTACH_MESSAGE_MAX);
    int sock = dial(world);
    assert_true(send(sock, large, 3 * REFIT_ATTACH_MESSAGE_MAX, MSG_NOSIGNAL) > 0);
    assert_refused(sock, REFIT_INVALID);
    free(large);
    assert_still_serves(world, 1);
}

static void wrong_numbers_and_descriptors_are_refused(void **state)
{
    struct bank_world *world = *state;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    int layout = layout_fd(1), two_ranks = layout_fd(2);
    int open_text = sealed_text("{}", 2, F_SEAL_SHRINK);
    int no_layout = sealed_text("{}", 2, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const struct {
        struct refit_attach_message message;
        int fd;
        enum refit_status status;
    } cases[] = {
        {{.rank = 1, .ranks = 1}, layout, REFIT_MISMATCH},
        {{.rank = UINT32_MAX, .ranks = UINT32_MAX}, layout, REFIT_MISMATCH},
        {{.rank = 0, .ranks = 1, .abi = 99}, layout, REFIT_MISMATCH},
        {{.rank = 0, .ranks = 1}, two_ranks, REFIT_MISMATCH},
        {{.rank = 0, .ranks = 1}, open_text, REFIT_INVALID},
        {{.rank = 0, .ranks = 1}, no_layout, REFIT_INVALID},
        {{.rank = 0, .ranks = 1}, null, REFIT_INVALID},
        {{.rank = 0, .ranks = 1, .returning = true}, layout, REFIT_MISMATCH},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int sock = dial(world);
        declare(sock, cases[i].message, &cases[i].fd, 1);
        assert_refused(sock, cases[i].status);
    }
    int sock = dial(world);
    declare(sock, (struct refit_attach_message){.ranks = 1}, NULL, 0);
    assert_refused(sock, REFIT_INVALID);
    const int ours[] = {layout, two_ranks, open_text, no_layout, null};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        close(ours[i]);
    assert_still_serves(world, 1);
}

static void a_claim_page_that_could_shrink_is_not_taken_back(void **state)
{
    struct bank_world *world = *state;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    char page[REFIT_CLAIM_BYTES] = {0};
    int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int garbage = sealed_text(page, sizeof page, F_SEAL_SHRINK | F_SEAL_GROW);
    int slot = sealed_text("slot", 4, F_SEAL_SHRINK | F_SEAL_GROW), layout = layout_fd(1);
    assert_int_equal(ftruncate(unsealed, REFIT_CLAIM_BYTES), 0);
    int sock = dial(world);
    declare(sock, (struct refit_attach_message){.ranks = 1, .returning = true},
            (const int[]){layout, unsealed, slot, slot}, 4);
    assert_refused(sock, REFIT_INVALID);
    sock = dial(world);
    declare(sock, (struct refit_attach_message){.ranks = 1, .returning = true},
            (const int[]){layout, garbage, slot, slot}, 4);
    assert_refused(sock, REFIT_MISMATCH);
    const int ours[] = {unsealed, garbage, slot, layout};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        close(ours[i]);
    assert_still_serves(world, 1);
}

/* A hand-made rank: attaches like an engine and keeps the page writable for mischief. */
static int attach_by_hand(struct bank_world *world, struct refit_claim **claim)
{
    struct refit_attach_message m;
    int fds[REFIT_SLOTS_MAX + 2], layout = layout_fd(1);
    size_t count = 0;
    int sock = dial(world);
    declare(sock, (struct refit_attach_message){.ranks = 1, .label = "mallory"}, &layout, 1);
    close(layout);
    assert_int_equal(refit_attach_receive(sock, &m, fds, REFIT_SLOTS_MAX + 2, &count, NULL), REFIT_OK);
    assert_int_equal(m.type, REFIT_ATTACH_ATTACHED);
    *claim = mmap(NULL, REFIT_CLAIM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    assert_ptr_not_equal(*claim, MAP_FAILED);
    assert_true(ftruncate(fds[0], 0) != 0); /* sealed */
    assert_true(fcntl(fds[1], F_GETFL) >= 0 && (fcntl(fds[1], F_GETFL) & O_ACCMODE) == O_RDONLY);
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    return sock;
}

/* After a restart, what is handed back as the active slot's memory is served only if it is that memory. */
static void slots_handed_back_in_each_others_place_are_not_served(void **state)
{
    struct bank_world *world = *state;
    struct refit_attach_message m;
    struct refit_error error;
    int fds[REFIT_SLOTS_MAX + 2], layout = layout_fd(1);
    size_t count = 0;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    for (uint64_t version = 1; version <= 2; version++)
        assert_int_equal(model_put(world->bank, 1, version, MODEL_WAIT_MS, &error), REFIT_OK);
    kill_process(world, 0);
    int sock = dial(world);
    declare(sock, (struct refit_attach_message){.ranks = 1}, &layout, 1);
    assert_int_equal(refit_attach_receive(sock, &m, fds, REFIT_SLOTS_MAX + 2, &count, NULL), REFIT_OK);
    assert_int_equal(count, 3);
    refit_bank_close(world->bank);
    close(sock);
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    sock = dial(world);
    declare(sock, (struct refit_attach_message){.ranks = 1, .returning = true},
            (const int[]){layout, fds[0], fds[2], fds[1]}, 4);
    struct refit_deadline deadline = refit_deadline_in_ms(MODEL_WAIT_MS);
    while (bank_now(world).adopting && !refit_deadline_passed(deadline))
        poll(NULL, 0, 1);
    assert_false(bank_now(world).adopting);
    assert_int_equal(bank_now(world).active, REFIT_SLOT_NONE);
    struct refit_attach_message bye = {.type = REFIT_ATTACH_DETACH};
    assert_int_equal(refit_attach_send(sock, &bye, NULL, 0, NULL), REFIT_OK);
    close(sock);
    close(layout);
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    assert_still_serves(world, 3);
}

static void a_page_full_of_garbage_only_makes_a_refit_wait(void **state)
{
    struct bank_world *world = *state;
    struct refit_claim *claim = NULL;
    struct refit_error error;
    uint32_t slot;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    int sock = attach_by_hand(world, &claim);
    memset((void *)claim, 0xff, REFIT_CLAIM_BYTES);
    for (uint32_t i = 0; i < REFIT_SLOTS_MAX; i++)
        atomic_store(&claim->slot[i].entered, 5);
    assert_int_equal(refit_bank_begin(world->bank, refit_deadline_in_ms(30), NULL, NULL, NULL, &slot, &error),
                     REFIT_TIMEOUT);
    assert_non_null(strstr(error.text, "mallory"));
    struct refit_attach_message bye = {.type = REFIT_ATTACH_DETACH};
    assert_int_equal(refit_attach_send(sock, &bye, NULL, 0, NULL), REFIT_OK);
    close(sock);
    munmap(claim, REFIT_CLAIM_BYTES);
    assert_still_serves(world, 1);
}

static void a_rank_that_never_answers_is_timed_out_by_name(void **state)
{
    struct bank_world *world = *state;
    struct refit_claim *claim = NULL;
    struct refit_error error;
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    int sock = attach_by_hand(world, &claim);
    assert_int_equal(model_put(world->bank, 1, 1, 50, &error), REFIT_TIMEOUT);
    assert_non_null(strstr(error.text, "rank 0"));
    struct refit_attach_message m = {.type = REFIT_ATTACH_PREPARED, .refit = "999", .ok = true};
    assert_int_equal(refit_attach_send(sock, &m, NULL, 0, NULL), REFIT_OK);
    strcpy(m.refit, "-1");
    m.type = REFIT_ATTACH_READY;
    assert_int_equal(refit_attach_send(sock, &m, NULL, 0, NULL), REFIT_OK);
    m = (struct refit_attach_message){.type = REFIT_ATTACH_SLOT};
    assert_int_equal(refit_attach_send(sock, &m, NULL, 0, NULL), REFIT_OK);
    while (hear(sock, &m) == REFIT_OK)
        ; /* until it is cut off for that */
    m = (struct refit_attach_message){0};
    close(sock);
    munmap(claim, REFIT_CLAIM_BYTES);
    assert_int_equal(bank_now(world).attached, 0);
    assert_still_serves(world, 2); /* the process lives, but pins nothing */
}

static void a_process_that_attaches_again_and_again_is_bounded(void **state)
{
    struct bank_world *world = *state;
    struct refit_claim *claim = NULL;
    struct refit_attach_message m;
    int layout = layout_fd(1);
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    for (int i = 0; i < 16; i++) {
        int sock = attach_by_hand(world, &claim);
        munmap(claim, REFIT_CLAIM_BYTES);
        shutdown(sock, SHUT_WR); /* it lives on, without a connection */
        assert_int_equal(hear(sock, &m), REFIT_PEER);
        close(sock);
    }
    int sock = dial(world);
    declare(sock, (struct refit_attach_message){.ranks = 1}, &layout, 1);
    assert_refused(sock, REFIT_BUSY);
    close(layout);
}

/* The slot of the first version, which a page that counts would pin, is filled again by the third. */
static void assert_nothing_is_pinned(struct bank_world *world)
{
    struct refit_error error = {0};
    assert_still_serves(world, 2);
    assert_int_equal(command(world, 0, "release 0"), REFIT_OK);
    if (model_put(world->bank, 1, 3, MODEL_WAIT_MS, &error) != REFIT_OK)
        fail_msg("%s", error.text);
}

static void serve_first_version(struct bank_world *world)
{
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    attach_rank(world, 0, 0, 1);
    assert_int_equal(model_put(world->bank, 1, 1, MODEL_WAIT_MS, NULL), REFIT_OK);
    kill_process(world, 0);
}

static bool has_attached(const struct refit_bank_snapshot *now, uint64_t count)
{
    return now->attached == count;
}

/* It closes with the answer unread, as one does that was told to stop in the meantime. */
static void a_process_that_gave_its_attach_up_pins_nothing(void **state)
{
    struct bank_world *world = *state;
    int layout = layout_fd(1);
    serve_first_version(world);
    bank_await(world, has_attached, 0);
    int sock = dial(world);
    declare(sock, (struct refit_attach_message){.ranks = 1}, &layout, 1);
    bank_await(world, has_attached, 1);
    struct refit_attach_message bye = {.type = REFIT_ATTACH_DETACH};
    assert_int_equal(refit_attach_send(sock, &bye, NULL, 0, NULL), REFIT_OK);
    close(sock);
    close(layout);
    bank_await(world, has_attached, 0);
    assert_nothing_is_pinned(world);
}

static atomic_bool export_fails; /* the next one */

enum refit_status __real_refit_slot_export(const struct refit_arena *arena, int *fd, struct refit_error *err);
enum refit_status __wrap_refit_slot_export(const struct refit_arena *arena, int *fd, struct refit_error *err);
enum refit_status __wrap_refit_slot_export(const struct refit_arena *arena, int *fd, struct refit_error *err)
{
    if (atomic_exchange(&export_fails, false))
        return refit_fail(err, REFIT_SYSTEM, "no descriptor is left");
    return __real_refit_slot_export(arena, fd, err);
}

static void a_process_that_could_not_be_answered_pins_nothing(void **state)
{
    struct bank_world *world = *state;
    int layout = layout_fd(1);
    serve_first_version(world);
    bank_await(world, has_attached, 0);
    int sock = dial(world);
    atomic_store(&export_fails, true);
    declare(sock, (struct refit_attach_message){.ranks = 1}, &layout, 1);
    assert_refused(sock, REFIT_SYSTEM);
    close(layout);
    assert_nothing_is_pinned(world);
}

/* What refitd admitted and the engine's own library refuses. */
static void a_process_that_can_not_use_the_slots_pins_nothing(void **state)
{
    struct bank_world *world = *state;
    serve_first_version(world);
    start_rank(world, 1, 0, 1, "w", 0);
    assert_int_equal(command(world, 1, "wants cuda"), REFIT_OK);
    assert_int_not_equal(command(world, 1, "attach %d", MODEL_WAIT_MS), REFIT_OK);
    bank_await(world, has_attached, 0);
    assert_nothing_is_pinned(world);
}

static void connections_that_say_nothing_do_not_keep_engines_out(void **state)
{
    struct bank_world *world = *state;
    int silent[80];
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    for (size_t i = 0; i < 80; i++)
        silent[i] = dial(world);
    for (size_t i = 0; i < 80; i++)
        close(silent[i]);
    assert_still_serves(world, 1);
}

static void the_engine_of_another_user_reads_and_cannot_write(void **state)
{
    struct bank_world *world = *state;
    const uid_t nobody = 65534;
    if (geteuid() != 0) {
        print_message("skipped: needs root to become another user\n");
        skip();
    }
    bank_open(world, 1, 2, REFIT_PROTECT_UID);
    start_rank(world, 0, 0, 1, "w", nobody);
    assert_int_equal(command(world, 0, "attach %d", MODEL_WAIT_MS), REFIT_OK);
    assert_int_equal(model_put(world->bank, 1, 1, MODEL_WAIT_MS, NULL), REFIT_OK);
    assert_int_equal(command(world, 0, "acquire 0 0"), REFIT_OK);
    assert_int_equal(command(world, 0, "check 0"), REFIT_OK);
    assert_string_equal(world->answer, "0");
    assert_int_equal(command(world, 0, "reopen"), REFIT_OK);
    assert_int_equal(atoi(world->answer), EACCES);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bank_world_setup, bank_world_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(garbage_is_refused_and_forgotten),
        TEST(wrong_numbers_and_descriptors_are_refused),
        TEST(a_claim_page_that_could_shrink_is_not_taken_back),
        TEST(slots_handed_back_in_each_others_place_are_not_served),
        TEST(a_page_full_of_garbage_only_makes_a_refit_wait),
        TEST(a_rank_that_never_answers_is_timed_out_by_name),
        TEST(a_process_that_attaches_again_and_again_is_bounded),
        TEST(a_process_that_gave_its_attach_up_pins_nothing),
        TEST(a_process_that_could_not_be_answered_pins_nothing),
        TEST(a_process_that_can_not_use_the_slots_pins_nothing),
        TEST(connections_that_say_nothing_do_not_keep_engines_out),
        TEST(the_engine_of_another_user_reads_and_cannot_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
