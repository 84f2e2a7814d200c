/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "sender/policy.h"

static struct refit_policy policy;
static struct refit_error err;

static void words_of_policies_are_read(void **state)
{
    static const struct {
        const char *text;
        enum refit_policy_kind kind;
        uint32_t count;
        int64_t wait_ms;
        const char *check; /* its path; NULL: none */
    } good[] = {
        {NULL, REFIT_POLICY_EACH, 0, 0, NULL},
        {"", REFIT_POLICY_EACH, 0, 0, NULL},
        {"each", REFIT_POLICY_EACH, 0, 0, NULL},
        {"all", REFIT_POLICY_ALL, 0, 0, NULL},
        {"quorum:3", REFIT_POLICY_QUORUM, 3, 0, NULL},
        {"canary:1", REFIT_POLICY_CANARY, 1, 0, NULL},
        {"canary:2,wait=1500ms", REFIT_POLICY_CANARY, 2, 1500, NULL},
        {"canary:2,wait=30s,check=http://eval:80/ok", REFIT_POLICY_CANARY, 2, 30000, "/ok"},
        {"canary:2,check=http://eval:80/a/b,wait=1m", REFIT_POLICY_CANARY, 2, 60000, "/a/b"},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(refit_policy_parse(good[i].text, &policy, &err), REFIT_OK);
        assert_int_equal(policy.kind, good[i].kind);
        assert_int_equal(policy.count, good[i].count);
        assert_int_equal(policy.wait_ms, good[i].wait_ms);
        assert_int_equal(policy.checks, good[i].check != NULL);
        if (good[i].check)
            assert_string_equal(policy.check.prefix, good[i].check);
    }
}

static void other_words_are_named(void **state)
{
    static const char *const bad[] = {
        "every", "quorum", "quorum:", "quorum:0", "quorum:-1", "quorum: -1", "quorum:+1", "quorum:2x", "quorum:99999999999", "canary:", "canary:1,",
        "canary:1,wait=", "canary:1,wait=5 parsecs", "canary:1,wait=-1s", "canary:1,check=ftp://a", "canary:1,often",
        "canary:1,wait=9223372036854775807h",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err.text[0] = '\0';
        if (refit_policy_parse(bad[i], &policy, &err) != REFIT_INVALID)
            fail_msg("\"%s\" was taken", bad[i]);
        assert_non_null(strstr(err.text, "policy"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_policies_are_read),
        cmocka_unit_test(other_words_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
