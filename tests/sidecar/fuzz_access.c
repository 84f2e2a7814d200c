/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "sidecar/access.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct refit_access_list *list)
{
    if (list->count == 0 || list->count > REFIT_ACCESS_LIST_MAX)
        abort();
    for (size_t i = 0; i < list->count; i++) {
        const char *name = list->entries[i].name;
        if (!name[0] || name[refit_text_first_control(name)] || list->entries[i].role > REFIT_MAY_ADMIN)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct refit_access_list list;
    struct refit_error err;
    if (refit_access_parse_tokens((const char *)data, size, "tokens", &list, &err) == REFIT_OK)
        check(&list);
    if (refit_access_parse_names((const char *)data, size, "names", &list, &err) == REFIT_OK)
        check(&list);
    return 0;
}
