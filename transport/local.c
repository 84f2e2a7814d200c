/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/local.h"

#include <errno.h>

#include "base/io.h"

enum refit_status refit_local_probe(struct refit_error *err)
{
    int fd = refit_io_memfd("refit-probe");
    if (fd < 0)
        return refit_fail(err, REFIT_UNSUPPORTED, "local: this kernel gives no sealable memfd (errno %d)", errno);
    refit_io_close(&fd);
    return REFIT_OK;
}

enum refit_status refit_local_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                   struct refit_error *err)
{
    return config->role == REFIT_RECEIVER ? refit_local_receiver_open(config, out, err)
                                          : refit_local_holder_open(config, out, err);
}
