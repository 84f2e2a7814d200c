/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to checkpoint/: the header of a safetensors file, as
 * https://github.com/huggingface/safetensors documents it (README.md, "Format"): 8 bytes length N, little-endian, at
 * most 100,000,000; N bytes of JSON that begin with '{', padded at the end with spaces; then the data. Every
 * tensor has dtype, shape and data_offsets [begin, end) into the data; the ranges cover the data exactly.
 * __metadata__ maps strings to strings.
 */
#ifndef REFIT_CHECKPOINT_HEADER_H
#define REFIT_CHECKPOINT_HEADER_H

#include "checkpoint/table.h"

#define REFIT_SAFETENSORS_HEADER_MAX 100000000u

/* N from the first 8 bytes, checked against the file's size. */
REFIT_MUST_CHECK enum refit_status refit_header_length(const uint8_t prefix[static 8], uint64_t file_bytes,
                                                       const char *path, uint64_t *len, struct refit_error *err);
/* The JSON text of file number `file`, which is `file_bytes` long, into the table: added, or, when the table is closed,
 * found there. Pure: no I/O. */
REFIT_MUST_CHECK enum refit_status refit_header_parse(struct refit_table *table, const char *text, size_t len,
                                                      uint64_t file_bytes, uint32_t file, const char *path,
                                                      struct refit_error *err);

#endif
