/* SPDX-License-Identifier: Apache-2.0
 *
 * Files are read, never mapped: a file that is truncated while mapped is a SIGBUS, while pread ends early and can be
 * reported. Bytes go straight where they belong and are digested while they are in cache. Rows that lie close
 * together are read by one call, gaps and all, for a call costs as much as reading some 2 KiB.
 */
#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/io.h"
#include "memory/host.h"

#define READ_BYTES (256u << 10) /* by one call; fits the second-level cache */
#define BOUNCE_BYTES (32u << 10)
#define GAP_MAX 2048
#define SMALL_RUN 512           /* below, an iovec per run costs more than a copy */
#define IOVS 256

struct file_range {
    int fd;
    const char *path;
    uint64_t offset;
};

static struct file_range range_of(const struct refit_arena *arena, const struct refit_rows *rows)
{
    return (struct file_range){
        .fd = refit_arena_piece_fd(arena, rows->piece),
        .path = refit_arena_piece_path(arena, rows->piece),
        .offset = rows->piece->fd_offset + rows->offset,
    };
}

static enum refit_status read_run(struct file_range from, uint8_t *dst, uint64_t len, uint64_t tensor_offset,
                                  struct refit_digest *digest, struct refit_error *err)
{
    while (len > 0) {
        size_t part = len < READ_BYTES ? (size_t)len : READ_BYTES;
        enum refit_status status = refit_io_pread_full(from.fd, dst, part, from.offset, from.path, err);
        if (status != REFIT_OK)
            return status;
        if (digest)
            refit_digest_add(digest, dst, part, tensor_offset);
        dst += part;
        from.offset += part;
        tensor_offset += part;
        len -= part;
    }
    return REFIT_OK;
}

static enum refit_status load_each(struct file_range from, const struct refit_rows *rows, uint8_t *dst,
                                   int64_t dst_stride, struct refit_digest *digest, struct refit_error *err)
{
    uint64_t tensor_offset = rows->tensor_offset;
    for (uint64_t i = 0; i < rows->count; i++) {
        enum refit_status status = read_run(from, dst, rows->run_bytes, tensor_offset, digest, err);
        if (status != REFIT_OK)
            return status;
        dst += dst_stride;
        from.offset += (uint64_t)rows->stride;
        tensor_offset += (uint64_t)rows->tensor_stride;
    }
    return REFIT_OK;
}

/* All of the iovecs. A signal or the end of a read-ahead window may cut a call short. */
static enum refit_status read_vector(struct file_range from, struct iovec *iov, int count, struct refit_error *err)
{
    while (count > 0) {
        ssize_t n = preadv(from.fd, iov, count, (off_t)from.offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return refit_fail_errno(err, errno, "%s: read at offset %llu", from.path, (unsigned long long)from.offset);
        if (n == 0)
            return refit_fail(err, REFIT_CORRUPT, "%s: ends at byte %llu, more was there when it was opened", from.path,
                              (unsigned long long)from.offset);
        from.offset += (uint64_t)n;
        size_t left = (size_t)n;
        for (; count > 0 && left >= iov->iov_len; iov++, count--)
            left -= iov->iov_len;
        if (count > 0) {
            iov->iov_base = (uint8_t *)iov->iov_base + left;
            iov->iov_len -= left;
        }
    }
    return REFIT_OK;
}

/* Runs to their places, gaps to one scrap of memory. */
static enum refit_status load_vector(struct file_range from, const struct refit_rows *rows, uint8_t *dst,
                                     int64_t dst_stride, struct refit_digest *digest, struct refit_error *err)
{
    uint8_t scrap[GAP_MAX];
    struct iovec iov[IOVS];
    struct refit_rows part = *rows;
    uint64_t gap = (uint64_t)rows->stride - rows->run_bytes;
    uint64_t fit = READ_BYTES / (uint64_t)rows->stride;
    uint64_t step = fit < IOVS / 2 ? (fit > 0 ? fit : 1) : IOVS / 2;
    for (uint64_t done = 0; done < rows->count; done += part.count) {
        int count = 0;
        part.count = rows->count - done < step ? rows->count - done : step;
        for (uint64_t i = 0; i < part.count; i++) {
            iov[count++] = (struct iovec){.iov_base = dst + dst_stride * (int64_t)i, .iov_len = rows->run_bytes};
            if (gap > 0 && i + 1 < part.count)
                iov[count++] = (struct iovec){.iov_base = scrap, .iov_len = gap};
        }
        enum refit_status status = read_vector(from, iov, count, err);
        if (status != REFIT_OK)
            return status;
        if (digest)
            refit_host_sum(dst, dst_stride, &part, digest);
        dst += dst_stride * (int64_t)part.count;
        from.offset += (uint64_t)rows->stride * part.count;
        part.tensor_offset += (uint64_t)rows->tensor_stride * part.count;
    }
    return REFIT_OK;
}

/* Tiny runs through a buffer. dst NULL: digest only. */
static enum refit_status load_bounced(struct file_range from, const struct refit_rows *rows, uint8_t *dst,
                                      int64_t dst_stride, struct refit_digest *digest, struct refit_error *err)
{
    uint8_t bounce[BOUNCE_BYTES];
    struct refit_rows part = *rows;
    uint64_t step = (BOUNCE_BYTES - rows->run_bytes) / (uint64_t)rows->stride + 1;
    for (uint64_t done = 0; done < rows->count; done += part.count) {
        part.count = rows->count - done < step ? rows->count - done : step;
        size_t span = (size_t)((uint64_t)rows->stride * (part.count - 1) + rows->run_bytes);
        enum refit_status status = refit_io_pread_full(from.fd, bounce, span, from.offset, from.path, err);
        if (status != REFIT_OK)
            return status;
        if (dst) {
            refit_host_move(dst, dst_stride, bounce, rows->stride, &part, REFIT_STORE_CACHED, digest);
            dst += dst_stride * (int64_t)part.count;
        } else {
            refit_host_sum(bounce, rows->stride, &part, digest);
        }
        from.offset += (uint64_t)rows->stride * part.count;
        part.tensor_offset += (uint64_t)rows->tensor_stride * part.count;
    }
    return REFIT_OK;
}

static bool close_together(const struct refit_rows *rows)
{
    return rows->count > 1 && rows->stride >= (int64_t)rows->run_bytes &&
           (uint64_t)rows->stride - rows->run_bytes <= GAP_MAX;
}

static enum refit_status file_load(const struct refit_arena *arena, const struct refit_rows *rows, uint8_t *dst,
                                   int64_t dst_stride, struct refit_digest *digest, struct refit_error *err)
{
    struct file_range from = range_of(arena, rows);
    if (!close_together(rows) || rows->run_bytes >= READ_BYTES)
        return load_each(from, rows, dst, dst_stride, digest, err);
    if (rows->run_bytes < SMALL_RUN)
        return load_bounced(from, rows, dst, dst_stride, digest, err);
    return load_vector(from, rows, dst, dst_stride, digest, err);
}

static enum refit_status sum_run(struct file_range from, uint64_t len, uint64_t tensor_offset,
                                 struct refit_digest *digest, struct refit_error *err)
{
    uint8_t bounce[BOUNCE_BYTES];
    while (len > 0) {
        size_t part = len < sizeof bounce ? (size_t)len : sizeof bounce;
        enum refit_status status = read_run(from, bounce, part, tensor_offset, digest, err);
        if (status != REFIT_OK)
            return status;
        from.offset += part;
        tensor_offset += part;
        len -= part;
    }
    return REFIT_OK;
}

static enum refit_status file_sum(const struct refit_arena *arena, const struct refit_rows *rows,
                                  struct refit_digest *digest, struct refit_error *err)
{
    struct file_range from = range_of(arena, rows);
    if (close_together(rows) && rows->run_bytes < SMALL_RUN)
        return load_bounced(from, rows, NULL, 0, digest, err);
    uint64_t tensor_offset = rows->tensor_offset;
    for (uint64_t i = 0; i < rows->count; i++) {
        enum refit_status status = sum_run(from, rows->run_bytes, tensor_offset, digest, err);
        if (status != REFIT_OK)
            return status;
        from.offset += (uint64_t)rows->stride;
        tensor_offset += (uint64_t)rows->tensor_stride;
    }
    return REFIT_OK;
}

const struct refit_arena_ops refit_arena_ops_file = {
    .name = "file",
    .load = file_load,
    .sum = file_sum,
};
