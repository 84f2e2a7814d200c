/* SPDX-License-Identifier: Apache-2.0
 *
 * all-MiniLM-L6-v2 in plain C: six BERT layers, mean pooling, L2 norm. Tokens in, 384 numbers out.
 * Tensor-parallel over T ranks as engines do it: fused [q_r; k_r; v_r], output projections cut by columns, the
 * vocabulary padded to a multiple of 64 and cut by rows.
 */
#ifndef EXAMPLES_MINILM_H
#define EXAMPLES_MINILM_H

#include <stddef.h>
#include <stdint.h>

enum {
    MINILM_LAYERS = 6, MINILM_HIDDEN = 384, MINILM_HEADS = 12, MINILM_HEAD = 32, MINILM_FFN = 1536,
    MINILM_VOCAB = 30522, MINILM_VOCAB_PADDED = 30528, MINILM_POSITIONS = 512, MINILM_TOKENS_MAX = 256
};

/* Where one rank's weights are: one pointer per buffer of its layout, in the order of minilm_buffer. */
enum minilm_layer_buffer {
    ML_QKV_W, ML_QKV_B, ML_OUT_W, ML_OUT_B, ML_ATT_LN_W, ML_ATT_LN_B, ML_UP_W, ML_UP_B, ML_DOWN_W, ML_DOWN_B,
    ML_FFN_LN_W, ML_FFN_LN_B, ML_LAYER_BUFFERS
};
enum minilm_buffer {
    ML_POSITION_IDS, ML_WORD, ML_POSITION, ML_TYPE, ML_EMB_LN_W, ML_EMB_LN_B, ML_POOLER_W, ML_POOLER_B,
    ML_LAYERS, ML_BUFFERS = ML_LAYERS + MINILM_LAYERS * ML_LAYER_BUFFERS
};

/* How one buffer comes out of checkpoint tensors. */
enum minilm_cut { ML_WHOLE, ML_ROWS, ML_COLUMNS };
struct minilm_recipe {
    char buffer[96];
    char pieces[3][96]; /* checkpoint tensors, concatenated; unused ones are empty */
    const char *dtype;
    int dims;
    int64_t shape[2];   /* of each piece, whole */
    int64_t pad_rows_to; /* 0: none */
    enum minilm_cut cut;
};
/* The recipe of buffer `id`, 0 <= id < ML_BUFFERS. */
void minilm_recipe(int id, struct minilm_recipe *out);

/* The layout document of a replica of `ranks` ranks (docs/layouts.md); malloc'ed. */
char *minilm_layout(int ranks);

/* One rank's weights straight from a safetensors file, without Refit: `table` gets ML_BUFFERS pointers into one block,
 * which is returned (free it); NULL with a message. */
void *minilm_load_cold(const char *path, int rank, int ranks, const void *table[ML_BUFFERS]);

/* Sums x over all ranks in rank order, in place; 0, or -1 when a rank is gone. */
typedef int (*minilm_reduce)(void *context, float *x, size_t count);

/* The embedding of `count` tokens. Every rank calls it with the same tokens; all get the result. 0 or -1. */
int minilm_forward(const void *const *table, int rank, int ranks, const int32_t *tokens, int count,
                   minilm_reduce reduce, void *context, float out[MINILM_HIDDEN]);

#endif
