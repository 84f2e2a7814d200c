/* SPDX-License-Identifier: Apache-2.0
 *
 * A growable byte buffer that is born with a ceiling: appending past it fails instead of growing without end.
 * Errors stick: after one failed append all later ones fail too, so a writer checks once at the end.
 */
#ifndef REFIT_BASE_BUF_H
#define REFIT_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct refit_buf {
    uint8_t *data; /* owned; NULL while empty */
    size_t len;
    size_t capacity;
    size_t max_bytes;
    bool failed;
};

void refit_buf_init(struct refit_buf *buf, size_t max_bytes);
void refit_buf_release(struct refit_buf *buf);
void refit_buf_clear(struct refit_buf *buf); /* keeps the memory */

/* Room for `len` more bytes at the end; NULL when the ceiling or memory forbids. Does not change len. */
void *refit_buf_reserve(struct refit_buf *buf, size_t len);
bool refit_buf_append(struct refit_buf *buf, const void *data, size_t len);
bool refit_buf_append_u8(struct refit_buf *buf, uint8_t value);
bool refit_buf_append_u32(struct refit_buf *buf, uint32_t value); /* little-endian */
bool refit_buf_append_u64(struct refit_buf *buf, uint64_t value);
__attribute__((format(printf, 2, 3)))
bool refit_buf_printf(struct refit_buf *buf, const char *format, ...);

#endif
