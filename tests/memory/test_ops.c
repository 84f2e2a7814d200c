/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/buf.h"
#include "memory/slot.h"
#include "tests/memory/world.h"

struct fixture {
    struct world world;
    struct refit_segments sent;     /* as the source sees them */
    struct refit_segments received; /* as the destination does */
    struct refit_tally *tally;
    struct refit_buf text[2];
    struct refit_error err;
    uint8_t *message; /* a batch */
    uint32_t random;
    uint64_t bytes;
};

static uint32_t next_random(struct fixture *f)
{
    f->random = f->random * 1664525 + 1013904223;
    return f->random >> 8;
}

static int setup(void **state)
{
    static struct fixture f;
    memset(&f, 0, sizeof f);
    f.message = malloc(REFIT_BATCH_BYTES_MAX);
    f.random = 1;
    refit_segments_init(&f.sent, true);
    refit_segments_init(&f.received, true);
    refit_buf_init(&f.text[0], 1u << 20);
    refit_buf_init(&f.text[1], 1u << 20);
    *state = &f;
    return f.message ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    world_close(&f->world);
    refit_segments_release(&f->sent);
    refit_segments_release(&f->received);
    refit_tally_destroy(f->tally);
    refit_buf_release(&f->text[0]);
    refit_buf_release(&f->text[1]);
    free(f->message);
    return 0;
}

static void must(const struct fixture *f, enum refit_status status)
{
    if (status != REFIT_OK)
        fail_msg("%s", f->err.text);
}

static void wait_for(struct fixture *f, struct refit_completion *completion)
{
    must(f, refit_completion_wait(completion, refit_deadline_in_ms(10000), &f->err));
}

static void expect_same_segments(const struct refit_segments *a, const struct refit_segments *b)
{
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        assert_int_equal(a->items[i].tensor, b->items[i].tensor);
        assert_true(refit_digest_equal(a->items[i].digest, b->items[i].digest));
    }
}

/* ---- the ways of a batch ---- */

static void by_message(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    memset(f->message, 0xAA, REFIT_BATCH_BYTES_MAX);
    must(f, refit_memory_pack(batch->source, batch->from, f->message, &f->sent, &completion, &f->err));
    wait_for(f, &completion);
    must(f, refit_memory_scatter(batch->destination, batch->to, f->message, &f->received, &completion, &f->err));
    wait_for(f, &completion);
    expect_same_segments(&f->sent, &f->received);
    refit_segments_tally(&f->received, f->tally);
    f->bytes += batch->bytes;
}

static void by_copy(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    must(f, refit_memory_copy(batch->destination, batch->to, batch->source, batch->from, &f->received, &completion,
                              &f->err));
    wait_for(f, &completion);
    must(f, refit_memory_digest(batch->source, batch->from, &f->sent, &completion, &f->err));
    wait_for(f, &completion);
    expect_same_segments(&f->sent, &f->received);
    must(f, refit_memory_digest(batch->destination, batch->to, &f->sent, &completion, &f->err));
    expect_same_segments(&f->sent, &f->received);
    refit_segments_tally(&f->received, f->tally);
    f->bytes += batch->bytes;
}

/* One end of a stream through iovecs of random number and size; returns the bytes handed out. */
static uint64_t stream(struct fixture *f, const struct refit_arena *arena, struct refit_walk walk, bool out)
{
    struct refit_iov_cursor cursor;
    uint64_t total = 0;
    int count;
    refit_iov_begin(&cursor, walk);
    do {
        struct iovec iov[64];
        int max = 1 + (int)(next_random(f) % 64);
        uint64_t max_bytes = 1 + next_random(f) % 100000, sum = 0;
        must(f, refit_iov_next(&cursor, arena, iov, max, max_bytes, &count, &f->err));
        assert_in_range(count, 0, max);
        for (int i = 0; i < count; i++) {
            uint8_t *message = f->message + total + sum;
            assert_true(iov[i].iov_len > 0);
            memcpy(out ? message : iov[i].iov_base, out ? iov[i].iov_base : message, iov[i].iov_len);
            sum += iov[i].iov_len;
        }
        assert_true(sum <= max_bytes);
        total += sum;
    } while (count > 0);
    return total;
}

static void digest_by_pieces(struct fixture *f, const struct world_batch *batch)
{
    struct refit_iov_cursor cursor;
    refit_iov_begin(&cursor, batch->to);
    for (uint64_t done = 0, part; done < batch->bytes; done += part) {
        part = 1 + next_random(f) % 70000;
        part = part < batch->bytes - done ? part : batch->bytes - done;
        must(f, refit_segments_advance(&f->received, &cursor, batch->destination, part, &f->err));
    }
    assert_int_equal(refit_segments_advance(&f->received, &cursor, batch->destination, 1, &f->err), REFIT_INVALID);
}

static void by_iovecs(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    assert_int_equal(stream(f, batch->source, batch->from, true), batch->bytes);
    assert_int_equal(stream(f, batch->destination, batch->to, false), batch->bytes);
    digest_by_pieces(f, batch);
    must(f, refit_memory_digest(batch->source, batch->from, &f->sent, &completion, &f->err));
    expect_same_segments(&f->sent, &f->received);
    must(f, refit_segments_of(&f->sent, batch->to, &f->err));
    assert_int_equal(f->sent.count, f->received.count);
    for (size_t i = 0; i < f->sent.count; i++) {
        assert_int_equal(f->sent.items[i].tensor, f->received.items[i].tensor);
        assert_int_equal(f->sent.items[i].counted, f->received.items[i].counted);
    }
    refit_segments_tally(&f->received, f->tally);
    f->bytes += batch->bytes;
}

static void expect_tensor_digests(struct fixture *f)
{
    const struct refit_layout *layout = f->world.destination.layout;
    for (uint32_t id = 0; id < refit_layout_tensor_count(layout); id++) {
        struct refit_tensor tensor;
        struct refit_digest expected = {{0, 0}};
        refit_layout_tensor(layout, id, &tensor);
        uint8_t *content = world_content(&tensor);
        refit_digest_add(&expected, content, tensor.bytes, 0);
        free(content);
        struct refit_digest found = refit_tally_get(f->tally, id);
        if (!refit_digest_equal(found, expected))
            fail_msg("tensor %s: the parts do not add up to its digest", tensor.name);
    }
}

/* The whole of a pair in one way; everything arrives, and the digests of what was counted are those of the tensors. */
static void refit_all(struct fixture *f, const char *source, enum world_memory source_memory, const char *destination,
                      enum world_memory destination_memory, world_body way)
{
    world_close(&f->world);
    world_open(&f->world, source, source_memory, destination, destination_memory);
    refit_tally_destroy(f->tally);
    f->tally = refit_tally_create(refit_layout_tensor_count(f->world.destination.layout));
    assert_non_null(f->tally);
    f->bytes = 0;
    world_batches(&f->world, way, f);
    assert_true(f->bytes > 0);
    world_check(&f->world);
    expect_tensor_digests(f);
}

static void refit_every_way(struct fixture *f, const char *source, const char *destination)
{
    refit_all(f, source, WORLD_BUFFERS, destination, WORLD_WHOLE, by_message);
    refit_all(f, source, WORLD_WHOLE, destination, WORLD_BUFFERS, by_copy);
    refit_all(f, source, WORLD_PIECES, destination, WORLD_PIECES, by_copy);
    refit_all(f, source, WORLD_FILE, destination, WORLD_WHOLE, by_copy);
    refit_all(f, source, WORLD_FILE, destination, WORLD_BUFFERS, by_message);
    refit_all(f, source, WORLD_BUFFERS, destination, WORLD_PIECES, by_iovecs);
}

/* ---- pairs ---- */

#define LAYOUT(ranks, axes, shape, entries)                                                          \
    "{\"format\":\"refit-layout/1\",\"ranks\":" ranks ",\"meshes\":{\"m\":{\"axes\":" axes           \
    ",\"shape\":" shape "}},\"entries\":[" entries "]}"
#define TENSOR(name, dtype, shape, rest) \
    "{\"tensor\":\"" name "\",\"dtype\":\"" dtype "\",\"shape\":" shape ",\"mesh\":\"m\"," rest "}"

static void rows_become_columns(void **state)
{
    refit_every_way(*state,
                    LAYOUT("3", "[\"a\"]", "[3]",
                           TENSOR("w", "BF16", "[31,37]", "\"placements\":[\"Shard(0)\"]") ","
                           TENSOR("bias", "F32", "[37]", "\"placements\":[\"Shard(0)\"]") ","
                           TENSOR("s", "F32", "[]", "\"placements\":[\"Replicate\"]")),
                    LAYOUT("2", "[\"a\"]", "[2]",
                           TENSOR("w", "BF16", "[31,37]", "\"placements\":[\"Shard(1)\"]") ","
                           TENSOR("bias", "F32", "[37]", "\"placements\":[\"Replicate\"]") ","
                           TENSOR("s", "F32", "[]", "\"placements\":[\"Replicate\"]")));
}

static void rows_of_3584_bytes_are_packed(void **state)
{
    refit_every_way(*state,
                    LAYOUT("2", "[\"a\"]", "[2]", TENSOR("w", "F32", "[700,1792]", "\"placements\":[\"Shard(0)\"]")),
                    LAYOUT("2", "[\"a\"]", "[2]", TENSOR("w", "F32", "[700,1792]", "\"placements\":[\"Shard(1)\"]")));
}

static void rows_with_small_gaps_are_read_together(void **state)
{
    refit_every_way(*state,
                    LAYOUT("1", "[\"a\"]", "[1]", TENSOR("w", "F32", "[700,450]", "\"placements\":[\"Replicate\"]")),
                    LAYOUT("2", "[\"a\"]", "[2]", TENSOR("w", "F32", "[700,450]", "\"placements\":[\"Shard(1)\"]")));
}

static void batches_cut_inside_rows_and_words(void **state)
{
    refit_every_way(*state,
                    LAYOUT("1", "[\"a\"]", "[1]", TENSOR("w", "U8", "[1501,7013]", "\"placements\":[\"Replicate\"]")),
                    LAYOUT("2", "[\"a\"]", "[2]", TENSOR("w", "U8", "[1501,7013]", "\"placements\":[\"Shard(1)\"]")));
}

static void a_transposed_matrix_arrives_transposed(void **state)
{
    refit_every_way(*state,
                    LAYOUT("2", "[\"a\"]", "[2]", TENSOR("w", "BF16", "[64,300]", "\"placements\":[\"Shard(0)\"]")),
                    LAYOUT("3", "[\"a\"]", "[3]",
                           TENSOR("w", "BF16", "[64,300]", "\"order\":[1,0],\"placements\":[\"Shard(0)\"]")));
    refit_every_way(*state,
                    LAYOUT("1", "[\"a\"]", "[1]",
                           TENSOR("w", "F32", "[5,6,7]", "\"order\":[2,0,1],\"placements\":[\"Replicate\"]")),
                    LAYOUT("2", "[\"a\"]", "[2]",
                           TENSOR("w", "F32", "[5,6,7]", "\"order\":[1,2,0],\"placements\":[\"Shard(2)\"]")));
}

static void fused_and_stacked_buffers_are_scattered(void **state)
{
    refit_every_way(
        *state,
        LAYOUT("2", "[\"a\"]", "[2]",
               TENSOR("q", "BF16", "[16,24]", "\"placements\":[\"Shard(0)\"]") ","
               TENSOR("k", "BF16", "[8,24]", "\"placements\":[\"Shard(1)\"]") ","
               "{\"tensor\":\"e.{i}.up\",\"for\":{\"i\":[0,6]},\"dtype\":\"F16\",\"shape\":[12,10],\"mesh\":\"m\","
               "\"placements\":[\"Shard(0)\"]}"),
        LAYOUT("2", "[\"a\"]", "[2]",
               "{\"buffer\":\"qk\",\"dtype\":\"BF16\",\"mesh\":\"m\",\"dim\":0,\"groups\":4,\"pieces\":["
               "{\"tensor\":\"q\",\"shape\":[16,24],\"placements\":[\"Shard(0)\"]},"
               "{\"tensor\":\"k\",\"shape\":[8,24],\"placements\":[\"Shard(0)\"]}]},"
               "{\"tensor\":\"e.{i}.up\",\"buffer\":\"w13\",\"for\":{\"i\":[0,6]},\"dtype\":\"F16\",\"shape\":[12,10],"
               "\"mesh\":\"m\",\"placements\":[\"Shard(1)\"]}"));
}

static void packed_types_are_bytes(void **state)
{
    refit_every_way(*state,
                    LAYOUT("2", "[\"a\"]", "[2]", TENSOR("w", "F4", "[14,64]", "\"placements\":[\"Shard(0)\"]") ","
                           TENSOR("x", "F6_E2M3", "[6,16]", "\"placements\":[\"Shard(0)\"]")),
                    LAYOUT("2", "[\"a\"]", "[2]", TENSOR("w", "F4", "[14,64]", "\"placements\":[\"Shard(1)\"]") ","
                           TENSOR("x", "F6_E2M3", "[6,16]", "\"placements\":[\"Shard(1)\"]")));
}

/* ---- random pairs ---- */

static void random_side(struct fixture *f, struct refit_buf *text, uint32_t a, uint32_t b, uint32_t tensors,
                        const uint32_t (*shapes)[3])
{
    static const char *const types[] = {"U8", "BF16", "F32", "F64"};
    refit_buf_clear(text);
    refit_buf_printf(text, "{\"format\":\"refit-layout/1\",\"ranks\":%" PRIu32 ",\"meshes\":{\"m\":{"
                     "\"axes\":[\"a\",\"b\"],\"shape\":[%" PRIu32 ",%" PRIu32 "]}},\"entries\":[", a * b, a, b);
    for (uint32_t i = 0; i < tensors; i++) {
        static const char *const orders[] = {"[0,1,2]", "[1,0,2]", "[2,1,0]", "[0,2,1]"};
        const char *order = orders[next_random(f) % 4];
        uint32_t cut_a = next_random(f) % 4, cut_b = next_random(f) % 4;
        refit_buf_printf(text, "%s{\"tensor\":\"t%" PRIu32 "\",\"dtype\":\"%s\","
                         "\"shape\":[%" PRIu32 ",%" PRIu32 ",%" PRIu32 "],\"mesh\":\"m\","
                         "\"order\":%s,\"placements\":[", i > 0 ? "," : "", i, types[i % 4], shapes[i][0],
                         shapes[i][1], shapes[i][2], order);
        refit_buf_printf(text, cut_a < 3 ? "\"Shard(%" PRIu32 ")\"," : "\"Replicate\",", cut_a);
        refit_buf_printf(text, cut_b < 3 ? "\"Shard(%" PRIu32 ")\"]}" : "\"Replicate\"]}", cut_b);
    }
    refit_buf_printf(text, "]}");
    assert_true(refit_buf_append_u8(text, 0));
}

static void random_pairs_arrive_whole(void **state)
{
    struct fixture *f = *state;
    for (uint32_t round = 0; round < 12; round++) {
        uint32_t shapes[4][3];
        uint32_t tensors = 1 + next_random(f) % 4;
        f->random = round * 7919 + 1;
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t d = 0; d < 3; d++)
                shapes[i][d] = 1 + next_random(f) % (d == 2 ? 90 : 9);
        for (int side = 0; side < 2; side++)
            random_side(f, &f->text[side], 1 + next_random(f) % 3, 1 + next_random(f) % 3, tensors,
                        (const uint32_t (*)[3])shapes);
        refit_every_way(f, (const char *)f->text[0].data, (const char *)f->text[1].data);
    }
}

/* ---- what must not happen ---- */

#define ONE LAYOUT("1", "[\"a\"]", "[1]", TENSOR("w", "U8", "[64,64]", "\"placements\":[\"Replicate\"]") "," \
                   TENSOR("v", "U8", "[300]", "\"placements\":[\"Replicate\"]"))

static void into_unbound(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_arena *part = NULL;
    static uint8_t memory[8192];
    static const uint8_t zeros[8192];
    memset(memory, 0, sizeof memory);
    must(f, refit_arena_create(REFIT_ARENA_HOST, 8192, &part, &f->err));
    /* One byte of the last tensor is missing. */
    must(f, refit_arena_bind_host(part, 0, memory, 4096 + 299, -1, 0, &f->err));
    memset(f->message, 0xAA, REFIT_BATCH_BYTES_MAX);
    enum refit_status scatter = refit_memory_scatter(part, batch->to, f->message, &f->received, &completion, &f->err);
    enum refit_status copy = refit_memory_copy(part, batch->to, batch->source, batch->from, &f->received, &completion,
                                               &f->err);
    enum refit_status pack = refit_memory_pack(part, batch->from, f->message, &f->sent, &completion, &f->err);
    enum refit_status digest = refit_memory_digest(part, batch->from, &f->sent, &completion, &f->err);
    refit_arena_release(part);
    assert_int_equal(scatter, REFIT_INVALID);
    assert_int_equal(copy, REFIT_INVALID);
    assert_int_equal(pack, REFIT_INVALID);
    assert_int_equal(digest, REFIT_INVALID);
    assert_int_equal(completion.status, REFIT_INVALID);
    assert_non_null(strstr(f->err.text, "no memory is bound"));
    assert_memory_equal(memory, zeros, sizeof memory);
    assert_int_equal(f->message[0], 0xAA);
    f->bytes += batch->bytes;
}

static void nothing_is_written_when_a_run_is_unbound(void **state)
{
    struct fixture *f = *state;
    world_open(&f->world, ONE, WORLD_WHOLE, ONE, WORLD_WHOLE);
    world_batches(&f->world, into_unbound, f);
    assert_int_equal(f->bytes, 64 * 64 + 300);
}

static void into_read_only(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_arena *slot = NULL, *view = NULL;
    int fd = -1;
    must(f, refit_slot_create("test", 8192, REFIT_PROTECT_UID, &slot, &f->err));
    must(f, refit_slot_export(slot, &fd, &f->err));
    must(f, refit_slot_map(fd, 8192, &view, &f->err));
    enum refit_status scatter = refit_memory_scatter(view, batch->to, f->message, &f->received, &completion, &f->err);
    enum refit_status copy = refit_memory_copy(view, batch->to, batch->source, batch->from, &f->received, &completion,
                                               &f->err);
    enum refit_status fill = refit_memory_fill(view, f->world.destination.layout, 0, &f->err);
    enum refit_status read = refit_memory_digest(view, batch->to, &f->received, &completion, &f->err);
    refit_arena_release(view);
    refit_arena_release(slot);
    close(fd);
    assert_int_equal(scatter, REFIT_INVALID);
    assert_int_equal(copy, REFIT_INVALID);
    assert_int_equal(fill, REFIT_INVALID);
    assert_int_equal(read, REFIT_OK);
    f->bytes += batch->bytes;
}

static void a_read_only_mapping_is_refused_as_a_destination(void **state)
{
    struct fixture *f = *state;
    world_open(&f->world, ONE, WORLD_WHOLE, ONE, WORLD_WHOLE);
    world_batches(&f->world, into_read_only, f);
    assert_true(f->bytes > 0);
}

static void into_file(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_iov_cursor cursor;
    struct iovec iov;
    int count;
    assert_int_equal(refit_memory_scatter(batch->source, batch->from, f->message, &f->received, &completion, &f->err),
                     REFIT_INVALID);
    refit_iov_begin(&cursor, batch->from);
    assert_int_equal(refit_iov_next(&cursor, batch->source, &iov, 1, 100, &count, &f->err), REFIT_UNSUPPORTED);
    f->bytes += batch->bytes;
}

static void a_file_is_never_written_and_has_no_address(void **state)
{
    struct fixture *f = *state;
    world_open(&f->world, ONE, WORLD_FILE, ONE, WORLD_WHOLE);
    world_batches(&f->world, into_file, f);
    assert_true(f->bytes > 0);
}

static void from_cut_file(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_piece piece;
    char path[64];
    assert_true(refit_arena_piece(batch->source, 0, &piece));
    snprintf(path, sizeof path, "/proc/self/fd/%d", piece.fd);
    assert_int_equal(truncate(path, 40), 0);
    assert_int_equal(refit_memory_copy(batch->destination, batch->to, batch->source, batch->from, &f->received,
                                       &completion, &f->err),
                     REFIT_CORRUPT);
    assert_int_equal(completion.status, REFIT_CORRUPT);
    assert_non_null(strstr(f->err.text, "world"));
    assert_int_equal(refit_memory_digest(batch->source, batch->from, &f->received, &completion, &f->err),
                     REFIT_CORRUPT);
    f->bytes += batch->bytes;
}

static void a_file_cut_short_is_an_error_and_no_signal(void **state)
{
    static const char *const columns[] = {"[64,64]", "[64,2000]", "[64,200000]"};
    struct fixture *f = *state;
    for (size_t i = 0; i < 3; i++) {
        char source[512], destination[512];
        snprintf(source, sizeof source,
                 LAYOUT("1", "[\"a\"]", "[1]", TENSOR("w", "U8", "%s", "\"placements\":[\"Replicate\"]")), columns[i]);
        snprintf(destination, sizeof destination,
                 LAYOUT("2", "[\"a\"]", "[2]", TENSOR("w", "U8", "%s", "\"placements\":[\"Shard(1)\"]")), columns[i]);
        world_close(&f->world);
        f->bytes = 0;
        world_open(&f->world, source, WORLD_FILE, destination, WORLD_WHOLE);
        world_batches(&f->world, from_cut_file, f);
        assert_true(f->bytes > 0);
    }
}

static void of_two_lengths(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    struct refit_completion completion;
    struct refit_walk shorter = batch->from;
    shorter.left -= 1;
    assert_int_equal(refit_memory_copy(batch->destination, batch->to, batch->source, shorter, &f->received, &completion,
                                       &f->err),
                     REFIT_MISMATCH);
    f->bytes += batch->bytes;
}

static void windows_of_two_lengths_are_refused(void **state)
{
    struct fixture *f = *state;
    world_open(&f->world, ONE, WORLD_WHOLE, ONE, WORLD_WHOLE);
    world_batches(&f->world, of_two_lengths, f);
    assert_true(f->bytes > 0);
}

static void unverified(void *ctx, const struct world_batch *batch)
{
    struct fixture *f = ctx;
    static const struct refit_digest zero = {{0, 0}};
    by_copy(ctx, batch);
    for (size_t i = 0; i < f->received.count; i++)
        assert_true(refit_digest_equal(f->received.items[i].digest, zero));
}

static void without_verification_bytes_move_and_digests_are_zero(void **state)
{
    struct fixture *f = *state;
    f->sent.digesting = f->received.digesting = false;
    world_open(&f->world, ONE, WORLD_BUFFERS, ONE, WORLD_WHOLE);
    f->tally = refit_tally_create(2);
    world_batches(&f->world, unverified, f);
    world_check(&f->world);
}

static void a_fill_writes_padding_and_nothing_else(void **state)
{
    struct fixture *f = *state;
    world_open(&f->world, ONE, WORLD_WHOLE,
               LAYOUT("2", "[\"a\"]", "[2]",
                      TENSOR("w", "U8", "[64,64]", "\"placements\":[\"Shard(0)\"],"
                             "\"pad\":{\"dim\":0,\"to\":80,\"value\":9}") ","
                      TENSOR("v", "U8", "[300]", "\"placements\":[\"Replicate\"]")),
               WORLD_BUFFERS);
    const struct world_side *side = &f->world.destination;
    for (uint32_t rank = 0; rank < 2; rank++)
        must(f, refit_memory_fill(side->arenas[rank], side->layout, rank, &f->err));
    const uint8_t *first = refit_arena_host(side->arenas[0], 0, 40 * 64);
    const uint8_t *second = refit_arena_host(side->arenas[1], 0, 40 * 64);
    for (size_t i = 0; i < 40 * 64; i++) {
        assert_int_equal(first[i], 0xEE);
        assert_int_equal(second[i], i < 24 * 64 ? 0xEE : 9);
    }
}

static void a_range_is_digested_without_a_plan(void **state)
{
    struct fixture *f = *state;
    struct refit_digest whole = {{0, 0}}, parts = {{0, 0}};
    world_open(&f->world, ONE, WORLD_FILE, ONE, WORLD_WHOLE);
    const struct refit_arena *arena = f->world.source.arenas[0];
    refit_digest_add(&whole, f->world.source.shadow[0], 4096, 0);
    must(f, refit_memory_digest_range(arena, 0, 1001, 0, &parts, &f->err));
    must(f, refit_memory_digest_range(arena, 1001, 3095, 1001, &parts, &f->err));
    must(f, refit_memory_digest_range(arena, 7000, 0, 0, &parts, &f->err));
    assert_true(refit_digest_equal(whole, parts));
    assert_int_equal(refit_memory_digest_range(arena, 4096, 301, 0, &parts, &f->err), REFIT_INVALID);
    assert_int_equal(refit_memory_digest_range(arena, 5000, 1, 0, &parts, &f->err), REFIT_INVALID);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(rows_become_columns),
        CASE(rows_of_3584_bytes_are_packed),
        CASE(rows_with_small_gaps_are_read_together),
        CASE(batches_cut_inside_rows_and_words),
        CASE(a_transposed_matrix_arrives_transposed),
        CASE(fused_and_stacked_buffers_are_scattered),
        CASE(packed_types_are_bytes),
        CASE(random_pairs_arrive_whole),
        CASE(nothing_is_written_when_a_run_is_unbound),
        CASE(a_read_only_mapping_is_refused_as_a_destination),
        CASE(a_file_is_never_written_and_has_no_address),
        CASE(a_file_cut_short_is_an_error_and_no_signal),
        CASE(windows_of_two_lengths_are_refused),
        CASE(without_verification_bytes_move_and_digests_are_zero),
        CASE(a_fill_writes_padding_and_nothing_else),
        CASE(a_range_is_digested_without_a_plan),
    };
    return cmocka_run_group_tests_name("memory/ops", tests, NULL, NULL);
}
