/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer whose memory is on GPUs (the look-alike of libcuda.so.1) publishes to replicas that have theirs in the host.
 */
#include "tests/sidecar/refitd.h"

#include <stdio.h>

#include "base/io.h"
#include "tests/sender/mesh.h"
#include "tests/standins/standin_cuda.h"
#include "tests/support/gpu.h"

/* The look-alike's, if it is one. */
static __typeof__(standin_cuda_live) *live;

static struct refitd whole, halves;
static char urls[2][64];
static struct mesh mesh;

static int open_driver(void **state)
{
    gpu_open();
    *(void **)(void *)&live = gpu_switch("standin_cuda_live");
    return 0;
}

static int setup(void **state)
{
    static const char *const two[] = {"--ranks", "2", NULL};
    memset(&mesh, 0, sizeof mesh);
    refitd_prepare(&whole);
    refitd_prepare(&halves);
    assert_int_equal(refit_io_replace_file(halves.layout, MESH_LAYOUT_COLUMNS, strlen(MESH_LAYOUT_COLUMNS), 0644, NULL),
                     REFIT_OK);
    refitd_start(&whole, NULL);
    refitd_start(&halves, two);
    const struct refitd *replicas[] = {&whole, &halves};
    for (int i = 0; i < 2; i++) {
        snprintf(urls[i], sizeof urls[i], "http://127.0.0.1:%u", (unsigned)replicas[i]->control);
        mesh.urls[i] = urls[i];
    }
    mesh.url_count = 2;
    mesh.transport = "tcp";
    mesh.on_devices = true;
    return 0;
}

static int teardown(void **state)
{
    mesh_close(&mesh);
    mesh_free(&mesh);
    refitd_cleanup(&whole);
    refitd_cleanup(&halves);
    int left = live ? live() : 0;
    if (left != 0)
        print_error("%d objects of the driver's are still alive\n", left);
    return left == 0 ? 0 : -1;
}

static void expect_committed(uint32_t seed, const char *transport)
{
    char digest[REFIT_SHA256_HEX_MAX];
    mesh_digest(seed, digest);
    for (uint32_t rank = 0; rank < mesh.ranks; rank++) {
        if (mesh.status[rank] != REFIT_OK)
            fail_msg("rank %u: %s", rank, mesh.err[rank].text);
        assert_string_equal(mesh.report[rank].digest, digest);
        for (size_t i = 0; i < 2; i++) {
            assert_int_equal(mesh.report[rank].replicas[i].outcome, REFIT_OUTCOME_COMMITTED);
            assert_string_equal(mesh.report[rank].replicas[i].digest, digest);
            if (transport)
                assert_string_equal(mesh.report[rank].replicas[i].transport, transport);
        }
    }
}

static void publish(uint64_t version, uint32_t seed, const char *strategy, const char *transport)
{
    struct refit_publish wanted = {
        .version = version, .deadline_ms = 60000, .check_source = 1, .strategy = strategy};
    mesh_fill(&mesh, seed);
    mesh_publish(&mesh, &wanted, NULL);
    expect_committed(seed, transport);
}

/* Rows of a rank to the replica of one; columns, which are packed on the device, to the replica of two. */
static void replicas_in_the_host_get_what_is_on_the_devices(void **state)
{
    mesh_open(&mesh, 2, false);
    for (uint32_t step = 1; step <= 3; step++)
        publish(step, 300 + step, "direct", "tcp");
    publish(4, 304, "relay", "tcp");
    publish(5, 305, "broadcast", NULL);
}

static void on_the_same_host_they_go_by_a_ring(void **state)
{
    mesh.transport = "local";
    mesh_open(&mesh, 2, false);
    publish(1, 17, "direct", "local");
}

/* What is said to be unchanged is digested on the device. */
static void a_tensor_that_did_change_is_found_out_by_the_check(void **state)
{
    static const char *const names[] = {"b"};
    struct refit_publish wanted = {.version = 2, .deadline_ms = 60000, .check_source = 1, .strategy = "direct",
                                   .unchanged_since = 1, .unchanged = names, .unchanged_count = 1};
    mesh_open(&mesh, 2, false);
    publish(1, 1, "direct", "tcp");
    mesh_fill_each(&mesh, 2, 2);
    mesh_publish(&mesh, &wanted, NULL);
    assert_int_equal(mesh.status[0], REFIT_CORRUPT);
}

static void memory_in_two_places_is_refused(void **state)
{
    struct refit_error err;
    float host[MESH_B];
    mesh_open(&mesh, 1, false);
    struct refit_sender_buffer buffers[] = {
        {.name = "w", .data = (void *)(uintptr_t)mesh.device_w[0], .bytes = MESH_W * sizeof(float), .memory = REFIT_SENDER_CUDA},
        {.name = "b", .data = host, .bytes = sizeof host}};
    assert_int_equal(refit_sender_register(mesh.sender[0], mesh.layout, strlen(mesh.layout), buffers, 2, &err),
                     REFIT_INVALID);
    assert_non_null(strstr(err.text, "buffers w and b are in different memory"));
    buffers[1].memory = REFIT_SENDER_CUDA;
    assert_int_equal(refit_sender_register(mesh.sender[0], mesh.layout, strlen(mesh.layout), buffers, 2, &err),
                     REFIT_INVALID);
    assert_non_null(strstr(err.text, "buffer b of rank 0"));
    assert_non_null(strstr(err.text, "host memory"));
    buffers[0].memory = (enum refit_sender_memory)9;
    assert_int_equal(refit_sender_register(mesh.sender[0], mesh.layout, strlen(mesh.layout), buffers, 2, &err),
                     REFIT_INVALID);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(replicas_in_the_host_get_what_is_on_the_devices),
        CASE(on_the_same_host_they_go_by_a_ring),
        CASE(a_tensor_that_did_change_is_found_out_by_the_check),
        CASE(memory_in_two_places_is_refused),
    };
    return cmocka_run_group_tests_name("sender/device", tests, open_driver, NULL);
}
