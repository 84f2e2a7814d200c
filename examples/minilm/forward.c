/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward pass. Every sum is made in a fixed order, so the same weights give the same bits, always.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/minilm/minilm.h"

#define LANES 16

struct pass {
    const void *const *table;
    int rank, ranks, count;
    minilm_reduce reduce;
    void *context;
    float *x;       /* [count][HIDDEN], the residual stream */
    float *partial; /* [count][HIDDEN], what this rank adds */
    float *wide;    /* [count][max(3 * HIDDEN, FFN)] */
    float *context_vectors; /* [count][HIDDEN] */
};

static const float *weight(const struct pass *p, int id)
{
    return p->table[id];
}

static const float *layer_weight(const struct pass *p, int layer, enum minilm_layer_buffer id)
{
    return p->table[ML_LAYERS + layer * ML_LAYER_BUFFERS + (int)id];
}

static float dot(const float *a, const float *b, int n)
{
    float lane[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++)
            lane[k] += a[i + k] * b[i + k];
    float sum = 0;
    for (int k = 0; k < LANES; k++)
        sum += lane[k];
    return sum;
}

/* y[t][o] = bias[o] + sum_i x[t][i] * w[o][i]; a NULL bias adds nothing. */
static void linear(const float *x, const float *w, const float *bias, int count, int in, int out, float *y)
{
    for (int o = 0; o < out; o++)
        for (int t = 0; t < count; t++)
            y[t * out + o] = dot(x + t * in, w + o * in, in) + (bias ? bias[o] : 0.0f);
}

static void layer_norm(float *x, const float *w, const float *b, int count)
{
    for (int t = 0; t < count; t++, x += MINILM_HIDDEN) {
        double mean = 0, variance = 0;
        for (int i = 0; i < MINILM_HIDDEN; i++)
            mean += x[i];
        mean /= MINILM_HIDDEN;
        for (int i = 0; i < MINILM_HIDDEN; i++)
            variance += (x[i] - mean) * (x[i] - mean);
        double scale = 1.0 / sqrt(variance / MINILM_HIDDEN + 1e-12);
        for (int i = 0; i < MINILM_HIDDEN; i++)
            x[i] = (float)((x[i] - mean) * scale) * w[i] + b[i];
    }
}

/* Adds all ranks' partial sums and the bias to the residual stream. */
static int add_partial(struct pass *p, const float *bias)
{
    if (p->reduce(p->context, p->partial, (size_t)p->count * MINILM_HIDDEN) != 0)
        return -1;
    for (int t = 0; t < p->count; t++)
        for (int i = 0; i < MINILM_HIDDEN; i++)
            p->x[t * MINILM_HIDDEN + i] += p->partial[t * MINILM_HIDDEN + i] + (bias ? bias[i] : 0.0f);
    return 0;
}

static int embed(struct pass *p, const int32_t *tokens)
{
    int rows = MINILM_VOCAB_PADDED / p->ranks, first = p->rank * rows;
    const int64_t *positions = p->table[ML_POSITION_IDS];
    memset(p->partial, 0, (size_t)p->count * MINILM_HIDDEN * sizeof(float));
    for (int t = 0; t < p->count; t++) {
        const float *at = weight(p, ML_POSITION) + positions[t] * MINILM_HIDDEN, *type = weight(p, ML_TYPE);
        for (int i = 0; i < MINILM_HIDDEN; i++)
            p->x[t * MINILM_HIDDEN + i] = at[i] + type[i];
        if (tokens[t] >= first && tokens[t] < first + rows)
            memcpy(p->partial + t * MINILM_HIDDEN, weight(p, ML_WORD) + (size_t)(tokens[t] - first) * MINILM_HIDDEN,
                   MINILM_HIDDEN * sizeof(float));
    }
    if (add_partial(p, NULL) != 0)
        return -1;
    layer_norm(p->x, weight(p, ML_EMB_LN_W), weight(p, ML_EMB_LN_B), p->count);
    return 0;
}

/* One head: softmax(q k' / sqrt(d)) v for every token. `local` is q's, k's and v's width on this rank. */
static void attend(const struct pass *p, int head, int local, float *out)
{
    float score[MINILM_TOKENS_MAX];
    for (int t = 0; t < p->count; t++) {
        const float *q = p->wide + t * 3 * local + head * MINILM_HEAD;
        float top = -INFINITY, sum = 0;
        for (int s = 0; s < p->count; s++) {
            score[s] = dot(q, p->wide + s * 3 * local + local + head * MINILM_HEAD, MINILM_HEAD) / sqrtf(MINILM_HEAD);
            top = fmaxf(top, score[s]);
        }
        for (int s = 0; s < p->count; s++)
            sum += score[s] = expf(score[s] - top);
        float *to = out + t * local + head * MINILM_HEAD;
        memset(to, 0, MINILM_HEAD * sizeof *to);
        for (int s = 0; s < p->count; s++) {
            const float *v = p->wide + s * 3 * local + 2 * local + head * MINILM_HEAD;
            for (int i = 0; i < MINILM_HEAD; i++)
                to[i] += score[s] / sum * v[i];
        }
    }
}

static int attention(struct pass *p, int layer)
{
    int heads = MINILM_HEADS / p->ranks, local = heads * MINILM_HEAD;
    linear(p->x, layer_weight(p, layer, ML_QKV_W), layer_weight(p, layer, ML_QKV_B), p->count, MINILM_HIDDEN, 3 * local,
           p->wide);
    for (int head = 0; head < heads; head++)
        attend(p, head, local, p->context_vectors);
    linear(p->context_vectors, layer_weight(p, layer, ML_OUT_W), NULL, p->count, local, MINILM_HIDDEN, p->partial);
    if (add_partial(p, layer_weight(p, layer, ML_OUT_B)) != 0)
        return -1;
    layer_norm(p->x, layer_weight(p, layer, ML_ATT_LN_W), layer_weight(p, layer, ML_ATT_LN_B), p->count);
    return 0;
}

static int feed_forward(struct pass *p, int layer)
{
    int local = MINILM_FFN / p->ranks;
    linear(p->x, layer_weight(p, layer, ML_UP_W), layer_weight(p, layer, ML_UP_B), p->count, MINILM_HIDDEN, local, p->wide);
    for (int i = 0; i < p->count * local; i++)
        p->wide[i] = 0.5f * p->wide[i] * (1.0f + erff(p->wide[i] * 0.70710678f));
    linear(p->wide, layer_weight(p, layer, ML_DOWN_W), NULL, p->count, local, MINILM_HIDDEN, p->partial);
    if (add_partial(p, layer_weight(p, layer, ML_DOWN_B)) != 0)
        return -1;
    layer_norm(p->x, layer_weight(p, layer, ML_FFN_LN_W), layer_weight(p, layer, ML_FFN_LN_B), p->count);
    return 0;
}

static void pool(const struct pass *p, float out[MINILM_HIDDEN])
{
    double norm = 0;
    for (int i = 0; i < MINILM_HIDDEN; i++) {
        float sum = 0;
        for (int t = 0; t < p->count; t++)
            sum += p->x[t * MINILM_HIDDEN + i];
        out[i] = sum / (float)p->count;
        norm += (double)out[i] * out[i];
    }
    for (int i = 0; i < MINILM_HIDDEN; i++)
        out[i] = (float)(out[i] / sqrt(norm));
}

static int run(struct pass *p, const int32_t *tokens)
{
    if (embed(p, tokens) != 0)
        return -1;
    for (int layer = 0; layer < MINILM_LAYERS; layer++)
        if (attention(p, layer) != 0 || feed_forward(p, layer) != 0)
            return -1;
    return 0;
}

int minilm_forward(const void *const *table, int rank, int ranks, const int32_t *tokens, int count,
                   minilm_reduce reduce, void *context, float out[MINILM_HIDDEN])
{
    size_t n = (size_t)count * MINILM_HIDDEN;
    float *scratch = malloc((3 * n + (size_t)count * MINILM_FFN) * sizeof *scratch);
    if (!scratch)
        return -1;
    struct pass p = {.table = table, .rank = rank, .ranks = ranks, .count = count, .reduce = reduce, .context = context,
                     .x = scratch, .partial = scratch + n, .context_vectors = scratch + 2 * n, .wide = scratch + 3 * n};
    int rc = run(&p, tokens);
    if (rc == 0)
        pool(&p, out);
    free(scratch);
    return rc;
}
