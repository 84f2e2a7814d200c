/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void refit_cli_table_init(struct refit_cli_table *table, size_t columns)
{
    *table = (struct refit_cli_table){.columns = columns};
}

void refit_cli_table_release(struct refit_cli_table *table)
{
    free(table->cells);
    *table = (struct refit_cli_table){0};
}

void refit_cli_cell(struct refit_cli_table *table, const char *format, ...)
{
    if (table->filled == table->capacity) {
        table->capacity = table->capacity ? 2 * table->capacity : 64;
        table->cells = realloc(table->cells, table->capacity * sizeof *table->cells);
        if (!table->cells) {
            perror("refit");
            exit(1);
        }
    }
    va_list args;
    va_start(args, format);
    vsnprintf(table->cells[table->filled++], sizeof *table->cells, format, args);
    va_end(args);
}

void refit_cli_table_print(const struct refit_cli_table *table)
{
    size_t width[REFIT_CLI_COLUMNS_MAX] = {0};
    for (size_t i = 0; i < table->filled; i++) {
        size_t len = strlen(table->cells[i]), column = i % table->columns;
        width[column] = len > width[column] ? len : width[column];
    }
    for (size_t i = 0; i < table->filled; i++) {
        size_t column = i % table->columns;
        if (column + 1 < table->columns)
            printf("%-*s  ", (int)width[column], table->cells[i]);
        else
            printf("%s\n", table->cells[i]);
    }
}

char *refit_cli_bytes(uint64_t bytes, char *text, size_t len)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 999.95 && unit + 1 < sizeof units / sizeof *units; unit++)
        value /= 1000;
    snprintf(text, len, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}
