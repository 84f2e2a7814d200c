/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of options as people write them: "16GiB", "250ms", "tcp".
 */
#ifndef REFIT_SIDECAR_CONFIG_VALUE_H
#define REFIT_SIDECAR_CONFIG_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whole numbers with the units of `kind`; false when malformed or above 2^63 - 1. Bytes: none, B, KiB, MiB, GiB, TiB
 * (and kB, MB, GB, TB by thousands). Durations become milliseconds: ms, s, m, h; a unit is needed, except for 0. */
bool refit_config_parse_number(const char *text, uint64_t *out);
bool refit_config_parse_bytes(const char *text, uint64_t *out);
bool refit_config_parse_duration(const char *text, uint64_t *out_ms);
bool refit_config_parse_mode(const char *text, uint64_t *out); /* octal digits */
bool refit_config_parse_bool(const char *text, bool *out);

/* The shortest exact form, which the parsers take back. */
void refit_config_format_bytes(uint64_t bytes, char *out, size_t size);
void refit_config_format_duration(uint64_t ms, char *out, size_t size);

#endif
