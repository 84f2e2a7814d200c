/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/safetensors_writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX (64u << 20)

static uint64_t splitmix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* FNV-1a. */
static uint64_t hash_name(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
    return hash;
}

void safetensors_content(uint64_t seed, const char *name, uint64_t offset, void *out, size_t len)
{
    uint64_t base = splitmix64(seed) ^ hash_name(name);
    uint8_t *at = out;
    while (len > 0) {
        uint64_t word = splitmix64(base + offset / 8);
        size_t skip = (size_t)(offset % 8);
        size_t part = len < 8 - skip ? len : 8 - skip;
        memcpy(at, (const uint8_t *)&word + skip, part);
        at += part;
        offset += part;
        len -= part;
    }
}

void safetensors_begin(struct safetensors_writer *writer, uint64_t seed)
{
    *writer = (struct safetensors_writer){.seed = seed};
    refit_buf_init(&writer->header, TEXT_MAX);
    refit_buf_init(&writer->names, TEXT_MAX);
    refit_buf_init(&writer->sizes, TEXT_MAX);
    refit_buf_append(&writer->header, "{", 1);
}

static const char *comma(const struct safetensors_writer *writer)
{
    return writer->header.len > 1 ? "," : "";
}

void safetensors_metadata(struct safetensors_writer *writer, const char *key, const char *value)
{
    refit_buf_printf(&writer->header, "%s\"__metadata__\":{\"%s\":\"%s\"}", comma(writer), key, value);
}

void safetensors_add(struct safetensors_writer *writer, const char *name, enum refit_dtype dtype, uint32_t dims,
                     const int64_t *shape)
{
    uint64_t bits = refit_dtype_bits(dtype);
    refit_buf_printf(&writer->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", comma(writer), name,
                     refit_dtype_name(dtype));
    for (uint32_t d = 0; d < dims; d++) {
        bits *= (uint64_t)shape[d];
        refit_buf_printf(&writer->header, "%s%" PRId64, d > 0 ? "," : "", shape[d]);
    }
    uint64_t bytes = bits / 8;
    refit_buf_printf(&writer->header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", writer->data_bytes,
                     writer->data_bytes + bytes);
    refit_buf_append(&writer->names, name, strlen(name) + 1);
    refit_buf_append_u64(&writer->sizes, bytes);
    writer->data_bytes += bytes;
    writer->tensors++;
}

static bool write_contents(FILE *file, const struct safetensors_writer *writer)
{
    uint8_t chunk[4096];
    const char *name = (const char *)writer->names.data;
    for (size_t i = 0; i < writer->tensors; i++, name += strlen(name) + 1) {
        uint64_t bytes;
        memcpy(&bytes, writer->sizes.data + 8 * i, sizeof bytes);
        for (uint64_t done = 0, part; done < bytes; done += part) {
            part = bytes - done < sizeof chunk ? bytes - done : sizeof chunk;
            safetensors_content(writer->seed, name, done, chunk, (size_t)part);
            if (fwrite(chunk, 1, (size_t)part, file) != part)
                return false;
        }
    }
    return true;
}

static bool write_header(FILE *file, const void *text, uint64_t len, uint64_t length)
{
    return fwrite(&length, sizeof length, 1, file) == 1 && (len == 0 || fwrite(text, (size_t)len, 1, file) == 1);
}

bool safetensors_write(struct safetensors_writer *writer, const char *path)
{
    refit_buf_append(&writer->header, "}", 1);
    while (writer->header.len % 8 != 0 && refit_buf_append(&writer->header, " ", 1))
        continue;
    FILE *file = writer->header.failed || writer->names.failed || writer->sizes.failed ? NULL : fopen(path, "wb");
    bool done = file && write_header(file, writer->header.data, writer->header.len, writer->header.len) &&
                write_contents(file, writer);
    if (file && fclose(file) != 0)
        done = false;
    refit_buf_release(&writer->header);
    refit_buf_release(&writer->names);
    refit_buf_release(&writer->sizes);
    return done;
}

bool safetensors_write_raw(const char *path, const char *header, int64_t length, uint64_t data_bytes)
{
    uint64_t len = strlen(header);
    FILE *file = fopen(path, "wb");
    bool done = file && write_header(file, header, len, length < 0 ? len : (uint64_t)length);
    for (uint64_t i = 0; done && i < data_bytes; i++)
        done = fputc(0, file) == 0;
    if (file && fclose(file) != 0)
        done = false;
    return done;
}

bool safetensors_write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    bool done = file && fputs(text, file) >= 0;
    if (file && fclose(file) != 0)
        done = false;
    return done;
}

bool safetensors_write_index(const char *path, const struct safetensors_place *places, size_t count)
{
    struct refit_buf text;
    refit_buf_init(&text, TEXT_MAX);
    refit_buf_printf(&text, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    for (size_t i = 0; i < count; i++)
        refit_buf_printf(&text, "%s\"%s\":\"%s\"", i > 0 ? "," : "", places[i].tensor, places[i].file);
    refit_buf_printf(&text, "}}\n");
    bool done = refit_buf_append_u8(&text, 0) && safetensors_write_text(path, (const char *)text.data);
    refit_buf_release(&text);
    return done;
}
