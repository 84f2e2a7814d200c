/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void refit_buf_init(struct refit_buf *buf, size_t max_bytes)
{
    *buf = (struct refit_buf){.max_bytes = max_bytes};
}

void refit_buf_release(struct refit_buf *buf)
{
    free(buf->data);
    *buf = (struct refit_buf){.max_bytes = buf->max_bytes};
}

void refit_buf_clear(struct refit_buf *buf)
{
    buf->len = 0;
    buf->failed = false;
}

static bool grow(struct refit_buf *buf, size_t need)
{
    size_t capacity = buf->capacity ? buf->capacity : 256;
    while (capacity < need)
        capacity = capacity > buf->max_bytes / 2 ? buf->max_bytes : capacity * 2;
    uint8_t *data = realloc(buf->data, capacity);
    if (!data)
        return false;
    buf->data = data;
    buf->capacity = capacity;
    return true;
}

void *refit_buf_reserve(struct refit_buf *buf, size_t len)
{
    if (buf->failed || len > buf->max_bytes - buf->len ||
        (buf->len + len > buf->capacity && !grow(buf, buf->len + len))) {
        buf->failed = true;
        return NULL;
    }
    return buf->data + buf->len;
}

bool refit_buf_append(struct refit_buf *buf, const void *data, size_t len)
{
    if (len == 0)
        return !buf->failed;
    void *room = refit_buf_reserve(buf, len);
    if (!room)
        return false;
    memcpy(room, data, len);
    buf->len += len;
    return true;
}

bool refit_buf_append_u8(struct refit_buf *buf, uint8_t value)
{
    return refit_buf_append(buf, &value, 1);
}

bool refit_buf_append_u32(struct refit_buf *buf, uint32_t value)
{
    return refit_buf_append(buf, &value, sizeof value);
}

bool refit_buf_append_u64(struct refit_buf *buf, uint64_t value)
{
    return refit_buf_append(buf, &value, sizeof value);
}

bool refit_buf_printf(struct refit_buf *buf, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    /* vsnprintf writes a NUL that the buffer does not count. */
    void *room = n < 0 ? NULL : refit_buf_reserve(buf, (size_t)n + 1);
    if (room) {
        vsnprintf(room, (size_t)n + 1, format, again);
        buf->len += (size_t)n;
    }
    va_end(again);
    return room != NULL;
}
