/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints for demonstrations.
 *
 *   minilm-checkpoint generate OUT SEED            a checkpoint of all-MiniLM-L6-v2's shapes, random weights
 *   minilm-checkpoint derive IN OUT SEED           every float32 x becomes x * (1 + u / 64), u in [-1, 1)
 *   minilm-checkpoint shard IN DIRECTORY COUNT     the same tensors in COUNT files with an index
 *
 * u comes from splitmix64(SEED + position of x in its tensor), so anyone can make the same file again.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "examples/common/safetensors.h"
#include "examples/minilm/minilm.h"

struct change {
    const struct st_file *in; /* NULL: generate */
    uint64_t seed;            /* 0 with `in`: copy */
};

static float noise(uint64_t seed, uint64_t position)
{
    uint64_t z = seed + (position + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return (float)(int32_t)(z >> 32) / 2147483648.0f;
}

static int fill_changed(void *context, const struct st_tensor *tensor, uint64_t skip, void *out, size_t bytes)
{
    const struct change *change = context;
    if (st_read(change->in, st_find(change->in, tensor->name), skip, out, bytes) != 0)
        return -1;
    float *x = out;
    for (size_t i = 0; change->seed && strcmp(tensor->dtype, "F32") == 0 && i < bytes / sizeof *x; i++)
        x[i] *= 1.0f + noise(change->seed, skip / sizeof *x + i) / 64.0f;
    return 0;
}

static int fill_generated(void *context, const struct st_tensor *tensor, uint64_t skip, void *out, size_t bytes)
{
    const struct change *change = context;
    if (strcmp(tensor->dtype, "I64") == 0) {
        int64_t *id = out;
        for (size_t i = 0; i < bytes / sizeof *id; i++)
            id[i] = (int64_t)(skip / sizeof *id + i);
        return 0;
    }
    int is_gain = strstr(tensor->name, "LayerNorm.weight") != NULL;
    float *x = out;
    for (size_t i = 0; i < bytes / sizeof *x; i++)
        x[i] = (is_gain ? 1.0f : 0.0f) + noise(change->seed, skip / sizeof *x + i) / 16.0f;
    return 0;
}

static int derive(const char *in_path, const char *out_path, uint64_t seed)
{
    struct st_file in;
    if (st_open(&in, in_path) != 0)
        return -1;
    struct change change = {.in = &in, .seed = seed};
    int rc = st_write(out_path, in.tensors, in.count, fill_changed, &change);
    st_close(&in);
    return rc;
}

static size_t list_tensors(struct st_tensor *out)
{
    size_t count = 0;
    for (int id = 0; id < ML_BUFFERS; id++) {
        struct minilm_recipe r;
        minilm_recipe(id, &r);
        for (int p = 0; p < 3 && r.pieces[p][0]; p++, count++) {
            struct st_tensor *t = &out[count];
            snprintf(t->name, sizeof t->name, "%s", r.pieces[p]);
            snprintf(t->dtype, sizeof t->dtype, "%s", r.dtype);
            t->dims = r.dims;
            t->bytes = strcmp(r.dtype, "I64") == 0 ? 8 : 4;
            for (int d = 0; d < r.dims; d++) {
                t->shape[d] = r.shape[d];
                t->bytes *= (uint64_t)r.shape[d];
            }
        }
    }
    return count;
}

static int generate(const char *out_path, uint64_t seed)
{
    struct st_tensor *tensors = calloc(3 * ML_BUFFERS, sizeof *tensors);
    struct change change = {.seed = seed};
    int rc = tensors ? st_write(out_path, tensors, list_tensors(tensors), fill_generated, &change) : -1;
    free(tensors);
    return rc;
}

static int write_index(const char *directory, const json_t *map)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", directory);
    json_t *index = json_pack("{s:{}, s:O}", "metadata", "weight_map", map);
    int rc = json_dump_file(index, path, JSON_INDENT(1));
    json_decref(index);
    return rc;
}

static int shard(const char *in_path, const char *directory, size_t count)
{
    struct st_file in;
    if (st_open(&in, in_path) != 0 || (mkdir(directory, 0777) != 0 && errno != EEXIST))
        return -1;
    struct change copy = {.in = &in};
    json_t *map = json_object();
    int rc = 0;
    for (size_t s = 0, from = 0; rc == 0 && s < count; s++) {
        char name[64], path[4096];
        size_t to = in.count * (s + 1) / count;
        snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", s + 1, count);
        snprintf(path, sizeof path, "%s/%s", directory, name);
        for (size_t i = from; i < to; i++)
            json_object_set_new(map, in.tensors[i].name, json_string(name));
        rc = st_write(path, in.tensors + from, to - from, fill_changed, &copy);
        from = to;
    }
    if (rc == 0)
        rc = write_index(directory, map);
    json_decref(map);
    st_close(&in);
    return rc;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    if (strcmp(verb, "generate") == 0 && argc == 4)
        return generate(argv[2], strtoull(argv[3], NULL, 10)) ? 1 : 0;
    if (strcmp(verb, "derive") == 0 && argc == 5)
        return derive(argv[2], argv[3], strtoull(argv[4], NULL, 10)) ? 1 : 0;
    if (strcmp(verb, "shard") == 0 && argc == 5)
        return shard(argv[2], argv[3], strtoull(argv[4], NULL, 10)) ? 1 : 0;
    fprintf(stderr, "usage: %s generate OUT SEED | derive IN OUT SEED | shard IN DIRECTORY COUNT\n", argv[0]);
    return 2;
}
