/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "layouts/layout_internal.h"

void refit_mesh_release(struct refit_mesh *mesh)
{
    free(mesh->name);
    for (uint32_t a = 0; a < mesh->axes; a++)
        free(mesh->axis_name[a]);
    free(mesh->ranks);
    free(mesh->cell_of);
    free(mesh->by_rank);
    free(mesh->coords);
}

static enum refit_status parse_axes(struct refit_mesh *mesh, const json_t *json, const char *what,
                                    struct refit_error *err)
{
    const json_t *names = json_object_get(json, "axes");
    size_t count = json_array_size(names);
    if (count < 1 || count > REFIT_AXES_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: \"axes\" must be an array of 1 to %d names, found %zu", what,
                          REFIT_AXES_MAX, count);
    for (size_t a = 0; a < count; a++) {
        const char *name = json_string_value(json_array_get(names, a));
        if (!name || !*name)
            return refit_fail(err, REFIT_INVALID, "%s: \"axes\" must hold names", what);
        for (size_t b = 0; b < a; b++)
            if (strcmp(mesh->axis_name[b], name) == 0)
                return refit_fail(err, REFIT_INVALID, "%s: two axes are named \"%.64s\"", what, name);
        if (!(mesh->axis_name[a] = strdup(name)))
            return refit_fail_alloc(err, "a mesh", strlen(name));
        mesh->axes = (uint32_t)a + 1;
    }
    return REFIT_OK;
}

static enum refit_status parse_sizes(struct refit_mesh *mesh, const json_t *json, const char *what,
                                     struct refit_error *err)
{
    int64_t sizes[REFIT_AXES_MAX] = {0}, cells = 1;
    size_t count = 0;
    enum refit_status status = refit_numbers_member(json, "shape", what, REFIT_AXES_MAX, 1, REFIT_RANKS_MAX, sizes,
                                                    &count, err);
    if (status)
        return status;
    if (count != mesh->axes)
        return refit_fail(err, REFIT_INVALID, "%s: \"shape\" must have one size for each of the %u axes, found %zu",
                          what, mesh->axes, count);
    for (uint32_t a = mesh->axes; a-- > 0;) {
        mesh->size[a] = (uint32_t)sizes[a];
        mesh->step[a] = (uint32_t)cells;
        cells *= sizes[a];
        if (cells > REFIT_RANKS_MAX)
            return refit_fail(err, REFIT_INVALID, "%s: \"shape\" has more than %d cells", what, REFIT_RANKS_MAX);
    }
    mesh->cells = (uint32_t)cells;
    return REFIT_OK;
}

static enum refit_status parse_ranks(struct refit_mesh *mesh, const json_t *json, uint32_t ranks, const char *what,
                                     struct refit_error *err)
{
    const json_t *list = json_object_get(json, "ranks");
    if (list && (!json_is_array(list) || json_array_size(list) != mesh->cells))
        return refit_fail(err, REFIT_INVALID, "%s: \"ranks\" must be an array of %u, the cells of its shape, found %zu",
                          what, mesh->cells, json_array_size(list));
    for (uint32_t cell = 0; cell < mesh->cells; cell++) {
        const json_t *item = json_array_get(list, cell);
        json_int_t rank = list ? json_integer_value(item) : (json_int_t)cell;
        if ((list && !json_is_integer(item)) || rank < 0 || rank >= (json_int_t)ranks)
            return refit_fail(err, REFIT_INVALID, "%s: cell %u has rank %lld; ranks are 0 to %u", what, cell,
                              (long long)rank, ranks - 1);
        if (mesh->cell_of[rank] != UINT32_MAX)
            return refit_fail(err, REFIT_INVALID, "%s: rank %lld stands in it twice", what, (long long)rank);
        mesh->cell_of[rank] = cell;
        mesh->ranks[cell] = (uint32_t)rank;
    }
    return REFIT_OK;
}

static bool in_rank_order(const struct refit_mesh *mesh)
{
    for (uint32_t cell = 1; cell < mesh->cells; cell++)
        if (mesh->ranks[cell] < mesh->ranks[cell - 1])
            return false;
    return true;
}

static bool index_cells(struct refit_mesh *mesh, uint32_t ranks)
{
    for (uint32_t cell = 0; cell < mesh->cells; cell++)
        for (uint32_t a = 0; a < mesh->axes; a++)
            mesh->coords[cell * mesh->axes + a] = cell / mesh->step[a] % mesh->size[a];
    if (in_rank_order(mesh))
        return true;
    if (!(mesh->by_rank = calloc(mesh->cells, sizeof *mesh->by_rank)))
        return false;
    for (uint32_t rank = 0, n = 0; rank < ranks; rank++)
        if (mesh->cell_of[rank] != UINT32_MAX)
            mesh->by_rank[n++] = mesh->cell_of[rank];
    return true;
}

static enum refit_status parse_mesh(struct refit_mesh *mesh, const char *name, const json_t *json, uint32_t ranks,
                                    const char *document, struct refit_error *err)
{
    static const char *const known[] = {"axes", "shape", "ranks", NULL};
    char what[256];
    enum refit_status status;
    snprintf(what, sizeof what, "%.120s: mesh \"%.64s\"", document, name);
    if (!(mesh->name = strdup(name)))
        return refit_fail_alloc(err, "a mesh", strlen(name));
    if ((status = refit_json_known(json, what, known, err)) || (status = parse_axes(mesh, json, what, err)) ||
        (status = parse_sizes(mesh, json, what, err)))
        return status;
    mesh->ranks = calloc(mesh->cells, sizeof *mesh->ranks);
    mesh->coords = calloc((size_t)mesh->cells * mesh->axes, sizeof *mesh->coords);
    mesh->cell_of = malloc(ranks * sizeof *mesh->cell_of);
    if (!mesh->ranks || !mesh->coords || !mesh->cell_of)
        return refit_fail_alloc(err, "a mesh", ranks * sizeof *mesh->cell_of);
    memset(mesh->cell_of, 0xff, ranks * sizeof *mesh->cell_of);
    if ((status = parse_ranks(mesh, json, ranks, what, err)))
        return status;
    return index_cells(mesh, ranks) ? REFIT_OK : refit_fail_alloc(err, "a mesh", mesh->cells * sizeof(uint32_t));
}

enum refit_status refit_meshes_parse(struct refit_layout *layout, const json_t *meshes, const char *what,
                                     struct refit_error *err)
{
    const char *name;
    json_t *json;
    uint64_t cells = 0;
    if (!meshes)
        return REFIT_OK;
    if (!json_is_object(meshes) || json_object_size(meshes) > REFIT_MESHES_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: \"meshes\" must be an object of at most %d meshes", what,
                          REFIT_MESHES_MAX);
    if (!(layout->meshes = calloc(json_object_size(meshes) + 1, sizeof *layout->meshes)))
        return refit_fail_alloc(err, "meshes", json_object_size(meshes) * sizeof *layout->meshes);
    json_object_foreach((json_t *)(uintptr_t)meshes, name, json) {
        struct refit_mesh *mesh = &layout->meshes[layout->mesh_count++];
        enum refit_status status = parse_mesh(mesh, name, json, layout->ranks, what, err);
        if (status)
            return status;
        cells += (uint64_t)mesh->cells + layout->ranks;
        if (cells > REFIT_MESH_CELLS_MAX)
            return refit_fail(err, REFIT_INVALID, "%s: its meshes have more than %u cells", what, REFIT_MESH_CELLS_MAX);
    }
    return REFIT_OK;
}
