/* SPDX-License-Identifier: Apache-2.0
 *
 * Manual pages (man(7)), written by the programs that they are about, from the tables of their help.
 */
#ifndef REFIT_BASE_ROFF_H
#define REFIT_BASE_ROFF_H

#include <stdio.h>

/* Any text, so that roff shows it as it is: dashes as they are typed, and no line is a command. */
void refit_roff_text(FILE *out, const char *text);
/* The page's head: name ("refitd"), section, one line on what it is, and the version of the software. */
void refit_roff_head(FILE *out, const char *name, int section, const char *summary, const char *version);
/* An entry of a list: what is in bold, then (may be NULL) in italics, then the text, which may have been begun only. */
void refit_roff_item(FILE *out, const char *bold, const char *italic, const char *text);

#endif
