/* SPDX-License-Identifier: Apache-2.0 */
#include <refit/status.h>

const char *refit_status_name(enum refit_status status)
{
    switch (status) {
    case REFIT_OK: return "ok";
    case REFIT_INVALID: return "invalid";
    case REFIT_MISMATCH: return "mismatch";
    case REFIT_UNSUPPORTED: return "unsupported";
    case REFIT_NOT_FOUND: return "not-found";
    case REFIT_CONFLICT: return "conflict";
    case REFIT_STALE: return "stale";
    case REFIT_BUSY: return "busy";
    case REFIT_TIMEOUT: return "timeout";
    case REFIT_PEER: return "peer";
    case REFIT_CORRUPT: return "corrupt";
    case REFIT_ABORTED: return "aborted";
    case REFIT_NO_MEMORY: return "no-memory";
    case REFIT_SYSTEM: return "system";
    }
    return "unknown";
}

const char *refit_status_action(enum refit_status status)
{
    switch (status) {
    case REFIT_OK:
    case REFIT_ABORTED: return "nothing to do";
    case REFIT_INVALID:
    case REFIT_MISMATCH:
    case REFIT_UNSUPPORTED:
    case REFIT_NOT_FOUND: return "fix the request";
    case REFIT_CONFLICT: return "look at the state it names, then decide";
    case REFIT_STALE: return "ask again for the current version or epoch";
    case REFIT_BUSY: return "retry in a moment";
    case REFIT_TIMEOUT: return "retry the refit";
    case REFIT_PEER:
    case REFIT_CORRUPT: return "drop the peer and retry the refit";
    case REFIT_NO_MEMORY: return "raise the limit";
    case REFIT_SYSTEM: return "stop and look at the host";
    }
    return "stop and look";
}
