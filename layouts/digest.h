/* SPDX-License-Identifier: Apache-2.0
 *
 * The tensor digest, which is also the checksum of everything on a wire.
 *
 * A tensor's canonical bytes (dense, row-major, wire dtype) are read as little-endian 32-bit words x_i, the last
 * one zero-padded; block b = i >> 10. For k = 0, 1:
 *     D_k = sum over b of W_k(b) * (sum over i in b of x_i * K_k[i & 1023])   (mod 2^64)
 * with K_k 1024 odd 32-bit numbers and W_k(b) odd 64-bit numbers, both from splitmix64 with fixed seeds
 * (digest.c; frozen: they are part of the wire format). The sum is linear in the bytes, so any cut of a tensor, even
 * inside a word, adds up to the same 128 bits, whatever the sharding; it is not linear in the index, so moved bytes
 * are seen.
 * A change of one word is always seen, others escape with about 2^-62. It is no defence against an adversary.
 */
#ifndef REFIT_LAYOUTS_DIGEST_H
#define REFIT_LAYOUTS_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct refit_digest {
    uint64_t d[2];
};

#define REFIT_DIGEST_HEX_MAX 33

/* Add the partial digest of `len` bytes that lie at byte `tensor_offset` of their tensor. */
void refit_digest_add(struct refit_digest *digest, const void *data, size_t len, uint64_t tensor_offset);
/* Copy and digest in one pass; the digest is of what was read from src and written to dst. No overlap. Long copies go
 * past the caches: dst is taken for something that nobody reads soon. */
void refit_digest_copy(struct refit_digest *digest, void *restrict dst, const void *restrict src, size_t len,
                       uint64_t tensor_offset);
/* `count` runs of run_bytes, stride bytes apart in memory and tensor_stride apart in the tensor. For short runs
 * (down to one byte) this is much faster than a loop over refit_digest_add. */
void refit_digest_add_rows(struct refit_digest *digest, const void *data, size_t run_bytes, size_t count,
                           ptrdiff_t stride, uint64_t tensor_offset, int64_t tensor_stride);

/* Where a copy goes: into the caches, for it is read next; or past them. */
enum refit_digest_store { REFIT_STORE_CACHED, REFIT_STORE_STREAMED };
/* refit_digest_copy of `count` runs, each side with a stride of its own. */
struct refit_digest_runs {
    void *dst;
    const void *src;
    ptrdiff_t dst_stride, src_stride;
    size_t run_bytes, count;
    uint64_t tensor_offset;
    int64_t tensor_stride;
};
void refit_digest_copy_rows(struct refit_digest *digest, const struct refit_digest_runs *runs,
                            enum refit_digest_store store);

static inline void refit_digest_merge(struct refit_digest *into, struct refit_digest part)
{
    into->d[0] += part.d[0];
    into->d[1] += part.d[1];
}

static inline bool refit_digest_equal(struct refit_digest a, struct refit_digest b)
{
    return a.d[0] == b.d[0] && a.d[1] == b.d[1];
}

void refit_digest_hex(struct refit_digest digest, char hex[static REFIT_DIGEST_HEX_MAX]);

/* The kernel in use: "avx512", "avx2" or "portable"; chosen at first use by the CPU's features. All give the same
 * bits. refit_digest_use() forces one, for tests and benchmarks; false when this CPU lacks it. */
const char *refit_digest_kernel(void);
bool refit_digest_use(const char *kernel);

#endif
