/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"

static struct world world;

static int set_up(void **state)
{
    world_init(&world, 64);
    world_start(&world);
    return 0;
}

static int tear_down(void **state)
{
    world_close(&world);
    return 0;
}

static uint64_t lead(const char *name, bool takeover)
{
    uint64_t epoch = 0;
    struct refit_error err;
    if (refit_receiver_lead(world.receiver, name, takeover, &epoch, &err) != REFIT_OK)
        fail_msg("%s", err.text);
    return epoch;
}

static void refused(const char *name, const char *because)
{
    uint64_t epoch = 0;
    struct refit_error err;
    assert_int_equal(refit_receiver_lead(world.receiver, name, false, &epoch, &err), REFIT_CONFLICT);
    assert_non_null(strstr(err.text, because));
    assert_int_equal(epoch, 0);
}

static void epochs_only_grow(void **state)
{
    assert_int_equal(lead("a", false), 1);
    assert_int_equal(lead("a", false), 2); /* it restarted */
    assert_int_equal(lead("b", true), 3);
}

static void live_lead_is_named(void **state)
{
    lead("trainer-a", false);
    refused("trainer-b", "trainer-a");
    assert_int_equal(lead("trainer-b", true), 2);
    refused("trainer-a", "trainer-b");
}

static void bad_names_are_refused(void **state)
{
    uint64_t epoch;
    char name[REFIT_LEAD_NAME_MAX + 1];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_int_equal(refit_receiver_lead(world.receiver, "", false, &epoch, NULL), REFIT_INVALID);
    assert_int_equal(refit_receiver_lead(world.receiver, name, false, &epoch, NULL), REFIT_INVALID);
    assert_int_equal(refit_receiver_lead(world.receiver, "a\nb", false, &epoch, NULL), REFIT_INVALID);
    assert_int_equal(lead("fine", false), 1);
}

static void silent_lead_may_be_replaced(void **state)
{
    refit_receiver_close(world.receiver);
    world.config.lead_ttl_ms = 1;
    world_start(&world);
    lead("a", false);
    uint64_t epoch;
    struct refit_deadline deadline = refit_deadline_in_ms(WORLD_WAIT_MS);
    while (refit_receiver_lead(world.receiver, "b", false, &epoch, NULL) != REFIT_OK)
        assert_false(refit_deadline_passed(deadline));
    assert_int_equal(epoch, 2);
}

static void lead_whose_refit_ended_may_be_followed(void **state)
{
    world_publish(&world, 1, 1, "tcp");
    assert_int_equal(lead("another", false), 2);
}

static void lead_whose_publish_was_refused_may_be_followed(void **state)
{
    struct refit_ticket ticket;
    struct refit_error err;
    world_publish(&world, 5, 1, "tcp");
    world_lead(&world);
    struct refit_request request = world_request(&world, 4, "older");
    assert_int_equal(refit_receiver_begin(world.receiver, &request, &ticket, &err), REFIT_CONFLICT);
    assert_int_equal(lead("another", false), world.epoch + 1);
}

static void lead_whose_refit_runs_is_alive(void **state)
{
    refit_receiver_close(world.receiver);
    world.config.lead_ttl_ms = 1;
    world_start(&world);
    world_lead(&world);
    world_put_source(&world);
    struct refit_request request = world_request(&world, 1, "p");
    struct refit_ticket ticket = world_begin(&world, &request);
    world_wait_phase(&world, ticket.id, REFIT_PHASE_TRANSFER);
    refused("another", "trainer");
    ticket_release(&ticket);
}

static void new_epoch_ends_refits_of_older_ones(void **state)
{
    world_lead(&world);
    world_put_source(&world);
    struct refit_request request = world_request(&world, 1, "p");
    struct refit_ticket ticket = world_begin(&world, &request);
    lead("another", true);
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_ABORTED);
    assert_non_null(strstr(end.error.text, "another"));
    ticket_release(&ticket);
    struct refit_error err;
    assert_int_equal(refit_receiver_begin(world.receiver, &request, &ticket, &err), REFIT_STALE);
    assert_non_null(strstr(err.text, "another"));
}

static void epoch_that_was_not_issued_is_stale(void **state)
{
    struct refit_ticket ticket;
    struct refit_error err;
    world.epoch = 7;
    struct refit_request request = world_request(&world, 1, "p");
    assert_int_equal(refit_receiver_begin(world.receiver, &request, &ticket, &err), REFIT_STALE);
    world_lead(&world);
    world_put_source(&world);
    request.epoch = world.epoch + 1;
    assert_int_equal(refit_receiver_begin(world.receiver, &request, &ticket, &err), REFIT_STALE);
    request.epoch = world.epoch;
    ticket = world_begin(&world, &request);
    ticket_release(&ticket);
}

static void epoch_hold_and_quarantine_survive_a_restart(void **state)
{
    struct refit_receiver_snapshot before, after;
    char digest[REFIT_SHA256_HEX_MAX];
    world_publish(&world, 1, 1, "tcp");
    world_publish(&world, 2, 2, "tcp");
    world_digest(&world, 3, digest);
    assert_int_equal(refit_receiver_quarantine(world.receiver, digest, true, NULL), REFIT_OK);
    struct refit_deadline deadline = refit_deadline_in_ms(WORLD_WAIT_MS);
    assert_int_equal(refit_receiver_rollback(world.receiver, &(struct refit_rollback){.quarantine = true}, deadline,
                                             NULL, NULL), REFIT_OK);
    refit_receiver_read(world.receiver, &before);
    world_restart(&world);
    refit_receiver_read(world.receiver, &after);
    assert_true(after.held);
    assert_int_equal(after.epoch, before.epoch);
    assert_string_equal(after.lead, before.lead);
    assert_int_equal(after.quarantined, 2);
    assert_string_not_equal(after.instance, before.instance);
    assert_int_equal(lead("someone", false), before.epoch + 1);
}

static void a_section_that_makes_no_sense_costs_only_what_it_lacks(void **state)
{
    static const char wrong[] = "{\"receiver\":{\"epoch\":7,\"lead\":9,\"held\":true,\"quarantine\":{}}}";
    struct refit_receiver_snapshot now;
    struct stat st;
    char path[160];
    snprintf(path, sizeof path, "%s.state", world.socket_path);
    assert_int_equal(refit_io_replace_file(path, wrong, sizeof wrong - 1, 0600, NULL), REFIT_OK);
    world_restart(&world); /* what it knows is on disk already: closing writes nothing */
    refit_receiver_read(world.receiver, &now);
    assert_int_equal(now.epoch, 7);
    assert_true(now.held);
    assert_int_equal(now.quarantined, 0);
    strcat(path, ".bad");
    assert_int_equal(stat(path, &st), 0);
    unlink(path);
    assert_int_equal(lead("someone", false), 8);
}

static void epoch_is_not_told_before_it_is_on_disk(void **state)
{
    uint64_t epoch = 0;
    struct refit_error err;
    char moved[128];
    assert_int_equal(lead("a", false), 1);
    /* A state file that can't be replaced: its directory is gone. */
    snprintf(moved, sizeof moved, "%s.gone", world.dir);
    assert_int_equal(rename(world.dir, moved), 0);
    assert_int_not_equal(refit_receiver_lead(world.receiver, "a", false, &epoch, &err), REFIT_OK);
    assert_int_equal(epoch, 0);
    assert_int_equal(rename(moved, world.dir), 0);
    assert_int_equal(lead("a", false), 2);
}

static void lead_that_resigned_may_be_followed_at_once(void **state)
{
    struct refit_error err;
    uint64_t epoch = lead("a", false);
    refused("b", "a");
    assert_int_equal(refit_receiver_resign(world.receiver, "a", epoch + 1, &err), REFIT_STALE);
    assert_int_equal(refit_receiver_resign(world.receiver, "b", epoch, &err), REFIT_CONFLICT);
    assert_non_null(strstr(err.text, "issued to a"));
    refused("b", "a");
    assert_int_equal(refit_receiver_resign(world.receiver, "a", epoch, &err), REFIT_OK);
    assert_int_equal(refit_receiver_resign(world.receiver, "a", epoch, &err), REFIT_OK);
    assert_int_equal(lead("b", false), epoch + 1);
    assert_int_equal(refit_receiver_resign(world.receiver, "a", epoch, &err), REFIT_STALE);
}

static void resigning_where_nobody_led_is_stale(void **state)
{
    struct refit_error err;
    assert_int_equal(refit_receiver_resign(world.receiver, "a", 0, &err), REFIT_STALE);
    assert_int_equal(refit_receiver_resign(world.receiver, "", 1, &err), REFIT_STALE);
}

static void what_a_lead_that_resigned_began_is_aborted(void **state)
{
    world_lead(&world);
    world_put_source(&world);
    struct refit_request request = world_request(&world, 1, "p");
    struct refit_ticket ticket = world_begin(&world, &request);
    refused("someone-else", "a refit of its runs here");
    assert_int_equal(refit_receiver_resign(world.receiver, world.lead, world.epoch, NULL), REFIT_OK);
    assert_int_equal(lead("someone-else", false), world.epoch + 1); /* also while the refit still unwinds */
    struct refit_session_snapshot end = world_wait_aborted(&world, ticket.id, REFIT_ABORTED);
    assert_non_null(strstr(end.error.text, "resigned"));
    ticket_release(&ticket);
}

static void *lead_on_a_slow_disk(void *context)
{
    uint64_t epoch;
    atomic_int *tid = context;
    atomic_store(tid, gettid());
    (void)!refit_receiver_lead(world.receiver, "a", false, &epoch, NULL);
    return NULL;
}

static bool is_asleep(int tid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    return strncmp(strrchr(text, ')'), ") S", 3) == 0;
}

/* The state file's temporary is a FIFO here: opening it takes until somebody reads. */
static void slow_disk_holds_up_no_reader(void **state)
{
    char path[160];
    pthread_t thread;
    atomic_int tid = 0;
    struct refit_receiver_snapshot now;
    struct refit_deadline deadline = refit_deadline_in_ms(WORLD_WAIT_MS);
    snprintf(path, sizeof path, "%s.state.tmp.%d", world.socket_path, (int)getpid());
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(pthread_create(&thread, NULL, lead_on_a_slow_disk, &tid), 0);
    while (atomic_load(&tid) == 0 || !is_asleep(atomic_load(&tid)))
        assert_false(refit_deadline_passed(deadline));
    refit_receiver_read(world.receiver, &now);
    assert_int_equal(now.epoch, 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(reader >= 0);
    pthread_join(thread, NULL);
    close(reader);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(epochs_only_grow),
        TEST(live_lead_is_named),
        TEST(bad_names_are_refused),
        TEST(silent_lead_may_be_replaced),
        TEST(lead_whose_refit_ended_may_be_followed),
        TEST(lead_whose_publish_was_refused_may_be_followed),
        TEST(lead_whose_refit_runs_is_alive),
        TEST(new_epoch_ends_refits_of_older_ones),
        TEST(epoch_that_was_not_issued_is_stale),
        TEST(epoch_hold_and_quarantine_survive_a_restart),
        TEST(a_section_that_makes_no_sense_costs_only_what_it_lacks),
        TEST(epoch_is_not_told_before_it_is_on_disk),
        TEST(lead_that_resigned_may_be_followed_at_once),
        TEST(resigning_where_nobody_led_is_stale),
        TEST(what_a_lead_that_resigned_began_is_aborted),
        TEST(slow_disk_holds_up_no_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
