/* SPDX-License-Identifier: Apache-2.0
 *
 * Where slots are: --memory, and what must agree with it.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/driver.h"
#include "receiver/bank.h"
#include "sidecar/config.h"
#include "sidecar/config_value.h"
#include "transport/remote.h"

#define DEVICE_MAX 1023

_Static_assert(REFIT_CONFIG_RANKS_MAX == REFIT_BANK_RANKS_MAX, "a device for each rank");

static enum refit_status malformed(const struct refit_config *config, struct refit_error *err)
{
    return refit_fail(err, REFIT_INVALID, "--memory: expected host, cuda, or cuda:0,1,... with the number of a device for each "
                      "of --ranks, found \"%.100s\"", config->memory);
}

/* `text` begins behind "cuda:". */
static enum refit_status read_devices(const struct refit_config *config, const char *text, int *devices,
                                      struct refit_error *err)
{
    uint64_t count = 0, number;
    for (bool more = true; more;) {
        char digits[8];
        size_t len = strcspn(text, ",");
        if (len == 0 || len >= sizeof digits)
            return malformed(config, err);
        memcpy(digits, text, len);
        digits[len] = '\0';
        if (!refit_config_parse_number(digits, &number) || number > DEVICE_MAX)
            return malformed(config, err);
        if (count < config->ranks)
            devices[count] = (int)number;
        count++;
        more = text[len] == ',';
        text += len + 1;
    }
    if (count != config->ranks)
        return refit_fail(err, REFIT_INVALID, "--memory %.100s: names %" PRIu64 " devices for --ranks %" PRIu64,
                          config->memory, count, config->ranks);
    return REFIT_OK;
}

static enum refit_status check_others(const struct refit_config *config, struct refit_error *err)
{
    if (refit_config_drives(config))
        return refit_fail(err, REFIT_INVALID, "--memory %s: --engine %s reads weights from files, which lie in host memory",
                          config->memory, config->engine);
    if (config->protection == REFIT_PROTECT_SEAL)
        return refit_fail(err, REFIT_INVALID, "--memory %s: --protection seal is of host memory; CUDA has no seals",
                          config->memory);
    return REFIT_OK;
}

enum refit_status refit_config_read_memory(const struct refit_config *config, struct refit_config_memory *out,
                                           struct refit_error *err)
{
    *out = (struct refit_config_memory){.cuda = false};
    if (strcmp(config->memory, "host") == 0)
        return REFIT_OK;
    bool listed = strncmp(config->memory, "cuda:", 5) == 0;
    if (!listed && strcmp(config->memory, "cuda") != 0)
        return malformed(config, err);
    out->cuda = true;
    for (uint64_t rank = 0; rank < config->ranks; rank++)
        out->devices[rank] = (int)rank;
    enum refit_status status = listed ? read_devices(config, config->memory + 5, out->devices, err) : REFIT_OK;
    return status == REFIT_OK ? check_others(config, err) : status;
}

static enum refit_status check_receive(const struct refit_config *config, const struct refit_config_memory *memory,
                                       struct refit_error *err)
{
    bool in_engine = config->receive == REFIT_RECEIVE_IN_ENGINE;
    const char *option = in_engine ? "--receive in-engine" : "--receive sidecar";
    if (!memory->cuda)
        return refit_fail(err, REFIT_INVALID, "%s: is for slots on GPUs; --memory cuda is needed beside it", option);
    if (config->staging == REFIT_STAGING_HOST)
        return refit_fail(err, REFIT_INVALID, "%s: NCCL needs slots on the GPU to land in; not with --staging host", option);
    if (config->data_tls == REFIT_DATA_TLS_ON)
        return refit_fail(err, REFIT_INVALID, "%s: --data-tls on demands TLS for bulk bytes, and NCCL does not encrypt",
                          option);
    if (in_engine && config->ranks > REFIT_REMOTE_ENGINES_MAX)
        return refit_fail(err, REFIT_INVALID, "%s: 1 to %d ranks can, found --ranks %" PRIu64, option,
                          REFIT_REMOTE_ENGINES_MAX, config->ranks);
    return REFIT_OK;
}

enum refit_status refit_config_check_memory(const struct refit_config *config, struct refit_error *err)
{
    struct refit_config_memory memory;
    enum refit_status status = refit_config_read_memory(config, &memory, err);
    if (status != REFIT_OK)
        return status;
    if (config->staging == REFIT_STAGING_HOST && (!memory.cuda || config->swap != REFIT_SWAP_COPY))
        return refit_fail(err, REFIT_INVALID, "--staging host: --memory cuda and --swap copy are needed beside it");
    return config->receive == REFIT_RECEIVE_STAGED ? REFIT_OK : check_receive(config, &memory, err);
}
