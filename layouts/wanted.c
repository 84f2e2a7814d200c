/* SPDX-License-Identifier: Apache-2.0 */
#include "layouts/wanted.h"

#include <stdlib.h>
#include <string.h>

struct prefix {
    const char *text;
    size_t len; /* without the '*' */
};

static bool has_prefix(const char *name, const struct prefix *prefixes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strncmp(name, prefixes[i].text, prefixes[i].len) == 0)
            return true;
    return false;
}

static enum refit_status read_names(const struct refit_layout *destination, const json_t *names, uint8_t *mask,
                                    struct prefix *prefixes, size_t *count, struct refit_error *err)
{
    size_t i;
    json_t *item;
    *count = 0;
    json_array_foreach(names, i, item)
    {
        const char *name = json_string_value(item);
        size_t len = name ? strlen(name) : 0;
        uint32_t id;
        if (len == 0 || len >= REFIT_NAME_MAX)
            return refit_fail(err, REFIT_INVALID, "unchanged: entry %zu must be a tensor's name of 1 to %d bytes", i,
                              REFIT_NAME_MAX - 1);
        if (name[len - 1] == '*' && *count == REFIT_UNCHANGED_PREFIXES_MAX)
            return refit_fail(err, REFIT_INVALID, "unchanged: more than %d entries end with '*'",
                              REFIT_UNCHANGED_PREFIXES_MAX);
        if (name[len - 1] == '*')
            prefixes[(*count)++] = (struct prefix){name, len - 1};
        else if (refit_layout_find(destination, name, &id))
            mask[id] = 0;
    }
    return REFIT_OK;
}

enum refit_status refit_wanted_without(const struct refit_layout *destination, const json_t *names, uint8_t **out,
                                       struct refit_error *err)
{
    uint32_t tensors = refit_layout_tensor_count(destination);
    struct prefix *prefixes = calloc(REFIT_UNCHANGED_PREFIXES_MAX, sizeof *prefixes);
    uint8_t *mask = malloc((size_t)tensors + 1);
    size_t count = 0;
    enum refit_status status = REFIT_OK;
    if (!json_is_array(names) || json_array_size(names) > REFIT_UNCHANGED_NAMES_MAX)
        status = refit_fail(err, REFIT_INVALID, "unchanged: expected an array of at most %d names",
                            REFIT_UNCHANGED_NAMES_MAX);
    else if (!prefixes || !mask)
        status = refit_fail_alloc(err, "the mask of unchanged tensors", tensors);
    if (status == REFIT_OK) {
        memset(mask, 1, (size_t)tensors + 1);
        status = read_names(destination, names, mask, prefixes, &count, err);
    }
    for (uint32_t id = 0; id < tensors && status == REFIT_OK && count > 0; id++) {
        struct refit_tensor tensor;
        refit_layout_tensor(destination, id, &tensor);
        if (has_prefix(tensor.name, prefixes, count))
            mask[id] = 0;
    }
    free(prefixes);
    if (status == REFIT_OK)
        *out = mask;
    else
        free(mask);
    return status;
}
