/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/memory/cuda_fixture.h"

const char *const cuda_pairs[][2] = {
    {LAYOUT("3", "[3]", TENSOR("w", "BF16", "[31,37]", ROWS) "," TENSOR("s", "F32", "[]", WHOLE)),
     LAYOUT("2", "[2]", TENSOR("w", "BF16", "[31,37]", COLUMNS) "," TENSOR("s", "F32", "[]", WHOLE))},
    {LAYOUT("2", "[2]", TENSOR("w", "F32", "[700,1792]", ROWS)),
     LAYOUT("2", "[2]", TENSOR("w", "F32", "[700,1792]", COLUMNS))},
    {LAYOUT("1", "[1]", TENSOR("w", "U8", "[1501,7013]", WHOLE)),
     LAYOUT("2", "[2]", TENSOR("w", "U8", "[1501,7013]", COLUMNS))},
    {LAYOUT("2", "[2]", TENSOR("w", "BF16", "[64,300]", ROWS)),
     LAYOUT("3", "[3]", TENSOR("w", "BF16", "[64,300]", "\"order\":[1,0]," ROWS))},
    {LAYOUT("1", "[1]", TENSOR("w", "U8", "[5,6,7]", "\"order\":[2,0,1]," WHOLE)),
     LAYOUT("2", "[2]", TENSOR("w", "U8", "[5,6,7]", "\"order\":[1,2,0],\"placements\":[\"Shard(2)\"]"))},
    {LAYOUT("2", "[2]", TENSOR("w", "F4", "[14,64]", ROWS) "," TENSOR("x", "F6_E2M3", "[6,16]", ROWS)),
     LAYOUT("2", "[2]", TENSOR("w", "F4", "[14,64]", COLUMNS) "," TENSOR("x", "F6_E2M3", "[6,16]", COLUMNS))},
    {NULL, NULL},
};

struct gpu_switches standin;

int cuda_open(void **state)
{
    (void)state;
    standin = gpu_switches();
    return 0;
}

int cuda_setup(void **state)
{
    static struct fixture f;
    memset(&f, 0, sizeof f);
    f.message = malloc(REFIT_BATCH_BYTES_MAX);
    f.back = malloc(REFIT_BATCH_BYTES_MAX);
    refit_segments_init(&f.expected, true);
    refit_segments_init(&f.found, true);
    standin.total((size_t)1 << 30);
    standin.peers(1);
    standin.reset();
    refit_memory_set_patience(20000);
    *state = &f;
    return f.message && f.back ? 0 : -1;
}

int cuda_teardown(void **state)
{
    struct fixture *f = *state;
    standin.hold(0);
    standin.delay(0);
    standin.fault(0);
    world_close(&f->world);
    refit_segments_release(&f->expected);
    refit_segments_release(&f->found);
    free(f->message);
    free(f->back);
    if (standin.live() != 0)
        print_error("%d objects are still alive\n", standin.live());
    return standin.live() == 0 ? 0 : -1;
}

void must(const struct fixture *f, enum refit_status status)
{
    if (status != REFIT_OK)
        fail_msg("%s", f->err.text);
}

void wait_for(struct fixture *f, struct refit_completion *completion)
{
    must(f, refit_completion_wait(completion, refit_deadline_in_ms(20000), &f->err));
}

void expect_digests(const struct fixture *f)
{
    assert_int_equal(f->found.count, f->expected.count);
    for (size_t i = 0; i < f->found.count; i++)
        assert_true(refit_digest_equal(f->found.items[i].digest, f->expected.items[i].digest));
}

int calls_of(const char *name)
{
    const char *called;
    int times;
    for (int i = 0; (called = standin.called(i, &times)); i++)
        if (strcmp(called, name) == 0)
            return times;
    return 0;
}

static bool fail_nth(struct fixture *f, enum refit_status (*all)(struct fixture *f), const char *call, int nth, int before)
{
    memset(&f->err, 0, sizeof f->err);
    standin.fail_call(call, nth);
    enum refit_status status = all(f);
    standin.fail_call("", 0);
    if (standin.live() != before)
        fail_msg("%s, call %d: %d objects leak", call, nth, standin.live() - before);
    /* cuMemFree is cuMemFree_v2 in the library: the name in the error is what programmers write. */
    size_t len = strcspn(call, "_");
    char name[64];
    snprintf(name, sizeof name, "%.*s: CUDA_ERROR", (int)len, call);
    if (status != REFIT_OK && !strstr(f->err.text, name) && !strstr(f->err.text, call))
        fail_msg("%s, call %d: '%s' does not name it", call, nth, f->err.text);
    bool memory = strstr(call, "Alloc") || strstr(call, "cuMemCreate") || strstr(call, "Reserve");
    if (status != REFIT_OK && memory && !strstr(call, "Granularity"))
        assert_int_equal(status, REFIT_NO_MEMORY);
    f->err.text[0] = 0;
    must(f, all(f));
    return status != REFIT_OK;
}

size_t fail_each_call(struct fixture *f, enum refit_status (*all)(struct fixture *f))
{
    char names[96][48];
    int counts[96], count = 0, before = standin.live();
    const char *name;
    size_t failed = 0;
    standin.reset();
    must(f, all(f));
    for (int times; count < 96 && (name = standin.called(count, &times)); count++) {
        snprintf(names[count], sizeof names[count], "%s", name);
        counts[count] = times;
    }
    for (int i = 0; i < count; i++)
        for (int nth = 1; nth <= counts[i] && nth <= 12; nth++)
            failed += fail_nth(f, all, names[i], nth, before);
    return failed;
}
