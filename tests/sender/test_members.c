/* SPDX-License-Identifier: Apache-2.0
 *
 * Who the replicas are: lists, files that change under us, names whose resolver answers late, wrongly or never.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "sender/http_client.h"
#include "sender/members.h"

#define LONG_MS 30000
#define SHORT_MS 50

static struct refit_members *members;
static struct refit_membership now;
static struct refit_error err;
static char dir[64], path[128];

static int setup(void **state)
{
    snprintf(dir, sizeof dir, "/tmp/refit-members.XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/members", dir);
    return 0;
}

static int teardown(void **state)
{
    char command[160];
    refit_membership_release(&now);
    refit_members_close(members);
    members = NULL;
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static enum refit_status open_texts(const char *const *texts, size_t count)
{
    struct refit_members_config config = {.texts = texts, .count = count};
    return refit_members_open(&config, &members, &err);
}

static void open_list(const char *list)
{
    struct refit_members_config config = {.list = list};
    if (refit_members_open(&config, &members, &err) != REFIT_OK)
        fail_msg("%s", err.text);
}

static enum refit_status read_now(int64_t ms)
{
    refit_membership_release(&now);
    return refit_members_read(members, refit_deadline_in_ms(ms), &now, &err);
}

/* The members as one text: pods joined by "+", replicas by a blank. */
static void expect(uint64_t epoch, const char *wanted)
{
    char found[1024] = "";
    if (read_now(LONG_MS) != REFIT_OK)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < now.count; i++)
        for (size_t k = 0; k < now.members[i].count; k++) {
            size_t used = strlen(found);
            snprintf(found + used, sizeof found - used, "%s%s", k ? "+" : i ? " " : "", now.members[i].urls[k]);
        }
    assert_string_equal(found, wanted);
    assert_int_equal(now.epoch, epoch);
}

static void write_file(const char *text)
{
    assert_int_equal(refit_io_replace_file(path, text, strlen(text), 0644, NULL), REFIT_OK);
}

/* ---- lists ---- */

static void a_list_is_taken_in_order_and_its_epoch_stands_still(void **state)
{
    open_list("http://b:1, a:2\n http://a:3+http://c:3");
    expect(1, "http://b:1 http://a:2 http://a:3+http://c:3");
    expect(1, "http://b:1 http://a:2 http://a:3+http://c:3");
}

static void what_is_not_well_formed_is_refused_at_once(void **state)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {{"ftp://a:1", "http"},       {"file:", "PATH"},      {"dns:name", "NAME:PORT"}, {"dns::80", "NAME:PORT"},
                 {"dns:name:0", "NAME:PORT"}, {"dns:n:99999", "NAME"}, {"dns:https://:1", "NAME"}, {"http://a:1+", "URL"},    {"http://a:1+http://a:1", "twice"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(open_texts(&wrong[i].text, 1), REFIT_INVALID);
        if (!strstr(err.text, wrong[i].says))
            fail_msg("%s: %s", wrong[i].text, err.text);
    }
    assert_int_equal(open_texts(NULL, 0), REFIT_INVALID);
}

static void a_replica_given_twice_is_refused(void **state)
{
    static const char *const texts[] = {"http://a:1", "http://b:1+http://a:1"};
    assert_int_equal(open_texts(texts, 2), REFIT_INVALID);
    assert_non_null(strstr(err.text, "http://a:1 is given twice"));
}

/* ---- files ---- */

static void open_file(void)
{
    char list[160];
    snprintf(list, sizeof list, "file:%s", path);
    open_list(list);
}

static void a_file_is_read_anew_and_the_epoch_grows_with_its_members(void **state)
{
    write_file("# rollout\nhttp://a:1\n\n  http://b:1+http://c:1  # two pods\n");
    open_file();
    expect(1, "http://a:1 http://b:1+http://c:1");
    write_file("http://a:1\nhttp://b:1+http://c:1\n"); /* the same members */
    expect(1, "http://a:1 http://b:1+http://c:1");
    write_file("http://d:1\nhttp://a:1\n");
    expect(2, "http://d:1 http://a:1");
}

static void a_name_behind_a_url_in_a_file_is_no_comment(void **state)
{
    write_file("#\nhttps://10.0.0.1:1#rollout.svc\nhttps://10.0.0.2:1#rollout.svc # two\n\t# three\n");
    open_file();
    expect(1, "https://10.0.0.1:1#rollout.svc https://10.0.0.2:1#rollout.svc");
}

static void point_data_at(const char *directory)
{
    char link[160], fresh[160];
    snprintf(link, sizeof link, "%s/..data", dir);
    snprintf(fresh, sizeof fresh, "%s/..data_tmp", dir);
    assert_int_equal(symlink(directory, fresh), 0);
    assert_int_equal(rename(fresh, link), 0);
}

static void make_version(const char *name, const char *text)
{
    char at[160];
    snprintf(at, sizeof at, "mkdir %s/%s", dir, name);
    assert_int_equal(system(at), 0);
    snprintf(at, sizeof at, "%s/%s/members", dir, name);
    assert_int_equal(refit_io_replace_file(at, text, strlen(text), 0644, NULL), REFIT_OK);
}

/* As a kubelet replaces a mounted ConfigMap. */
static void a_file_behind_links_that_are_swapped_is_followed(void **state)
{
    make_version("..1", "http://a:1\n");
    make_version("..2", "http://a:1\nhttp://b:1\n");
    point_data_at("..1");
    assert_int_equal(symlink("..data/members", path), 0);
    open_file();
    expect(1, "http://a:1");
    point_data_at("..2");
    expect(2, "http://a:1 http://b:1");
}

static void a_file_that_is_broken_for_a_while_changes_nothing(void **state)
{
    static const char *const broken[] = {"", "# all gone\n", "http://a:1 http://b:1\n", "nonsense://\n", "http://a:1\nhttp://a:1\n"};
    write_file("http://a:1\nhttp://b:1\n");
    open_file();
    expect(1, "http://a:1 http://b:1");
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        write_file(broken[i]);
        expect(1, "http://a:1 http://b:1");
    }
    assert_int_equal(unlink(path), 0);
    expect(1, "http://a:1 http://b:1");
    write_file("http://b:1\n");
    expect(2, "http://b:1");
}

static void a_file_that_was_never_good_is_named_with_its_line(void **state)
{
    write_file("http://a:1\n\nftp://b:1\n");
    open_file();
    assert_int_equal(read_now(LONG_MS), REFIT_INVALID);
    assert_non_null(strstr(err.text, "members:3"));
}

/* ---- names ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const char *addresses[4];
    size_t count;
    bool hangs, fails;
    unsigned asked;
} dns = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static enum refit_status resolve(void *context, const char *name, char (*addresses)[REFIT_MEMBER_ADDRESS_MAX], size_t max,
                                 size_t *count, struct refit_error *why)
{
    pthread_mutex_lock(&dns.lock);
    dns.asked++;
    while (dns.hangs)
        pthread_cond_wait(&dns.changed, &dns.lock);
    *count = dns.count;
    for (size_t i = 0; i < dns.count && i < max; i++)
        snprintf(addresses[i], REFIT_MEMBER_ADDRESS_MAX, "%s", dns.addresses[i]);
    bool fails = dns.fails;
    pthread_mutex_unlock(&dns.lock);
    return fails ? refit_fail(why, REFIT_PEER, "%s: no server", name) : REFIT_OK;
}

static void set_dns(bool hangs, bool fails, size_t count, const char *first, const char *second)
{
    pthread_mutex_lock(&dns.lock);
    dns.hangs = hangs;
    dns.fails = fails;
    dns.count = count;
    dns.addresses[0] = first;
    dns.addresses[1] = dns.addresses[2] = second;
    pthread_cond_broadcast(&dns.changed);
    pthread_mutex_unlock(&dns.lock);
}

static void open_dns(void)
{
    struct refit_members_config config = {.list = "dns:rollout.svc:8470,http://z:1", .resolve = resolve};
    dns.asked = 0;
    assert_int_equal(refit_members_open(&config, &members, &err), REFIT_OK);
}

static void every_address_of_a_name_is_a_replica_in_a_stable_order(void **state)
{
    set_dns(false, false, 3, "fd00::2", "10.0.0.1"); /* one of them twice */
    open_dns();
    expect(1, "http://10.0.0.1:8470 http://[fd00::2]:8470 http://z:1");
    set_dns(false, false, 2, "10.0.0.1", "fd00::2");
    expect(1, "http://10.0.0.1:8470 http://[fd00::2]:8470 http://z:1");
    set_dns(false, false, 1, "fd00::2", NULL);
    expect(2, "http://[fd00::2]:8470 http://z:1");
    set_dns(false, false, 0, NULL, NULL);
    expect(3, "http://z:1");
}

static void replicas_behind_a_name_over_https_are_to_prove_it(void **state)
{
    set_dns(false, false, 2, "fd00::2", "10.0.0.1");
    struct refit_members_config config = {.list = "dns:https://rollout.svc:8470", .resolve = resolve};
    struct refit_http_url url;
    assert_int_equal(refit_members_open(&config, &members, &err), REFIT_OK);
    expect(1, "https://10.0.0.1:8470#rollout.svc https://[fd00::2]:8470#rollout.svc");
    assert_int_equal(refit_http_url_parse("https://[fd00::2]:8470#rollout.svc", &url, &err), REFIT_OK);
    assert_string_equal(url.host, "fd00::2");
    assert_string_equal(url.name, "rollout.svc");
    assert_int_equal(refit_http_url_parse("https://10.0.0.1:8470", &url, &err), REFIT_OK);
    assert_string_equal(url.name, "10.0.0.1");
    assert_int_equal(refit_http_url_parse("http://10.0.0.1:8470#rollout.svc", &url, &err), REFIT_INVALID);
    assert_int_equal(refit_http_url_parse("https://10.0.0.1:8470#", &url, &err), REFIT_INVALID);
}

static void a_resolver_that_fails_changes_nothing(void **state)
{
    set_dns(false, true, 0, NULL, NULL);
    open_dns();
    assert_int_equal(read_now(LONG_MS), REFIT_PEER);
    assert_non_null(strstr(err.text, "no server"));
    set_dns(false, false, 1, "10.0.0.1", NULL);
    expect(1, "http://10.0.0.1:8470 http://z:1");
    set_dns(false, true, 0, NULL, NULL);
    expect(1, "http://10.0.0.1:8470 http://z:1");
}

static void a_resolver_that_hangs_costs_its_deadline_and_one_thread(void **state)
{
    set_dns(true, false, 1, "10.0.0.1", NULL);
    open_dns();
    assert_int_equal(read_now(SHORT_MS), REFIT_TIMEOUT);
    assert_non_null(strstr(err.text, "rollout.svc"));
    assert_int_equal(read_now(SHORT_MS), REFIT_TIMEOUT);
    set_dns(false, false, 1, "10.0.0.1", NULL);
    expect(1, "http://10.0.0.1:8470 http://z:1");
    assert_int_equal(dns.asked, 1);
}

static void members_may_be_closed_while_a_resolver_hangs(void **state)
{
    set_dns(true, false, 1, "10.0.0.1", NULL);
    open_dns();
    assert_int_equal(read_now(SHORT_MS), REFIT_TIMEOUT);
    refit_members_close(members);
    members = NULL;
    set_dns(false, false, 1, "10.0.0.1", NULL);
    open_dns();
    expect(1, "http://10.0.0.1:8470 http://z:1");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_list_is_taken_in_order_and_its_epoch_stands_still),
        TEST(what_is_not_well_formed_is_refused_at_once),
        TEST(a_replica_given_twice_is_refused),
        TEST(a_file_is_read_anew_and_the_epoch_grows_with_its_members),
        TEST(a_name_behind_a_url_in_a_file_is_no_comment),
        TEST(a_file_behind_links_that_are_swapped_is_followed),
        TEST(a_file_that_is_broken_for_a_while_changes_nothing),
        TEST(a_file_that_was_never_good_is_named_with_its_line),
        TEST(every_address_of_a_name_is_a_replica_in_a_stable_order),
        TEST(replicas_behind_a_name_over_https_are_to_prove_it),
        TEST(a_resolver_that_fails_changes_nothing),
        TEST(a_resolver_that_hangs_costs_its_deadline_and_one_thread),
        TEST(members_may_be_closed_while_a_resolver_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
