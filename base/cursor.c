/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cursor.h"

#include <string.h>

struct refit_cursor refit_cursor_over(const void *data, size_t len)
{
    const uint8_t *bytes = data;
    return (struct refit_cursor){.at = bytes, .end = len ? bytes + len : bytes};
}

size_t refit_cursor_left(const struct refit_cursor *cursor)
{
    return (size_t)(cursor->end - cursor->at);
}

bool refit_cursor_done(const struct refit_cursor *cursor)
{
    return !cursor->failed && cursor->at == cursor->end;
}

const uint8_t *refit_cursor_bytes(struct refit_cursor *cursor, size_t len)
{
    if (cursor->failed || len > refit_cursor_left(cursor)) {
        cursor->failed = true;
        return NULL;
    }
    const uint8_t *bytes = cursor->at;
    cursor->at += len;
    return bytes;
}

static void take(struct refit_cursor *cursor, void *value, size_t len)
{
    const uint8_t *bytes = refit_cursor_bytes(cursor, len);
    if (bytes)
        memcpy(value, bytes, len);
}

uint8_t refit_cursor_u8(struct refit_cursor *cursor)
{
    uint8_t value = 0;
    take(cursor, &value, sizeof value);
    return value;
}

uint32_t refit_cursor_u32(struct refit_cursor *cursor)
{
    uint32_t value = 0;
    take(cursor, &value, sizeof value);
    return value;
}

uint64_t refit_cursor_u64(struct refit_cursor *cursor)
{
    uint64_t value = 0;
    take(cursor, &value, sizeof value);
    return value;
}
