/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json_heap.h"

#include <string.h>

/* Of jansson on glibc, 64 bits, measured with some room to spare; each with what malloc adds. */
#define DOCUMENT 1024
#define OBJECT 256 /* with its first eight buckets */
#define ARRAY 160  /* with its first eight places */
#define MEMBER 96  /* its pair and its share of the buckets, beside key and value */
#define ITEM 64    /* a number or a word, and its place */
#define STRING 96  /* beside its bytes */

/* Behind the closing quote, or at the end. */
static const char *skip_string(const char *at, const char *end)
{
    while (at < end && *at != '"')
        at += *at == '\\' && end - at > 1 ? 2 : 1;
    return at < end ? at + 1 : end;
}

uint64_t refit_json_heap(const char *text, size_t len)
{
    const char *end = text + len;
    uint64_t sum = DOCUMENT;
    for (const char *at = text; at < end;) {
        const char *next = *at == '"' ? skip_string(at + 1, end) : at + 1;
        switch (*at) {
        case '"': sum += STRING + (uint64_t)(next - at); break;
        case '{': sum += OBJECT + ITEM; break;
        case '[': sum += ARRAY + ITEM; break;
        case ':': sum += MEMBER; break;
        case ',': sum += ITEM; break;
        default: break;
        }
        at = next;
    }
    return sum;
}
