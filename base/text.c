/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static unsigned decode(const unsigned char *at, unsigned *bytes)
{
    *bytes = 1;
    if (at[0] == 0xc2 && (at[1] & 0xc0) == 0x80) {
        *bytes = 2;
        return at[1];
    }
    if (at[0] == 0xe2 && (at[1] & 0xc0) == 0x80 && (at[2] & 0xc0) == 0x80) {
        *bytes = 3;
        return 0x2000u | (at[1] & 0x3fu) << 6 | (at[2] & 0x3fu);
    }
    return at[0] < 0x80 ? at[0] : 0;
}

unsigned refit_text_control(const char *at, unsigned *bytes)
{
    unsigned length, c = decode((const unsigned char *)at, &length);
    if (bytes)
        *bytes = length;
    if (c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069))
        return c;
    return 0;
}

void refit_text_blank_controls(char *text)
{
    for (unsigned bytes; *text; text += bytes)
        if (refit_text_control(text, &bytes))
            memset(text, ' ', bytes);
}

size_t refit_text_first_control(const char *text)
{
    size_t at = 0;
    while (text[at] && !refit_text_control(text + at, NULL))
        at++;
    return at;
}

unsigned refit_text_utf8_length(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    /* The second byte's range depends on the first; what follows is 80..BF. */
    static const struct {
        unsigned char from, to, second_from, second_to, length;
    } forms[] = {
        {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3},
        {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    if (at[0] < 0x80)
        return at[0] ? 1 : 0;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (at[0] < forms[i].from || at[0] > forms[i].to)
            continue;
        if (at[1] < forms[i].second_from || at[1] > forms[i].second_to)
            return 0;
        for (unsigned k = 2; k < forms[i].length; k++)
            if ((at[k] & 0xc0) != 0x80)
                return 0;
        return forms[i].length;
    }
    return 0;
}

void refit_text_hex(const void *bytes, size_t count, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *at = bytes;
    for (size_t i = 0; i < count; i++) {
        *out++ = digits[at[i] >> 4];
        *out++ = digits[at[i] & 15];
    }
    *out = '\0';
}

/* -1: no hex digit. */
static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool refit_text_unhex(const char *text, void *bytes, size_t count)
{
    uint8_t *out = bytes;
    if (strlen(text) != 2 * count)
        return false;
    for (size_t i = 0; i < count; i++) {
        int high = nibble(text[2 * i]), low = nibble(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

bool refit_text_duration(const char *text, int64_t bare_ms, int64_t *out_ms)
{
    static const struct {
        const char *name;
        int64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};
    char *end;
    if (*text < '0' || *text > '9') /* strtoll takes blanks and a sign */
        return false;
    errno = 0;
    int64_t value = strtoll(text, &end, 10);
    if (errno)
        return false;
    if (*end == '\0')
        return (bare_ms > 0 || value == 0) && !__builtin_mul_overflow(value, bare_ms, out_ms);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].name) == 0)
            return !__builtin_mul_overflow(value, units[i].ms, out_ms);
    return false;
}
