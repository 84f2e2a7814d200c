/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of tokens and names, who is who by them, and what each route needs.
 */
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
#include "sidecar/access.h"
#include "sidecar/routes.h"

#define READ_TOKEN "reader-0123456789"
#define ADMIN_TOKEN "admin-0123456789+/=="

static struct refit_access_list list;
static struct refit_error err;
static struct refit_config config;
static struct refit_access *access_lists;
static struct refit_identity who;
static char dir[] = "/tmp/refit-access.XXXXXX";

static const char *path(const char *name)
{
    static char paths[4][64];
    static unsigned next;
    char *out = paths[next++ % 4];
    snprintf(out, sizeof paths[0], "%s/%s", dir, name);
    return out;
}

static void put(const char *name, const char *text)
{
    assert_int_equal(refit_io_replace_file(path(name), text, strlen(text), 0600, &err), REFIT_OK);
}

static enum refit_status tokens(const char *text)
{
    return refit_access_parse_tokens(text, strlen(text), "tokens", &list, &err);
}

static void assert_bad(enum refit_status status, const char *part)
{
    assert_int_equal(status, REFIT_INVALID);
    if (!strstr(err.text, part))
        fail_msg("expected \"%s\" in \"%s\"", part, err.text);
}

static void token_lists_are_read(void **state)
{
    assert_int_equal(tokens("# who\n\n read:" READ_TOKEN " \r\nadmin:night shift:" ADMIN_TOKEN), REFIT_OK);
    assert_int_equal(list.count, 2);
    assert_int_equal(list.entries[0].role, REFIT_MAY_READ);
    assert_string_equal(list.entries[0].name, "read");
    assert_int_equal(list.entries[1].role, REFIT_MAY_ADMIN);
    assert_string_equal(list.entries[1].name, "night shift");
}

static void bad_token_lists_are_refused_without_showing_them(void **state)
{
    assert_bad(tokens(""), "at least one entry");
    assert_bad(tokens("# nothing\n"), "at least one entry");
    assert_bad(tokens("root:" ADMIN_TOKEN), "line 1: expected ROLE:TOKEN");
    assert_bad(tokens("none:" ADMIN_TOKEN), "line 1: expected ROLE:TOKEN");
    assert_bad(tokens("read:" READ_TOKEN "\n\nadmin"), "line 3: expected ROLE:TOKEN");
    assert_bad(tokens("admin:short"), "TOKEN of 16 to 256");
    assert_bad(tokens("admin:0123456789 0123456789"), "TOKEN of 16 to 256");
    assert_null(strstr(err.text, "0123456789"));
    assert_bad(tokens("admin::" ADMIN_TOKEN), "a NAME of 1 to 199");
    assert_bad(tokens("admin:a\x1b[2J:" ADMIN_TOKEN), "a NAME of 1 to 199");
    assert_bad(tokens("read:" ADMIN_TOKEN "\nadmin:" ADMIN_TOKEN), "line 2: the same as one before");
    assert_null(strstr(err.text, ADMIN_TOKEN));
    assert_bad(refit_access_parse_tokens("admin:a\0b:" ADMIN_TOKEN, 10 + sizeof ADMIN_TOKEN - 1, "tokens", &list, &err),
               "a NAME of 1 to 199");
}

static enum refit_status names(const char *text)
{
    return refit_access_parse_names(text, strlen(text), "names", &list, &err);
}

static void name_lists_are_read(void **state)
{
    assert_int_equal(names("admin:uri:spiffe://a/b:c\nnone:dns:old.example\n"), REFIT_OK);
    assert_string_equal(list.entries[0].name, "uri:spiffe://a/b:c");
    assert_int_equal(list.entries[1].role, REFIT_MAY_NONE);
    assert_bad(names("admin:spiffe://a"), "a KIND of uri, dns, ip, email or cn");
    assert_bad(names("admin:cn:"), "a KIND of");
    assert_bad(names("read:cn:a\nadmin:cn:a"), "the same as one before");
}

static int open_lists(void **state)
{
    memset(&config, 0, sizeof config);
    put("tokens", "read:reader:" READ_TOKEN "\nadmin:" ADMIN_TOKEN "\n");
    put("names", "admin:uri:spiffe://cluster/ops\nnone:dns:gone.example\nread:cn:viewer\n");
    snprintf(config.token_file, sizeof config.token_file, "%s", path("tokens"));
    snprintf(config.tls_client_ca, sizeof config.tls_client_ca, "ca.pem");
    snprintf(config.tls_client_names, sizeof config.tls_client_names, "%s", path("names"));
    config.tls_client_role = REFIT_MAY_REFIT;
    return refit_access_open(&config, &access_lists, &err) == REFIT_OK ? 0 : -1;
}

static int close_lists(void **state)
{
    refit_access_close(access_lists);
    return 0;
}

static void assert_is(const char *bearer, const struct refit_tls_peer *peer, enum refit_access_role role, const char *name)
{
    refit_access_identify(access_lists, bearer, peer, &who);
    assert_int_equal(who.role, role);
    assert_string_equal(who.name, name);
}

static void tokens_give_roles(void **state)
{
    assert_is(READ_TOKEN, NULL, REFIT_MAY_READ, "token:reader");
    assert_is(ADMIN_TOKEN, NULL, REFIT_MAY_ADMIN, "token:admin");
    assert_false(who.wrong_token);
    assert_is("", NULL, REFIT_MAY_NONE, "");
    assert_false(who.wrong_token);
    static const char *const wrong[] = {"reader-012345678", "reader-01234567890", "Reader-0123456789", "read:" READ_TOKEN, "x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_is(wrong[i], NULL, REFIT_MAY_NONE, "");
        assert_true(who.wrong_token);
    }
}

static void certificates_give_roles(void **state)
{
    struct refit_tls_peer ops = {.verified = true, .count = 2, .names = {"uri:spiffe://cluster/ops", "cn:viewer"}};
    struct refit_tls_peer other = {.verified = true, .count = 1, .names = {"cn:trainer"}};
    struct refit_tls_peer gone = {.verified = true, .count = 2, .names = {"dns:gone.example", "cn:x"}};
    struct refit_tls_peer close = {.verified = true, .count = 1, .names = {"uri:spiffe://cluster/ops2"}};
    struct refit_tls_peer unverified = {.count = 1, .names = {"uri:spiffe://cluster/ops"}};
    assert_is("", &ops, REFIT_MAY_ADMIN, "uri:spiffe://cluster/ops");
    assert_is("", &other, REFIT_MAY_REFIT, "cn:trainer");
    assert_is("", &gone, REFIT_MAY_NONE, "dns:gone.example");
    assert_is("", &close, REFIT_MAY_REFIT, "uri:spiffe://cluster/ops2");
    assert_is("", &unverified, REFIT_MAY_NONE, "");
}

static void the_larger_role_counts_and_a_wrong_token_spoils_all(void **state)
{
    struct refit_tls_peer other = {.verified = true, .count = 1, .names = {"cn:trainer"}};
    assert_is(READ_TOKEN, &other, REFIT_MAY_REFIT, "cn:trainer");
    assert_is(ADMIN_TOKEN, &other, REFIT_MAY_ADMIN, "token:admin");
    assert_is("wrong-wrong-wrong", &other, REFIT_MAY_NONE, "");
    assert_true(who.wrong_token);
}

static void new_lists_are_used_and_bad_ones_are_not(void **state)
{
    put("tokens", "refit:new:another-0123456789\n");
    refit_access_refresh(access_lists);
    assert_is("another-0123456789", NULL, REFIT_MAY_REFIT, "token:new");
    assert_is(ADMIN_TOKEN, NULL, REFIT_MAY_NONE, "");
    put("tokens", "refit:short\n");
    refit_access_refresh(access_lists);
    assert_true(refit_access_refused(access_lists));
    assert_is("another-0123456789", NULL, REFIT_MAY_REFIT, "token:new");
    unlink(path("tokens"));
    refit_access_refresh(access_lists);
    assert_is("another-0123456789", NULL, REFIT_MAY_REFIT, "token:new");
    put("tokens", "refit:new:another-0123456789\n");
    refit_access_refresh(access_lists);
    assert_false(refit_access_refused(access_lists));
}

static void with_nothing_configured_nobody_is_asked(void **state)
{
    struct refit_access *open;
    memset(&config, 0, sizeof config);
    assert_int_equal(refit_access_open(&config, &open, &err), REFIT_OK);
    refit_access_identify(open, "whatever", NULL, &who);
    assert_int_equal(who.role, REFIT_MAY_ADMIN);
    refit_access_close(open);
}

/* Said a second time, on purpose: a change of either table must be meant. */
static void every_route_needs_what_is_meant(void **state)
{
    static const struct {
        const char *method, *path;
        enum refit_access_role role;
    } meant[] = {
        {"GET", "/", REFIT_MAY_READ},
        {"POST", "/v1/lead", REFIT_MAY_REFIT},
        {"POST", "/v1/resign", REFIT_MAY_REFIT},
        {"PUT", "/v1/sources/{}", REFIT_MAY_REFIT},
        {"GET", "/v1/layout", REFIT_MAY_READ},
        {"GET", "/v1/host", REFIT_MAY_READ},
        {"GET", "/status", REFIT_MAY_READ},
        {"GET", "/traffic", REFIT_MAY_READ},
        {"POST", "/v1/plan", REFIT_MAY_READ},
        {"POST", "/refit", REFIT_MAY_REFIT},
        {"GET", "/refit", REFIT_MAY_READ},
        {"GET", "/refit/{}", REFIT_MAY_READ},
        {"GET", "/refit/{}/events", REFIT_MAY_READ},
        {"GET", "/refit/{}/holders", REFIT_MAY_READ},
        {"GET", "/v1/serve", REFIT_MAY_READ},
        {"POST", "/refit/{}/commit", REFIT_MAY_REFIT},
        {"POST", "/refit/{}/abort", REFIT_MAY_REFIT},
        {"POST", "/v1/serve", REFIT_MAY_REFIT},
        {"POST", "/v1/serve/{}/end", REFIT_MAY_REFIT},
        {"GET", "/v1/weights", REFIT_MAY_READ},
        {"GET", "/v1/digests/{}", REFIT_MAY_READ},
        {"POST", "/rollback", REFIT_MAY_REFIT},
        {"POST", "/v1/hold", REFIT_MAY_ADMIN},
        {"POST", "/v1/release", REFIT_MAY_ADMIN},
        {"POST", "/v1/quarantine", REFIT_MAY_ADMIN},
    };
    for (size_t i = 0; i < refit_control_table_len; i++) {
        const struct refit_route *route = &refit_control_table[i];
        size_t m = 0;
        while (m < sizeof meant / sizeof *meant &&
               (strcmp(meant[m].method, route->method) != 0 || strcmp(meant[m].path, route->path) != 0))
            m++;
        if (m == sizeof meant / sizeof *meant)
            fail_msg("%s %s: nobody said which role it needs", route->method, route->path);
        if (refit_access_needs(route->method, route->path) != meant[m].role)
            fail_msg("%s %s: expected %s, found %s", route->method, route->path, refit_access_role_name(meant[m].role),
                     refit_access_role_name(refit_access_needs(route->method, route->path)));
    }
    assert_int_equal(refit_access_needs("GET", "/v1/unheard-of"), REFIT_MAY_ADMIN);
}

static int make_dir(void **state)
{
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    unlink(path("tokens"));
    unlink(path("names"));
    return rmdir(dir);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_lists, close_lists)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_lists_are_read),
        cmocka_unit_test(bad_token_lists_are_refused_without_showing_them),
        cmocka_unit_test(name_lists_are_read),
        TEST(tokens_give_roles),
        TEST(certificates_give_roles),
        TEST(the_larger_role_counts_and_a_wrong_token_spoils_all),
        TEST(new_lists_are_used_and_bad_ones_are_not),
        cmocka_unit_test(with_nothing_configured_nobody_is_asked),
        cmocka_unit_test(every_route_needs_what_is_meant),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
