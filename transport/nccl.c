/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nccl.h"

#include "memory/cuda.h"
#include "transport/nccl_driver.h"
#include "transport/nccl_endpoints.h"

enum refit_status refit_nccl_version(int *version, struct refit_error *err)
{
    const struct refit_nccl_driver *driver;
    enum refit_status status = refit_nccl_driver(&driver, err);
    if (status == REFIT_OK)
        *version = driver->version;
    return status;
}

enum refit_status refit_nccl_probe(struct refit_error *err)
{
    int version;
    enum refit_status status = refit_cuda_probe(err);
    return status == REFIT_OK ? refit_nccl_version(&version, err) : status;
}

enum refit_status refit_nccl_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                  struct refit_error *err)
{
    return config->role == REFIT_RECEIVER ? refit_nccl_receiver_open(config, out, err)
                                          : refit_nccl_holder_open(config, out, err);
}
