/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of options, between config.c, which reads values, and config_show.c, which shows them.
 */
#ifndef REFIT_SIDECAR_CONFIG_TABLE_H
#define REFIT_SIDECAR_CONFIG_TABLE_H

#include <stddef.h>

#include "sidecar/config.h"

enum refit_config_kind { TEXT, NUMBER, BYTES, DURATION, BOOL, ONE_OF, ADDRESS, ENDPOINT, MODE };

struct refit_config_option {
    const char *name;
    enum refit_config_kind kind;
    size_t offset, size;
    const char *fallback; /* the default, as it would be written */
    uint64_t min, max;    /* of numbers; 0, 0: any */
    const char *words;    /* ONE_OF: "uid|seal", in the order of its enum */
    const char *help;
};

extern const struct refit_config_option refit_config_options[];
extern const size_t refit_config_option_count;

/* "REFIT_SLOT_BYTES" */
void refit_config_env_name(const struct refit_config_option *o, char out[static 64]);

#endif
