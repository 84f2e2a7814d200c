/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as the head of a holder's greeting: read or refused, and what is accepted is in range.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "transport/endpoint.h"
#include "transport/greeting.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t head[REFIT_GREETING_HEAD_BYTES] = {0};
    struct refit_greeting greeting;
    struct refit_error err = {0};
    memcpy(head, data, size < sizeof head ? size : sizeof head);
    if (refit_greeting_decode(head, &greeting, &err) != REFIT_OK) {
        if (!err.text[0])
            abort();
        return 0;
    }
    if (greeting.stream >= greeting.streams || greeting.streams > REFIT_STREAMS_MAX ||
        greeting.edges > REFIT_OFFER_MAX || !memchr(greeting.refit_id, '\0', sizeof greeting.refit_id))
        abort();
    return 0;
}
