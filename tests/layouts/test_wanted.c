/* SPDX-License-Identifier: Apache-2.0
 *
 * The mask of unchanged tensors, from names as a publish lists them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layouts/wanted.h"

static struct refit_layout *layout;

static int open_layout(void **state)
{
    static const char text[] =
        "{\"format\":\"refit-layout/1\",\"ranks\":1,\"meshes\":{\"m\":{\"axes\":[\"t\"],\"shape\":[1]}},\"entries\":["
        "{\"tensor\":\"layers.0.w\",\"dtype\":\"F32\",\"shape\":[4],\"mesh\":\"m\",\"placements\":[\"Replicate\"]},"
        "{\"tensor\":\"layers.0.lora\",\"dtype\":\"F32\",\"shape\":[4],\"mesh\":\"m\",\"placements\":[\"Replicate\"]},"
        "{\"tensor\":\"head\",\"dtype\":\"F32\",\"shape\":[4],\"mesh\":\"m\",\"placements\":[\"Replicate\"]}]}";
    return refit_layout_parse(text, strlen(text), "test", &layout, NULL) == REFIT_OK ? 0 : -1;
}

static int close_layout(void **state)
{
    refit_layout_release(layout);
    return 0;
}

/* Tensors in the layout's order: 'm' moved, '-' not. */
static void gives(json_t *names, const char *expected)
{
    uint8_t *mask;
    assert_int_equal(refit_wanted_without(layout, names, &mask, NULL), REFIT_OK);
    for (uint32_t id = 0; id < 3; id++)
        assert_int_equal(mask[id], expected[id] == 'm');
    free(mask);
    json_decref(names);
}

static void names_and_prefixes_are_found(void **state)
{
    gives(json_array(), "mmm");
    gives(json_pack("[s]", "head"), "mm-");
    gives(json_pack("[s]", "layers.0.w"), "-mm");
    gives(json_pack("[s,s]", "layers.*", "nobody"), "--m");
    gives(json_pack("[s]", "*"), "---");
    gives(json_pack("[s]", "layers.0"), "mmm");
}

static void what_is_no_name_is_refused(void **state)
{
    uint8_t *mask;
    struct refit_error err;
    json_t *bad[] = {json_object(), json_pack("[i]", 3), json_pack("[s]", "")};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(refit_wanted_without(layout, bad[i], &mask, &err), REFIT_INVALID);
        assert_non_null(strstr(err.text, "unchanged"));
        json_decref(bad[i]);
    }
    assert_int_equal(refit_wanted_without(layout, NULL, &mask, &err), REFIT_INVALID);
    json_t *many = json_array();
    for (int i = 0; i <= REFIT_UNCHANGED_PREFIXES_MAX; i++)
        json_array_append_new(many, json_string("x*"));
    assert_int_equal(refit_wanted_without(layout, many, &mask, &err), REFIT_INVALID);
    json_decref(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_prefixes_are_found),
        cmocka_unit_test(what_is_no_name_is_refused),
    };
    return cmocka_run_group_tests(tests, open_layout, close_layout);
}
