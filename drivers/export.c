/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/export.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "drivers/tensors.h"
#include "layouts/dense.h"
#include "layouts/plan.h"
#include "memory/ops.h"

#define FILE_NAME "model.safetensors"
#define PREFIX "refit-"
#define TMPFS 0x01021994 /* as linux/magic.h has it */

/* --- the directory ------------------------------------------------------------------------------------------------ */

static void remove_named(int directory, const char *name)
{
    int fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    unlinkat(fd, FILE_NAME, 0);
    refit_io_close(&fd);
    unlinkat(directory, name, AT_REMOVEDIR);
}

static void remove_leftovers(int directory)
{
    int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
    if (!list) {
        refit_io_close(&fd);
        return;
    }
    for (const struct dirent *item; (item = readdir(list));)
        if (strncmp(item->d_name, PREFIX, strlen(PREFIX)) == 0)
            remove_named(directory, item->d_name);
    closedir(list);
}

enum refit_status refit_export_open(const char *directory, int *fd, struct refit_error *err)
{
    struct statfs fs;
    if (directory[0] != '/')
        return refit_fail(err, REFIT_INVALID,
                          "directory for the engine's weights: expected an absolute path, which the "
                          "engine sees under the same name, found \"%s\"", directory);
    if (mkdir(directory, 0755) != 0 && errno != EEXIST)
        return refit_fail_errno(err, errno, "%s: make the directory for the engine's weights", directory);
    *fd = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0)
        return refit_fail_errno(err, errno, "%s: open the directory for the engine's weights", directory);
    if (fstatfs(*fd, &fs) == 0 && fs.f_type != TMPFS)
        refit_log_event(REFIT_LOG_WARN, "the engine's weights go through a directory that is not in memory",
                        refit_log_text("path", directory));
    remove_leftovers(*fd);
    return REFIT_OK;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

struct writing {
    const struct refit_bank_copy *copy;
    struct refit_tensors tensors;
    struct refit_buf header;
    struct refit_layout *dense; /* of the file */
    struct refit_plan *from, *to;
    struct refit_arena *arena;  /* the file's data, mapped */
    struct refit_tally *tally;
    struct refit_segments segments;
    int fd;
    uint8_t *map;
    uint64_t bytes;             /* of the file */
};

static enum refit_status describe(struct writing *w, struct refit_error *err)
{
    struct refit_plan_scope scope = {.side = REFIT_SOURCE, .rank = REFIT_ALL_RANKS};
    enum refit_status status = refit_tensors_order(w->copy->layout, &w->tensors, err);
    if (status == REFIT_OK)
        status = refit_tensors_header(&w->tensors, &w->header, err);
    if (status == REFIT_OK)
        status = refit_layout_dense(w->copy->layout, &w->dense, err);
    if (status == REFIT_OK)
        status = refit_plan_build(w->copy->layout, w->dense, scope, &w->from, err);
    scope.side = REFIT_DESTINATION;
    if (status == REFIT_OK)
        status = refit_plan_build(w->copy->layout, w->dense, scope, &w->to, err);
    if (status == REFIT_OK && __builtin_add_overflow(w->tensors.bytes, w->header.len, &w->bytes))
        status = refit_fail(err, REFIT_INVALID, "the model's size passes 2^64 bytes");
    w->tally = status == REFIT_OK ? refit_tally_create(refit_layout_tensor_count(w->dense)) : NULL;
    if (status == REFIT_OK && !w->tally)
        status = refit_fail_alloc(err, "the digests of what the engine gets", w->tensors.count);
    return status;
}

/* Past the cgroup's limit there is a kill and no error, and past the file system's a SIGBUS: both are asked first. */
static enum refit_status reserve(const struct writing *w, const char *path, struct refit_error *err)
{
    const char *limit = NULL;
    uint64_t left = refit_memory_available(&limit);
    if (left < w->bytes)
        return refit_fail(err, REFIT_NO_MEMORY,
                          "%s: the engine's copy needs %" PRIu64 " bytes beside the slots, %" PRIu64
                          " are left under %s; raise the limit", path, w->bytes, left,
                          limit ? limit : "the memory limit");
    int errnum = posix_fallocate(w->fd, 0, (off_t)w->bytes);
    return errnum == 0 ? REFIT_OK : refit_fail_errno(err, errnum, "%s: room for %" PRIu64 " bytes", path, w->bytes);
}

/* Whoever shares the directory can't make us write anywhere else: the names are new ones, and no link is followed. */
static enum refit_status make_file(struct writing *w, struct refit_export *export, struct refit_error *err)
{
    if (mkdirat(export->directory, export->name, 0755) != 0)
        return refit_fail_errno(err, errno, "%s: make the directory", export->path);
    int inner = openat(export->directory, export->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (inner < 0)
        return refit_fail_errno(err, errno, "%s: open the directory", export->path);
    fchmod(inner, 0755);
    w->fd = openat(inner, FILE_NAME, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int errnum = errno;
    refit_io_close(&inner);
    if (w->fd < 0)
        return refit_fail_errno(err, errnum, "%s/" FILE_NAME ": create", export->path);
    enum refit_status status = reserve(w, export->path, err);
    if (status != REFIT_OK)
        return status;
    w->map = mmap(NULL, w->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, w->fd, 0);
    if (w->map == MAP_FAILED) {
        w->map = NULL;
        return refit_fail_errno(err, errno, "%s/" FILE_NAME ": map", export->path);
    }
    memcpy(w->map, w->header.data, w->header.len);
    return REFIT_OK;
}

static enum refit_status bind(struct writing *w, struct refit_error *err)
{
    enum refit_status status = refit_arena_create(REFIT_ARENA_HOST, refit_layout_arena_bytes(w->dense, 0), &w->arena,
                                                  err);
    for (uint32_t i = 0; i < w->tensors.count && status == REFIT_OK; i++) {
        const struct refit_tensor_place *place = &w->tensors.items[i];
        struct refit_tensor tensor;
        struct refit_buffer buffer;
        refit_layout_tensor(w->tensors.layout, place->id, &tensor);
        if (!refit_layout_buffer_find(w->dense, 0, tensor.name, &buffer) || buffer.bytes != place->bytes)
            return refit_fail(err, REFIT_MISMATCH, "tensor %s has no dense form", tensor.name);
        if (place->bytes > 0)
            status = refit_arena_bind_host(w->arena, buffer.offset, w->map + w->header.len + place->begin, place->bytes,
                                           -1, 0, err);
    }
    return status;
}

static enum refit_status copy_batch(struct writing *w, const struct refit_edge *edge, uint32_t number,
                                    struct refit_error *err)
{
    struct refit_completion completion = {.status = REFIT_OK};
    const struct refit_edge *there = refit_plan_edge(w->from, edge->digest);
    uint32_t rank = refit_plan_group(w->from, REFIT_SOURCE, there->source_group).ranks[0];
    enum refit_status status =
        refit_memory_copy(w->arena, refit_walk_batch(w->to, edge, number, 0), w->copy->arenas[rank],
                          refit_walk_batch(w->from, there, number, rank), &w->segments, &completion, err);
    status = refit_completion_end(&completion, status, refit_deadline_in_ms(60000), err);
    if (status == REFIT_OK)
        refit_segments_tally(&w->segments, w->tally);
    return status;
}

static enum refit_status copy_all(struct writing *w, struct refit_deadline deadline, const atomic_bool *cancel,
                                  struct refit_error *err)
{
    size_t count = 0;
    enum refit_status status = REFIT_OK;
    const struct refit_edge *edges = refit_plan_edges(w->to, &count);
    for (size_t i = 0; i < count; i++) {
        for (uint32_t number = 0; number < edges[i].batches && status == REFIT_OK; number++) {
            if (cancel && atomic_load_explicit(cancel, memory_order_relaxed))
                return refit_fail(err, REFIT_ABORTED, "writing the engine's copy: called off");
            if (refit_deadline_passed(deadline))
                return refit_fail(err, REFIT_TIMEOUT, "writing the engine's copy: deadline passed");
            status = copy_batch(w, &edges[i], number, err);
        }
    }
    return status;
}

static enum refit_status check_digest(const struct writing *w, struct refit_error *err)
{
    char digest[REFIT_SHA256_HEX_MAX];
    const struct refit_version *version = &w->copy->version;
    enum refit_status status = refit_model_digest(w->dense, w->tally, "exact", digest, err);
    if (status == REFIT_OK && version->digest[0] && strcmp(digest, version->digest) != 0)
        return refit_fail(err, REFIT_CORRUPT,
                          "version %" PRIu64 ": its slot has model digest %s, expected %s; it is not given "
                          "to the engine", version->version, digest, version->digest);
    return status;
}

static enum refit_status write_all(struct writing *w, struct refit_export *export, struct refit_deadline deadline,
                                   const atomic_bool *cancel, struct refit_error *err)
{
    enum refit_status status = describe(w, err);
    if (status == REFIT_OK)
        status = make_file(w, export, err);
    if (status == REFIT_OK)
        status = bind(w, err);
    if (status == REFIT_OK)
        status = copy_all(w, deadline, cancel, err);
    if (status == REFIT_OK)
        status = check_digest(w, err);
    if (status == REFIT_OK && fchmod(w->fd, 0444) != 0)
        status = refit_fail_errno(err, errno, "%s: let the engine read it", export->path);
    return status;
}

static void finish(struct writing *w)
{
    refit_arena_release(w->arena);
    if (w->map)
        munmap(w->map, w->bytes);
    refit_io_close(&w->fd);
    refit_segments_release(&w->segments);
    refit_tally_destroy(w->tally);
    refit_plan_release(w->from);
    refit_plan_release(w->to);
    refit_layout_release(w->dense);
    refit_buf_release(&w->header);
    refit_tensors_release(&w->tensors);
}

enum refit_status refit_export_write(struct refit_export *export, int directory, const char *path,
                                     const struct refit_bank_copy *copy, struct refit_deadline deadline,
                                     const atomic_bool *cancel, struct refit_error *err)
{
    struct writing w = {.copy = copy, .fd = -1};
    uint64_t random;
    refit_io_random(&random, sizeof random);
    *export = (struct refit_export){.there = true, .version = copy->version, .directory = directory};
    /* A name that was never used: loaders are known to remember what they read under a path. */
    snprintf(export->name, sizeof export->name, PREFIX "%" PRIu64 "-%016" PRIx64, copy->version.version, random);
    if (snprintf(export->path, sizeof export->path, "%s/%s", path, export->name) >= (int)sizeof export->path) {
        export->there = false;
        return refit_fail(err, REFIT_INVALID, "%.80s...: the path is too long", path);
    }
    refit_segments_init(&w.segments, true);
    enum refit_status status = write_all(&w, export, deadline, cancel, err);
    finish(&w);
    if (status != REFIT_OK)
        refit_export_remove(export);
    return status;
}

void refit_export_remove(struct refit_export *export)
{
    if (export->there)
        remove_named(export->directory, export->name);
    export->there = false;
}
