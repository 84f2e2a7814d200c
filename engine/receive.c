/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes that come into slots by NCCL in this process (refitd --receive in-engine). Threads of the library do that, on
 * streams of the least priority; the application's context, device and threads are left as they are.
 */
#include <stdio.h>

#include "base/io.h"
#include "base/log.h"
#include "engine/engine_internal.h"
#include "transport/nccl.h"
#include "transport/remote.h"

void refit_engine_able(const struct refit_engine *engine, struct refit_attach_message *out)
{
    struct refit_error err = {.status = REFIT_OK};
    int version = 0;
    enum refit_status status =
        engine->ordinal >= 0 ? refit_nccl_probe(&err)
                             : refit_fail(&err, REFIT_UNSUPPORTED, "its slots are in host memory");
    if (status == REFIT_OK)
        status = refit_nccl_version(&version, &err);
    *out = (struct refit_attach_message){.type = REFIT_ATTACH_ABLE, .ok = status == REFIT_OK};
    out->nccl = status == REFIT_OK ? (uint32_t)version : 0;
    if (status != REFIT_OK)
        snprintf(out->text, sizeof out->text, "%.*s", (int)sizeof out->text - 1, err.text);
}

void refit_engine_receive(struct refit_engine *engine, int sock)
{
    struct refit_error err;
    enum refit_status status = engine->host ? REFIT_OK : refit_remote_host_create(&engine->host, &err);
    if (status == REFIT_OK)
        status = refit_remote_host_serve(engine->host, sock, &err);
    else
        refit_io_close(&sock);
    if (status != REFIT_OK)
        refit_log_limited(REFIT_LOG_WARN, "a refit is not received for", refit_log_u64("rank", engine->rank),
                          REFIT_LOG_CAUSE(&err));
}

void refit_engine_receive_stop(struct refit_engine *engine)
{
    if (engine->host)
        refit_remote_host_stop(engine->host);
}

void refit_engine_receive_end(struct refit_engine *engine)
{
    refit_engine_receive_stop(engine);
    refit_remote_host_destroy(engine->host);
    engine->host = NULL;
}
