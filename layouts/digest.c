/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/cursor.h" /* asserts that the host is little-endian, as the words of a tensor are */
#include "layouts/digest.h"
#include "layouts/digest_constants.h"
#include "layouts/digest_kernel.h"

/* Copies from this size on go past the caches: the copy is a slot that nobody reads soon, and a store that need not
 * fetch its line first makes copy-and-digest faster than memcpy, down to rows of 3.5 KB (bench_digest). */
#define STREAM_BYTES ((size_t)2 << 10)
/* Runs shorter than this that follow one another in the tensor are gathered first, then digested by vectors. */
#define GATHER_BYTES 64u

static uint32_t k_table[2 * REFIT_DIGEST_K1];
static _Atomic(const struct refit_digest_kernel *) chosen;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;

static bool cpu_has(const char *kernel)
{
#if defined(__x86_64__)
    if (strcmp(kernel, "avx512") == 0) {
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
               && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    }
    if (strcmp(kernel, "avx2") == 0) {
        return __builtin_cpu_supports("avx2");
    }
#endif
    return strcmp(kernel, "portable") == 0;
}

/* Fastest first. */
static const struct refit_digest_kernel *const kernels[] = {
#if defined(__x86_64__)
    &refit_digest_avx512,
    &refit_digest_avx2,
#endif
    &refit_digest_portable,
};

static void prepare(void)
{
    for (unsigned j = 0; j < REFIT_DIGEST_BLOCK_WORDS; j++) {
        for (unsigned k = 0; k < 2; k++) {
            k_table[k * REFIT_DIGEST_K1 + j] = refit_digest_k(k, j);
        }
    }
    size_t i = 0;
    while (!cpu_has(kernels[i]->name)) {
        i++; /* ends at "portable" */
    }
    atomic_store_explicit(&chosen, kernels[i], memory_order_release);
}

static inline const struct refit_digest_kernel *kernel_in_use(void)
{
    const struct refit_digest_kernel *kernel = atomic_load_explicit(&chosen, memory_order_acquire);
    if (!kernel) {
        pthread_once(&prepared, prepare);
        kernel = atomic_load_explicit(&chosen, memory_order_acquire);
    }
    return kernel;
}

const char *refit_digest_kernel(void)
{
    return kernel_in_use()->name;
}

bool refit_digest_use(const char *name)
{
    (void)kernel_in_use(); /* so that a later first use doesn't undo the choice */
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
        if (strcmp(kernels[i]->name, name) == 0 && cpu_has(name)) {
            atomic_store_explicit(&chosen, kernels[i], memory_order_release);
            return true;
        }
    }
    return false;
}

/* The sum within one block, weighted only when the block is left: neighbours in a block share the weighting. */
struct part {
    const struct refit_digest_kernel *kernel;
    struct refit_digest *into;
    ptrdiff_t ahead; /* what to prefetch, from what is in hand */
    bool stream;     /* copies go past the caches */
    uint64_t block;
    uint64_t sum[2];
};

static inline struct part part_begin(struct refit_digest *into)
{
    return (struct part){.kernel = kernel_in_use(), .into = into, .ahead = REFIT_DIGEST_AHEAD};
}

/* Short runs: prefetch those that come next in memory; what lies between them is of no use. */
static inline ptrdiff_t ahead_of(size_t run_bytes, ptrdiff_t stride)
{
    if (run_bytes >= 2 * REFIT_DIGEST_AHEAD) {
        return REFIT_DIGEST_AHEAD;
    }
    return (ptrdiff_t)(REFIT_DIGEST_AHEAD / run_bytes + 1) * stride;
}

static inline void part_end(struct part *part)
{
    part->into->d[0] += refit_digest_weight(0, part->block) * part->sum[0];
    part->into->d[1] += refit_digest_weight(1, part->block) * part->sum[1];
}

/* Makes `word`'s block the current one; returns where its K begin. */
static inline const uint32_t *part_seek(struct part *part, uint64_t word)
{
    uint64_t block = word / REFIT_DIGEST_BLOCK_WORDS;
    if (block != part->block) {
        part_end(part);
        part->block = block;
        part->sum[0] = part->sum[1] = 0;
    }
    return k_table + word % REFIT_DIGEST_BLOCK_WORDS;
}

static inline void part_word(struct part *part, uint64_t word, uint32_t x)
{
    const uint32_t *k = part_seek(part, word);
    part->sum[0] += (uint64_t)x * k[0];
    part->sum[1] += (uint64_t)x * k[REFIT_DIGEST_K1];
}

/* `len` bytes (1 to 3) that begin at byte `offset`, all within one word. */
static inline void part_bytes(struct part *part, const uint8_t *data, size_t len, uint64_t offset)
{
    uint32_t x = data[0];
    if (len > 1) {
        x |= (uint32_t)data[1] << 8;
    }
    if (len > 2) {
        x |= (uint32_t)data[2] << 16;
    }
    part_word(part, offset / 4, x << (8 * (offset % 4)));
}

/* How many of `words` at `word` lie in its block. */
static inline size_t in_block(uint64_t word, size_t words)
{
    size_t left = REFIT_DIGEST_BLOCK_WORDS - (size_t)(word % REFIT_DIGEST_BLOCK_WORDS);
    return words < left ? words : left;
}

static inline void part_words(struct part *part, const uint8_t *data, uint64_t word, size_t words)
{
    if (words < 4) { /* not worth a call */
        for (; words > 0; words--, data += 4, word++) {
            uint32_t x;
            memcpy(&x, data, sizeof(x));
            part_word(part, word, x);
        }
        return;
    }
    while (words > 0) {
        size_t n = in_block(word, words);
        const uint32_t *k = part_seek(part, word);
        part->kernel->sum(part->sum, data, k, n, part->ahead);
        data += 4 * n;
        word += n;
        words -= n;
    }
}

/* How many of the bytes at `offset` come before the first whole word. */
static inline size_t head_bytes(uint64_t offset, size_t len)
{
    size_t head = (size_t)(-offset % 4);
    return head < len ? head : len;
}

static inline void part_run(struct part *part, const uint8_t *data, size_t len, uint64_t offset)
{
    size_t head = head_bytes(offset, len);
    if (head > 0) {
        part_bytes(part, data, head, offset);
        data += head;
        offset += head;
        len -= head;
    }
    part_words(part, data, offset / 4, len / 4);
    size_t tail = len % 4;
    if (tail > 0) {
        part_bytes(part, data + len - tail, tail, offset + len - tail);
    }
}

void refit_digest_add(struct refit_digest *digest, const void *data, size_t len, uint64_t tensor_offset)
{
    struct part part = part_begin(digest);
    part_run(&part, data, len, tensor_offset);
    part_end(&part);
}

/* Words of one block, past the caches as far as dst's alignment allows. */
static void stream_words(struct part *part, uint8_t *restrict dst, const uint8_t *restrict src, const uint32_t *k,
                         size_t words)
{
    size_t head = (size_t)(-(uintptr_t)dst % 64) / 4;
    head = head < words ? head : words;
    size_t body = (words - head) / 16 * 16;
    size_t tail = words - head - body;
    if (head > 0) {
        part->kernel->copy(part->sum, dst, src, k, head, part->ahead);
    }
    part->kernel->stream(part->sum, dst + 4 * head, src + 4 * head, k + head, body, part->ahead);
    if (tail > 0) {
        size_t done = head + body;
        part->kernel->copy(part->sum, dst + 4 * done, src + 4 * done, k + done, tail, part->ahead);
    }
}

static void copy_words(struct part *part, uint8_t *restrict dst, const uint8_t *restrict src, uint64_t word,
                       size_t words)
{
    bool stream = part->stream && 4 * words >= STREAM_BYTES && (uintptr_t)dst % 4 == 0;
    while (words > 0) {
        size_t n = in_block(word, words);
        const uint32_t *k = part_seek(part, word);
        if (stream) {
            stream_words(part, dst, src, k, n);
        } else {
            part->kernel->copy(part->sum, dst, src, k, n, part->ahead);
        }
        src += 4 * n;
        dst += 4 * n;
        word += n;
        words -= n;
    }
}

static inline void copy_run(struct part *part, uint8_t *restrict to, const uint8_t *restrict from, size_t len,
                            uint64_t tensor_offset)
{
    size_t head = head_bytes(tensor_offset, len);
    size_t words = (len - head) / 4;
    size_t tail = (len - head) % 4;
    /* What is copied first is digested from the copy: a source that changes meanwhile can't part the two. */
    if (head > 0) {
        memcpy(to, from, head);
        part_bytes(part, to, head, tensor_offset);
    }
    copy_words(part, to + head, from + head, (tensor_offset + head) / 4, words);
    if (tail > 0) {
        memcpy(to + len - tail, from + len - tail, tail);
        part_bytes(part, to + len - tail, tail, tensor_offset + len - tail);
    }
}

static inline struct part copy_begin(struct refit_digest *into, enum refit_digest_store store)
{
    struct part part = part_begin(into);
    part.stream = store == REFIT_STORE_STREAMED && part.kernel->stream;
    return part;
}

static inline void copy_end(struct part *part)
{
    if (part->stream) {
        part->kernel->fence();
    }
    part_end(part);
}

void refit_digest_copy(struct refit_digest *digest, void *restrict dst, const void *restrict src, size_t len,
                       uint64_t tensor_offset)
{
    struct part part = copy_begin(digest, REFIT_STORE_STREAMED);
    copy_run(&part, dst, src, len, tensor_offset);
    copy_end(&part);
}

void refit_digest_copy_rows(struct refit_digest *digest, const struct refit_digest_runs *runs,
                            enum refit_digest_store store)
{
    struct part part = copy_begin(digest, store);
    uint8_t *to = runs->dst;
    const uint8_t *from = runs->src;
    uint64_t offset = runs->tensor_offset;
    if (runs->run_bytes == 0) {
        return;
    }
    part.ahead = ahead_of(runs->run_bytes, runs->src_stride);
    for (size_t i = 0; i < runs->count; i++) {
        copy_run(&part, to, from, runs->run_bytes, offset);
        to += runs->dst_stride;
        from += runs->src_stride;
        offset += (uint64_t)runs->tensor_stride;
    }
    copy_end(&part);
}

static inline void gather(uint8_t *out, const uint8_t *data, size_t run_bytes, size_t count, ptrdiff_t stride)
{
    for (size_t i = 0; i < count; i++) {
        memcpy(out + i * run_bytes, data + (ptrdiff_t)i * stride, run_bytes);
    }
}

/* Constant sizes, so that the usual elements become plain moves. */
static void gather_runs(uint8_t *out, const uint8_t *data, size_t run_bytes, size_t count, ptrdiff_t stride)
{
    switch (run_bytes) {
    case 1: gather(out, data, 1, count, stride); break;
    case 2: gather(out, data, 2, count, stride); break;
    case 4: gather(out, data, 4, count, stride); break;
    case 8: gather(out, data, 8, count, stride); break;
    default: gather(out, data, run_bytes, count, stride); break;
    }
}

/* Runs that follow one another in the tensor (a transposed matrix has one per element). */
static void add_gathered(struct part *part, const uint8_t *data, size_t run_bytes, size_t count, ptrdiff_t stride,
                         uint64_t offset)
{
    uint8_t packed[REFIT_DIGEST_BLOCK_BYTES];
    const size_t most = sizeof(packed) / run_bytes;
    while (count > 0) {
        size_t n = count < most ? count : most;
        gather_runs(packed, data, run_bytes, n, stride);
        part_run(part, packed, n * run_bytes, offset);
        data += (ptrdiff_t)n * stride;
        offset += n * run_bytes;
        count -= n;
    }
}

void refit_digest_add_rows(struct refit_digest *digest, const void *data, size_t run_bytes, size_t count,
                           ptrdiff_t stride, uint64_t tensor_offset, int64_t tensor_stride)
{
    const uint8_t *at = data;
    const bool dense = tensor_stride >= 0 && (uint64_t)tensor_stride == run_bytes;
    struct part part = part_begin(digest);
    if (run_bytes == 0) {
        return;
    }
    if (dense && run_bytes < GATHER_BYTES) {
        add_gathered(&part, at, run_bytes, count, stride, tensor_offset);
    } else {
        part.ahead = ahead_of(run_bytes, stride);
        for (size_t i = 0; i < count; i++) {
            part_run(&part, at + (ptrdiff_t)i * stride, run_bytes,
                     tensor_offset + (uint64_t)((int64_t)i * tensor_stride));
        }
    }
    part_end(&part);
}

void refit_digest_hex(struct refit_digest digest, char hex[static REFIT_DIGEST_HEX_MAX])
{
    (void)snprintf(hex, REFIT_DIGEST_HEX_MAX, "%016llx%016llx", (unsigned long long)digest.d[0],
                   (unsigned long long)digest.d[1]);
}
