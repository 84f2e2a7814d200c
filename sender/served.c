/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/served.h"

#include <string.h>

#include "base/cursor.h"

static bool is_zero(struct refit_digest digest)
{
    return digest.d[0] == 0 && digest.d[1] == 0;
}

static void write_tally(struct refit_buf *out, const struct refit_tally *tally)
{
    uint32_t count = 0;
    for (uint32_t i = 0; tally && i < refit_tally_count(tally); i++)
        count += !is_zero(refit_tally_get(tally, i));
    refit_buf_append_u32(out, count);
    for (uint32_t i = 0; count && i < refit_tally_count(tally); i++) {
        struct refit_digest digest = refit_tally_get(tally, i);
        if (is_zero(digest))
            continue;
        refit_buf_append_u32(out, i);
        refit_buf_append_u64(out, digest.d[0]);
        refit_buf_append_u64(out, digest.d[1]);
    }
}

bool refit_served_write(struct refit_buf *out, const struct refit_served *served, const struct refit_tally *tally,
                        const struct refit_tally *again)
{
    size_t text_len = served->outcome.status == REFIT_OK ? 0 : strlen(served->outcome.text);
    refit_buf_append_u32(out, served->replica);
    refit_buf_append_u64(out, served->attempt);
    refit_buf_append_u32(out, (uint32_t)served->outcome.status);
    refit_buf_append_u32(out, (uint32_t)text_len);
    refit_buf_append(out, served->outcome.text, text_len);
    refit_buf_append_u64(out, served->payload_bytes);
    refit_buf_append_u64(out, served->wire_bytes);
    write_tally(out, tally);
    write_tally(out, again);
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

static void add_tally(struct refit_cursor *cursor, struct refit_tally *into)
{
    uint32_t count = refit_cursor_u32(cursor);
    for (uint32_t i = 0; i < count && !cursor->failed; i++) {
        uint32_t tensor = refit_cursor_u32(cursor);
        struct refit_digest part;
        part.d[0] = refit_cursor_u64(cursor);
        part.d[1] = refit_cursor_u64(cursor);
        if (tensor >= refit_tally_count(into))
            cursor->failed = true;
        else if (!cursor->failed)
            refit_tally_add(into, tensor, part);
    }
}

enum refit_status refit_served_add(const void *tallies, size_t len, struct refit_tally *tally,
                                   struct refit_tally *again, struct refit_error *err)
{
    struct refit_cursor cursor = refit_cursor_over(tallies, len);
    add_tally(&cursor, tally);
    add_tally(&cursor, again);
    if (!refit_cursor_done(&cursor))
        return refit_fail(err, REFIT_PEER, "its tallies are not of the replica's layout (%u tensors)",
                          refit_tally_count(tally));
    return REFIT_OK;
}
