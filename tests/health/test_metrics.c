/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/io.h"
#include "health/health.h"

static struct refit_receiver_snapshot receiver;
static struct refit_session_snapshot session;
static struct refit_health_totals totals;
static char text[64 << 10];

static int set_up(void **state)
{
    memset(&receiver, 0, sizeof receiver);
    memset(&session, 0, sizeof session);
    memset(&totals, 0, sizeof totals);
    receiver.bank = (struct refit_bank_snapshot){.ranks = 2, .slots = 2, .attached = 1, .active = 0, .swaps = 3};
    receiver.bank.slot[0].state = REFIT_SLOT_ACTIVE;
    receiver.bank.slot[0].version.version = UINT64_MAX;
    strcpy(receiver.bank.slot[0].version.label, "a\"b\\c\nd");
    receiver.committed = 5;
    receiver.aborted_by[REFIT_PEER] = 2;
    strcpy(session.id, "r1");
    strcpy(session.transport, "tcp");
    session.phase = REFIT_PHASE_COMMITTED;
    session.bytes_due = 100;
    session.stats.payload_bytes = 120;
    session.phase_ns[REFIT_PHASE_TRANSFER] = 1500000000;
    return 0;
}

static const char *render(void)
{
    struct refit_buf out;
    const struct refit_health_view view = {
        .started = true, .receiver = &receiver, .session = &session, .totals = &totals, .software = "0.1.0"};
    refit_buf_init(&out, sizeof text - 1);
    assert_true(refit_health_metrics(&view, &out));
    memcpy(text, out.data, out.len);
    text[out.len] = '\0';
    refit_buf_release(&out);
    return text;
}

static void assert_line(const char *line)
{
    char whole[512];
    snprintf(whole, sizeof whole, "\n%s\n", line);
    if (!strstr(text, whole))
        fail_msg("no line %s", line);
}

static void values_are_those_of_the_snapshots(void **state)
{
    refit_health_observe(&totals, &session);
    render();
    assert_line("refit_version 18446744073709551615");
    assert_line("refit_refits_total{outcome=\"committed\",reason=\"\"} 5");
    assert_line("refit_refits_total{outcome=\"aborted\",reason=\"peer\"} 2");
    assert_line("refit_slots{state=\"active\"} 1");
    assert_line("refit_slots{state=\"free\"} 1");
    assert_line("refit_ranks_attached 1");
    assert_line("refit_swaps_total 3");
    assert_line("refit_needed_bytes_total 100");
    assert_line("refit_moved_bytes_total 120");
    assert_line("refit_phase_seconds_total{phase=\"transfer\"} 1.5");
    assert_line("refit_phase{phase=\"committed\"} 1");
    assert_line("refit_transport_info{transport=\"tcp\"} 1");
    assert_non_null(strstr(text, "label=\"a\\\"b\\\\c d\""));
}

static void a_refit_is_counted_once_and_only_at_its_end(void **state)
{
    session.phase = REFIT_PHASE_TRANSFER;
    refit_health_observe(&totals, &session);
    assert_int_equal(totals.bytes_needed, 0);
    session.phase = REFIT_PHASE_ABORTED;
    refit_health_observe(&totals, &session);
    refit_health_observe(&totals, &session);
    assert_int_equal(totals.bytes_needed, 100);
    strcpy(session.id, "r2");
    refit_health_observe(&totals, &session);
    assert_int_equal(totals.bytes_needed, 200);
}

/* Every sample follows a HELP and a TYPE of its own family, each family comes once, counters end in _total. */
static void the_format_is_prometheus(void **state)
{
    char *save = NULL, family[128] = "", type[32] = "", seen[16384] = "", mark[160];
    render();
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (sscanf(line, "# TYPE %127s %31s", family, type) == 2) {
            snprintf(mark, sizeof mark, " %s ", family);
            assert_null(strstr(seen, mark));
            strncat(seen, mark, sizeof seen - strlen(seen) - 1);
            assert_int_equal(strcmp(type, "counter") == 0,
                             strlen(family) > 6 && strcmp(family + strlen(family) - 6, "_total") == 0);
        } else if (*line != '#') {
            assert_int_equal(strcspn(line, "{ "), strlen(family));
            assert_memory_equal(line, family, strlen(family));
        }
    }
    assert_true(strlen(seen) > 0);
}

static void the_page_lists_every_metric(void **state)
{
    char *page, *save = NULL, family[128], type[32], row[192];
    size_t len;
    struct refit_error err;
    assert_int_equal(refit_io_read_file(HEALTH_DOC, 1 << 20, &page, &len, &err), REFIT_OK);
    render();
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (sscanf(line, "# TYPE %127s %31s", family, type) != 2)
            continue;
        snprintf(row, sizeof row, "| `%s` | %s |", family, type);
        if (!strstr(page, row))
            fail_msg("docs/health.md lacks the row %s", row);
    }
    free(page);
}

static void nothing_known_is_fine(void **state)
{
    struct refit_buf out;
    const struct refit_health_view view = {.software = "0.1.0"};
    refit_buf_init(&out, 1 << 16);
    assert_true(refit_health_metrics(&view, &out));
    refit_buf_release(&out);
    refit_buf_init(&out, 64);
    assert_false(refit_health_metrics(&view, &out));
    refit_buf_release(&out);
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(values_are_those_of_the_snapshots),
        TEST(a_refit_is_counted_once_and_only_at_its_end),
        TEST(the_format_is_prometheus),
        TEST(the_page_lists_every_metric),
        TEST(nothing_known_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
