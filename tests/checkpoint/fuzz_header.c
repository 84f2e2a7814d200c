/* SPDX-License-Identifier: Apache-2.0
 *
 * A safetensors file as bytes: its length field, its header and, when that is accepted, the layout made of it. A first
 * byte 'i' makes the rest an index instead.
 */
#include <stdint.h>
#include <stdlib.h>

#include "checkpoint/families.h"
#include "checkpoint/header.h"
#include "checkpoint/index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was accepted must be a layout, or be refused with words; its canonical bytes are those of the file. */
static void make_layout(struct refit_table *table, uint64_t data_bytes)
{
    struct refit_error err = {.status = REFIT_OK};
    json_t *document = NULL;
    struct refit_layout *layout = NULL;
    if (refit_table_sort(table, "input", &err) != REFIT_OK || table->count == 0)
        return;
    enum refit_status status = refit_families_layout(table, &document, &err);
    if (status == REFIT_OK)
        status = refit_layout_from_json(document, "input", &layout, &err);
    if (status != REFIT_OK ? err.text[0] == '\0' : refit_layout_model_bytes(layout) != data_bytes)
        abort();
    refit_layout_release(layout);
    json_decref(document);
}

static void try_file(struct refit_table *table, const uint8_t *data, size_t size)
{
    struct refit_error err;
    uint64_t len;
    if (size < 8 || refit_header_length(data, size, "input", &len, &err) != REFIT_OK)
        return;
    if (refit_header_parse(table, (const char *)data + 8, len, size, 0, "input", &err) == REFIT_OK)
        make_layout(table, size - 8 - len);
}

static void try_index(struct refit_table *table, const uint8_t *data, size_t size)
{
    struct refit_error err;
    struct refit_file_names files = {.count = 0};
    enum refit_status status = refit_index_parse(table, &files, (const char *)data, size, "input", &err);
    if (status == REFIT_OK && files.count == 0)
        abort();
    refit_file_names_release(&files);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct refit_table table;
    refit_table_init(&table);
    if (size > 0 && data[0] == 'i')
        try_index(&table, data + 1, size - 1);
    else
        try_file(&table, data, size);
    refit_table_release(&table);
    return 0;
}
