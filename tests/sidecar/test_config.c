/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/io.h"
#include "sidecar/config.h"
#include "sidecar/config_value.h"

static char *no_environment[] = {NULL};
static struct refit_config config;
static struct refit_error err;
static char path[64];

static enum refit_status load_with(char *const *environment, const char *const *args)
{
    const char *argv[16] = {"refitd"};
    int argc = 1;
    for (; *args; args++)
        argv[argc++] = *args;
    return refit_config_load(argc, (char *const *)(uintptr_t)argv, environment, &config, &err);
}

#define LOAD(...) load_with(no_environment, (const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

static void assert_error(enum refit_status status, const char *part)
{
    assert_int_equal(status, REFIT_INVALID);
    if (!strstr(err.text, part))
        fail_msg("expected \"%s\" in \"%s\"", part, err.text);
}

static void write_file(const char *text)
{
    snprintf(path, sizeof path, "/tmp/refit-config.%d", (int)getpid());
    assert_int_equal(refit_io_replace_file(path, text, strlen(text), 0600, &err), REFIT_OK);
}

static void defaults_hold(void **state)
{
    assert_int_equal(LOAD(), REFIT_OK);
    assert_string_equal(config.control, "127.0.0.1:7070");
    assert_int_equal(config.slots, 2);
    assert_int_equal(config.deadline_ms, 600000);
    assert_int_equal(config.action, REFIT_CONFIG_RUN);
}

static void flags_come_in_every_form(void **state)
{
    assert_int_equal(LOAD("--slots", "3", "--slot-bytes=2GiB", "--insecure-control", "--protection", "seal"), REFIT_OK);
    assert_int_equal(config.slots, 3);
    assert_int_equal(config.slot_bytes, 2ull << 30);
    assert_true(config.insecure_control);
    assert_int_equal(config.protection, 1);
    assert_int_equal(LOAD("--insecure-control", "--no-insecure-control"), REFIT_OK);
    assert_false(config.insecure_control);
    assert_int_equal(LOAD("--insecure-control=false"), REFIT_OK);
    assert_false(config.insecure_control);
}

static void flag_overrides_environment_overrides_file(void **state)
{
    char *environment[] = {(char[]){"REFIT_SLOTS=4"}, (char[]){"REFIT_STREAMS=5"}, NULL};
    write_file("# a comment\nslots = 3\nstreams=3\n  ranks = 3\nsocket = \"/tmp/a b\"\n");
    assert_int_equal(load_with(environment, (const char *const[]){"--slots", "6", "--config", path, NULL}), REFIT_OK);
    assert_int_equal(config.slots, 6);
    assert_int_equal(config.streams, 5);
    assert_int_equal(config.ranks, 3);
    assert_string_equal(config.socket, "/tmp/a b");
}

static void a_file_may_be_json(void **state)
{
    write_file("{\"slots\": 3, \"insecure-control\": true, \"rate\": \"1MiB\"}");
    assert_int_equal(LOAD("--config", path), REFIT_OK);
    assert_int_equal(config.slots, 3);
    assert_true(config.insecure_control);
    assert_int_equal(config.rate, 1 << 20);
}

static void errors_name_flag_expected_and_found(void **state)
{
    assert_error(LOAD("--ranks", "x"), "--ranks: expected a whole number from 1 to 1024, found \"x\"");
    assert_error(LOAD("--ranks", "0"), "--ranks");
    assert_error(LOAD("--ranks", "1025"), "--ranks: expected a whole number from 1 to 1024"); /* what a bank takes */
    assert_error(LOAD("--streams", "17"), "--streams: expected a whole number from 1 to 16"); /* what an endpoint takes */
    assert_error(LOAD("--slots", "17"), "--slots: expected a whole number from 1 to 16");
    assert_error(LOAD("--slots", "-1"), "--slots");
    assert_error(LOAD("--slots"), "--slots: expected a value, found nothing");
    assert_error(LOAD("--deadline", "10"), "--deadline: expected a duration with its unit");
    assert_error(LOAD("--slot-bytes", "1.5GiB"), "--slot-bytes: expected bytes");
    assert_error(LOAD("--slot-bytes", "99999999999TiB"), "--slot-bytes");
    assert_error(LOAD("--protection", "se"), "expected one of uid|seal, found \"se\"");
    assert_error(LOAD("--control", "7070"), "ADDRESS:PORT");
    assert_error(LOAD("--control", "127.0.0.1:65536"), "--control");
    assert_error(LOAD("--bogus"), "unknown option \"--bogus\"");
    assert_error(LOAD("--no-slots"), "unknown option \"--no-slots\"");
    assert_error(LOAD("bogus"), "unexpected argument \"bogus\"");
    assert_error(LOAD("--insecure-control=maybe"), "true or false");
    char *environment[] = {(char[]){"REFIT_RANKS=many"}, NULL};
    assert_error(load_with(environment, (const char *const[]){NULL}), "REFIT_RANKS: expected a whole number");
}

static void errors_in_a_file_name_file_and_key(void **state)
{
    write_file("slots = x\n");
    assert_error(LOAD("--config", path), "slots: expected a whole number");
    assert_non_null(strstr(err.text, path));
    write_file("bogus = 1\n");
    assert_error(LOAD("--config", path), "unknown key \"bogus\"");
    write_file("slots\n");
    assert_error(LOAD("--config", path), "line 1");
    write_file("{\"slots\": [1]}");
    assert_error(LOAD("--config", path), "slots: expected a string");
    assert_int_not_equal(LOAD("--config", "/nonexistent/file"), REFIT_OK);
    assert_non_null(strstr(err.text, "/nonexistent/file"));
}

static void unknown_environment_is_ignored(void **state)
{
    /* Kubernetes sets REFIT_PORT and the like for a Service named "refit". */
    char *environment[] = {(char[]){"REFIT_PORT=tcp://10.0.0.1:80"}, (char[]){"REFIT_SERVICE_HOST=10.0.0.1"}, NULL};
    assert_int_equal(load_with(environment, (const char *const[]){NULL}), REFIT_OK);
}

static void control_beyond_loopback_needs_a_word(void **state)
{
    assert_error(LOAD("--control", "0.0.0.0:7070"), "--insecure-control");
    assert_error(LOAD("--control", "[::]:7070"), "--insecure-control");
    assert_int_equal(LOAD("--control", "0.0.0.0:7070", "--insecure-control"), REFIT_OK);
    assert_int_equal(LOAD("--control", "[::1]:7070"), REFIT_OK);
    assert_int_equal(LOAD("--control", "127.8.0.1:7070"), REFIT_OK);
}

static void what_belongs_together_is_checked(void **state)
{
    assert_error(LOAD("--initial-checkpoint", "a"), "--checkpoint-root");
    assert_error(LOAD("--deadline", "2h", "--deadline-max", "1h"), "--deadline");
}

static void slots_may_be_on_devices(void **state)
{
    struct refit_config_memory memory;
    assert_int_equal(LOAD("--ranks", "2"), REFIT_OK);
    assert_int_equal(refit_config_read_memory(&config, &memory, &err), REFIT_OK);
    assert_false(memory.cuda);
    assert_int_equal(LOAD("--memory", "cuda", "--ranks", "3"), REFIT_OK);
    assert_int_equal(refit_config_read_memory(&config, &memory, &err), REFIT_OK);
    assert_true(memory.cuda && memory.devices[0] == 0 && memory.devices[2] == 2);
    assert_int_equal(LOAD("--memory", "cuda:7,0", "--ranks", "2"), REFIT_OK);
    assert_int_equal(refit_config_read_memory(&config, &memory, &err), REFIT_OK);
    assert_true(memory.cuda && memory.devices[0] == 7 && memory.devices[1] == 0);
    static const char *const bad[] = {"", "gpu", "cuda:", "cuda:,0", "cuda:0,", "cuda:0,x", "cuda:-1,0", "cuda:1024,0",
                                      "cuda:0 ,1", "cuda,0", "Cuda"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_error(LOAD("--memory", bad[i], "--ranks", "2"), "--memory: expected host, cuda, or cuda:0,1,...");
    assert_error(LOAD("--memory", "cuda:0,1,2", "--ranks", "2"), "names 3 devices for --ranks 2");
    assert_error(LOAD("--memory", "cuda", "--protection", "seal"), "CUDA has no seals");
    assert_error(LOAD("--memory", "cuda", "--engine", "vllm=http://127.0.0.1:8000", "--layout", "x"), "host memory");
    assert_error(LOAD("--receive", "in-engine"), "--receive in-engine: is for slots on GPUs; --memory cuda is needed beside it");
    assert_int_equal(LOAD("--receive", "in-engine", "--memory", "cuda", "--ranks", "16"), REFIT_OK);
    assert_error(LOAD("--receive", "in-engine", "--memory", "cuda", "--ranks", "17"), "1 to 16 ranks can, found --ranks 17");
    assert_error(LOAD("--staging", "host", "--swap", "copy", "--memory", "cuda", "--receive", "in-engine"), "not with --staging host");
    assert_error(LOAD("--memory", "cuda", "--receive", "in-engine", "--data-tls", "on", "--data-tls-cert", "c",
                      "--data-tls-key", "k"),
                 "NCCL does not encrypt");
    assert_error(LOAD("--staging", "host", "--memory", "cuda"), "--swap copy are needed beside it");
    assert_error(LOAD("--staging", "host", "--swap", "copy"), "--memory cuda");
    assert_int_equal(LOAD("--staging", "host", "--swap", "copy", "--memory", "cuda"), REFIT_OK);
    assert_error(LOAD("--staging", "host", "--swap", "copy", "--memory", "cuda", "--receive", "sidecar"), "not with --staging host");
    assert_error(LOAD("--receive", "sidecar"), "--memory cuda is needed beside it");
    assert_int_equal(LOAD("--receive", "sidecar", "--memory", "cuda"), REFIT_OK);
    assert_error(LOAD("--memory", "cuda", "--receive", "sidecar", "--data-tls", "on", "--data-tls-cert", "c",
                      "--data-tls-key", "k"),
                 "NCCL does not encrypt");
    assert_error(LOAD("--receive", "other"), "expected one of staged|in-engine|sidecar");
}

static void the_printed_configuration_is_read_back(void **state)
{
    char *text;
    size_t len;
    assert_int_equal(LOAD("--slot-bytes", "3MiB", "--adopt-timeout", "1500ms", "--log-format", "json", "--socket",
                          "/tmp/x y", "--insecure-control", "--control", "0.0.0.0:0", "--print-config"),
                     REFIT_OK);
    assert_int_equal(config.action, REFIT_CONFIG_PRINT);
    FILE *out = open_memstream(&text, &len);
    refit_config_print(&config, out);
    fclose(out);
    write_file(text);
    free(text);
    struct refit_config before = config;
    assert_int_equal(LOAD("--config", path), REFIT_OK);
    before.action = REFIT_CONFIG_RUN;
    snprintf(before.config, sizeof before.config, "%s", path);
    memcpy(before.source, config.source, sizeof before.source);
    assert_memory_equal(&before, &config, sizeof config);
}

static char *printed(void)
{
    char *text;
    size_t len;
    FILE *out = open_memstream(&text, &len);
    refit_config_print(&config, out);
    fclose(out);
    return text;
}

static void the_printed_configuration_says_where_it_came_from_and_no_secret(void **state)
{
    char *environment[] = {(char[]){"REFIT_RANKS=2"}, NULL}, expected[160];
    write_file("admin:0123456789-the-secret\n");
    char token_file[sizeof path];
    memcpy(token_file, path, sizeof path);
    const char *args[] = {"--token-file", token_file, "--slots", "3", NULL};
    assert_int_equal(load_with(environment, args), REFIT_OK);
    char *text = printed();
    assert_non_null(strstr(text, "# from the environment, REFIT_RANKS\nranks = 2\n"));
    assert_non_null(strstr(text, "# from the flag --slots\nslots = 3\n"));
    assert_non_null(strstr(text, "\nstreams = 2\n"));
    assert_null(strstr(text, "# from the flag --streams"));
    snprintf(expected, sizeof expected, "token-file = \"%s\"\n", token_file);
    assert_non_null(strstr(text, expected));
    assert_null(strstr(text, "secret"));
    free(text);
    write_file("slots = 4\n");
    assert_int_equal(LOAD("--config", path), REFIT_OK);
    text = printed();
    snprintf(expected, sizeof expected, "# from the file %s\nslots = 4\n", path);
    assert_non_null(strstr(text, expected));
    free(text);
}

static void control_beyond_loopback_is_authenticated(void **state)
{
    assert_int_equal(LOAD("--control", "0.0.0.0:7070", "--tls-cert", "c", "--tls-key", "k", "--token-file", "t"), REFIT_OK);
    assert_int_equal(LOAD("--control", "0.0.0.0:7070", "--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "a"), REFIT_OK);
    assert_error(LOAD("--control", "0.0.0.0:7070", "--tls-cert", "c", "--tls-key", "k"), "without authentication");
    assert_error(LOAD("--control", "0.0.0.0:7070", "--token-file", "t"), "--insecure-plaintext-tokens");
    assert_int_equal(LOAD("--control", "0.0.0.0:7070", "--token-file", "t", "--insecure-plaintext-tokens"), REFIT_OK);
    assert_error(LOAD("--control", "0.0.0.0:7070", "--insecure-plaintext-tokens"), "--insecure-control");
    assert_error(LOAD("--control", "0.0.0.0:7070", "--token-file", "t", "--insecure-control"), "--insecure-plaintext-tokens");
    assert_int_equal(LOAD("--token-file", "t"), REFIT_OK);
}

static void assert_data_tls(bool demanded, const char *cert, const char *client_ca, const char *ca)
{
    struct refit_config_data_tls tls;
    refit_config_read_data_tls(&config, &tls);
    assert_int_equal(tls.demanded, demanded);
    assert_string_equal(tls.cert, cert);
    assert_string_equal(tls.client_ca, client_ca);
    assert_string_equal(tls.ca, ca);
}

static void bulk_bytes_use_the_certificates_of_control_unless_told_otherwise(void **state)
{
    assert_int_equal(LOAD(), REFIT_OK);
    assert_data_tls(false, "", "", "");
    assert_int_equal(LOAD("--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "a"), REFIT_OK);
    assert_data_tls(true, "c", "a", "a");
    assert_int_equal(LOAD("--tls-cert", "c", "--tls-key", "k", "--siblings-cacert", "s", "--tls-client-ca", "a"), REFIT_OK);
    assert_data_tls(true, "c", "a", "s");
    assert_int_equal(LOAD("--tls-cert", "c", "--tls-key", "k", "--data-tls", "off"), REFIT_OK);
    assert_data_tls(false, "c", "", "");
    assert_int_equal(LOAD("--data-tls-cert", "d", "--data-tls-key", "e", "--data-tls-client-ca", "b", "--data-tls-ca", "f"),
                     REFIT_OK);
    assert_data_tls(true, "d", "b", "f");
    assert_error(LOAD("--data-tls", "on"), "--data-tls-cert or --tls-cert is needed");
    assert_error(LOAD("--data-tls", "maybe"), "one of auto|on|off");
    assert_error(LOAD("--data-tls-key", "e"), "found only --data-tls-key");
    assert_error(LOAD("--data-tls-client-ca", "b"), "have no TLS here");
}

static void tls_options_belong_together(void **state)
{
    assert_error(LOAD("--tls-cert", "c"), "found only --tls-cert");
    assert_error(LOAD("--tls-key", "k"), "found only --tls-key");
    assert_error(LOAD("--tls-client-ca", "a"), "--tls-cert and --tls-key are needed");
    assert_error(LOAD("--tls-cert", "c", "--tls-key", "k", "--tls-client-names", "n"), "--tls-client-ca is needed");
    assert_error(LOAD("--tls-client-role", "root"), "one of none|read|refit|admin");
}

static void a_unix_socket_may_be_the_control_listener(void **state)
{
    assert_int_equal(LOAD("--control", "unix:/run/refit/control.sock", "--control-mode", "0660"), REFIT_OK);
    assert_string_equal(config.control, "unix:/run/refit/control.sock");
    assert_int_equal(config.control_mode, 0660);
    assert_error(LOAD("--control", "unix:control.sock"), "or unix:/PATH");
    assert_error(LOAD("--admin", "unix:/run/a.sock"), "--admin");
    assert_error(LOAD("--control-mode", "999"), "octal");
    assert_error(LOAD("--control-mode", "1777"), "octal");
    assert_error(LOAD("--control", "unix:/c.sock", "--tls-cert", "c", "--tls-key", "k"), "takes no --tls-cert");
}

static void values_are_exact(void **state)
{
    uint64_t n = 0;
    char text[32];
    assert_true(refit_config_parse_bytes("16GiB", &n));
    assert_int_equal(n, 16ull << 30);
    assert_true(refit_config_parse_bytes("2kB", &n));
    assert_int_equal(n, 2000);
    assert_false(refit_config_parse_bytes("9223372036854775808", &n));
    assert_false(refit_config_parse_bytes("", &n));
    assert_false(refit_config_parse_bytes("1 GiB", &n));
    assert_false(refit_config_parse_bytes("0x10", &n));
    assert_true(refit_config_parse_duration("0", &n));
    assert_true(refit_config_parse_duration("2h", &n));
    assert_int_equal(n, 7200000);
    assert_false(refit_config_parse_duration("-1s", &n));
    refit_config_format_duration(90000, text, sizeof text);
    assert_string_equal(text, "90s");
    refit_config_format_bytes(1025, text, sizeof text);
    assert_string_equal(text, "1025B");
}

/* The help text of an option is three lines: "  --name META", help, "[default: X] [env: Y]". */
static void the_page_shows_what_help_shows(void **state)
{
    char *help, *page, *save = NULL, row[512], name[64];
    size_t len;
    unsigned options = 0;
    FILE *out = open_memstream(&help, &len);
    refit_config_help(out);
    fclose(out);
    assert_int_equal(refit_io_read_file(SIDECAR_DOC, 1 << 20, &page, &len, &err), REFIT_OK);
    for (char *line = strtok_r(help, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "  --", 4) != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(line + 2, " "), line + 2);
        const char *text = strtok_r(NULL, "\n", &save);
        const char *rest = text ? strtok_r(NULL, "\n", &save) : NULL;
        const char *value = rest ? strstr(rest, "[default: ") : NULL;
        if (!value)
            break; /* --print-config and its kin have no value */
        value += strlen("[default: ");
        snprintf(row, sizeof row, "| `%s` | %.*s | %s |", name, (int)strcspn(value, "]"), value, text + 8);
        if (!strstr(page, row))
            fail_msg("docs/sidecar.md lacks the row\n%s", row);
        options++;
    }
    assert_in_range(options, 30, 100);
    free(help);
    free(page);
}

static int tear_down(void **state)
{
    unlink(path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_hold),
        cmocka_unit_test(flags_come_in_every_form),
        cmocka_unit_test(flag_overrides_environment_overrides_file),
        cmocka_unit_test(a_file_may_be_json),
        cmocka_unit_test(errors_name_flag_expected_and_found),
        cmocka_unit_test(errors_in_a_file_name_file_and_key),
        cmocka_unit_test(unknown_environment_is_ignored),
        cmocka_unit_test(control_beyond_loopback_needs_a_word),
        cmocka_unit_test(what_belongs_together_is_checked),
        cmocka_unit_test(the_printed_configuration_says_where_it_came_from_and_no_secret),
        cmocka_unit_test(control_beyond_loopback_is_authenticated),
        cmocka_unit_test(bulk_bytes_use_the_certificates_of_control_unless_told_otherwise),
        cmocka_unit_test(tls_options_belong_together),
        cmocka_unit_test(a_unix_socket_may_be_the_control_listener),
        cmocka_unit_test(slots_may_be_on_devices),
        cmocka_unit_test(the_printed_configuration_is_read_back),
        cmocka_unit_test(values_are_exact),
        cmocka_unit_test(the_page_shows_what_help_shows),
    };
    return cmocka_run_group_tests(tests, NULL, tear_down);
}
