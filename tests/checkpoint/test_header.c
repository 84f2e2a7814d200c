/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/header.h"
#include "checkpoint/index.h"

struct fixture {
    struct refit_table table;
    struct refit_file_names files;
    struct refit_error err;
};

static int setup(void **state)
{
    static struct fixture f;
    memset(&f, 0, sizeof f);
    refit_table_init(&f.table);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    refit_table_release(&f->table);
    refit_file_names_release(&f->files);
    return 0;
}

/* Exactly as long as its text, so that a sanitizer sees a read past the end. */
static char *unterminated(const char *text)
{
    char *copy = malloc(strlen(text) + (*text == '\0'));
    assert_non_null(copy);
    memcpy(copy, text, strlen(text));
    return copy;
}

static enum refit_status parse(struct fixture *f, const char *text, uint64_t data_bytes)
{
    char *copy = unterminated(text);
    enum refit_status status = refit_header_parse(&f->table, copy, strlen(text), 8 + strlen(text) + data_bytes, 0,
                                                  "w.safetensors", &f->err);
    free(copy);
    if (status != REFIT_OK)
        assert_non_null(strstr(f->err.text, "w.safetensors"));
    return status;
}

static enum refit_status parse_index(struct fixture *f, const char *text)
{
    char *copy = unterminated(text);
    enum refit_status status = refit_index_parse(&f->table, &f->files, copy, strlen(text), "index.json", &f->err);
    free(copy);
    return status;
}

static void refused(struct fixture *f, const char *text, uint64_t data_bytes, enum refit_status expected,
                    const char *says)
{
    enum refit_status status = parse(f, text, data_bytes);
    if (status != expected || !strstr(f->err.text, says))
        fail_msg("%s: status %s, text \"%s\"; expected %s and \"%s\"", text, refit_status_name(status), f->err.text,
                 refit_status_name(expected), says);
    refit_table_release(&f->table);
    refit_table_init(&f->table);
}

static void tensors_come_with_type_shape_and_place(void **state)
{
    struct fixture *f = *state;
    const char *text = " {\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},\n"
                       "\"a\" : {\"data_offsets\":[0,8],\"shape\":[2],\"dtype\":\"F32\"},"
                       "\"__metadata__\":{\"format\":\"pt\"}}   ";
    size_t index;
    assert_int_equal(parse(f, text + 1, 20), REFIT_OK);
    assert_int_equal(refit_table_sort(&f->table, "x", &f->err), REFIT_OK);
    assert_int_equal(f->table.count, 2);
    assert_true(refit_table_find(&f->table, "b", &index));
    const struct refit_entry_record *b = &f->table.items[index];
    assert_int_equal(b->begin, 8 + strlen(text + 1) + 8);
    assert_int_equal(b->bytes, 12);
    assert_int_equal(b->dtype, REFIT_DTYPE_BF16);
    assert_int_equal(b->dims, 2);
    assert_int_equal(refit_table_shape(&f->table, index)[1], 3);
    assert_false(refit_table_find(&f->table, "c", &index));
}

static void every_dtype_has_its_size(void **state)
{
    struct fixture *f = *state;
    for (int dtype = 0; dtype < REFIT_DTYPE_COUNT; dtype++) {
        char text[256];
        unsigned bytes = refit_dtype_bits((enum refit_dtype)dtype) * 8 / 8;
        snprintf(text, sizeof text, "{\"t\":{\"dtype\":\"%s\",\"shape\":[2,4],\"data_offsets\":[0,%u]}}",
                 refit_dtype_name((enum refit_dtype)dtype), bytes);
        assert_int_equal(parse(f, text, bytes), REFIT_OK);
    }
    assert_int_equal(f->table.count, REFIT_DTYPE_COUNT);
}

static void empty_tensors_and_scalars_are_tensors(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(parse(f,
                           "{\"e\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[4,4]},"
                           "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                           "\"z\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                           4),
                     REFIT_OK);
    assert_int_equal(f->table.count, 3);
}

#define T(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static void bytes_must_be_covered_exactly(void **state)
{
    struct fixture *f = *state;
    refused(f, "{" T("a", "U8", "[4]", "0", "4") "," T("b", "U8", "[4]", "5", "9") "}", 9, REFIT_INVALID, "hole");
    refused(f, "{" T("a", "U8", "[4]", "0", "4") "," T("b", "U8", "[4]", "3", "7") "}", 7, REFIT_INVALID, "tensor b");
    refused(f, "{" T("a", "U8", "[4]", "1", "5") "}", 5, REFIT_INVALID, "hole");
    refused(f, "{" T("a", "U8", "[4]", "0", "4") "}", 5, REFIT_INVALID, "its tensors end");
    refused(f, "{" T("a", "U8", "[4]", "0", "4") "}", 3, REFIT_CORRUPT, "cut short");
    refused(f, "{}", 1, REFIT_INVALID, "its tensors end");
    refused(f, "{" T("a", "U8", "[4]", "4", "0") "}", 4, REFIT_INVALID, "rising");
}

static void shape_and_dtype_must_make_the_range(void **state)
{
    struct fixture *f = *state;
    refused(f, "{" T("a", "F32", "[2]", "0", "4") "}", 4, REFIT_INVALID, "tensor a");
    refused(f, "{" T("a", "F4", "[3]", "0", "1") "}", 1, REFIT_INVALID, "tensor a");
    refused(f, "{" T("a", "U8", "[4294967296,4294967296]", "0", "0") "}", 0, REFIT_INVALID, "tensor a");
    refused(f, "{" T("a", "U8", "[9223372036854775807,9223372036854775807,0]", "0", "0") "}", 0, REFIT_INVALID, "a");
    refused(f, "{" T("a", "U8", "[-4]", "0", "4") "}", 4, REFIT_INVALID, "whole numbers");
    refused(f, "{" T("a", "Q3", "[4]", "0", "4") "}", 4, REFIT_UNSUPPORTED, "Q3");
    refused(f, "{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "0", "1") "}", 1, REFIT_UNSUPPORTED, "at most 8");
    refused(f, "{" T("a", "U8", "[4.0]", "0", "4") "}", 4, REFIT_INVALID, "whole numbers");
    refused(f, "{" T("a", "U8", "[4]", "0", "4e0") "}", 4, REFIT_INVALID, "whole numbers");
}

static void what_is_no_header_is_refused(void **state)
{
    struct fixture *f = *state;
    refused(f, "", 0, REFIT_INVALID, "begin with '{'");
    refused(f, " {}", 0, REFIT_INVALID, "begin with '{'");
    refused(f, "[]", 0, REFIT_INVALID, "begin with '{'");
    refused(f, "{", 0, REFIT_INVALID, "quotes");
    refused(f, "{\"a\"", 0, REFIT_INVALID, "':'");
    refused(f, "{\"a\":", 0, REFIT_INVALID, "JSON");
    refused(f, "{\"a\":}", 0, REFIT_INVALID, "JSON");
    refused(f, "{,}", 0, REFIT_INVALID, "quotes");
    refused(f, "{} x", 0, REFIT_INVALID, "the end");
    refused(f, "{" T("a", "U8", "[4]", "0", "4") ",}", 4, REFIT_INVALID, "quotes");
    refused(f, "{\"a\":7}", 0, REFIT_INVALID, "an object");
    refused(f, "{1:2}", 0, REFIT_INVALID, "quotes");
    refused(f, "{\"\xff\":2}", 0, REFIT_INVALID, "JSON");
    refused(f, "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"extra\":1}}", 0, REFIT_INVALID,
            "extra");
    refused(f, "{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0, REFIT_INVALID, "data_offsets");
    refused(f, "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0, REFIT_INVALID, "duplicate");
    refused(f, "{\"__metadata__\":{\"a\":1}}", 0, REFIT_INVALID, "strings only");
    refused(f, "{\"__metadata__\":[]}", 0, REFIT_INVALID, "object of strings");
    refused(f, "{\"__metadata__\":{},\"__metadata__\":{}}", 0, REFIT_INVALID, "twice");
}

static void names_that_can_not_be_shown_are_refused(void **state)
{
    struct fixture *f = *state;
    char text[600];
    refused(f, "{" T("", "U8", "[0]", "0", "0") "}", 0, REFIT_INVALID, "0 bytes");
    refused(f, "{" T("a\\nb", "U8", "[0]", "0", "0") "}", 0, REFIT_INVALID, "0x0a");
    snprintf(text, sizeof text, "{\"%0*d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
             REFIT_NAME_MAX, 0);
    refused(f, text, 0, REFIT_INVALID, "256 bytes");
}

static void a_name_that_is_there_twice_is_refused(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(parse(f, "{" T("a", "U8", "[0]", "0", "0") "," T("a", "U8", "[0]", "0", "0") "}", 0), REFIT_OK);
    assert_int_equal(refit_table_sort(&f->table, "w.safetensors", &f->err), REFIT_INVALID);
    assert_non_null(strstr(f->err.text, "tensor a is there twice"));
}

static void a_length_out_of_bounds_is_refused(void **state)
{
    struct fixture *f = *state;
    uint8_t prefix[8] = {0, 0xe1, 0xf5, 0x05}; /* 100,000,000 */
    uint64_t len;
    assert_int_equal(refit_header_length(prefix, 1u << 30, "w", &len, &f->err), REFIT_OK);
    assert_int_equal(len, 100000000);
    assert_int_equal(refit_header_length(prefix, 100000007, "w", &len, &f->err), REFIT_CORRUPT);
    prefix[0] = 1;
    assert_int_equal(refit_header_length(prefix, 1u << 30, "w", &len, &f->err), REFIT_INVALID);
    memset(prefix, 0xff, sizeof prefix);
    assert_int_equal(refit_header_length(prefix, UINT64_MAX, "w", &len, &f->err), REFIT_INVALID);
}

static void an_index_lists_files_in_order_of_appearance(void **state)
{
    struct fixture *f = *state;
    size_t index;
    assert_int_equal(parse_index(f, "{\"metadata\":{\"total_size\":1.5e9},"
                                    "\"weight_map\":{\"b\":\"2\",\"a\":\"1\",\"c\":\"2\"},\"more\":[{}]}\n"),
                     REFIT_OK);
    assert_int_equal(f->files.count, 2);
    assert_string_equal(f->files.items[0], "2");
    assert_true(refit_table_find(&f->table, "c", &index));
    assert_int_equal(f->table.items[index].file, 0);
    assert_true(refit_table_find(&f->table, "a", &index));
    assert_int_equal(f->table.items[index].file, 1);
}

static void an_index_reaches_no_other_directory(void **state)
{
    static const char *const names[] = {"../x", "/etc/passwd", "sub/x", "..", ".", "", "a\\u0001b", "x/"};
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"%s\"}}", names[i]);
        assert_int_equal(parse_index(f, text), REFIT_INVALID);
        assert_non_null(strstr(f->err.text, "plain name"));
        assert_int_equal(f->files.count, 0);
    }
}

static void what_is_no_index_is_refused(void **state)
{
    static const char *const texts[] = {
        "", "[]", "{}", "{\"weight_map\":{}}", "{\"weight_map\":[]}", "{\"weight_map\":{\"a\":1}}",
        "{\"weight_map\":{\"a\":\"f\",\"a\":\"f\"}}", "{\"weight_map\":{\"a\":\"f\"}",
        "{\"weight_map\":{\"a\":\"f\"}}}",
        "{\"weight_map\":{\"a\":\"f\"},\"weight_map\":{\"a\":\"g\"}}",
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(parse_index(f, texts[i]), REFIT_INVALID);
        refit_table_release(&f->table);
        refit_table_init(&f->table);
    }
}

static void a_file_must_agree_with_the_index(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(parse_index(f, "{\"weight_map\":{\"a\":\"1\",\"b\":\"2\"}}"), REFIT_OK);
    assert_int_equal(parse(f, "{" T("x", "U8", "[0]", "0", "0") "}", 0), REFIT_MISMATCH);
    assert_non_null(strstr(f->err.text, "tensor x is not in the index"));
    assert_int_equal(parse(f, "{" T("b", "U8", "[0]", "0", "0") "}", 0), REFIT_MISMATCH);
    assert_non_null(strstr(f->err.text, "another file"));
    assert_int_equal(parse(f, "{" T("a", "U8", "[0]", "0", "0") "," T("a", "U8", "[0]", "0", "0") "}", 0),
                     REFIT_INVALID);
    assert_non_null(strstr(f->err.text, "twice"));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(tensors_come_with_type_shape_and_place),
        CASE(every_dtype_has_its_size),
        CASE(empty_tensors_and_scalars_are_tensors),
        CASE(bytes_must_be_covered_exactly),
        CASE(shape_and_dtype_must_make_the_range),
        CASE(what_is_no_header_is_refused),
        CASE(names_that_can_not_be_shown_are_refused),
        CASE(a_name_that_is_there_twice_is_refused),
        CASE(a_length_out_of_bounds_is_refused),
        CASE(an_index_lists_files_in_order_of_appearance),
        CASE(an_index_reaches_no_other_directory),
        CASE(what_is_no_index_is_refused),
        CASE(a_file_must_agree_with_the_index),
    };
    return cmocka_run_group_tests_name("checkpoint/header", tests, NULL, NULL);
}
