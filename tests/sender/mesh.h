/* SPDX-License-Identifier: Apache-2.0
 *
 * A small trainer mesh whose ranks are threads of the test: two tensors, w [64, 256] cut by rows and b [300] on every
 * rank. Contents are a function of (seed, tensor, element), so that the digest of any version is known.
 */
#ifndef REFIT_TESTS_SENDER_MESH_H
#define REFIT_TESTS_SENDER_MESH_H

#include <refit/sender.h>

#include "base/json.h"

#define MESH_RANKS_MAX 4
#define MESH_W (64 * 256)
#define MESH_B 300

/* A replica of two ranks, w cut by columns. */
#define MESH_LAYOUT_COLUMNS                                                                                         \
    "{\"format\":\"refit-layout/1\",\"ranks\":2,\"meshes\":{\"m\":{\"axes\":[\"tp\"],\"shape\":[2]}},\"entries\":["  \
    "{\"tensor\":\"w\",\"dtype\":\"F32\",\"shape\":[64,256],\"mesh\":\"m\",\"placements\":[\"Shard(1)\"]},"          \
    "{\"tensor\":\"b\",\"dtype\":\"F32\",\"shape\":[300],\"mesh\":\"m\",\"placements\":[\"Shard(0)\"]}]}"

struct mesh {
    uint32_t ranks;
    char layout[1024];
    char lead_address[64];
    struct refit_sender *sender[MESH_RANKS_MAX];
    float *w[MESH_RANKS_MAX]; /* 64 / ranks rows */
    float *b[MESH_RANKS_MAX];
    float own_b[MESH_RANKS_MAX][MESH_B];
    /* The ranks' memory is that of GPUs, rank i's of number i % 2, or the only one: w and b, which are the host's, are copied
     * there when they are filled. */
    bool on_devices;
    uint64_t device_w[MESH_RANKS_MAX], device_b[MESH_RANKS_MAX];
    const char *urls[8];
    size_t url_count;
    const char *transport;
    /* Of the last mesh_publish, per rank: */
    enum refit_status status[MESH_RANKS_MAX];
    struct refit_error err[MESH_RANKS_MAX];
    struct refit_report report[MESH_RANKS_MAX];
};

/* Opens and registers on all ranks; `shared`: memory of refit_sender_alloc. Asserts that it works. */
void mesh_open(struct mesh *mesh, uint32_t ranks, bool shared);
void mesh_close(struct mesh *mesh);
/* The memory of devices, after mesh_close. */
void mesh_free(struct mesh *mesh);
void mesh_fill(struct mesh *mesh, uint32_t seed);
/* One seed for w, another for b. */
void mesh_fill_each(struct mesh *mesh, uint32_t w_seed, uint32_t b_seed);
/* Collective; every rank's result is in the mesh. `between` (may be NULL) runs on rank 0 once the publish has begun. */
void mesh_publish(struct mesh *mesh, const struct refit_publish *publish, void (*between)(struct mesh *mesh));
/* The model's digest under `seed`. */
void mesh_digest(uint32_t seed, char hex[static REFIT_SHA256_HEX_MAX]);
void mesh_digest_each(uint32_t w_seed, uint32_t b_seed, char hex[static REFIT_SHA256_HEX_MAX]);

#endif
