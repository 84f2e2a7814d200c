/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/served.h"

#include <string.h>

#include "base/cursor.h"

static void write_tally(struct refit_buf *out, const struct refit_tally *tally)
{
    for (uint32_t i = 0; i < refit_tally_count(tally); i++) {
        struct refit_digest digest = refit_tally_get(tally, i);
        if (digest.d[0] == 0 && digest.d[1] == 0)
            continue;
        refit_buf_append_u32(out, i);
        refit_buf_append_u64(out, digest.d[0]);
        refit_buf_append_u64(out, digest.d[1]);
    }
}

bool refit_served_write(struct refit_buf *out, const struct refit_served *served, const struct refit_tally *tally)
{
    size_t text_len = served->outcome.status == REFIT_OK ? 0 : strlen(served->outcome.text);
    refit_buf_append_u32(out, served->replica);
    refit_buf_append_u64(out, served->attempt);
    refit_buf_append_u32(out, (uint32_t)served->outcome.status);
    refit_buf_append_u32(out, (uint32_t)text_len);
    refit_buf_append(out, served->outcome.text, text_len);
    refit_buf_append_u64(out, served->payload_bytes);
    refit_buf_append_u64(out, served->wire_bytes);
    if (tally)
        write_tally(out, tally);
    return !out->failed;
}

enum refit_status refit_served_read(const void *body, size_t len, struct refit_served *out, const void **tally,
                                    size_t *tally_len, struct refit_error *err)
{
    struct refit_cursor cursor = refit_cursor_over(body, len);
    memset(out, 0, sizeof *out);
    out->replica = refit_cursor_u32(&cursor);
    out->attempt = refit_cursor_u64(&cursor);
    uint32_t status = refit_cursor_u32(&cursor);
    uint32_t text_len = refit_cursor_u32(&cursor);
    const uint8_t *text = refit_cursor_bytes(&cursor, text_len);
    out->payload_bytes = refit_cursor_u64(&cursor);
    out->wire_bytes = refit_cursor_u64(&cursor);
    if (cursor.failed || status > REFIT_SYSTEM || text_len >= sizeof out->outcome.text)
        return refit_fail(err, REFIT_PEER, "its account of what it served is not well formed");
    out->outcome.status = (enum refit_status)status;
    memcpy(out->outcome.text, text, text_len);
    *tally = cursor.at;
    *tally_len = refit_cursor_left(&cursor);
    return REFIT_OK;
}

enum refit_status refit_served_add(const void *tally, size_t len, struct refit_tally *into, struct refit_error *err)
{
    struct refit_cursor cursor = refit_cursor_over(tally, len);
    while (!cursor.failed && refit_cursor_left(&cursor) > 0) {
        uint32_t tensor = refit_cursor_u32(&cursor);
        struct refit_digest part;
        part.d[0] = refit_cursor_u64(&cursor);
        part.d[1] = refit_cursor_u64(&cursor);
        if (cursor.failed || tensor >= refit_tally_count(into))
            return refit_fail(err, REFIT_PEER, "its tally is not one of the replica's layout (%u tensors)",
                              refit_tally_count(into));
        refit_tally_add(into, tensor, part);
    }
    return REFIT_OK;
}
