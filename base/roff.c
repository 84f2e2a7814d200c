/* SPDX-License-Identifier: Apache-2.0 */
#include "base/roff.h"

#include <ctype.h>
#include <stdbool.h>

void refit_roff_text(FILE *out, const char *text)
{
    bool first = true;
    for (; *text; text++) {
        if (first && (*text == '.' || *text == '\''))
            fputs("\\&", out);
        first = *text == '\n';
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else
            fputc(*text, out);
    }
}

void refit_roff_head(FILE *out, const char *name, int section, const char *summary, const char *version)
{
    fprintf(out, ".TH ");
    for (const char *at = name; *at; at++)
        fputc(toupper((unsigned char)*at), out);
    fprintf(out, " %d \"\" \"refit %s\" \"Refit\"\n.SH NAME\n%s \\- ", section, version, name);
    refit_roff_text(out, summary);
    fputc('\n', out);
}

void refit_roff_item(FILE *out, const char *bold, const char *italic, const char *text)
{
    fprintf(out, ".TP\n\\fB");
    refit_roff_text(out, bold);
    fprintf(out, "\\fR");
    if (italic) {
        fprintf(out, " \\fI");
        refit_roff_text(out, italic);
        fprintf(out, "\\fR");
    }
    fputc('\n', out);
    refit_roff_text(out, text);
    fputc('\n', out);
}
