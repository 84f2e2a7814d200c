/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/host.h"

#include <string.h>

/* Below this, the fixed cost of a run in refit_digest_copy_rows shows, and rows are copied first, digested together. */
#define SHORT_RUN 512
/* Copied and then digested: stays in the first-level cache. */
#define HOT_BYTES (16u << 10)

static bool dense(int64_t stride, const struct refit_rows *rows)
{
    return rows->count == 1 || stride == (int64_t)rows->run_bytes;
}

/* One long run in the tensor and in memory. */
static bool is_one_run(int64_t stride, const struct refit_rows *rows)
{
    return dense(stride, rows) && dense(rows->tensor_stride, rows);
}

void refit_host_sum(const uint8_t *data, int64_t stride, const struct refit_rows *rows, struct refit_digest *digest)
{
    if (is_one_run(stride, rows))
        refit_digest_add(digest, data, rows->run_bytes * rows->count, rows->tensor_offset);
    else
        refit_digest_add_rows(digest, data, rows->run_bytes, rows->count, (ptrdiff_t)stride, rows->tensor_offset,
                              rows->tensor_stride);
}

/* A constant size lets the compiler turn memcpy into one load and one store. */
#define COPY_FIXED(size)                                             \
    for (uint64_t i = 0; i < count; i++) {                           \
        memcpy(dst, src, (size));                                    \
        dst += dst_stride;                                           \
        src += src_stride;                                           \
    }                                                                \
    break

static void copy_rows(uint8_t *dst, int64_t dst_stride, const uint8_t *src, int64_t src_stride, uint64_t run_bytes,
                      uint64_t count)
{
    switch (run_bytes) {
    case 1: COPY_FIXED(1);
    case 2: COPY_FIXED(2);
    case 4: COPY_FIXED(4);
    case 8: COPY_FIXED(8);
    case 16: COPY_FIXED(16);
    case 32: COPY_FIXED(32);
    case 64: COPY_FIXED(64);
    default: COPY_FIXED(run_bytes);
    }
}

static void copy_plain(uint8_t *dst, int64_t dst_stride, const uint8_t *src, int64_t src_stride,
                       const struct refit_rows *rows)
{
    if (dense(dst_stride, rows) && dense(src_stride, rows))
        memcpy(dst, src, rows->run_bytes * rows->count);
    else
        copy_rows(dst, dst_stride, src, src_stride, rows->run_bytes, rows->count);
}

static void move_short(uint8_t *dst, int64_t dst_stride, const uint8_t *src, int64_t src_stride,
                       const struct refit_rows *rows, struct refit_digest *digest)
{
    struct refit_rows part = *rows;
    uint64_t step = HOT_BYTES / rows->run_bytes;
    for (uint64_t done = 0; done < rows->count; done += part.count) {
        part.count = rows->count - done < step ? rows->count - done : step;
        copy_rows(dst, dst_stride, src, src_stride, part.run_bytes, part.count);
        /* What was written is what counts; dense source bytes are the same and cheaper to read. */
        if (is_one_run(src_stride, &part))
            refit_host_sum(src, src_stride, &part, digest);
        else
            refit_host_sum(dst, dst_stride, &part, digest);
        dst += dst_stride * (int64_t)part.count;
        src += src_stride * (int64_t)part.count;
        part.tensor_offset += (uint64_t)rows->tensor_stride * part.count;
    }
}

void refit_host_move(uint8_t *dst, int64_t dst_stride, const uint8_t *src, int64_t src_stride,
                     const struct refit_rows *rows, enum refit_digest_store store, struct refit_digest *digest)
{
    struct refit_digest_runs runs = {
        .dst = dst,
        .src = src,
        .dst_stride = (ptrdiff_t)dst_stride,
        .src_stride = (ptrdiff_t)src_stride,
        .run_bytes = rows->run_bytes,
        .count = rows->count,
        .tensor_offset = rows->tensor_offset,
        .tensor_stride = rows->tensor_stride,
    };
    bool one_run = is_one_run(dst_stride, rows) && dense(src_stride, rows);
    if (one_run) {
        runs.run_bytes *= runs.count;
        runs.count = 1;
    }
    if (!digest)
        copy_plain(dst, dst_stride, src, src_stride, rows);
    else if (one_run || rows->run_bytes >= SHORT_RUN)
        refit_digest_copy_rows(digest, &runs, store);
    else
        move_short(dst, dst_stride, src, src_stride, rows, digest);
}

/* What is loaded goes to a socket or to whoever reads a ring next; what is stored is a slot that nobody reads soon. */
static enum refit_status host_load(const struct refit_arena *arena, const struct refit_rows *rows, uint8_t *dst,
                                   int64_t dst_stride, struct refit_digest *digest, struct refit_error *err)
{
    (void)arena;
    (void)err;
    refit_host_move(dst, dst_stride, rows->piece->host + rows->offset, rows->stride, rows, REFIT_STORE_CACHED, digest);
    return REFIT_OK;
}

static enum refit_status host_store(struct refit_arena *arena, const struct refit_rows *rows, const uint8_t *src,
                                    int64_t src_stride, struct refit_digest *digest, struct refit_error *err)
{
    (void)arena;
    (void)err;
    refit_host_move(rows->piece->host + rows->offset, rows->stride, src, src_stride, rows, REFIT_STORE_STREAMED,
                    digest);
    return REFIT_OK;
}

static enum refit_status host_sum(const struct refit_arena *arena, const struct refit_rows *rows,
                                  struct refit_digest *digest, struct refit_error *err)
{
    (void)arena;
    (void)err;
    refit_host_sum(rows->piece->host + rows->offset, rows->stride, rows, digest);
    return REFIT_OK;
}

static enum refit_status host_fill(struct refit_arena *arena, const struct refit_rows *rows, uint8_t value,
                                   struct refit_error *err)
{
    (void)arena;
    (void)err;
    uint8_t *at = rows->piece->host + rows->offset;
    for (uint64_t i = 0; i < rows->count; i++, at += rows->stride)
        memset(at, value, rows->run_bytes);
    return REFIT_OK;
}

const struct refit_arena_ops refit_arena_ops_host = {
    .name = "host",
    .load = host_load,
    .store = host_store,
    .sum = host_sum,
    .fill = host_fill,
};
