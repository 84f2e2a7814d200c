/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a request's head: parsed or refused, and what is accepted keeps to its own rules.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sidecar/http_head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct refit_http_head head;
    const char *why = NULL;
    uint64_t number = 0;
    size_t end = refit_http_head_end((const char *)data, size);
    if (end == 0)
        return 0;
    int status = refit_http_head_parse((const char *)data, end, &head, &why);
    if (status != 0) {
        if (status < 400 || status > 599 || !why)
            abort();
        return 0;
    }
    if (head.path[0] != '/' || memchr(data, '\0', end) != NULL || head.content_length > INT64_MAX)
        abort();
    if (refit_http_query_u64(head.query, "after", 1000, &number) && number > 1000)
        abort();
    return 0;
}
