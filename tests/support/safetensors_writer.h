/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes safetensors files for tests: declare tensors, write. Contents are a function of (seed, tensor name, byte), so
 * that a reader can check any byte anywhere without holding a second copy, and files of any size are streamed.
 * Also makes bad files: raw() writes any header over any data.
 */
#ifndef REFIT_TESTS_SUPPORT_SAFETENSORS_WRITER_H
#define REFIT_TESTS_SUPPORT_SAFETENSORS_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "layouts/dtype.h"

struct safetensors_writer {
    uint64_t seed;
    struct refit_buf header; /* JSON so far, without the closing brace */
    struct refit_buf names;  /* NUL-terminated, in order */
    struct refit_buf sizes;  /* uint64_t each */
    uint64_t data_bytes;
    size_t tensors;
};

/* The byte content of tensor `name` from `offset` on. */
void safetensors_content(uint64_t seed, const char *name, uint64_t offset, void *out, size_t len);

void safetensors_begin(struct safetensors_writer *writer, uint64_t seed);
void safetensors_metadata(struct safetensors_writer *writer, const char *key, const char *value);
void safetensors_add(struct safetensors_writer *writer, const char *name, enum refit_dtype dtype, uint32_t dims,
                     const int64_t *shape);
/* Writes the file and releases the writer; false (see errno) when that failed. */
bool safetensors_write(struct safetensors_writer *writer, const char *path);

/* A file of this header text, whatever it says, and `data_bytes` zeros. `length` < 0: that of the header. */
bool safetensors_write_raw(const char *path, const char *header, int64_t length, uint64_t data_bytes);
/* A text file. */
bool safetensors_write_text(const char *path, const char *text);

/* model.safetensors.index.json: names and the file of each. */
struct safetensors_place {
    const char *tensor;
    const char *file;
};
bool safetensors_write_index(const char *path, const struct safetensors_place *places, size_t count);

#endif
