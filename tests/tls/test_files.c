/* SPDX-License-Identifier: Apache-2.0
 *
 * Files: what is refused, and that every way of replacing them is noticed, the second time too.
 */
#include "pair.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct refit_error err;

static enum refit_status try_open(const char *cert, const char *key, const char *ca)
{
    const struct refit_tls_config config = {.end = REFIT_TLS_SERVER, .cert = cert, .key = key, .ca = ca};
    struct refit_tls *tls = NULL;
    enum refit_status status = refit_tls_open(&config, &tls, &err);
    refit_tls_close(tls);
    return status;
}

static void bad_files_are_refused_by_name(void **state)
{
    tls_write("empty", "");
    tls_write("noise", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    assert_int_equal(try_open(tls_path("none.pem"), tls_path("server.key"), ""), REFIT_NOT_FOUND);
    assert_says(&err, "none.pem");
    assert_int_equal(try_open(tls_path("empty"), tls_path("server.key"), ""), REFIT_INVALID);
    assert_says(&err, "/empty: expected PEM certificates");
    assert_int_equal(try_open(tls_path("noise"), tls_path("server.key"), ""), REFIT_INVALID);
    assert_says(&err, "/noise: expected PEM certificates");
    assert_int_equal(try_open(tls_path("server.pem"), tls_path("server.pem"), ""), REFIT_INVALID);
    assert_says(&err, "expected a PEM private key");
    assert_int_equal(try_open(tls_path("server.pem"), tls_path("client.key"), ""), REFIT_MISMATCH);
    assert_says(&err, "client.key: not the key of the certificate in ");
    assert_int_equal(try_open(tls_path("server.pem"), tls_path("server.key"), tls_path("server.key")), REFIT_INVALID);
    assert_says(&err, "expected CA certificates in PEM");
    assert_int_equal(try_open(tls_path("server.pem"), "", ""), REFIT_INVALID);
    assert_says(&err, "belong together");
    assert_int_equal(try_open("", "", tls_path("ca.pem")), REFIT_INVALID);
    assert_int_equal(try_open(tls_path("server.pem"), tls_path("server.key"), tls_path("ca.pem")), REFIT_OK);
}

static void a_key_with_a_pass_phrase_is_refused_without_asking(void **state)
{
    tls_write("locked.key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIBHDBWBgkqhkiG9w0BBQ0wSTAxBgkqhkiG9w0BBQwwJAQQ\n"
                            "-----END ENCRYPTED PRIVATE KEY-----\n");
    assert_int_equal(try_open(tls_path("server.pem"), tls_path("locked.key"), ""), REFIT_INVALID);
    assert_says(&err, "without a pass phrase");
}

/* A mounted secret: DIR/tls.crt -> ..data/tls.crt, DIR/..data -> ..GENERATION. */
static void swap(const char *generation, const char *leaf)
{
    char name[96];
    mkdir(tls_path("secret"), 0700);
    snprintf(name, sizeof name, "secret/%s", generation);
    assert_int_equal(mkdir(tls_path(name), 0700), 0);
    static const char *const suffixes[] = {"pem", "key"};
    for (int i = 0; i < 2; i++) {
        char from[64], to[128], link[64], target[64];
        snprintf(from, sizeof from, "%s.%s", leaf, suffixes[i]);
        snprintf(to, sizeof to, "%s/tls.%s", name, suffixes[i]);
        tls_copy(from, to);
        snprintf(link, sizeof link, "secret/tls.%s", suffixes[i]);
        snprintf(target, sizeof target, "..data/tls.%s", suffixes[i]);
        if (access(tls_path(link), F_OK) != 0)
            assert_int_equal(symlink(target, tls_path(link)), 0);
    }
    assert_int_equal(symlink(generation, tls_path("secret/..tmp")), 0);
    assert_int_equal(rename(tls_path("secret/..tmp"), tls_path("secret/..data")), 0);
}

static void swapped_links_are_noticed_each_time(void **state)
{
    static const char *const leaves[] = {"one", "two", "three"};
    struct refit_tls_status now;
    struct refit_tls *tls;
    for (int i = 0; i < 3; i++) {
        const struct pki_leaf leaf = {.name = leaves[i], .ca = "ca", .san = "DNS:localhost"};
        assert_true(pki_make_leaf(tls_dir, &leaf));
    }
    unlink(tls_path("secret/tls.pem"));
    unlink(tls_path("secret/tls.key"));
    swap("..1", "one");
    const struct refit_tls_config config = {.end = REFIT_TLS_SERVER, .cert = tls_path("secret/tls.pem"),
                                            .key = tls_path("secret/tls.key")};
    assert_int_equal(refit_tls_open(&config, &tls, &err), REFIT_OK);
    assert_int_equal(refit_tls_refresh(tls, &err), REFIT_TLS_SAME);
    swap("..2", "two");
    assert_int_equal(refit_tls_refresh(tls, &err), REFIT_TLS_RELOADED);
    refit_tls_read_status(tls, &now);
    assert_string_equal(now.subject, "CN=two");
    swap("..3", "three");
    assert_int_equal(refit_tls_refresh(tls, &err), REFIT_TLS_RELOADED);
    assert_int_equal(refit_tls_refresh(tls, &err), REFIT_TLS_SAME);
    refit_tls_read_status(tls, &now);
    assert_string_equal(now.subject, "CN=three");
    assert_int_equal(now.reloads, 2);
    assert_true(now.not_after_s > 0);
    refit_tls_close(tls);
}

static void a_bad_new_file_keeps_the_old_and_says_so_once(void **state)
{
    struct refit_tls_status now;
    struct refit_tls *tls;
    const struct pki_leaf late = {.name = "late", .ca = "ca", .from_s = -7200, .to_s = -3600};
    assert_true(pki_make_leaf(tls_dir, &late));
    tls_copy("server.pem", "live.pem");
    tls_copy("server.key", "live.key");
    const struct refit_tls_config config = {.end = REFIT_TLS_SERVER, .cert = tls_path("live.pem"), .key = tls_path("live.key")};
    assert_int_equal(refit_tls_open(&config, &tls, &err), REFIT_OK);
    tls_copy("client.pem", "live.pem"); /* half of a rotation */
    assert_int_equal(refit_tls_refresh(tls, &err), REFIT_TLS_REFUSED);
    assert_says(&err, "replace both together");
    assert_int_equal(refit_tls_refresh(tls, &err), REFIT_TLS_SAME);
    tls_copy("client.key", "live.key"); /* the other half */
    assert_int_equal(refit_tls_refresh(tls, &err), REFIT_TLS_RELOADED);
    assert_int_equal(unlink(tls_path("live.key")), 0);
    assert_int_equal(refit_tls_refresh(tls, &err), REFIT_TLS_REFUSED);
    assert_says(&err, "live.key");
    assert_int_equal(refit_tls_refresh(tls, &err), REFIT_TLS_SAME);
    tls_copy("late.pem", "live.pem");
    tls_copy("late.key", "live.key");
    assert_int_equal(refit_tls_refresh(tls, &err), REFIT_TLS_REFUSED);
    assert_says(&err, "expired at");
    refit_tls_read_status(tls, &now);
    assert_true(now.refused);
    assert_string_equal(now.subject, "CN=client");
    assert_int_equal(now.refusals, 3);
    tls_copy("client.pem", "live.pem");
    tls_copy("client.key", "live.key");
    assert_int_equal(refit_tls_refresh(tls, &err), REFIT_TLS_SAME); /* back at what is in use */
    refit_tls_read_status(tls, &now);
    assert_false(now.refused);
    refit_tls_close(tls);
}

static void new_connections_use_the_new_ca_and_old_ones_go_on(void **state)
{
    struct tls_pair first, second;
    struct refit_tls_config server = tls_server_config(), client = tls_client_config();
    char byte = 7;
    size_t done;
    tls_copy("ca.pem", "trust.pem");
    server.ca = tls_path("trust.pem");
    tls_pair_open(&first, &server, &client, "localhost");
    tls_pair_handshake(&first);
    assert_int_equal(first.step[AT_SERVER], REFIT_TLS_DONE);
    tls_copy("other.pem", "trust.pem");
    assert_int_equal(refit_tls_refresh(first.tls[AT_SERVER], &err), REFIT_TLS_RELOADED);
    assert_int_equal(refit_tls_stream_write(first.stream[AT_CLIENT], &byte, 1, &done, &err), REFIT_TLS_DONE);
    byte = 0;
    assert_int_equal(refit_tls_stream_read(first.stream[AT_SERVER], &byte, 1, &done, &err), REFIT_TLS_DONE);
    assert_int_equal(byte, 7);
    tls_pair_open(&second, &server, &client, "localhost");
    tls_pair_handshake(&second);
    assert_int_equal(second.step[AT_SERVER], REFIT_TLS_FAILED);
    tls_pair_close(&second);
    tls_pair_close(&first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files_are_refused_by_name),
        cmocka_unit_test(a_key_with_a_pass_phrase_is_refused_without_asking),
        cmocka_unit_test(swapped_links_are_noticed_each_time),
        cmocka_unit_test(a_bad_new_file_keeps_the_old_and_says_so_once),
        cmocka_unit_test(new_connections_use_the_new_ca_and_old_ones_go_on),
    };
    return cmocka_run_group_tests_name("tls/files", tests, tls_dir_create, tls_dir_remove);
}
