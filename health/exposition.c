/* SPDX-License-Identifier: Apache-2.0 */
#include "health/exposition.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *type_name(const struct refit_exposition *x)
{
    switch (x->type) {
    case REFIT_METRIC_GAUGE: return "gauge";
    case REFIT_METRIC_COUNTER: return "counter";
    case REFIT_METRIC_INFO: return x->openmetrics ? "info" : "gauge"; /* 0.0.4 knows no info */
    case REFIT_METRIC_HISTOGRAM: return "histogram";
    }
    return "unknown";
}

static const char *sample_suffix(const struct refit_exposition *x)
{
    return x->type == REFIT_METRIC_COUNTER ? "_total" : x->type == REFIT_METRIC_INFO ? "_info" : "";
}

static bool ends_in(const char *text, const char *end)
{
    size_t len = strlen(text), end_len = strlen(end);
    return len > end_len && strcmp(text + len - end_len, end) == 0;
}

static const char *unit_of(const char *name)
{
    return ends_in(name, "_seconds") ? "seconds" : ends_in(name, "_bytes") ? "bytes" : NULL;
}

void refit_exposition_family(struct refit_exposition *x, enum refit_metric_type type, const char *name, const char *help)
{
    x->name = name;
    x->type = type;
    /* OpenMetrics names the family, 0.0.4 the samples. */
    const char *suffix = x->openmetrics ? "" : sample_suffix(x);
    refit_buf_printf(x->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", name, suffix, help, name, suffix, type_name(x));
    if (x->openmetrics && unit_of(name))
        refit_buf_printf(x->out, "# UNIT %s %s\n", name, unit_of(name));
}

/* Backslash, quote and newline are what both forms escape. */
static void put_value(struct refit_buf *out, const char *value)
{
    refit_buf_append_u8(out, '"');
    for (; *value; value++) {
        if (*value == '\n') {
            refit_buf_append(out, "\\n", 2);
            continue;
        }
        if (*value == '\\' || *value == '"')
            refit_buf_append_u8(out, '\\');
        refit_buf_append_u8(out, (uint8_t)*value);
    }
    refit_buf_append_u8(out, '"');
}

static void put_name(struct refit_exposition *x, const char *suffix, const char *const *labels)
{
    refit_buf_printf(x->out, "%s%s", x->name, suffix);
    for (size_t i = 0; labels && labels[i]; i += 2) {
        refit_buf_printf(x->out, "%c%s=", i ? ',' : '{', labels[i]);
        put_value(x->out, labels[i + 1]);
    }
    if (labels && labels[0])
        refit_buf_append_u8(x->out, '}');
}

void refit_exposition_u64(struct refit_exposition *x, const char *const *labels, uint64_t value)
{
    put_name(x, sample_suffix(x), labels);
    refit_buf_printf(x->out, " %" PRIu64 "\n", value);
}

void refit_exposition_real(struct refit_exposition *x, const char *const *labels, double value)
{
    put_name(x, sample_suffix(x), labels);
    refit_buf_printf(x->out, " %.12g\n", isfinite(value) ? value : 0);
}

static void put_bucket(struct refit_exposition *x, const char *label, const char *label_value, const char *bound,
                       uint64_t count)
{
    const char *const with[] = {label, label_value, "le", bound, NULL}, *const without[] = {"le", bound, NULL};
    put_name(x, "_bucket", label ? with : without);
    refit_buf_printf(x->out, " %" PRIu64 "\n", count);
}

void refit_exposition_histogram(struct refit_exposition *x, const char *label, const char *label_value,
                                const struct refit_health_histogram *histogram)
{
    const char *const labels[] = {label, label_value, NULL};
    uint64_t below = 0;
    char bound[32];
    for (size_t i = 0; i < REFIT_HEALTH_BUCKETS; i++) {
        double seconds = (double)refit_health_bounds_ns[i] / 1e9;
        below += histogram->bucket[i];
        /* OpenMetrics wants its bounds written as numbers that can't be taken for whole ones. */
        snprintf(bound, sizeof bound, seconds >= 1 && seconds == floor(seconds) ? "%.1f" : "%g", seconds);
        put_bucket(x, label, label_value, bound, below);
    }
    put_bucket(x, label, label_value, "+Inf", histogram->count);
    put_name(x, "_sum", labels);
    refit_buf_printf(x->out, " %.12g\n", (double)histogram->sum_ns / 1e9);
    put_name(x, "_count", labels);
    refit_buf_printf(x->out, " %" PRIu64 "\n", histogram->count);
}

void refit_exposition_whole(struct refit_exposition *x, enum refit_metric_type type, const char *name, const char *help,
                            uint64_t value)
{
    refit_exposition_family(x, type, name, help);
    refit_exposition_u64(x, NULL, value);
}

void refit_exposition_seconds(struct refit_exposition *x, enum refit_metric_type type, const char *name, const char *help,
                              double value)
{
    refit_exposition_family(x, type, name, help);
    refit_exposition_real(x, NULL, value);
}

void refit_exposition_end(struct refit_exposition *x)
{
    if (x->openmetrics)
        refit_buf_append(x->out, "# EOF\n", 6);
}
