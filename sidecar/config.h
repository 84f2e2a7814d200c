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

enum refit_config_action { REFIT_CONFIG_RUN, REFIT_CONFIG_HELP, REFIT_CONFIG_VERSION, REFIT_CONFIG_PRINT, REFIT_CONFIG_MANUAL };

/* Where an option's value came from. */
enum refit_config_source {
    REFIT_CONFIG_DEFAULT, REFIT_CONFIG_FILE, REFIT_CONFIG_ENVIRONMENT, REFIT_CONFIG_FLAG
};
enum refit_data_tls { REFIT_DATA_TLS_AUTO, REFIT_DATA_TLS_ON, REFIT_DATA_TLS_OFF };
enum refit_staging { REFIT_STAGING_DEVICE, REFIT_STAGING_HOST };
enum refit_receive { REFIT_RECEIVE_STAGED, REFIT_RECEIVE_IN_ENGINE, REFIT_RECEIVE_SIDECAR };
#define REFIT_CONFIG_OPTIONS_MAX 96
#define REFIT_CONFIG_RANKS_MAX 1024

struct refit_config {
    enum refit_config_action action;
    uint8_t source[REFIT_CONFIG_OPTIONS_MAX]; /* enum refit_config_source, in the order of the table */
    char config[REFIT_CONFIG_TEXT_MAX];
    /* listeners */
    char control[REFIT_CONFIG_TEXT_MAX];
    char admin[REFIT_CONFIG_TEXT_MAX];
    char data[REFIT_CONFIG_TEXT_MAX];
    char advertise[REFIT_CONFIG_TEXT_MAX];
    bool insecure_control;
    uint64_t control_mode; /* of a Unix socket's file */
    char tls_cert[REFIT_CONFIG_TEXT_MAX], tls_key[REFIT_CONFIG_TEXT_MAX];
    char tls_client_ca[REFIT_CONFIG_TEXT_MAX];
    bool tls_client_optional;
    uint64_t tls_client_role; /* enum refit_access_role */
    char tls_client_names[REFIT_CONFIG_TEXT_MAX];
    uint64_t data_tls; /* enum refit_data_tls */
    char data_tls_cert[REFIT_CONFIG_TEXT_MAX], data_tls_key[REFIT_CONFIG_TEXT_MAX];
    char data_tls_client_ca[REFIT_CONFIG_TEXT_MAX], data_tls_ca[REFIT_CONFIG_TEXT_MAX];
    char data_tls_name[REFIT_CONFIG_TEXT_MAX];
    char token_file[REFIT_CONFIG_TEXT_MAX];
    bool insecure_plaintext_tokens;
    char audit_log[REFIT_CONFIG_TEXT_MAX];
    char ports_file[REFIT_CONFIG_TEXT_MAX];
    uint64_t control_connections;
    uint64_t admin_connections;
    /* the replica */
    char socket[REFIT_CONFIG_TEXT_MAX];
    char state_file[REFIT_CONFIG_TEXT_MAX];
    char replica[128];
    uint64_t ranks, first_rank, ranks_total, slots, slot_bytes;
    char memory[REFIT_CONFIG_TEXT_MAX]; /* as refit_config_read_memory has it */
    uint64_t staging;    /* enum refit_staging */
    uint64_t receive;    /* enum refit_receive */
    uint64_t protection; /* enum refit_protection */
    uint64_t swap;       /* enum refit_swap_mode */
    char layout[REFIT_CONFIG_TEXT_MAX];
    char engine[REFIT_CONFIG_TEXT_MAX]; /* "native", or what refit_driver_check_engine accepts */
    char engine_dir[REFIT_CONFIG_TEXT_MAX];
    uint64_t engine_load; /* enum refit_driver_load */
    uint64_t engine_timeout_ms, engine_load_timeout_ms, engine_poll_ms;
    uint64_t adopt_timeout_ms;
    /* refits */
    char checkpoint_root[REFIT_CONFIG_TEXT_MAX];
    char initial_checkpoint[REFIT_CONFIG_TEXT_MAX];
    uint64_t initial_version;
    char initial_label[64];
    uint64_t streams, rate, nice;
    uint64_t deadline_ms, deadline_max_ms, staged_ttl_ms, lead_ttl_ms;
    uint64_t relay_silence_ms, relay_stall_ms;
    /* siblings */
    char siblings[REFIT_CONFIG_TEXT_MAX]; /* as sender/members.h has it */
    uint64_t siblings_poll_ms;
    char siblings_cacert[REFIT_CONFIG_TEXT_MAX], siblings_cert[REFIT_CONFIG_TEXT_MAX];
    char siblings_key[REFIT_CONFIG_TEXT_MAX], siblings_token_file[REFIT_CONFIG_TEXT_MAX];
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
/* The engine is told over HTTP to load weights (drivers/driver.h). */
bool refit_config_drives(const struct refit_config *config);
/* What bulk bytes use, after the defaults that come from other options. Texts are borrowed, and empty where there is none. */
struct refit_config_data_tls {
    bool demanded; /* of holders */
    const char *cert, *key, *client_ca, *ca;
    bool client_optional;
};
void refit_config_read_data_tls(const struct refit_config *config, struct refit_config_data_tls *out);
/* --memory, taken apart. */
struct refit_config_memory {
    bool cuda;
    int devices[REFIT_CONFIG_RANKS_MAX]; /* of cuda: one per rank served here */
};
REFIT_MUST_CHECK enum refit_status refit_config_read_memory(const struct refit_config *config,
                                                            struct refit_config_memory *out, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_config_check_memory(const struct refit_config *config, struct refit_error *err);
void refit_config_help(FILE *out);
void refit_config_manual(FILE *out, const char *version); /* refitd(8), as roff */
/* In the form of a configuration file, which --config takes back, with a comment before what is not the default that says
 * where it came from. No option holds a secret: tokens and keys are in files of their own. */
void refit_config_print(const struct refit_config *config, FILE *out);

#endif
