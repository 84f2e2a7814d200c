/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration of refitd. One table (config.c) names every option once; from it come the flag (--slot-bytes), the
 * environment variable (REFIT_SLOT_BYTES), the key of the configuration file (slot-bytes), the help text and
 * --print-config. A flag overrides the environment, which overrides the file, which overrides the default.
 */
#ifndef REFIT_SIDECAR_CONFIG_H
#define REFIT_SIDECAR_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

#define REFIT_CONFIG_TEXT_MAX 1024

enum refit_config_action { REFIT_CONFIG_RUN, REFIT_CONFIG_HELP, REFIT_CONFIG_VERSION, REFIT_CONFIG_PRINT };

struct refit_config {
    enum refit_config_action action;
    char config[REFIT_CONFIG_TEXT_MAX];
    /* listeners */
    char control[REFIT_CONFIG_TEXT_MAX];
    char admin[REFIT_CONFIG_TEXT_MAX];
    char data[REFIT_CONFIG_TEXT_MAX];
    char advertise[REFIT_CONFIG_TEXT_MAX];
    bool insecure_control;
    char ports_file[REFIT_CONFIG_TEXT_MAX];
    uint64_t control_connections;
    uint64_t admin_connections;
    /* the replica */
    char socket[REFIT_CONFIG_TEXT_MAX];
    char state_file[REFIT_CONFIG_TEXT_MAX];
    uint64_t ranks, first_rank, ranks_total, slots, slot_bytes;
    uint64_t protection; /* enum refit_protection */
    char layout[REFIT_CONFIG_TEXT_MAX];
    uint64_t adopt_timeout_ms;
    /* refits */
    char checkpoint_root[REFIT_CONFIG_TEXT_MAX];
    char initial_checkpoint[REFIT_CONFIG_TEXT_MAX];
    uint64_t initial_version;
    char initial_label[64];
    uint64_t streams, rate, nice;
    uint64_t deadline_ms, deadline_max_ms, staged_ttl_ms, lead_ttl_ms;
    uint64_t relay_silence_ms, relay_stall_ms;
    /* probes */
    uint64_t ready_min_version;
    bool startup_needs_weights;
    /* process */
    uint64_t drain_timeout_ms;
    uint64_t log_level;  /* enum refit_log_level */
    uint64_t log_format; /* enum refit_log_format */
};

/* Reads defaults, file, environment (`environment` as in environ) and arguments, in that order, and checks what belongs
 * together. The error names the option, what was expected and what was found. */
REFIT_MUST_CHECK enum refit_status refit_config_load(int argc, char *const *argv, char *const *environment,
                                                     struct refit_config *out, struct refit_error *err);
void refit_config_help(FILE *out);
/* In the form of a configuration file, which --config takes back. */
void refit_config_print(const struct refit_config *config, FILE *out);

#endif
