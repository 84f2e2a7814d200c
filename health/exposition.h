/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics as text, in the two forms that scrapers ask for: Prometheus 0.0.4, and OpenMetrics 1.0 (units, families without
 * suffix, "# EOF"). A family is begun once, and its samples follow.
 */
#ifndef REFIT_HEALTH_EXPOSITION_H
#define REFIT_HEALTH_EXPOSITION_H

#include "base/buf.h"
#include "health/health.h"

enum refit_metric_type { REFIT_METRIC_GAUGE, REFIT_METRIC_COUNTER, REFIT_METRIC_INFO, REFIT_METRIC_HISTOGRAM };

struct refit_exposition {
    struct refit_buf *out;
    bool openmetrics;
    const char *name; /* of the family begun last, without suffix */
    enum refit_metric_type type;
};

/* `name` is without _total and _info; a name that ends in _seconds or _bytes has that unit. */
void refit_exposition_family(struct refit_exposition *x, enum refit_metric_type type, const char *name, const char *help);
/* A sample of the family begun last. Labels: NULL, or pairs of name and value, ended by NULL. */
void refit_exposition_u64(struct refit_exposition *x, const char *const *labels, uint64_t value);
void refit_exposition_real(struct refit_exposition *x, const char *const *labels, double value);
void refit_exposition_histogram(struct refit_exposition *x, const char *label, const char *label_value,
                                const struct refit_health_histogram *histogram);
/* A family of one sample without labels. */
void refit_exposition_whole(struct refit_exposition *x, enum refit_metric_type type, const char *name, const char *help,
                            uint64_t value);
void refit_exposition_seconds(struct refit_exposition *x, enum refit_metric_type type, const char *name, const char *help,
                              double value);
void refit_exposition_end(struct refit_exposition *x);

#endif
