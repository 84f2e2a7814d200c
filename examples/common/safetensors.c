/* SPDX-License-Identifier: Apache-2.0 */
#include "examples/common/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK (1u << 20)

static int complain(const char *path, const char *what)
{
    fprintf(stderr, "%s: %s\n", path, what);
    return -1;
}

static int pread_all(int fd, void *out, size_t bytes, uint64_t offset)
{
    for (char *at = out; bytes > 0;) {
        ssize_t n = pread(fd, at, bytes, (off_t)offset);
        if (n <= 0)
            return -1;
        at += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

static int read_entry(struct st_tensor *tensor, const char *name, const json_t *entry, uint64_t data_start)
{
    const json_t *shape = json_object_get(entry, "shape"), *range = json_object_get(entry, "data_offsets");
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype || json_array_size(shape) > 4 || json_array_size(range) != 2)
        return -1;
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    snprintf(tensor->dtype, sizeof tensor->dtype, "%s", dtype);
    tensor->dims = (int)json_array_size(shape);
    for (int d = 0; d < tensor->dims; d++)
        tensor->shape[d] = json_integer_value(json_array_get(shape, (size_t)d));
    uint64_t begin = (uint64_t)json_integer_value(json_array_get(range, 0));
    tensor->offset = data_start + begin;
    tensor->bytes = (uint64_t)json_integer_value(json_array_get(range, 1)) - begin;
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static int read_entries(struct st_file *file, const json_t *header, uint64_t data_start)
{
    const char *name;
    json_t *entry;
    file->tensors = calloc(json_object_size(header) + 1, sizeof *file->tensors);
    if (!file->tensors)
        return -1;
    json_object_foreach((json_t *)(uintptr_t)header, name, entry) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (read_entry(&file->tensors[file->count++], name, entry, data_start) != 0)
            return -1;
    }
    qsort(file->tensors, file->count, sizeof *file->tensors, by_offset);
    return 0;
}

int st_open(struct st_file *file, const char *path)
{
    uint64_t len = 0;
    char *text = NULL;
    json_t *header = NULL;
    int rc = -1;
    *file = (struct st_file){.fd = open(path, O_RDONLY | O_CLOEXEC)};
    if (file->fd < 0)
        return complain(path, strerror(errno));
    if (pread_all(file->fd, &len, sizeof len, 0) == 0 && len < (100u << 20) && (text = malloc(len)) &&
        pread_all(file->fd, text, len, sizeof len) == 0 && (header = json_loadb(text, len, 0, NULL)))
        rc = read_entries(file, header, sizeof len + len);
    json_decref(header);
    free(text);
    if (rc != 0) {
        complain(path, "not a safetensors file");
        st_close(file);
    }
    return rc;
}

void st_close(struct st_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    free(file->tensors);
    *file = (struct st_file){.fd = -1};
}

const struct st_tensor *st_find(const struct st_file *file, const char *name)
{
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

int st_read(const struct st_file *file, const struct st_tensor *tensor, uint64_t skip, void *out, size_t bytes)
{
    if (skip > tensor->bytes || bytes > tensor->bytes - skip)
        return complain(tensor->name, "read past its end");
    return pread_all(file->fd, out, bytes, tensor->offset + skip) == 0 ? 0 : complain(tensor->name, "file is cut short");
}

static char *make_header(const struct st_tensor *tensors, size_t count, size_t *len)
{
    json_t *header = json_object();
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const struct st_tensor *t = &tensors[i];
        json_t *shape = json_array();
        for (int d = 0; d < t->dims; d++)
            json_array_append_new(shape, json_integer(t->shape[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->dtype, "shape", shape, "data_offsets",
                                      (json_int_t)at, (json_int_t)(at + t->bytes)));
        at += t->bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    size_t used = text ? strlen(text) : 0, padded = (used + 7) / 8 * 8;
    char *out = text ? malloc(padded) : NULL;
    if (out) {
        memset(out, ' ', padded);
        memcpy(out, text, used);
    }
    free(text);
    *len = padded;
    return out;
}

static int write_tensor(FILE *out, const struct st_tensor *tensor, void *chunk, st_fill fill, void *context)
{
    for (uint64_t done = 0; done < tensor->bytes;) {
        size_t n = tensor->bytes - done < CHUNK ? (size_t)(tensor->bytes - done) : CHUNK;
        if (fill(context, tensor, done, chunk, n) != 0 || fwrite(chunk, 1, n, out) != n)
            return -1;
        done += n;
    }
    return 0;
}

int st_write(const char *path, const struct st_tensor *tensors, size_t count, st_fill fill, void *context)
{
    size_t len;
    char *header = make_header(tensors, count, &len);
    void *chunk = malloc(CHUNK);
    FILE *out = fopen(path, "wb");
    uint64_t len64 = len;
    int rc = !header || !chunk || !out || fwrite(&len64, sizeof len64, 1, out) != 1 || fwrite(header, 1, len, out) != len
                 ? -1 : 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = write_tensor(out, &tensors[i], chunk, fill, context);
    if (out && fclose(out) != 0)
        rc = -1;
    free(chunk);
    free(header);
    return rc == 0 ? 0 : complain(path, "could not be written");
}
