/* SPDX-License-Identifier: Apache-2.0
 *
 * Which buffers a rank serves from, and how each comes out of the checkpoint. The layout document and the cold loader are both
 * made from the same recipes, so an engine that was refitted and one that was loaded cold have the same shape.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/safetensors.h"
#include "examples/minilm/minilm.h"

static const struct {
    const char *buffer;
    const char *pieces[3];
    int64_t rows, columns; /* columns 0: one-dimensional */
    enum minilm_cut cut;
} layer_recipes[ML_LAYER_BUFFERS] = {
    [ML_QKV_W] = {"attention.self.qkv.weight",
                  {"attention.self.query.weight", "attention.self.key.weight", "attention.self.value.weight"},
                  MINILM_HIDDEN, MINILM_HIDDEN, ML_ROWS},
    [ML_QKV_B] = {"attention.self.qkv.bias",
                  {"attention.self.query.bias", "attention.self.key.bias", "attention.self.value.bias"},
                  MINILM_HIDDEN, 0, ML_ROWS},
    [ML_OUT_W] = {"attention.output.dense.weight", {NULL}, MINILM_HIDDEN, MINILM_HIDDEN, ML_COLUMNS},
    [ML_OUT_B] = {"attention.output.dense.bias", {NULL}, MINILM_HIDDEN, 0, ML_WHOLE},
    [ML_ATT_LN_W] = {"attention.output.LayerNorm.weight", {NULL}, MINILM_HIDDEN, 0, ML_WHOLE},
    [ML_ATT_LN_B] = {"attention.output.LayerNorm.bias", {NULL}, MINILM_HIDDEN, 0, ML_WHOLE},
    [ML_UP_W] = {"intermediate.dense.weight", {NULL}, MINILM_FFN, MINILM_HIDDEN, ML_ROWS},
    [ML_UP_B] = {"intermediate.dense.bias", {NULL}, MINILM_FFN, 0, ML_ROWS},
    [ML_DOWN_W] = {"output.dense.weight", {NULL}, MINILM_HIDDEN, MINILM_FFN, ML_COLUMNS},
    [ML_DOWN_B] = {"output.dense.bias", {NULL}, MINILM_HIDDEN, 0, ML_WHOLE},
    [ML_FFN_LN_W] = {"output.LayerNorm.weight", {NULL}, MINILM_HIDDEN, 0, ML_WHOLE},
    [ML_FFN_LN_B] = {"output.LayerNorm.bias", {NULL}, MINILM_HIDDEN, 0, ML_WHOLE},
};

static const struct {
    const char *tensor, *dtype;
    int64_t rows, columns, pad_rows_to;
    enum minilm_cut cut;
} outer_recipes[ML_LAYERS] = {
    [ML_POSITION_IDS] = {"embeddings.position_ids", "I64", 1, MINILM_POSITIONS, 0, ML_WHOLE},
    [ML_WORD] = {"embeddings.word_embeddings.weight", "F32", MINILM_VOCAB, MINILM_HIDDEN, MINILM_VOCAB_PADDED, ML_ROWS},
    [ML_POSITION] = {"embeddings.position_embeddings.weight", "F32", MINILM_POSITIONS, MINILM_HIDDEN, 0, ML_WHOLE},
    [ML_TYPE] = {"embeddings.token_type_embeddings.weight", "F32", 2, MINILM_HIDDEN, 0, ML_WHOLE},
    [ML_EMB_LN_W] = {"embeddings.LayerNorm.weight", "F32", MINILM_HIDDEN, 0, 0, ML_WHOLE},
    [ML_EMB_LN_B] = {"embeddings.LayerNorm.bias", "F32", MINILM_HIDDEN, 0, 0, ML_WHOLE},
    [ML_POOLER_W] = {"pooler.dense.weight", "F32", MINILM_HIDDEN, MINILM_HIDDEN, 0, ML_WHOLE},
    [ML_POOLER_B] = {"pooler.dense.bias", "F32", MINILM_HIDDEN, 0, 0, ML_WHOLE},
};

static void layer_recipe(int layer, int id, struct minilm_recipe *out)
{
    snprintf(out->buffer, sizeof out->buffer, "encoder.layer.%d.%s", layer, layer_recipes[id].buffer);
    snprintf(out->pieces[0], sizeof out->pieces[0], "%s", out->buffer);
    for (int p = 0; p < 3 && layer_recipes[id].pieces[p]; p++)
        snprintf(out->pieces[p], sizeof out->pieces[p], "encoder.layer.%d.%s", layer, layer_recipes[id].pieces[p]);
    out->dtype = "F32";
    out->shape[0] = layer_recipes[id].rows;
    out->shape[1] = layer_recipes[id].columns;
    out->cut = layer_recipes[id].cut;
}

static void outer_recipe(int id, struct minilm_recipe *out)
{
    snprintf(out->buffer, sizeof out->buffer, "%s", outer_recipes[id].tensor);
    snprintf(out->pieces[0], sizeof out->pieces[0], "%s", outer_recipes[id].tensor);
    out->dtype = outer_recipes[id].dtype;
    out->shape[0] = outer_recipes[id].rows;
    out->shape[1] = outer_recipes[id].columns;
    out->pad_rows_to = outer_recipes[id].pad_rows_to;
    out->cut = outer_recipes[id].cut;
}

void minilm_recipe(int id, struct minilm_recipe *out)
{
    *out = (struct minilm_recipe){0};
    if (id < ML_LAYERS)
        outer_recipe(id, out);
    else
        layer_recipe((id - ML_LAYERS) / ML_LAYER_BUFFERS, (id - ML_LAYERS) % ML_LAYER_BUFFERS, out);
    out->dims = out->shape[1] ? 2 : 1;
}

static json_t *piece_json(const struct minilm_recipe *r, int piece)
{
    static const char *const placements[] = {[ML_WHOLE] = "Replicate", [ML_ROWS] = "Shard(0)", [ML_COLUMNS] = "Shard(1)"};
    json_t *shape = r->dims == 2 ? json_pack("[I, I]", (json_int_t)r->shape[0], (json_int_t)r->shape[1])
                                 : json_pack("[I]", (json_int_t)r->shape[0]);
    return json_pack("{s:s, s:o, s:[s]}", "tensor", r->pieces[piece], "shape", shape, "placements", placements[r->cut]);
}

static json_t *entry_json(const struct minilm_recipe *r)
{
    json_t *entry;
    if (r->pieces[1][0]) {
        entry = json_pack("{s:[o, o, o]}", "pieces", piece_json(r, 0), piece_json(r, 1), piece_json(r, 2));
        json_object_set_new(entry, "buffer", json_string(r->buffer));
    } else {
        entry = piece_json(r, 0);
    }
    json_object_set_new(entry, "dtype", json_string(r->dtype));
    json_object_set_new(entry, "mesh", json_string("tp"));
    if (r->pad_rows_to)
        json_object_set_new(entry, "pad", json_pack("{s:i, s:I, s:i}", "dim", 0, "to", (json_int_t)r->pad_rows_to, "value", 0));
    return entry;
}

char *minilm_layout(int ranks)
{
    json_t *entries = json_array();
    for (int id = 0; id < ML_BUFFERS; id++) {
        struct minilm_recipe r;
        minilm_recipe(id, &r);
        json_array_append_new(entries, entry_json(&r));
    }
    json_t *document = json_pack("{s:s, s:i, s:{s:{s:[s], s:[i]}}, s:o}", "format", "refit-layout/1", "ranks", ranks,
                                 "meshes", "tp", "axes", "tp", "shape", ranks, "entries", entries);
    char *text = json_dumps(document, JSON_COMPACT);
    json_decref(document);
    return text;
}

static size_t element_bytes(const struct minilm_recipe *r)
{
    return strcmp(r->dtype, "I64") == 0 ? 8 : 4;
}

/* Rows and columns of one piece on one rank. */
static void local_shape(const struct minilm_recipe *r, int ranks, int64_t *rows, int64_t *columns)
{
    *rows = r->pad_rows_to ? r->pad_rows_to : r->shape[0];
    *columns = r->dims == 2 ? r->shape[1] : 1;
    if (r->cut == ML_ROWS)
        *rows /= ranks;
    if (r->cut == ML_COLUMNS)
        *columns /= ranks;
}

static size_t local_bytes(const struct minilm_recipe *r, int ranks)
{
    int64_t rows, columns;
    local_shape(r, ranks, &rows, &columns);
    size_t pieces = r->pieces[1][0] ? 3 : 1;
    return pieces * (size_t)(rows * columns) * element_bytes(r);
}

static int load_piece(const struct st_file *file, const struct minilm_recipe *r, int piece, int rank, int ranks, char *out)
{
    const struct st_tensor *tensor = st_find(file, r->pieces[piece]);
    if (!tensor) {
        fprintf(stderr, "checkpoint lacks %s\n", r->pieces[piece]);
        return -1;
    }
    int64_t rows, columns;
    local_shape(r, ranks, &rows, &columns);
    int64_t first_row = r->cut == ML_ROWS ? rank * rows : 0, first_column = r->cut == ML_COLUMNS ? rank * columns : 0;
    int64_t whole_columns = r->dims == 2 ? r->shape[1] : 1;
    size_t row_bytes = (size_t)columns * element_bytes(r);
    for (int64_t row = 0; row < rows && first_row + row < r->shape[0]; row++) {
        uint64_t at = (uint64_t)((first_row + row) * whole_columns + first_column) * element_bytes(r);
        if (st_read(file, tensor, at, out + (size_t)row * row_bytes, row_bytes) != 0)
            return -1;
    }
    return 0;
}

static int load_buffer(const struct st_file *file, int id, int rank, int ranks, char *out)
{
    struct minilm_recipe r;
    minilm_recipe(id, &r);
    int pieces = r.pieces[1][0] ? 3 : 1, rc = 0;
    size_t piece_bytes = local_bytes(&r, ranks) / (size_t)pieces;
    for (int p = 0; p < pieces && rc == 0; p++)
        rc = load_piece(file, &r, p, rank, ranks, out + (size_t)p * piece_bytes);
    return rc;
}

void *minilm_load_cold(const char *path, int rank, int ranks, const void *table[ML_BUFFERS])
{
    struct st_file file;
    size_t offset[ML_BUFFERS], total = 0;
    for (int id = 0; id < ML_BUFFERS; id++) {
        struct minilm_recipe r;
        minilm_recipe(id, &r);
        offset[id] = total;
        total += (local_bytes(&r, ranks) + 63) / 64 * 64;
    }
    if (st_open(&file, path) != 0)
        return NULL;
    char *block = calloc(1, total);
    for (int id = 0; block && id < ML_BUFFERS; id++) {
        table[id] = block + offset[id];
        if (load_buffer(&file, id, rank, ranks, block + offset[id]) != 0) {
            free(block);
            block = NULL;
        }
    }
    st_close(&file);
    return block;
}
