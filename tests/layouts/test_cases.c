/* SPDX-License-Identifier: Apache-2.0
 *
 * What public trainers and engines do, as pairs of documents in cases/. For each, every rank's memory is built here by
 * the rule of the framework, element by element, and compared with what the document's regions say.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "document.h"
#include "layouts/coverage.h"
#include "layouts/plan.h"

/* One side of a case while its buffers are compared, one after the other. */
struct side {
    struct refit_layout *layout;
    const char *file;
    uint32_t rank;
    struct unit_at *memory;
    struct refit_buffer buffer;
    uint64_t at;      /* next byte of the arena to compare */
    uint64_t checked; /* buffers */
};

static bool count_buffer(void *ctx, const struct refit_buffer *buffer)
{
    *(uint64_t *)ctx += buffer->bytes > 0 && !buffer->derived;
    return true;
}

static void end_buffer(struct side *side)
{
    if (side->buffer.name[0] && side->at != side->buffer.offset + side->buffer.bytes)
        fail_msg("%s: rank %u buffer %s has %lu bytes, the rule gives %lu", side->file, side->rank, side->buffer.name,
                 (unsigned long)side->buffer.bytes, (unsigned long)(side->at - side->buffer.offset));
    side->buffer.name[0] = '\0';
}

/* Ends a rank: all its buffers were compared. */
static void end_rank(struct side *side)
{
    uint64_t buffers = 0;
    end_buffer(side);
    if (!side->memory)
        return;
    refit_layout_buffers(side->layout, side->rank, count_buffer, &buffers);
    assert_int_equal(side->checked, buffers);
    free(side->memory);
    side->memory = NULL;
}

static void begin_rank(struct side *side, uint32_t rank)
{
    end_rank(side);
    side->rank = rank;
    side->checked = 0;
    side->memory = document_memory(side->layout, rank);
}

static void begin_buffer(struct side *side, const char *name)
{
    end_buffer(side);
    if (!refit_layout_buffer_find(side->layout, side->rank, name, &side->buffer))
        fail_msg("%s: rank %u has no buffer %s", side->file, side->rank, name);
    side->at = side->buffer.offset;
    side->checked++;
}

/* The next unit of the buffer is unit `flat` of the tensor. */
static void want(struct side *side, const char *name, int64_t flat)
{
    struct refit_tensor tensor;
    uint32_t id;
    assert_true(refit_layout_find(side->layout, name, &id));
    refit_layout_tensor(side->layout, id, &tensor);
    const struct unit_at *found = &side->memory[side->at];
    if (found->tensor != (int64_t)id || found->flat != flat)
        fail_msg("%s: rank %u buffer %s byte %lu: tensor %ld unit %ld, the rule gives %s unit %ld", side->file,
                 side->rank, side->buffer.name, (unsigned long)(side->at - side->buffer.offset), (long)found->tensor,
                 (long)found->flat, name, (long)flat);
    side->at += tensor.unit_bytes;
}

static void want_fill(struct side *side, uint64_t bytes, uint8_t value)
{
    for (; bytes > 0; bytes--, side->at++) {
        assert_int_equal(side->memory[side->at].tensor, UNIT_FILL);
        assert_int_equal(side->memory[side->at].flat, value);
    }
}

/* Columns [c0, c1) of rows [r0, r1) of a matrix of `width` columns. */
static void want_block(struct side *side, const char *name, int64_t width, int64_t r0, int64_t r1, int64_t c0,
                       int64_t c1)
{
    for (int64_t r = r0; r < r1; r++)
        for (int64_t c = c0; c < c1; c++)
            want(side, name, r * width + c);
}

static void want_rows(struct side *side, const char *name, int64_t width, int64_t r0, int64_t r1)
{
    want_block(side, name, width, r0, r1, 0, width);
}

static const char *numbered(const char *format, int number)
{
    static _Thread_local char names[4][64];
    static _Thread_local unsigned turn;
    char *name = names[turn++ % 4];
    const char *mark = strchr(format, '#');
    snprintf(name, sizeof names[0], "%.*s%d%s", (int)(mark - format), format, number, mark + 1);
    return name;
}

/* ---- the rules ---- */

static void plain_shard(struct side *t, struct side *e)
{
    static const int64_t ten[] = {0, 3, 6, 9, 10}, five[] = {0, 2, 4, 5, 5};
    for (uint32_t r = 0; r < 4; r++) {
        begin_rank(t, r);
        begin_buffer(t, "ten");
        want_rows(t, "ten", 3, ten[r], ten[r + 1]);
        if (five[r] < five[r + 1]) {
            begin_buffer(t, "five");
            want_rows(t, "five", 2, five[r], five[r + 1]);
        }
    }
    for (uint32_t r = 0; r < 2; r++) {
        begin_rank(e, r);
        begin_buffer(e, "ten");
        want_block(e, "ten", 3, 0, 10, r ? 2 : 0, r ? 3 : 2);
        begin_buffer(e, "five");
        want_rows(e, "five", 2, 0, 5);
    }
}

static void several_axes(struct side *t, struct side *e)
{
    /* 9 rows: TP gives 0-4 and 5-8; FSDP cuts 5 rows as 2, 2, 1, 0 and 4 rows as 1, 1, 1, 1. */
    static const int64_t w[4][2][2] = {{{0, 2}, {5, 6}}, {{2, 4}, {6, 7}}, {{4, 5}, {7, 8}}, {{5, 5}, {8, 9}}};
    for (uint32_t r = 0; r < 8; r++) {
        uint32_t f = r / 2, tp = r % 2;
        begin_rank(t, r);
        if (w[f][tp][0] < w[f][tp][1]) {
            begin_buffer(t, "w");
            want_rows(t, "w", 2, w[f][tp][0], w[f][tp][1]);
        }
        if (f < 3) { /* 6 rows by 4 are 2, 2, 2, 0 */
            begin_buffer(t, "b");
            want_block(t, "b", 5, 2 * f, 2 * f + 2, tp ? 3 : 0, tp ? 5 : 3);
        }
    }
    for (uint32_t r = 0; r < 2; r++) {
        begin_rank(e, r);
        begin_buffer(e, "w");
        want_rows(e, "w", 2, r ? 5 : 0, r ? 9 : 5);
        begin_buffer(e, "b");
        want_rows(e, "b", 5, 0, 6);
    }
}

static void replicate(struct side *t, struct side *e)
{
    static const uint32_t ranks[2][2] = {{3, 1}, {2, 0}};
    for (uint32_t dp = 0; dp < 2; dp++) {
        for (uint32_t f = 0; f < 2; f++) {
            begin_rank(t, ranks[dp][f]);
            begin_buffer(t, "w");
            want_rows(t, "w", 2, f ? 3 : 0, f ? 5 : 3);
        }
    }
    begin_rank(e, 0);
    begin_buffer(e, "w");
    want_rows(e, "w", 2, 0, 5);
}

static void flat_parameter(struct side *t, struct side *e)
{
    for (uint32_t r = 0; r < 3; r++) {
        begin_rank(t, r);
        begin_buffer(t, "flat_param");
        for (int64_t i = 27 * (int64_t)r; i < 27 * ((int64_t)r + 1); i++) {
            if (i < 80)
                want(t, i < 70 ? "w" : "b", i < 70 ? i : i - 70);
            else
                want_fill(t, 4, 0);
        }
    }
    for (uint32_t r = 0; r < 2; r++) {
        begin_rank(e, r);
        begin_buffer(e, "w");
        want_block(e, "w", 7, 0, 10, r ? 4 : 0, r ? 7 : 4);
        begin_buffer(e, "b");
        want_rows(e, "b", 1, 0, 10);
    }
}

static void fused_qkv(struct side *t, struct side *e)
{
    enum { HEADS = 8, KV = 4, D = 2, DV = 3, H = 3 };
    for (uint32_t r = 0; r < 2; r++) {
        begin_rank(t, r);
        for (int l = 0; l < 2; l++) {
            begin_buffer(t, numbered("l.#.linear_qkv", l));
            for (int g = (int)r * KV / 2; g < ((int)r + 1) * KV / 2; g++) {
                want_rows(t, numbered("l.#.q", l), H, g * HEADS / KV * D, (g + 1) * HEADS / KV * D);
                want_rows(t, numbered("l.#.k", l), H, g * D, (g + 1) * D);
                want_rows(t, numbered("l.#.v", l), H, g * DV, (g + 1) * DV);
            }
        }
    }
    for (uint32_t r = 0; r < 8; r++) {
        int kv = (int)r / (8 / KV);
        begin_rank(e, r);
        for (int l = 0; l < 2; l++) {
            begin_buffer(e, numbered("l.#.qkv_proj", l));
            want_rows(e, numbered("l.#.q", l), H, r * D, (r + 1) * D);
            want_rows(e, numbered("l.#.k", l), H, kv * D, (kv + 1) * D);
            want_rows(e, numbered("l.#.v", l), H, kv * DV, (kv + 1) * DV);
        }
    }
}

static void output_gate(struct side *t, struct side *e)
{
    enum { D = 2, H = 2 };
    for (uint32_t r = 0; r < 2; r++) { /* one group of two heads on each rank */
        begin_rank(t, r);
        begin_buffer(t, "linear_qkv");
        for (int part = 0; part < 2; part++) /* q, then the gate */
            for (int head = (int)r * 2; head < (int)r * 2 + 2; head++)
                want_rows(t, "qg", H, head * 2 * D + part * D, head * 2 * D + part * D + D);
        want_rows(t, "k", H, r * D, r * D + D);
        want_rows(t, "v", H, r * D, r * D + D);
    }
    begin_rank(e, 0);
    begin_buffer(e, "qg");
    want_rows(e, "qg", H, 0, 16);
    begin_buffer(e, "k");
    want_rows(e, "k", H, 0, 4);
    begin_buffer(e, "v");
    want_rows(e, "v", H, 0, 4);
}

static void gate_up_on(struct side *side, int tp)
{
    for (int r = 0; r < tp; r++) {
        begin_rank(side, (uint32_t)r);
        for (int l = 0; l < 2; l++) {
            begin_buffer(side, numbered("l.#.gate_up", l));
            want_rows(side, numbered("l.#.gate", l), 2, 12 / tp * r, 12 / tp * (r + 1));
            want_rows(side, numbered("l.#.up", l), 2, 12 / tp * r, 12 / tp * (r + 1));
        }
    }
}

static void gate_up(struct side *t, struct side *e)
{
    gate_up_on(t, 3);
    gate_up_on(e, 4);
}

static void stacked_experts(struct side *t, struct side *e)
{
    for (int r = 0; r < 2; r++) {
        begin_rank(t, (uint32_t)r);
        begin_buffer(t, "w13");
        for (int x = 2 * r; x < 2 * r + 2; x++) {
            want_rows(t, numbered("e.#.gate", x), 2, 0, 6);
            want_rows(t, numbered("e.#.up", x), 2, 0, 6);
        }
        begin_buffer(t, "w2");
        for (int x = 2 * r; x < 2 * r + 2; x++)
            want_rows(t, numbered("e.#.down", x), 6, 0, 2);
    }
    for (int r = 0; r < 3; r++) {
        begin_rank(e, (uint32_t)r);
        begin_buffer(e, "w13"); /* this engine stores [up; gate] */
        for (int x = 0; x < 4; x++) {
            want_rows(e, numbered("e.#.up", x), 2, 2 * r, 2 * r + 2);
            want_rows(e, numbered("e.#.gate", x), 2, 2 * r, 2 * r + 2);
        }
        begin_buffer(e, "w2");
        for (int x = 0; x < 4; x++)
            want_block(e, numbered("e.#.down", x), 6, 0, 2, 2 * r, 2 * r + 2);
    }
}

static void interleaved_experts(struct side *t, struct side *e)
{
    enum { E = 2, IN = 3, OUT = 8 };
    for (int r = 0; r < 2; r++) {
        begin_rank(t, (uint32_t)r);
        begin_buffer(t, "gate_up");
        for (int x = 0; x < E; x++)
            want_block(t, "gate_up", OUT, x * IN, (x + 1) * IN, r * 4, r * 4 + 4);
        begin_rank(e, (uint32_t)r);
        begin_buffer(e, "w13"); /* [E, 2I/T, H]: gates, then ups */
        for (int x = 0; x < E; x++)
            for (int up = 0; up < 2; up++)
                for (int i = 2 * r; i < 2 * r + 2; i++)
                    for (int h = 0; h < IN; h++)
                        want(e, "gate_up", (x * IN + h) * OUT + 2 * i + up);
    }
}

static void interleaved_rows(struct side *t, struct side *e)
{
    begin_rank(t, 0);
    begin_buffer(t, "gate");
    want_rows(t, "gate", 4, 0, 4);
    begin_buffer(t, "up");
    want_rows(t, "up", 4, 0, 4);
    for (int r = 0; r < 2; r++) {
        begin_rank(e, (uint32_t)r);
        begin_buffer(e, "gate_up_t"); /* [H, 2I/T], columns gate, up, gate, up */
        for (int h = 0; h < 4; h++)
            for (int i = 2 * r; i < 2 * r + 2; i++)
                for (int up = 0; up < 2; up++)
                    want(e, up ? "up" : "gate", i * 4 + h);
    }
}

static void expert_parallel(struct side *t, struct side *e)
{
    static const int physical[2][4] = {{0, 3, 3, 5}, {1, 2, 4, 3}};
    char name[32];
    for (int r = 0; r < 4; r++) {
        int ep = r / 2, etp = r % 2;
        begin_rank(t, (uint32_t)r);
        for (int l = 0; l < 2; l++) {
            for (int x = 3 * ep; x < 3 * ep + 3; x++) {
                snprintf(name, sizeof name, "l.%d.e.%d.w", l, x);
                begin_buffer(t, name);
                want_rows(t, name, 3, 2 * etp, 2 * etp + 2);
            }
        }
    }
    for (int r = 0; r < 2; r++) {
        begin_rank(e, (uint32_t)r);
        for (int l = 0; l < 2; l++) {
            begin_buffer(e, numbered("l.#.w", l));
            for (int p = 0; p < 4; p++) {
                snprintf(name, sizeof name, "l.%d.e.%d.w", l, physical[r][p]);
                want_rows(e, name, 3, 0, 4);
            }
        }
    }
}

static void pipeline(struct side *t, struct side *e)
{
    for (int r = 0; r < 4; r++) {
        int first = r / 2 ? 4 : 0, count = r / 2 ? 3 : 4;
        begin_rank(t, (uint32_t)r);
        for (int l = 0; l < count; l++) { /* stages number their layers from 0 */
            begin_buffer(t, numbered("decoder.layers.#.w", l));
            want_rows(t, numbered("model.layers.#.w", first + l), 2, r % 2, r % 2 + 1);
        }
    }
    begin_rank(e, 0);
    for (int l = 2; l < 6; l++) {
        begin_buffer(e, numbered("model.layers.#.w", l));
        want_rows(e, numbered("model.layers.#.w", l), 2, 0, 2);
    }
}

static void padded_vocabulary(struct side *t, struct side *e)
{
    for (int r = 0; r < 7; r++) {
        struct side *side = r < 3 ? t : e;
        int rank = r < 3 ? r : r - 3;
        begin_rank(side, (uint32_t)rank);
        begin_buffer(side, "embed");
        for (int row = 4 * rank; row < 4 * rank + 4; row++) {
            if (row < 10)
                want_rows(side, "embed", 2, row, row + 1);
            else
                want_fill(side, 4, 0);
        }
    }
}

static void tied_weights(struct side *t, struct side *e)
{
    begin_rank(t, 0);
    begin_buffer(t, "embed");
    want_rows(t, "lm_head", 2, 0, 4);
    for (int r = 0; r < 2; r++) {
        begin_rank(e, (uint32_t)r);
        begin_buffer(e, "embed");
        want_rows(e, "embed", 2, 2 * r, 2 * r + 2);
        begin_buffer(e, "lm_head");
        want_rows(e, "embed", 2, 2 * r, 2 * r + 2);
    }
}

static void mamba(struct side *t, struct side *e)
{
    begin_rank(t, 0);
    begin_buffer(t, "in_proj");
    want_rows(t, "in_proj", 2, 0, 28);
    begin_buffer(t, "conv1d");
    want_rows(t, "conv1d", 3, 0, 16);
    begin_buffer(t, "A_log");
    want_rows(t, "A_log", 1, 0, 4);
    for (int r = 0; r < 4; r++) {
        int group = r / 2;
        begin_rank(e, (uint32_t)r);
        begin_buffer(e, "in_proj");
        want_rows(e, "in_proj", 2, 2 * r, 2 * r + 2);
        want_rows(e, "in_proj", 2, 8 + 2 * r, 8 + 2 * r + 2);
        want_rows(e, "in_proj", 2, 16 + 2 * group, 16 + 2 * group + 2);
        want_rows(e, "in_proj", 2, 20 + 2 * group, 20 + 2 * group + 2);
        want_rows(e, "in_proj", 2, 24 + r, 24 + r + 1);
        begin_buffer(e, "conv1d");
        want_rows(e, "conv1d", 3, 2 * r, 2 * r + 2);
        want_rows(e, "conv1d", 3, 8 + 2 * group, 8 + 2 * group + 2);
        want_rows(e, "conv1d", 3, 12 + 2 * group, 12 + 2 * group + 2);
        begin_buffer(e, "A_log");
        want_rows(e, "A_log", 1, r, r + 1);
    }
}

static void gated_delta_net(struct side *t, struct side *e)
{
    for (int r = 0; r < 2; r++) { /* one key head per rank */
        begin_rank(t, (uint32_t)r);
        begin_buffer(t, "in_proj"); /* q, k, v, z, b, a */
        for (int part = 0; part < 4; part++)
            want_rows(t, "qkvz", 2, 8 * r + 2 * part, 8 * r + 2 * part + 2);
        want_rows(t, "ba", 2, 4 * r, 4 * r + 4);
        begin_rank(e, (uint32_t)r);
        begin_buffer(e, "qkvz");
        want_rows(e, "qkvz", 2, 8 * r, 8 * r + 8);
        begin_buffer(e, "ba");
        want_rows(e, "ba", 2, 4 * r, 4 * r + 4);
    }
}

static void mla(struct side *t, struct side *e)
{
    for (int r = 0; r < 2; r++) {
        begin_rank(t, (uint32_t)r);
        begin_buffer(t, "q_a");
        want_rows(t, "q_a", 4, r ? 2 : 0, r ? 3 : 2);
        begin_buffer(t, "kv_a");
        want_rows(t, "kv_a", 4, r, r + 1);
        begin_buffer(t, "kv_b");
        want_rows(t, "kv_b", 4, 3 * r, 3 * r + 3);
        begin_rank(e, (uint32_t)r);
        begin_buffer(e, "fused_qkv_a");
        want_rows(e, "q_a", 4, 0, 3);
        want_rows(e, "kv_a", 4, 0, 2);
        begin_buffer(e, "kv_b");
        want_block(e, "kv_b", 4, 0, 6, 2 * r, 2 * r + 2);
    }
}

static void norms(struct side *t, struct side *e)
{
    for (int r = 0; r < 2; r++) {
        begin_rank(t, (uint32_t)r);
        for (int l = 0; l < 3; l++) {
            begin_buffer(t, numbered("l.#.norm", l));
            want_rows(t, numbered("l.#.norm", l), 1, r ? 3 : 0, r ? 5 : 3);
        }
        begin_rank(e, (uint32_t)r);
        begin_buffer(e, "norms");
        for (int l = 0; l < 3; l++)
            want_rows(e, numbered("l.#.norm", l), 1, 0, 5);
    }
}

static void block_fp8(struct side *t, struct side *e)
{
    for (int r = 0; r < 2; r++) {
        begin_rank(t, (uint32_t)r);
        begin_buffer(t, "w");
        want_block(t, "w", 8, 0, 10, 4 * r, 4 * r + 4);
        begin_buffer(t, "w_scale_inv");
        want_block(t, "w_scale_inv", 2, 0, 3, r, r + 1);
    }
    begin_rank(e, 0);
    begin_buffer(e, "w");
    want_rows(e, "w", 8, 0, 10);
    begin_buffer(e, "w_scale_inv");
    want_rows(e, "w_scale_inv", 2, 0, 3);
}

static void mxfp4(struct side *t, struct side *e)
{
    for (int r = 0; r < 2; r++) { /* 64 elements are 32 units */
        begin_rank(t, (uint32_t)r);
        begin_buffer(t, "w");
        want_block(t, "w", 32, 0, 4, 16 * r, 16 * r + 16);
        begin_buffer(t, "w_scale");
        want_block(t, "w_scale", 2, 0, 4, r, r + 1);
        begin_rank(e, (uint32_t)r);
        begin_buffer(e, "w");
        want_rows(e, "w", 32, 2 * r, 2 * r + 2);
        begin_buffer(e, "w_scale");
        want_rows(e, "w_scale", 2, 2 * r, 2 * r + 2);
    }
}

static void transposed(struct side *t, struct side *e)
{
    for (int r = 0; r < 2; r++) {
        begin_rank(t, (uint32_t)r);
        begin_buffer(t, "w");
        for (int column = 0; column < 4; column++)
            want_block(t, "w", 4, 2 * r, 2 * r + 2, column, column + 1);
        begin_rank(e, (uint32_t)r);
        begin_buffer(e, "w");
        want_block(e, "w", 4, 0, 4, 2 * r, 2 * r + 2);
    }
}

static void extra_modules(struct side *t, struct side *e)
{
    begin_rank(t, 0);
    begin_buffer(t, "model.embed");
    want_rows(t, "mtp.embed", 2, 0, 4);
    begin_buffer(t, "mtp.proj");
    want_rows(t, "mtp.proj", 4, 0, 2);
    begin_buffer(t, "vision.patch");
    want_rows(t, "vision.patch", 1, 0, 3);
    begin_buffer(t, "router.bias");
    want_rows(t, "router.bias", 1, 0, 3);
    for (int r = 0; r < 2; r++) {
        begin_rank(e, (uint32_t)r);
        begin_buffer(e, "model.embed");
        want_rows(e, "model.embed", 2, 2 * r, 2 * r + 2);
        begin_buffer(e, "mtp.proj");
        want_block(e, "mtp.proj", 4, 0, 2, 2 * r, 2 * r + 2);
        begin_buffer(e, "router.bias");
        want_rows(e, "router.bias", 1, 0, 3);
    }
}

static void scalar_empty(struct side *t, struct side *e)
{
    for (uint32_t r = 0; r < 3; r++) {
        begin_rank(t, r);
        begin_buffer(t, "scale");
        want(t, "scale", 0);
        if (r < 2) { /* rank 2 owns nothing of it */
            begin_buffer(t, "two");
            want(t, "two", r);
        }
    }
    begin_rank(e, 0);
    begin_buffer(e, "scale");
    want(e, "scale", 0);
    begin_buffer(e, "two");
    want_rows(e, "two", 1, 0, 2);
}

struct rule {
    const char *name;
    void (*check)(struct side *trainer, struct side *engine);
};

static const struct rule rules[] = {
    {"plain_shard", plain_shard},
    {"several_axes", several_axes},
    {"replicate", replicate},
    {"flat_parameter", flat_parameter},
    {"fused_qkv", fused_qkv},
    {"output_gate", output_gate},
    {"gate_up", gate_up},
    {"stacked_experts", stacked_experts},
    {"interleaved_experts", interleaved_experts},
    {"interleaved_rows", interleaved_rows},
    {"expert_parallel", expert_parallel},
    {"pipeline", pipeline},
    {"padded_vocabulary", padded_vocabulary},
    {"tied_weights", tied_weights},
    {"mamba", mamba},
    {"gated_delta_net", gated_delta_net},
    {"mla", mla},
    {"norms", norms},
    {"block_fp8", block_fp8},
    {"mxfp4", mxfp4},
    {"transposed", transposed},
    {"extra_modules", extra_modules},
    {"scalar_empty", scalar_empty},
};

static struct side open_side(const char *name, const char *which, char *file, size_t len)
{
    snprintf(file, len, "cases/%s.%s.json", name, which);
    return (struct side){.file = file, .layout = document_layout(file)};
}

static void memory_is_as_the_framework_has_it(void **state)
{
    char trainer_file[128], engine_file[128];
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        struct side trainer = open_side(rules[i].name, "trainer", trainer_file, sizeof trainer_file);
        struct side engine = open_side(rules[i].name, "engine", engine_file, sizeof engine_file);
        rules[i].check(&trainer, &engine);
        end_rank(&trainer);
        end_rank(&engine);
        refit_layout_release(trainer.layout);
        refit_layout_release(engine.layout);
    }
}

static bool add_bytes(void *ctx, const struct refit_region *region)
{
    uint64_t *sum = ctx;
    *sum += refit_box_volume(&region->box) * *(sum + 1);
    return true;
}

static uint64_t region_bytes(const struct refit_layout *layout)
{
    uint64_t sum[2] = {0, 0};
    for (uint32_t t = 0; t < refit_layout_tensor_count(layout); t++) {
        struct refit_tensor tensor;
        refit_layout_tensor(layout, t, &tensor);
        sum[1] = tensor.unit_bytes;
        refit_layout_regions(layout, t, REFIT_ALL_RANKS, add_bytes, sum);
    }
    return sum[0];
}

static void every_pair_is_covered_and_can_be_planned(void **state)
{
    char file[128];
    struct refit_error err;
    for (size_t i = 0; i <= sizeof rules / sizeof rules[0]; i++) {
        const char *name = i < sizeof rules / sizeof rules[0] ? rules[i].name : "huge";
        struct side trainer = open_side(name, "trainer", file, sizeof file);
        struct side engine = open_side(name, "engine", file, sizeof file);
        struct refit_plan_scope scope = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS};
        struct refit_plan *plan = NULL;
        if (refit_coverage_check(trainer.layout, &err) || refit_coverage_check(engine.layout, &err) ||
            refit_plan_build(trainer.layout, engine.layout, scope, &plan, &err))
            fail_msg("%s: %s", name, err.text);
        assert_int_equal(refit_plan_written_bytes(plan), region_bytes(engine.layout));
        refit_plan_release(plan);
        refit_layout_release(trainer.layout);
        refit_layout_release(engine.layout);
    }
}

static void virtual_stages_number_their_own_layers(void **state)
{
    static const int layers[2][4] = {{0, 1, 4, 5}, {2, 3, 6, -1}};
    struct side side = {.file = "cases/pipeline.virtual.json"};
    side.layout = document_layout(side.file);
    for (uint32_t r = 0; r < 2; r++) {
        begin_rank(&side, r);
        for (int l = 0; l < 4 && layers[r][l] >= 0; l++) {
            begin_buffer(&side, numbered("chunk.#.w", l));
            want_rows(&side, numbered("model.layers.#.w", layers[r][l]), 2, 0, 2);
        }
    }
    end_rank(&side);
    refit_layout_release(side.layout);
}

static bool keep_region(void *ctx, const struct refit_region *region)
{
    struct refit_region **next = ctx;
    *(*next)++ = *region;
    return true;
}

static void regions_reach_past_32_bits(void **state)
{
    struct refit_layout *trainer = document_layout("cases/huge.trainer.json");
    struct refit_layout *engine = document_layout("cases/huge.engine.json");
    struct refit_region regions[2], *next = regions;
    struct refit_tensor tensor;
    refit_layout_tensor(trainer, 0, &tensor);
    assert_int_equal(tensor.bytes, INT64_C(20000000000));
    assert_true(refit_layout_regions(trainer, 0, REFIT_ALL_RANKS, keep_region, &next));
    assert_ptr_equal(next, regions + 2);
    assert_int_equal(regions[1].box.start[0], INT64_C(2500000000));
    assert_int_equal(regions[1].box.extent[0], INT64_C(2500000000));
    assert_int_equal(refit_layout_arena_bytes(trainer, 1), INT64_C(10000000000));
    next = regions;
    assert_true(refit_layout_regions(engine, 0, REFIT_ALL_RANKS, keep_region, &next));
    assert_int_equal(regions[1].box.start[1], 1);
    assert_int_equal(regions[1].box.extent[0], INT64_C(5000000000));
    refit_layout_release(trainer);
    refit_layout_release(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_as_the_framework_has_it),
        cmocka_unit_test(every_pair_is_covered_and_can_be_planned),
        cmocka_unit_test(virtual_stages_number_their_own_layers),
        cmocka_unit_test(regions_reach_past_32_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
