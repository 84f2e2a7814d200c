/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <stddef.h>

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

size_t refit_text_first_control(const char *text)
{
    size_t at = 0;
    while (text[at] && !refit_text_control(text + at, NULL))
        at++;
    return at;
}
