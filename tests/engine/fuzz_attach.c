/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a message between an engine and refitd: read or refused, and every text ends inside its field.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/attach.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const char *text, size_t len)
{
    if (!memchr(text, '\0', len))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct refit_attach_message m;
    struct refit_error err = {0};
    enum refit_status status = refit_attach_parse(data, size, &m, &err);
    if (status != REFIT_OK) {
        if (err.status != status || !err.text[0])
            abort();
        return 0;
    }
    if (m.type > REFIT_ATTACH_DETACH)
        abort();
    check_text(m.label, sizeof m.label);
    check_text(m.refit, sizeof m.refit);
    check_text(m.kv, sizeof m.kv);
    check_text(m.text, sizeof m.text);
    check_text(m.version.label, sizeof m.version.label);
    check_text(m.version.digest, sizeof m.version.digest);
    return 0;
}
