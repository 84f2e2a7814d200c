/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/config_value.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit byte_units[] = {
    {"TiB", 1ull << 40},      {"GiB", 1ull << 30}, {"MiB", 1ull << 20}, {"KiB", 1ull << 10}, {"B", 1},
    {"TB", 1000000000000ull}, {"GB", 1000000000},  {"MB", 1000000},     {"kB", 1000},        {"", 1},
};
static const struct unit time_units[] = {{"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};

static bool parse_with(const char *text, const struct unit *units, size_t count, uint64_t *out)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(end, units[i].name) == 0)
            return !__builtin_mul_overflow(value, units[i].factor, &value) && value <= INT64_MAX &&
                   (*out = value, true);
    }
    return false;
}

bool refit_config_parse_number(const char *text, uint64_t *out)
{
    static const struct unit none = {"", 1};
    return parse_with(text, &none, 1, out);
}

bool refit_config_parse_bytes(const char *text, uint64_t *out)
{
    return parse_with(text, byte_units, sizeof byte_units / sizeof *byte_units, out);
}

bool refit_config_parse_duration(const char *text, uint64_t *out_ms)
{
    int64_t ms;
    if (!refit_text_duration(text, 0, &ms))
        return false;
    *out_ms = (uint64_t)ms;
    return true;
}

bool refit_config_parse_mode(const char *text, uint64_t *out)
{
    size_t len = strspn(text, "01234567");
    if (len == 0 || len > 4 || text[len])
        return false;
    *out = strtoul(text, NULL, 8);
    return true;
}

bool refit_config_parse_bool(const char *text, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off", "0"};
    for (size_t i = 0; i < 4; i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *out = strcasecmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static void format_with(uint64_t value, const struct unit *units, size_t count, char *out, size_t size)
{
    for (size_t i = 0; i < count; i++) {
        if (value && value % units[i].factor == 0) {
            snprintf(out, size, "%" PRIu64 "%s", value / units[i].factor, units[i].name);
            return;
        }
    }
    snprintf(out, size, "0");
}

void refit_config_format_bytes(uint64_t bytes, char *out, size_t size)
{
    format_with(bytes, byte_units, 5, out, size);
}

void refit_config_format_duration(uint64_t ms, char *out, size_t size)
{
    format_with(ms, time_units, sizeof time_units / sizeof *time_units, out, size);
}
