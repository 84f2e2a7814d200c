/* SPDX-License-Identifier: Apache-2.0
 *
 * Text from outside that is shown to people: in logs, terminals and messages.
 */
#ifndef REFIT_BASE_TEXT_H
#define REFIT_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The code point of the character at `at`, when it could break a line or steer a terminal: C0, DEL, C1, the separators
 * U+2028 and U+2029, and what changes the direction of writing. Else 0, as for the terminating NUL. *bytes (may be NULL)
 * is that character's length. */
unsigned refit_text_control(const char *at, unsigned *bytes);

/* Each such character becomes as many blanks as it has bytes. */
void refit_text_blank_controls(char *text);

/* Where the first such character stands in `text`; its length when it has none. */
size_t refit_text_first_control(const char *text);
/* The length of the UTF-8 character at `at` (RFC 3629: no surrogates, none longer than need be); 0 when there is none. */
unsigned refit_text_utf8_length(const char *at);

/* Lower-case hex digits, two for each byte; `out` has room for them and a NUL. */
void refit_text_hex(const void *bytes, size_t count, char *out);
/* Back from exactly 2 * count hex digits of either case; false: something else. */
bool refit_text_unhex(const char *text, void *bytes, size_t count);

/* A duration as people write it: digits and a unit, ms, s, m or h; nothing before, between or after. A number without
 * unit is of `bare_ms`; with 0 it is refused, unless it is 0. Not more than INT64_MAX ms. */
bool refit_text_duration(const char *text, int64_t bare_ms, int64_t *out_ms);

#endif
