/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer on GPUs publishes to replicas on GPUs by NCCL, each process over look-alikes of CUDA and NCCL: alone, in a
 * fleet whose members pass on what they have, and where it can't be, by another path that is named.
 */
#include "tests/sidecar/refitd.h"

#include <dlfcn.h>
#include <stdio.h>

#include "base/io.h"
#include "tests/sender/mesh.h"
#include "tests/standins/standin_cuda.h"
#include "tests/standins/standin_nccl.h"

#define ONE_RANK "cuda:2" /* the trainer has devices 0 and 1 */
#define TWO_RANKS "cuda:3,4"
#define ONE_MORE "cuda:5"

static struct {
    __typeof__(standin_cuda_live) *live;
    __typeof__(standin_nccl_live) *nccl_live;
    __typeof__(standin_nccl_called) *called;
    __typeof__(standin_nccl_reset) *reset;
    __typeof__(standin_nccl_error_after_groups) *error_after_groups;
} standin;

#define REPLICAS 3
static struct refitd replica[REPLICAS];
static char urls[REPLICAS][64];
static struct mesh mesh;

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        fail_msg("%s: not there: is it the look-alike?", name);
    return found;
}

static int open_standins(void **state)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!cuda || !nccl)
        fail_msg("%s", dlerror());
    *(void **)(void *)&standin.live = symbol(cuda, "standin_cuda_live");
    *(void **)(void *)&standin.nccl_live = symbol(nccl, "standin_nccl_live");
    *(void **)(void *)&standin.called = symbol(nccl, "standin_nccl_called");
    *(void **)(void *)&standin.reset = symbol(nccl, "standin_nccl_reset");
    *(void **)(void *)&standin.error_after_groups = symbol(nccl, "standin_nccl_error_after_groups");
    return 0;
}

static void start(int i, const char *layout, const char *const *options)
{
    refitd_prepare(&replica[i]);
    if (layout)
        assert_int_equal(refit_io_replace_file(replica[i].layout, layout, strlen(layout), 0644, NULL), REFIT_OK);
    refitd_start(&replica[i], options);
    snprintf(urls[i], sizeof urls[i], "http://127.0.0.1:%u", (unsigned)replica[i].control);
    mesh.urls[mesh.url_count++] = urls[i];
}

static int setup(void **state)
{
    static const char *const one[] = {"--memory", ONE_RANK, "--receive", "sidecar", NULL};
    static const char *const two[] = {"--ranks", "2", "--memory", TWO_RANKS, "--receive", "sidecar", NULL};
    static const char *const more[] = {"--memory", ONE_MORE, "--receive", "sidecar", NULL};
    memset(&mesh, 0, sizeof mesh);
    standin.reset();
    start(0, NULL, one);
    start(1, MESH_LAYOUT_COLUMNS, two);
    start(2, NULL, more);
    mesh.on_devices = true;
    return 0;
}

static int teardown(void **state)
{
    int left = 0;
    mesh_close(&mesh);
    mesh_free(&mesh);
    for (int i = 0; i < REPLICAS; i++) {
        left += refitd_stop(&replica[i]); /* 70: the look-alike found something left */
        refitd_cleanup(&replica[i]);
    }
    left += standin.live() + standin.nccl_live();
    if (left != 0)
        print_error("something of the devices is left\n");
    return left == 0 ? 0 : -1;
}

static int calls_of(const char *name)
{
    int times;
    const char *called;
    for (int i = 0; (called = standin.called(i, &times)) != NULL; i++)
        if (strcmp(called, name) == 0)
            return times;
    return 0;
}

static void publish(uint64_t version, const char *strategy, const char *transport)
{
    char digest[REFIT_SHA256_HEX_MAX];
    uint32_t seed = 700 + (uint32_t)version;
    struct refit_publish wanted = {
        .version = version, .deadline_ms = 60000, .check_source = 1, .strategy = strategy};
    mesh_fill(&mesh, seed);
    mesh_publish(&mesh, &wanted, NULL);
    mesh_digest(seed, digest);
    for (uint32_t rank = 0; rank < mesh.ranks; rank++) {
        if (mesh.status[rank] != REFIT_OK)
            fail_msg("rank %u: %s", rank, mesh.err[rank].text);
        for (size_t i = 0; i < mesh.url_count; i++) {
            assert_int_equal(mesh.report[rank].replicas[i].outcome, REFIT_OUTCOME_COMMITTED);
            assert_string_equal(mesh.report[rank].replicas[i].digest, digest);
            assert_string_equal(mesh.report[rank].replicas[i].transport, transport);
        }
    }
}

/* Without being told; the second publish finds the communicators of the first. */
static void replicas_on_devices_get_what_is_on_devices(void **state)
{
    mesh_open(&mesh, 2, false);
    publish(1, "direct", "nccl");
    int made = calls_of("ncclCommInitRankConfig");
    assert_true(made > 0);
    publish(2, "direct", "nccl");
    publish(3, "direct", "nccl");
    assert_int_equal(calls_of("ncclCommInitRankConfig"), made);
    publish(4, "relay", "nccl");
}

static void an_error_in_the_middle_is_made_good_within_the_refit(void **state)
{
    mesh_open(&mesh, 2, false);
    publish(1, "direct", "nccl");
    standin.error_after_groups(1, 6 /* ncclRemoteError */);
    publish(2, "direct", "nccl");
    publish(3, "direct", "nccl");
}

#ifdef REFIT_TEST_RESHARD
static int setup_reshard(void **state)
{
    setenv("REFIT_NCCL_RESHARD", "on", 1); /* of the replicas, too */
    return setup(state);
}

static int teardown_reshard(void **state)
{
    unsetenv("REFIT_NCCL_RESHARD");
    return teardown(state);
}

/* Two ranks to replicas of one, two and one; members that pass bytes on get them by grants. */
static void with_reshard_on_what_fits_goes_by_its_call(void **state)
{
    mesh_open(&mesh, 2, false);
    publish(1, "direct", "nccl");
    int calls = calls_of("ncclReshard");
    assert_true(calls > 0 && calls_of("ncclM2nInit") > 0);
    publish(2, "direct", "nccl");
    assert_int_equal(calls_of("ncclReshard"), 2 * calls);
    standin.error_after_groups(1, 6 /* ncclRemoteError */);
    publish(3, "direct", "nccl");
    calls = calls_of("ncclReshard");
    publish(4, "relay", "nccl");
    assert_int_equal(calls_of("ncclReshard"), calls);
}
#endif

/* Its memory is not a device's. */
static void close_host_mesh(void)
{
    mesh_close(&mesh);
    for (uint32_t i = 0; i < mesh.ranks; i++)
        free(mesh.w[i]);
    mesh.ranks = 0;
}

static void a_trainer_in_the_host_takes_another_path(void **state)
{
    mesh.on_devices = false;
    mesh_open(&mesh, 2, false);
    publish(1, "direct", "local");
    assert_int_equal(calls_of("ncclCommInitRankConfig"), 0);
    close_host_mesh();
    mesh.transport = "nccl";
    mesh_open(&mesh, 1, false);
    struct refit_publish wanted = {.version = 2, .deadline_ms = 20000, .strategy = "direct"};
    mesh_publish(&mesh, &wanted, NULL);
    assert_true(mesh.status[0] != REFIT_OK);
    assert_int_equal(mesh.report[0].replicas[0].outcome, REFIT_OUTCOME_ABORTED);
    assert_non_null(strstr(mesh.report[0].replicas[0].error.text, "in the host"));
    close_host_mesh();
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(replicas_on_devices_get_what_is_on_devices),
        CASE(an_error_in_the_middle_is_made_good_within_the_refit),
#ifdef REFIT_TEST_RESHARD
        cmocka_unit_test_setup_teardown(with_reshard_on_what_fits_goes_by_its_call, setup_reshard, teardown_reshard),
#endif
        CASE(a_trainer_in_the_host_takes_another_path),
    };
    return cmocka_run_group_tests_name("sender/nccl", tests, open_standins, NULL);
}
