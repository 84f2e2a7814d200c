/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/json_heap.h"

static enum refit_status parse(const char *text, json_t **out, struct refit_error *err)
{
    return refit_json_parse(text, strlen(text), "document", out, err);
}

static void refuses(const char *text, const char *expected_in_message)
{
    json_t *value = NULL;
    struct refit_error err;
    assert_int_equal(parse(text, &value, &err), REFIT_INVALID);
    assert_non_null(strstr(err.text, "document"));
    assert_non_null(strstr(err.text, expected_in_message));
}

static void refuses_what_a_layout_must_not_hold(void **state)
{
    refuses("{\"a\": 1, \"a\": 2}", "duplicate");
    refuses("{\"a\": [1, {\"b\": 1.5}]}", "real number");
    refuses("{\"a\": 1e3}", "real number");
    refuses("{\"a\": 92233720368547758080}", "big");
    refuses("{\"a\": \"\xff\"}", "unable to decode byte");
    refuses("{\"a\": 1} trailing", "end of file");
    refuses("", "expected near end of file");
}

static void equal_documents_have_one_canonical_form(void **state)
{
    json_t *a = NULL, *b = NULL;
    assert_int_equal(parse("{ \"b\": [1, 2], \"a\": {\"d\": null, \"c\": true} }", &a, NULL), REFIT_OK);
    assert_int_equal(parse("{\"a\":{\"c\":true,\"d\":null},\"b\":[1,2]}", &b, NULL), REFIT_OK);
    size_t len = 0;
    char *text_a = refit_json_canonical(a, &len), *text_b = refit_json_canonical(b, NULL);
    assert_string_equal(text_a, "{\"a\":{\"c\":true,\"d\":null},\"b\":[1,2]}");
    assert_string_equal(text_a, text_b);
    assert_int_equal(len, strlen(text_a));
    free(text_a);
    free(text_b);
    json_decref(a);
    json_decref(b);
}

static void members_are_typed_and_bounded(void **state)
{
    json_t *o = NULL;
    struct refit_error err;
    assert_int_equal(parse("{\"n\": 5, \"s\": \"x\", \"t\": true, \"z\": null}", &o, NULL), REFIT_OK);
    int64_t n = 0;
    const char *s = "default";
    bool t = false;
    assert_int_equal(refit_json_get_int(o, "n", "it", 0, 5, &n, &err), REFIT_OK);
    assert_int_equal(n, 5);
    assert_int_equal(refit_json_get_int(o, "n", "it", 0, 4, &n, &err), REFIT_INVALID);
    assert_string_equal(err.text, "it: \"n\" must be between 0 and 4, found 5");
    assert_int_equal(refit_json_get_int(o, "s", "it", 0, 4, &n, &err), REFIT_INVALID);
    assert_string_equal(err.text, "it: \"s\" must be an integer, found a string");
    assert_int_equal(refit_json_get_string(o, "missing", "it", &s, &err), REFIT_INVALID);
    assert_int_equal(refit_json_opt_string(o, "z", "it", &s, &err), REFIT_OK);
    assert_string_equal(s, "default");
    assert_int_equal(refit_json_opt_bool(o, "t", "it", &t, &err), REFIT_OK);
    assert_true(t);
    const char *const known[] = {"n", "s", "t", NULL};
    assert_int_equal(refit_json_known(o, "it", known, &err), REFIT_INVALID);
    assert_string_equal(err.text, "it: unknown member \"z\"");
    json_decref(o);
}

static void versions_keep_all_64_bits(void **state)
{
    const uint64_t values[] = {0, 1, INT64_MAX, (uint64_t)INT64_MAX + 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        json_t *o = json_object();
        uint64_t back = 42;
        json_object_set_new(o, "v", refit_json_u64(values[i]));
        assert_int_equal(refit_json_get_u64(o, "v", "it", &back, NULL), REFIT_OK);
        assert_true(back == values[i]);
        json_decref(o);
    }
    json_t *o = NULL;
    uint64_t v;
    assert_int_equal(parse("{\"a\": -1, \"b\": \"18446744073709551616\", \"c\": \"7x\", \"d\": \"\"}", &o, NULL), REFIT_OK);
    for (const char *key = "abcd"; *key; key++)
        assert_int_equal(refit_json_get_u64(o, (char[]){*key, 0}, "it", &v, NULL), REFIT_INVALID);
    json_decref(o);
}

static void any_text_becomes_a_string(void **state)
{
    static const struct {
        const char *text, *found;
    } texts[] = {
        {"", ""}, {"plain", "plain"}, {"größe", "größe"}, {"cut in the middle of gr\xc3", "cut in the middle of gr?"},
        {"a \xff b \xe2\x82 c \xed\xa0\x80", "a ? b ?? c ???"}, {"\x80größe", "?größe"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_t *text = refit_json_text(texts[i].text);
        assert_string_equal(json_string_value(text), texts[i].found);
        json_decref(text);
    }
}

/* `count` of it in an array; new. */
static char *repeated(const char *item, size_t count)
{
    size_t len = strlen(item), at = 1;
    char *text = malloc(count * (len + 1) + 2);
    assert_non_null(text);
    text[0] = '[';
    for (size_t i = 0; i < count; i++)
        at += (size_t)sprintf(text + at, "%s%s", i ? "," : "", item);
    strcpy(text + at, "]");
    return text;
}

static size_t in_use(void)
{
    struct mallinfo2 info = mallinfo2(); /* nothing, where a sanitizer allocates */
    return info.uordblks + info.hblkhd;
}

static void what_a_text_takes_is_told_before_it_is_parsed(void **state)
{
    static const char *const items[] = {
        "{}", "[]", "0", "\"\"", "[0]", "{\"a\":1}", "[[],{}]", "\"\\\",[{\"", "\"abcdefghijklmnopqrstuvwxyz abcdefghijklmnopqrstuvwxyz\"",
        "{\"a\":1,\"b\":[],\"c\":{},\"d\":\"\",\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9}",
        "{\"tensor\":\"model.layers.3.weight\",\"dtype\":\"BF16\",\"shape\":[4096,14336],\"placements\":[\"Shard(0)\"]}"};
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        json_t *value = NULL;
        char *text = repeated(items[i], 20000);
        size_t before = in_use();
        assert_int_equal(parse(text, &value, NULL), REFIT_OK);
        size_t taken = in_use() - before;
        uint64_t told = refit_json_heap(text, strlen(text));
        if (told < taken || (taken && told > 4 * taken))
            fail_msg("%s: told %llu, taken %zu", items[i], (unsigned long long)told, taken);
        json_decref(value);
        free(text);
    }
    assert_true(refit_json_heap("\"cut short\\", 11) > 0);
}

static void sha256_is_sha256(void **state)
{
    char hex[REFIT_SHA256_HEX_MAX];
    refit_sha256_hex("abc", 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_what_a_layout_must_not_hold),
        cmocka_unit_test(equal_documents_have_one_canonical_form),
        cmocka_unit_test(members_are_typed_and_bounded),
        cmocka_unit_test(versions_keep_all_64_bits),
        cmocka_unit_test(any_text_becomes_a_string),
        cmocka_unit_test(what_a_text_takes_is_told_before_it_is_parsed),
        cmocka_unit_test(sha256_is_sha256),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
