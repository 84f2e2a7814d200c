/* SPDX-License-Identifier: Apache-2.0 */
#include "layouts/footprint.h"

#include <stdlib.h>
#include <string.h>

#include "layouts/names.h"

#define FOOTPRINTS_MAX (1u << 18) /* of one buffer, or cell of a family */

/* Dimensions in order of their strides, those of extent 1 dropped, those that touch joined. */
static void collapse(struct refit_footprint *print)
{
    uint32_t kept = 0;
    for (uint32_t d = 0; d < print->dims; d++) {
        int64_t extent = print->extent[d], stride = print->stride[d];
        uint32_t at = kept;
        if (extent == 1)
            continue;
        for (; at > 0 && print->stride[at - 1] > stride; at--) {
            print->stride[at] = print->stride[at - 1];
            print->extent[at] = print->extent[at - 1];
        }
        print->stride[at] = stride;
        print->extent[at] = extent;
        kept++;
    }
    print->dims = 0;
    for (uint32_t d = 0; d < kept; d++) {
        uint32_t last = print->dims - 1;
        if (print->dims == 0 && print->stride[d] == (int64_t)print->run_bytes) {
            print->run_bytes *= (uint64_t)print->extent[d];
        } else if (print->dims > 0 && print->stride[d] == print->stride[last] * print->extent[last]) {
            print->extent[last] *= print->extent[d];
        } else {
            print->extent[print->dims] = print->extent[d];
            print->stride[print->dims++] = print->stride[d];
        }
    }
}

/* Its runs come in rising order when the outer dimensions step over all of the inner ones. */
static bool nested(const struct refit_footprint *print)
{
    int64_t reach = (int64_t)print->run_bytes;
    for (uint32_t d = 0; d < print->dims; d++) {
        if (print->stride[d] < reach)
            return false;
        reach += (print->extent[d] - 1) * print->stride[d];
    }
    return true;
}

static enum refit_status append(struct refit_footprints *prints, const struct refit_footprint *print,
                                struct refit_error *err)
{
    if (prints->count >= FOOTPRINTS_MAX)
        return refit_fail(err, REFIT_UNSUPPORTED, "more than %u separate regions in one buffer", FOOTPRINTS_MAX);
    if (!refit_array_reserve(&prints->list, &prints->capacity, prints->count + 1, sizeof *prints->list))
        return refit_fail_alloc(err, "coverage", prints->count * sizeof *prints->list);
    prints->list[prints->count++] = *print;
    return REFIT_OK;
}

/* Strides that interleave with each other (2 and 3, say) are taken apart along the outermost dimension. */
static enum refit_status append_nested(struct refit_footprints *prints, const struct refit_footprint *print,
                                       struct refit_error *err)
{
    struct refit_footprint *todo = malloc(REFIT_DIMS_MAX * sizeof *todo);
    int64_t left[REFIT_DIMS_MAX];
    enum refit_status status = REFIT_OK;
    uint32_t depth = 0;
    if (!todo)
        return refit_fail_alloc(err, "coverage", REFIT_DIMS_MAX * sizeof *todo);
    todo[0] = *print;
    todo[0].dims--;
    left[0] = print->extent[print->dims - 1];
    while (!status) {
        struct refit_footprint *slice = &todo[depth];
        if (left[depth]-- == 0) {
            if (depth-- == 0)
                break;
            slice = &todo[depth];
        } else if (nested(slice)) {
            status = append(prints, slice, err);
        } else {
            todo[depth + 1] = *slice;
            left[depth + 1] = slice->extent[--todo[depth + 1].dims];
            depth++;
            continue;
        }
        slice->offset += (uint64_t)slice->stride[slice->dims];
    }
    free(todo);
    return status;
}

enum refit_status refit_footprints_add(struct refit_footprints *prints, uint64_t offset, uint32_t unit_bytes,
                                       uint32_t dims, const int64_t *extent, const int64_t *stride, uint32_t item,
                                       struct refit_error *err)
{
    struct refit_footprint print = {.offset = offset, .run_bytes = unit_bytes, .dims = dims, .item = item};
    for (uint32_t d = 0; d < dims; d++) {
        print.extent[d] = extent[d];
        print.stride[d] = stride[d];
    }
    collapse(&print);
    return nested(&print) ? append(prints, &print, err) : append_nested(prints, &print, err);
}

/* ---- merging ---- */

static int compare_form(const struct refit_footprint *x, const struct refit_footprint *y)
{
    if (x->dims != y->dims)
        return x->dims < y->dims ? -1 : 1;
    for (uint32_t d = 0; d < x->dims; d++) {
        if (x->extent[d] != y->extent[d])
            return x->extent[d] < y->extent[d] ? -1 : 1;
        if (x->stride[d] != y->stride[d])
            return x->stride[d] < y->stride[d] ? -1 : 1;
    }
    return 0;
}

static int compare_prints(const void *a, const void *b)
{
    const struct refit_footprint *x = a, *y = b;
    int form = compare_form(x, y);
    return form ? form : (x->offset > y->offset) - (x->offset < y->offset);
}

/* Neighbours of one form, each beginning where the one before ends, become one: gate and up rows that interleave,
 * columns side by side. Joined, they may collapse and meet others, so this goes on until nothing changes. */
static void merge(struct refit_footprints *prints)
{
    size_t before;
    do {
        before = prints->count;
        qsort(prints->list, prints->count, sizeof *prints->list, compare_prints);
        size_t kept = 0;
        for (size_t i = 1; i < prints->count; i++) {
            struct refit_footprint *last = &prints->list[kept], *next = &prints->list[i];
            if (last->offset + last->run_bytes == next->offset && compare_form(last, next) == 0 &&
                (last->dims == 0 || last->run_bytes + next->run_bytes <= (uint64_t)last->stride[0]))
                last->run_bytes += next->run_bytes;
            else
                prints->list[++kept] = *next;
        }
        prints->count = kept + 1;
        for (size_t i = 0; i < prints->count; i++)
            collapse(&prints->list[i]);
    } while (prints->count < before);
}

/* ---- the sweep ---- */

/* Walks the runs of one footprint in rising order. */
struct sweep_run {
    const struct refit_footprint *print;
    uint64_t offset;
    int64_t index[REFIT_DIMS_MAX];
};

static bool next_run(struct sweep_run *run)
{
    const struct refit_footprint *print = run->print;
    for (uint32_t d = 0; d < print->dims; d++) {
        run->offset += (uint64_t)print->stride[d];
        if (++run->index[d] < print->extent[d])
            return true;
        run->offset -= (uint64_t)(print->stride[d] * print->extent[d]);
        run->index[d] = 0;
    }
    return false;
}

static void sift_down(struct sweep_run *heap, size_t count, size_t at)
{
    struct sweep_run moved = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1].offset < heap[child].offset)
            child++;
        if (heap[child].offset >= moved.offset)
            break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static void sweep(struct sweep_run *heap, size_t count, uint64_t bytes, struct refit_cover_fault *fault)
{
    uint64_t covered = 0;
    uint32_t before = 0;
    *fault = (struct refit_cover_fault){0};
    for (size_t i = count / 2; i-- > 0;)
        sift_down(heap, count, i);
    while (count > 0) {
        if (heap->offset != covered) {
            *fault = (struct refit_cover_fault){.found = true, .twice = heap->offset < covered, .byte = covered,
                                                .end = heap->offset, .item = heap->print->item, .before = before};
            if (fault->twice)
                fault->byte = heap->offset;
            return;
        }
        covered += heap->print->run_bytes;
        before = heap->print->item;
        if (!next_run(heap))
            *heap = heap[--count];
        sift_down(heap, count, 0);
    }
    if (covered != bytes)
        *fault = (struct refit_cover_fault){.found = true, .byte = covered, .end = bytes, .at_end = true};
}

static enum refit_status sweep_all(const struct refit_footprints *prints, uint64_t bytes,
                                   struct refit_cover_fault *fault, struct refit_error *err)
{
    struct sweep_run *heap = calloc(prints->count + 1, sizeof *heap);
    if (!heap)
        return refit_fail_alloc(err, "coverage", prints->count * sizeof *heap);
    for (size_t i = 0; i < prints->count; i++) {
        heap[i].print = &prints->list[i];
        heap[i].offset = prints->list[i].offset;
    }
    sweep(heap, prints->count, bytes, fault);
    free(heap);
    return REFIT_OK;
}

static bool is_whole(const struct refit_footprints *prints, uint64_t bytes)
{
    return prints->count == 1 && prints->list->dims == 0 && prints->list->offset == 0 &&
           prints->list->run_bytes == bytes;
}

enum refit_status refit_footprints_check(struct refit_footprints *prints, uint64_t bytes,
                                         struct refit_cover_fault *fault, struct refit_error *err)
{
    *fault = (struct refit_cover_fault){0};
    if (is_whole(prints, bytes) || (prints->count == 0 && bytes == 0))
        return REFIT_OK;
    struct refit_footprints merged = {0};
    if (!refit_array_reserve(&merged.list, &merged.capacity, prints->count + 1, sizeof *merged.list))
        return refit_fail_alloc(err, "coverage", prints->count * sizeof *merged.list);
    if (prints->count)
        memcpy(merged.list, prints->list, prints->count * sizeof *merged.list);
    merged.count = prints->count;
    enum refit_status status = REFIT_OK;
    if (merged.count)
        merge(&merged);
    if (!is_whole(&merged, bytes))
        status = sweep_all(&merged, bytes, fault, err);
    free(merged.list);
    /* Once more over what isn't merged, where every run still knows whose it is. */
    return status || !fault->found ? status : sweep_all(prints, bytes, fault, err);
}
