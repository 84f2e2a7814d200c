/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "checkpoint/families.h"
#include "checkpoint/header.h"
#include "checkpoint/index.h"

#define INDEX_NAME "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"
#define SUFFIX ".safetensors"

struct refit_checkpoint {
    struct refit_layout *layout;
    struct refit_arena *arena;
};

/* What is needed while a checkpoint is opened. */
struct opening {
    const char *path;
    char *directory; /* owned; "" when path is a file */
    struct refit_file_names files;
    struct refit_table table;
    int *fds;        /* owned, one per file */
};

/* A file's path; truncated ones fail to open. */
static const char *file_path(const struct opening *o, const char *name, char out[static PATH_MAX])
{
    if (*o->directory)
        snprintf(out, PATH_MAX, "%s/%s", o->directory, name);
    else
        snprintf(out, PATH_MAX, "%s", o->path);
    return out;
}

/* ---- which files ---- */

static enum refit_status find_single(struct opening *o, char name[static 256], struct refit_error *err)
{
    DIR *directory = opendir(o->directory);
    size_t found = 0;
    if (!directory)
        return refit_fail_errno(err, errno, "%s: open the directory", o->directory);
    for (const struct dirent *item; (item = readdir(directory));) {
        size_t len = strlen(item->d_name);
        if (len <= strlen(SUFFIX) || strcmp(item->d_name + len - strlen(SUFFIX), SUFFIX) != 0)
            continue;
        snprintf(name, 256, "%s", item->d_name);
        found++;
    }
    closedir(directory);
    if (found == 1)
        return REFIT_OK;
    if (found > 1)
        return refit_fail(err, REFIT_NOT_FOUND, "%s: %zu *" SUFFIX " files and neither " SINGLE_NAME " nor " INDEX_NAME
                          "; name one of them", o->directory, found);
    return refit_fail(err, REFIT_NOT_FOUND, "%s: no " SINGLE_NAME ", no " INDEX_NAME " and no other *" SUFFIX " file",
                      o->directory);
}

static bool is_there(const struct opening *o, const char *name)
{
    char path[PATH_MAX];
    return access(file_path(o, name, path), F_OK) == 0;
}

static enum refit_status read_index(struct opening *o, struct refit_error *err)
{
    char path[PATH_MAX];
    char *text = NULL;
    size_t len;
    file_path(o, INDEX_NAME, path);
    enum refit_status status = refit_io_read_file(path, REFIT_CHECKPOINT_INDEX_MAX, &text, &len, err);
    if (status == REFIT_OK)
        status = refit_index_parse(&o->table, &o->files, text, len, path, err);
    free(text);
    return status;
}

/* A single file goes before an index, as loaders have it. */
static enum refit_status choose_files(struct opening *o, struct refit_error *err)
{
    char name[256] = SINGLE_NAME;
    struct stat st;
    uint32_t number;
    if (stat(o->path, &st) != 0)
        return errno == ENOENT ? refit_fail(err, REFIT_NOT_FOUND, "%s: no such file or directory", o->path)
                               : refit_fail_errno(err, errno, "%s: stat", o->path);
    bool is_directory = S_ISDIR(st.st_mode);
    o->directory = strdup(is_directory ? o->path : "");
    if (!o->directory)
        return refit_fail_alloc(err, o->path, strlen(o->path) + 1);
    if (is_directory && !is_there(o, SINGLE_NAME)) {
        if (is_there(o, INDEX_NAME))
            return read_index(o, err);
        enum refit_status status = find_single(o, name, err);
        if (status != REFIT_OK)
            return status;
    }
    return refit_file_names_intern(&o->files, name, o->path, &number, err);
}

/* ---- headers ---- */

/* O_NONBLOCK: a FIFO of that name must not hang us. Whether it is a link is not looked at. */
static enum refit_status open_file(const char *path, int *fd, uint64_t *bytes, struct refit_error *err)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0)
        return errno == ENOENT ? refit_fail(err, REFIT_NOT_FOUND, "%s: no such file", path)
                               : refit_fail_errno(err, errno, "%s: open", path);
    if (fstat(*fd, &st) != 0)
        return refit_fail_errno(err, errno, "%s: stat", path);
    if (!S_ISREG(st.st_mode))
        return refit_fail(err, REFIT_INVALID, "%s: must be a regular file", path);
    *bytes = (uint64_t)st.st_size;
    if (*bytes < 8)
        return refit_fail(err, REFIT_CORRUPT, "%s: %" PRIu64 " bytes are too few for a safetensors file", path, *bytes);
    return REFIT_OK;
}

static enum refit_status read_header(struct opening *o, uint32_t file, struct refit_error *err)
{
    char path[PATH_MAX];
    uint8_t prefix[8];
    uint64_t bytes = 0, len = 0;
    file_path(o, o->files.items[file], path);
    enum refit_status status = open_file(path, &o->fds[file], &bytes, err);
    if (status == REFIT_OK)
        status = refit_io_pread_full(o->fds[file], prefix, sizeof prefix, 0, path, err);
    if (status == REFIT_OK)
        status = refit_header_length(prefix, bytes, path, &len, err);
    if (status != REFIT_OK)
        return status;
    char *text = malloc(len + 1);
    if (!text)
        return refit_fail_alloc(err, path, len + 1);
    status = refit_io_pread_full(o->fds[file], text, len, sizeof prefix, path, err);
    if (status == REFIT_OK)
        status = refit_header_parse(&o->table, text, len, bytes, file, path, err);
    free(text);
    return status;
}

static enum refit_status read_headers(struct opening *o, struct refit_error *err)
{
    o->fds = malloc(o->files.count * sizeof *o->fds);
    if (!o->fds)
        return refit_fail_alloc(err, o->path, o->files.count * sizeof *o->fds);
    for (size_t i = 0; i < o->files.count; i++)
        o->fds[i] = -1;
    for (size_t i = 0; i < o->files.count; i++) {
        enum refit_status status = read_header(o, (uint32_t)i, err);
        if (status != REFIT_OK)
            return status;
    }
    for (size_t i = 0; i < o->table.count; i++)
        if (!o->table.items[i].seen)
            return refit_fail(err, REFIT_MISMATCH, "%s/%s: tensor %s is not there, though " INDEX_NAME " says so",
                              o->directory, o->files.items[o->table.items[i].file], refit_table_name(&o->table, i));
    if (o->table.count == 0)
        return refit_fail(err, REFIT_INVALID, "%s: holds no tensor", o->path);
    return o->table.closed ? REFIT_OK : refit_table_sort(&o->table, o->path, err);
}

/* ---- layout and arena ---- */

static enum refit_status make_layout(struct opening *o, struct refit_layout **layout, struct refit_error *err)
{
    json_t *document = NULL;
    enum refit_status status = refit_families_layout(&o->table, &document, err);
    if (status == REFIT_OK)
        status = refit_layout_from_json(document, o->path, layout, err);
    json_decref(document);
    return status == REFIT_OK ? refit_table_sort(&o->table, o->path, err) : status;
}

struct binding {
    const struct opening *o;
    struct refit_arena *arena;
    struct refit_error *err;
    enum refit_status status;
};

static bool bind_buffer(void *ctx, const struct refit_buffer *buffer)
{
    struct binding *b = ctx;
    const struct opening *o = b->o;
    char path[PATH_MAX];
    size_t index;
    if (!refit_table_find(&o->table, buffer->name, &index) || o->table.items[index].bytes != buffer->bytes) {
        b->status = refit_fail(b->err, REFIT_MISMATCH, "%s: buffer %s of %" PRIu64 " bytes is no tensor of the files",
                               o->path, buffer->name, buffer->bytes);
        return false;
    }
    const struct refit_entry_record *record = &o->table.items[index];
    b->status = refit_arena_bind_file(b->arena, buffer->offset, o->fds[record->file], record->begin, record->bytes,
                                      file_path(o, o->files.items[record->file], path), b->err);
    return b->status == REFIT_OK;
}

static enum refit_status make_arena(const struct opening *o, struct refit_layout *layout, struct refit_arena **arena,
                                    struct refit_error *err)
{
    enum refit_status status = refit_arena_create(REFIT_ARENA_FILE, refit_layout_arena_bytes(layout, 0), arena, err);
    if (status != REFIT_OK)
        return status;
    struct binding binding = {.o = o, .arena = *arena, .err = err, .status = REFIT_OK};
    refit_layout_buffers(layout, 0, bind_buffer, &binding);
    return binding.status;
}

static void finish(struct opening *o)
{
    for (size_t i = 0; o->fds && i < o->files.count; i++)
        refit_io_close(&o->fds[i]);
    free(o->fds);
    free(o->directory);
    refit_file_names_release(&o->files);
    refit_table_release(&o->table);
}

enum refit_status refit_checkpoint_open(const char *path, struct refit_checkpoint **out, struct refit_error *err)
{
    struct opening o = {.path = path};
    struct refit_checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (!checkpoint)
        return refit_fail_alloc(err, path, sizeof *checkpoint);
    refit_table_init(&o.table);
    enum refit_status status = choose_files(&o, err);
    if (status == REFIT_OK)
        status = read_headers(&o, err);
    if (status == REFIT_OK)
        status = make_layout(&o, &checkpoint->layout, err);
    if (status == REFIT_OK)
        status = make_arena(&o, checkpoint->layout, &checkpoint->arena, err);
    finish(&o);
    if (status != REFIT_OK) {
        refit_checkpoint_close(checkpoint);
        return status;
    }
    *out = checkpoint;
    return REFIT_OK;
}

void refit_checkpoint_close(struct refit_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    refit_layout_release(checkpoint->layout);
    refit_arena_release(checkpoint->arena);
    free(checkpoint);
}

struct refit_layout *refit_checkpoint_layout(const struct refit_checkpoint *checkpoint)
{
    return checkpoint->layout;
}

struct refit_arena *refit_checkpoint_arena(const struct refit_checkpoint *checkpoint)
{
    return checkpoint->arena;
}
