/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/frame.h"

#include <string.h>
#include <sys/socket.h>

void refit_digests_encode(const struct refit_segments *segments, size_t first, size_t count, uint8_t *out)
{
    for (size_t i = 0; i < count; i++)
        memcpy(out + i * REFIT_DIGEST_BYTES, segments->items[first + i].digest.d, REFIT_DIGEST_BYTES);
}

bool refit_digests_match(const struct refit_segments *segments, size_t first, size_t count, const uint8_t *in)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp(in + i * REFIT_DIGEST_BYTES, segments->items[first + i].digest.d, REFIT_DIGEST_BYTES) != 0)
            return false;
    return true;
}

enum refit_status refit_refusal_status(uint32_t code)
{
    switch (code) {
    case REFIT_INVALID:
    case REFIT_MISMATCH:
    case REFIT_UNSUPPORTED:
    case REFIT_NOT_FOUND:
    case REFIT_BUSY:
    case REFIT_ABORTED:
    case REFIT_NO_MEMORY: return (enum refit_status)code;
    default: return REFIT_PEER;
    }
}

bool refit_frame_post(int fd, const struct refit_frame *frame)
{
    return send(fd, frame, sizeof *frame, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof *frame;
}
