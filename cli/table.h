/* SPDX-License-Identifier: Apache-2.0
 *
 * Text in aligned columns on standard output.
 */
#ifndef REFIT_CLI_TABLE_H
#define REFIT_CLI_TABLE_H

#include <stddef.h>
#include <stdint.h>

#define REFIT_CLI_COLUMNS_MAX 10
#define REFIT_CLI_CELL_MAX 96

struct refit_cli_table {
    size_t columns, filled, capacity; /* filled: cells so far */
    char (*cells)[REFIT_CLI_CELL_MAX]; /* owned, row-major */
};

void refit_cli_table_init(struct refit_cli_table *table, size_t columns);
/* The next cell, in row-major order; a text that is too long is cut. Out of memory ends the process. */
__attribute__((format(printf, 2, 3)))
void refit_cli_cell(struct refit_cli_table *table, const char *format, ...);
void refit_cli_table_print(const struct refit_cli_table *table);
void refit_cli_table_release(struct refit_cli_table *table);

/* "90.9 MB"; at least 16 bytes of room; returns `text`. */
char *refit_cli_bytes(uint64_t bytes, char *text, size_t len);

#endif
