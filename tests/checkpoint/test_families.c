/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "checkpoint/families.h"

struct fixture {
    struct refit_table table;
    json_t *document;
    struct refit_layout *layout;
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
    json_decref(f->document);
    refit_layout_release(f->layout);
    return 0;
}

static void add(struct fixture *f, const char *name, enum refit_dtype dtype, uint32_t dims, const int64_t *shape)
{
    size_t index;
    assert_int_equal(refit_table_add(&f->table, name, 0, "test", &index, &f->err), REFIT_OK);
    assert_int_equal(refit_table_set_shape(&f->table, index, dims, shape, &f->err), REFIT_OK);
    f->table.items[index].dtype = (uint8_t)dtype;
}

static void add_vector(struct fixture *f, const char *name, int64_t elements)
{
    add(f, name, REFIT_DTYPE_F32, 1, &elements);
}

/* Builds the document and the layout, and checks that the layout has exactly the table's tensors. */
static size_t entries(struct fixture *f)
{
    assert_int_equal(refit_families_layout(&f->table, &f->document, &f->err), REFIT_OK);
    enum refit_status status = refit_layout_from_json(f->document, "test", &f->layout, &f->err);
    if (status != REFIT_OK)
        fail_msg("%s", f->err.text);
    assert_int_equal(refit_layout_tensor_count(f->layout), f->table.count);
    for (size_t i = 0; i < f->table.count; i++) {
        struct refit_tensor tensor;
        uint32_t id;
        assert_true(refit_layout_find(f->layout, refit_table_name(&f->table, i), &id));
        refit_layout_tensor(f->layout, id, &tensor);
        assert_int_equal(tensor.dtype, f->table.items[i].dtype);
        assert_int_equal(tensor.dims, f->table.items[i].dims);
        assert_memory_equal(tensor.shape, refit_table_shape(&f->table, i), tensor.dims * sizeof *tensor.shape);
    }
    return json_array_size(json_object_get(f->document, "entries"));
}

static void experts_are_one_entry(void **state)
{
    struct fixture *f = *state;
    char name[64];
    for (int layer = 11; layer >= 3; layer--) {
        for (int expert = 0; expert < 16; expert++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.up.weight", layer, expert);
            add_vector(f, name, 8);
        }
    }
    add_vector(f, "model.norm.weight", 8);
    assert_int_equal(entries(f), 2);
}

static void other_shapes_and_types_are_other_entries(void **state)
{
    struct fixture *f = *state;
    add_vector(f, "layers.0.w", 8);
    add_vector(f, "layers.1.w", 8);
    add_vector(f, "layers.2.w", 9);
    add_vector(f, "layers.3.w", 8);
    add(f, "layers.4.w", REFIT_DTYPE_F16, 1, (const int64_t[]){8});
    assert_int_equal(entries(f), 4);
}

static void gaps_cut_a_family(void **state)
{
    struct fixture *f = *state;
    char name[64];
    for (int layer = 0; layer < 20; layer++) {
        for (int expert = 0; expert < 4; expert++) {
            if (layer == 7 || (layer == 12 && expert == 1))
                continue;
            snprintf(name, sizeof name, "l.%d.e.%d", layer, expert);
            add_vector(f, name, 8);
        }
    }
    /* 0..6, 8..11, 12 without its expert 1 (two entries), 13..19 */
    assert_int_equal(entries(f), 5);
}

static void numbers_that_are_no_index_stay_as_they_are(void **state)
{
    struct fixture *f = *state;
    static const char *const names[] = {"a.00", "a.01", "a.0", "b1.c", "b2.c", "d.12345678901", "d.12345678902",
                                        "7", "8", "e.-1", "e.1x", "f..1", "f..2", "g.1.", "g.2."};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        add_vector(f, names[i], 8);
    assert_true(entries(f) >= 9);
}

static void a_ninth_number_is_text(void **state)
{
    struct fixture *f = *state;
    add_vector(f, "1.2.3.4.5.6.7.8.9", 8);
    add_vector(f, "1.2.3.4.5.6.7.8.10", 8);
    add_vector(f, "1.2.3.4.5.6.7.9.10", 8);
    assert_int_equal(entries(f), 2);
}

static void scalars_and_empty_tensors_are_in_the_layout(void **state)
{
    struct fixture *f = *state;
    add(f, "scale", REFIT_DTYPE_F32, 0, NULL);
    add(f, "nothing", REFIT_DTYPE_BF16, 2, (const int64_t[]){0, 4});
    add(f, "packed", REFIT_DTYPE_F4, 2, (const int64_t[]){3, 8});
    assert_int_equal(entries(f), 3);
}

static void random_names_survive(void **state)
{
    struct fixture *f = *state;
    uint32_t x = 12345;
    for (int layer = 0; layer < 12; layer++) {
        for (int expert = 0; expert < 12; expert++) {
            for (int part = 0; part < 3; part++) {
                char name[64];
                x = x * 1664525 + 1013904223;
                if (x >> 30 == 0)
                    continue;
                snprintf(name, sizeof name, "m.%d.x%d.%d.w", layer, part, expert);
                add_vector(f, name, 4 + (x >> 28) % 2);
            }
        }
    }
    assert_true(entries(f) < f->table.count);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(experts_are_one_entry),
        CASE(other_shapes_and_types_are_other_entries),
        CASE(gaps_cut_a_family),
        CASE(numbers_that_are_no_index_stay_as_they_are),
        CASE(a_ninth_number_is_text),
        CASE(scalars_and_empty_tensors_are_in_the_layout),
        CASE(random_names_survive),
    };
    return cmocka_run_group_tests_name("checkpoint/families", tests, NULL, NULL);
}
