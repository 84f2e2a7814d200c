/* SPDX-License-Identifier: Apache-2.0
 *
 * Text from outside that is shown to people: in logs, terminals and messages.
 */
#ifndef REFIT_BASE_TEXT_H
#define REFIT_BASE_TEXT_H

#include <stddef.h>

/* The code point of the character at `at`, when it could break a line or steer a terminal: C0, DEL, C1, the separators
 * U+2028 and U+2029, and what changes the direction of writing. Else 0, as for the terminating NUL. *bytes (may be NULL)
 * is that character's length. */
unsigned refit_text_control(const char *at, unsigned *bytes);

/* Where the first such character stands in `text`; its length when it has none. */
size_t refit_text_first_control(const char *text);
/* The length of the UTF-8 character at `at` (RFC 3629: no surrogates, none longer than need be); 0 when there is none. */
unsigned refit_text_utf8_length(const char *at);

#endif
