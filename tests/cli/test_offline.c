/* SPDX-License-Identifier: Apache-2.0
 *
 * The `refit` program as a person meets it: usage, help, exit statuses, and the commands that need no replica.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "tests/support/safetensors_writer.h"

static char dir[] = "/tmp/refit-test-cli.XXXXXX";
static char file[64];

static int make_dir(void **state)
{
    if (!mkdtemp(dir) || chdir(dir) != 0)
        return -1;
    snprintf(file, sizeof file, "%s/model.safetensors", dir);
    struct safetensors_writer writer;
    safetensors_begin(&writer, 7);
    safetensors_add(&writer, "a.weight", REFIT_DTYPE_BF16, 2, (int64_t[]){10, 6});
    safetensors_add(&writer, "b.weight", REFIT_DTYPE_F32, 1, (int64_t[]){5});
    return safetensors_write(&writer, file) ? 0 : -1;
}

static int remove_dir(void **state)
{
    unlink("model.safetensors");
    unlink("engine.json");
    unlink("part.json");
    return chdir("/") == 0 && rmdir(dir) == 0 ? 0 : -1;
}

/* Runs `refit ARGUMENTS`; standard output and error go to `out`. Returns the exit status. */
static int run(const char *arguments, char *out, size_t len)
{
    char command[1024];
    snprintf(command, sizeof command, "%s %s 2>&1", REFIT_PROGRAM, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t n = fread(out, 1, len - 1, pipe);
    out[n] = '\0';
    return WEXITSTATUS(pclose(pipe));
}

static void expect(const char *arguments, int status, const char *text)
{
    char out[8192];
    int found = run(arguments, out, sizeof out);
    if (found != status || !strstr(out, text))
        fail_msg("refit %s: status %d, expected %d with \"%s\":\n%s", arguments, found, status, text, out);
}

/* The last of more members than fit a small buffer is one of them. */
static void members_of_the_environment_are_never_cut(void **state)
{
    char members[32768] = "";
    for (size_t i = 0, used = 0; i < 900; i++)
        used += (size_t)snprintf(members + used, sizeof members - used, "http://127.0.0.1:1/replica-%zu ", i);
    strcat(members, "ftp://the-last");
    assert_true(strlen(members) > 16384);
    assert_int_equal(setenv("REFIT_TO", members, 1), 0);
    expect("status", 2, "only the schemes http and https are spoken");
    unsetenv("REFIT_TO");
}

static void an_answer_that_is_lost_is_a_failure(void **state)
{
    char out[256];
    assert_int_equal(run("version >/dev/full", out, sizeof out), 1);
    assert_int_equal(run("help >/dev/full", out, sizeof out), 1);
    assert_int_equal(run("version | true", out, sizeof out), 0);
}

/* It calls a replica, so it takes what every such command takes. */
static void digest_shows_its_credentials(void **state)
{
    FILE *token = fopen("token", "w");
    assert_non_null(token);
    fputs("0123456789abcdef\n", token);
    fclose(token);
    expect("digest model.safetensors --like http://10.0.0.1:1 --token-file token", 1, "in the clear");
    expect("digest model.safetensors --like https://127.0.0.1:1", 1, "cannot connect");
    unlink("token");
}

static void usage_says_what_was_expected_and_what_was_found(void **state)
{
    expect("", 2, "usage: refit COMMAND");
    expect("--help", 0, "rollback");
    expect("--version", 0, "refit 0.");
    expect("launch", 2, "unknown command 'launch'");
    expect("push", 2, "--help");
    expect("push x --version", 2, "--version: needs a value, found the end of the line");
    expect("push x --version zero --to u", 2, "--version: expected a whole number from 1 on, found zero");
    expect("push x --version -3 --to u", 2, "found -3");
    expect("push x --version ' -3' --to u", 2, "expected a whole number");
    expect("push x --version 1", 2, "--to: is required");
    expect("push x y --version 1 --to u", 2, "y: unexpected argument");
    expect("push x --version 1 --to u --deadline 5y", 2, "expected a duration");
    expect("push x --version 1 --to u --output xml", 2, "expected json or text, found xml");
    expect("push x --version 1 --to u --streams 17", 2, "--streams: expected a whole number from 1 to 16, found 17");
    expect("status --frequency 9 u", 2, "--frequency: unknown option");
    expect("abort", 2, "too few arguments, expected: URL");
    expect("status --output=json", 2, "no replica is named");
    expect("fleet --to dns:nobody", 2, "dns:NAME:PORT");
    expect("hold http://a:1 --to http://a:1", 2, "given twice");
    expect("resolve --commit --abort http://a:1", 2, "not both");
    expect("push x --version 1 --to u --since 3", 2, "go together");
    expect("plan x --source-layout y --to u", 2, "one of the two");
    expect("plan x --layout y --to u", 2, "--to and --layout");
}

static void every_command_has_help_with_examples(void **state)
{
    static const char *const names[] = {"push", "status", "fleet",   "plan",  "watch",      "resolve",
                                        "rollback", "hold", "release", "abort", "quarantine", "digest"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char arguments[64], example[64];
        snprintf(arguments, sizeof arguments, "%s --help", names[i]);
        snprintf(example, sizeof example, "  refit %s", names[i]);
        expect(arguments, 0, example);
        snprintf(arguments, sizeof arguments, "help %s", names[i]);
        expect(arguments, 0, example);
    }
}

static void digest_is_the_checkpoints(void **state)
{
    struct refit_checkpoint *checkpoint;
    struct refit_tally *tally;
    struct refit_error err;
    char hex[REFIT_SHA256_HEX_MAX];
    assert_int_equal(refit_checkpoint_open(file, &checkpoint, &err), REFIT_OK);
    assert_int_equal(refit_checkpoint_digest(checkpoint, 1, &tally, hex, &err), REFIT_OK);
    refit_tally_destroy(tally);
    refit_checkpoint_close(checkpoint);
    expect("digest model.safetensors", 0, hex);
    expect("digest model.safetensors --threads 3 --tensors", 0, "  a.weight");
    expect("digest nothing.safetensors", 1, "nothing.safetensors");
}

static void digest_counts_only_the_tensors_of_a_layout(void **state)
{
    assert_true(safetensors_write_text("part.json",
        "{\"format\":\"refit-layout/1\",\"ranks\":1,\"meshes\":{\"m\":{\"axes\":[\"x\"],\"shape\":[1]}},\"entries\":["
        "{\"tensor\":\"b.weight\",\"dtype\":\"F32\",\"shape\":[5],\"mesh\":\"m\",\"placements\":[\"Replicate\"]}]}"));
    char whole[8192], part[8192];
    assert_int_equal(run("digest model.safetensors", whole, sizeof whole), 0);
    assert_int_equal(run("digest model.safetensors --layout part.json", part, sizeof part), 0);
    assert_int_equal(strlen(whole), strlen(part));
    assert_string_not_equal(whole, part);
}

static void plan_shows_bytes_per_link(void **state)
{
    assert_true(safetensors_write_text("engine.json",
        "{\"format\":\"refit-layout/1\",\"ranks\":2,\"meshes\":{\"tp\":{\"axes\":[\"tp\"],\"shape\":[2]}},\"entries\":["
        "{\"tensor\":\"a.weight\",\"dtype\":\"BF16\",\"shape\":[10,6],\"mesh\":\"tp\",\"placements\":[\"Shard(1)\"]},"
        "{\"tensor\":\"b.weight\",\"dtype\":\"F32\",\"shape\":[5],\"mesh\":\"tp\",\"placements\":[\"Replicate\"]}]}"));
    expect("plan model.safetensors --layout engine.json", 0, "140 bytes (140 B) over 3 links, 160 B written");
    expect("plan model.safetensors --layout engine.json", 0, "\n0             0-1            20 B"); /* once for both */
    expect("plan model.safetensors --layout engine.json --output json", 0, "\"bytes\": 140");
    assert_true(safetensors_write_text("part.json",
        "{\"format\":\"refit-topology/1\",\"ranks\":2,\"domains\":[{\"name\":\"rack-a\",\"ranks\":[0]},"
        "{\"name\":\"rack-b\",\"ranks\":[1]}]}"));
    expect("plan model.safetensors --layout engine.json --topology part.json", 0, "link - -> rack-b: 70 B");
    expect("plan model.safetensors --layout engine.json --source-topology part.json", 1, "has 2 ranks, its layout has 1");
    expect("plan --layout engine.json", 1, "--source-layout FILE");
    expect("plan model.safetensors", 1, "--to URL");
    expect("plan model.safetensors --layout model.safetensors", 1, "model.safetensors: not valid JSON");
}

static void a_replica_that_is_not_there_is_named(void **state)
{
    expect("status http://127.0.0.1:9", 1, "127.0.0.1:9");
    expect("fleet http://127.0.0.1:9+http://127.0.0.1:10", 1, "silent");
    expect("rollback --fleet http://127.0.0.1:9", 1, "nothing was changed");
    expect("resolve http://127.0.0.1:9", 1, "outcome-unknown");
    expect("status --to file:nowhere/members", 1, "nowhere/members");
    expect("push model.safetensors --version 1 --to http://127.0.0.1:9 --policy sometimes", 1, "sometimes");
    expect("push model.safetensors --version 1 --to http://127.0.0.1:9 --strategy smoke", 1, "smoke");
    expect("rollback http://127.0.0.1:9", 1, "127.0.0.1:9");
    expect("push model.safetensors --version 1 --to http://127.0.0.1:9 --deadline 2s", 1, "127.0.0.1:9");
    expect("push model.safetensors --version 1 --to ftp://127.0.0.1:9", 1, "ftp://127.0.0.1:9");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_says_what_was_expected_and_what_was_found),
        cmocka_unit_test(members_of_the_environment_are_never_cut),
        cmocka_unit_test(an_answer_that_is_lost_is_a_failure),
        cmocka_unit_test(digest_shows_its_credentials),
        cmocka_unit_test(every_command_has_help_with_examples),
        cmocka_unit_test(digest_is_the_checkpoints),
        cmocka_unit_test(digest_counts_only_the_tensors_of_a_layout),
        cmocka_unit_test(plan_shows_bytes_per_link),
        cmocka_unit_test(a_replica_that_is_not_there_is_named),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
