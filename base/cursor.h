/* SPDX-License-Identifier: Apache-2.0
 *
 * The one way bytes from outside are read: a cursor that can't run past its end. A short read sets `failed`,
 * returns zeros from then on, and is checked once after the last field.
 * Everything on a wire is little-endian, as are all hosts Refit runs on (checked below).
 */
#ifndef REFIT_BASE_CURSOR_H
#define REFIT_BASE_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "Refit's wire and digest are little-endian");

struct refit_cursor {
    const uint8_t *at;
    const uint8_t *end;
    bool failed;
};

struct refit_cursor refit_cursor_over(const void *data, size_t len);
uint8_t refit_cursor_u8(struct refit_cursor *cursor);
uint32_t refit_cursor_u32(struct refit_cursor *cursor);
uint64_t refit_cursor_u64(struct refit_cursor *cursor);
/* Borrowed bytes, or NULL (and failed) when fewer than `len` are left. */
const uint8_t *refit_cursor_bytes(struct refit_cursor *cursor, size_t len);
size_t refit_cursor_left(const struct refit_cursor *cursor);
/* Nothing failed and nothing is left over. */
bool refit_cursor_done(const struct refit_cursor *cursor);

#endif
