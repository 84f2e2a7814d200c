/* SPDX-License-Identifier: Apache-2.0
 *
 * A small reader and writer of single-file safetensors for the examples. It shares no code with Refit on purpose: what
 * an engine loads "cold" with it is an independent witness for what a refit delivered.
 */
#ifndef EXAMPLES_SAFETENSORS_H
#define EXAMPLES_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

struct st_tensor {
    char name[128];
    char dtype[8];
    int dims;
    int64_t shape[4];
    uint64_t offset; /* of its bytes in the file */
    uint64_t bytes;
};

struct st_file {
    int fd;
    size_t count;
    struct st_tensor *tensors; /* in file order */
};

/* 0, or -1 with a message on standard error. */
int st_open(struct st_file *file, const char *path);
void st_close(struct st_file *file);
const struct st_tensor *st_find(const struct st_file *file, const char *name); /* NULL: not there */
/* `bytes` bytes from `skip` bytes into the tensor; 0 or -1. */
int st_read(const struct st_file *file, const struct st_tensor *tensor, uint64_t skip, void *out, size_t bytes);

/* Fills `bytes` bytes of a tensor, from `skip` on; 0 or -1. */
typedef int (*st_fill)(void *context, const struct st_tensor *tensor, uint64_t skip, void *out, size_t bytes);
/* Writes a file with these tensors (name, dtype, shape, bytes are read); 0 or -1. */
int st_write(const char *path, const struct st_tensor *tensors, size_t count, st_fill fill, void *context);

#endif
