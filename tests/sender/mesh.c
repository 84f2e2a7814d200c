/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sender/mesh.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layouts/tally.h"
#include "tests/support/gpu.h"
#include "tests/support/port.h"

struct job {
    struct mesh *mesh;
    uint32_t rank;
    bool shared;
    const struct refit_publish *publish;
    void (*between)(struct mesh *mesh);
};

static void on_all_ranks(struct mesh *mesh, void *(*body)(void *), const struct job *common)
{
    pthread_t thread[MESH_RANKS_MAX];
    struct job job[MESH_RANKS_MAX];
    for (uint32_t i = 0; i < mesh->ranks; i++) {
        job[i] = *common;
        job[i].mesh = mesh;
        job[i].rank = i;
        assert_int_equal(pthread_create(&thread[i], NULL, body, &job[i]), 0);
    }
    for (uint32_t i = 0; i < mesh->ranks; i++)
        pthread_join(thread[i], NULL);
}

static float element(uint32_t seed, uint32_t tensor, uint32_t i)
{
    uint32_t x = seed * 2654435761u ^ tensor * 40503u ^ i * 2246822519u;
    float value;
    x = (x ^ x >> 15) & 0x3fffffffu;
    memcpy(&value, &x, sizeof value);
    return value;
}

static size_t w_elements(const struct mesh *mesh)
{
    return MESH_W / mesh->ranks;
}

static void allocate_on_device(struct mesh *mesh, uint32_t rank, struct refit_sender_buffer buffers[static 2])
{
    int device = (int)rank % (gpu_devices() < 2 ? 1 : 2);
    mesh->device_w[rank] = gpu_allocate(device, buffers[0].bytes);
    mesh->device_b[rank] = gpu_allocate(device, buffers[1].bytes);
    buffers[0].data = (void *)(uintptr_t)mesh->device_w[rank];
    buffers[1].data = (void *)(uintptr_t)mesh->device_b[rank];
    for (int i = 0; i < 2; i++) {
        buffers[i].memory = REFIT_SENDER_CUDA;
        buffers[i].device = device;
    }
}

static enum refit_status open_rank(struct mesh *mesh, uint32_t rank, bool shared, struct refit_error *err)
{
    struct refit_sender_config config = {.rank = rank,
                                         .ranks = mesh->ranks,
                                         .lead_address = mesh->lead_address,
                                         .replicas = mesh->urls,
                                         .replica_count = mesh->url_count,
                                         .name = "test",
                                         .takeover = 1,
                                         .transport = mesh->transport,
                                         .connect_timeout_ms = 10000};
    size_t bytes = w_elements(mesh) * sizeof(float);
    void *memory = NULL;
    enum refit_status status = refit_sender_open(&config, &mesh->sender[rank], err);
    if (status == REFIT_OK && shared)
        status = refit_sender_alloc(mesh->sender[rank], bytes, &memory, err);
    if (status != REFIT_OK)
        return status;
    mesh->w[rank] = shared ? memory : malloc(bytes);
    mesh->b[rank] = mesh->own_b[rank];
    struct refit_sender_buffer buffers[] = {
        {.name = "w", .data = mesh->w[rank], .bytes = bytes},
        {.name = "b", .data = mesh->b[rank], .bytes = sizeof mesh->own_b[rank]}};
    if (mesh->on_devices)
        allocate_on_device(mesh, rank, buffers);
    return refit_sender_register(mesh->sender[rank], mesh->layout, strlen(mesh->layout), buffers, 2, err);
}

static void *open_body(void *context)
{
    struct job *job = context;
    job->mesh->status[job->rank] = open_rank(job->mesh, job->rank, job->shared, &job->mesh->err[job->rank]);
    return NULL;
}

void mesh_open(struct mesh *mesh, uint32_t ranks, bool shared)
{
    struct job common = {.shared = shared};
    mesh->ranks = ranks;
    snprintf(mesh->layout, sizeof mesh->layout,
             "{\"format\":\"refit-layout/1\",\"ranks\":%u,\"meshes\":{\"m\":{\"axes\":[\"fsdp\"],\"shape\":[%u]}},"
             "\"entries\":[{\"tensor\":\"w\",\"dtype\":\"F32\",\"shape\":[64,256],\"mesh\":\"m\","
             "\"placements\":[\"Shard(0)\"]},{\"tensor\":\"b\",\"dtype\":\"F32\",\"shape\":[300],\"mesh\":\"m\","
             "\"placements\":[\"Replicate\"]}]}",
             ranks, ranks);
    snprintf(mesh->lead_address, sizeof mesh->lead_address, "127.0.0.1:%u", (unsigned)port_reserve());
    on_all_ranks(mesh, open_body, &common);
    for (uint32_t i = ranks; i-- > 0;)
        if (mesh->status[i] != REFIT_OK)
            fail_msg("rank %u: %s", i, mesh->err[i].text);
    for (uint32_t i = 0; !shared && i < ranks; i++)
        assert_non_null(mesh->w[i]);
    mesh_fill(mesh, 1);
}

static void *close_body(void *context)
{
    struct job *job = context;
    refit_sender_close(job->mesh->sender[job->rank]);
    job->mesh->sender[job->rank] = NULL;
    return NULL;
}

void mesh_close(struct mesh *mesh)
{
    struct job common = {0};
    on_all_ranks(mesh, close_body, &common);
}

void mesh_free(struct mesh *mesh)
{
    for (uint32_t rank = 0; mesh->on_devices && rank < mesh->ranks; rank++) {
        gpu_free(mesh->device_w[rank]);
        gpu_free(mesh->device_b[rank]);
        free(mesh->w[rank]);
    }
}

void mesh_fill(struct mesh *mesh, uint32_t seed)
{
    mesh_fill_each(mesh, seed, seed);
}

void mesh_fill_each(struct mesh *mesh, uint32_t w_seed, uint32_t b_seed)
{
    size_t each = w_elements(mesh);
    for (uint32_t rank = 0; rank < mesh->ranks; rank++) {
        for (uint32_t i = 0; i < each; i++)
            mesh->w[rank][i] = element(w_seed, 0, (uint32_t)(rank * each) + i);
        for (uint32_t i = 0; i < MESH_B; i++)
            mesh->b[rank][i] = element(b_seed, 1, i);
        if (mesh->on_devices) {
            gpu_write(mesh->device_w[rank], mesh->w[rank], each * sizeof(float));
            gpu_write(mesh->device_b[rank], mesh->b[rank], sizeof mesh->own_b[rank]);
        }
    }
}

static void *publish_body(void *context)
{
    struct job *job = context;
    struct mesh *mesh = job->mesh;
    uint32_t rank = job->rank;
    struct refit_error *err = &mesh->err[rank];
    memset(err, 0, sizeof *err);
    mesh->report[rank] = (struct refit_report){0};
    mesh->status[rank] = refit_sender_publish_begin(mesh->sender[rank], job->publish, err);
    if (mesh->status[rank] != REFIT_OK)
        return NULL;
    if (rank == 0 && job->between)
        job->between(mesh);
    mesh->status[rank] = refit_sender_publish_wait_report(mesh->sender[rank], &mesh->report[rank], err);
    return NULL;
}

void mesh_publish(struct mesh *mesh, const struct refit_publish *publish, void (*between)(struct mesh *mesh))
{
    struct job common = {.publish = publish, .between = between};
    on_all_ranks(mesh, publish_body, &common);
}

void mesh_digest(uint32_t seed, char hex[static REFIT_SHA256_HEX_MAX])
{
    mesh_digest_each(seed, seed, hex);
}

void mesh_digest_each(uint32_t w_seed, uint32_t b_seed, char hex[static REFIT_SHA256_HEX_MAX])
{
    static float w[MESH_W], b[MESH_B];
    struct refit_layout *layout = NULL;
    struct refit_tally *tally = refit_tally_create(2);
    struct refit_digest parts[2] = {{{0}}};
    uint32_t id;
    for (uint32_t i = 0; i < MESH_W; i++)
        w[i] = element(w_seed, 0, i);
    for (uint32_t i = 0; i < MESH_B; i++)
        b[i] = element(b_seed, 1, i);
    refit_digest_add(&parts[0], w, sizeof w, 0);
    refit_digest_add(&parts[1], b, sizeof b, 0);
    assert_int_equal(refit_layout_parse(MESH_LAYOUT_COLUMNS, strlen(MESH_LAYOUT_COLUMNS), "layout", &layout, NULL), REFIT_OK);
    assert_true(refit_layout_find(layout, "w", &id));
    refit_tally_add(tally, id, parts[0]);
    assert_true(refit_layout_find(layout, "b", &id));
    refit_tally_add(tally, id, parts[1]);
    assert_int_equal(refit_model_digest(layout, tally, "exact", hex, NULL), REFIT_OK);
    refit_tally_destroy(tally);
    refit_layout_release(layout);
}
