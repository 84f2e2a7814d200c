/* SPDX-License-Identifier: Apache-2.0
 *
 * What a kind of engine is told, and how, behind one table. (Internal.) Each function is a few HTTP calls with
 * deadlines; none keeps anything. docs/drivers.md says where the routes and their behaviour are known from.
 */
#ifndef REFIT_DRIVERS_ENGINE_H
#define REFIT_DRIVERS_ENGINE_H

#include "base/clock.h"
#include "drivers/driver.h"
#include "sender/http_client.h"

/* Where the engine is and how it is spoken to. */
struct refit_driver_link {
    struct refit_http_url url;
    enum refit_driver_load load;
    int64_t call_ms; /* longest time of one call, but for the one that loads */
};

/* What the engine says of itself. */
struct refit_driver_sight {
    char version[REFIT_DRIVER_VERSION_MAX]; /* its weight_version */
    bool knows_pause;                       /* it has a route for that */
    bool paused;
};

struct refit_driver_order {
    const char *path;    /* directory with the safetensors file */
    const char *version; /* to be its weight_version afterwards */
};

struct refit_driver_engine {
    const char *name;
    enum refit_status (*look)(const struct refit_driver_link *link, struct refit_driver_sight *out,
                              struct refit_error *err);
    /* `keep`: requests in flight go on with the caches they have; else what they have is computed anew. None is
     * dropped. */
    enum refit_status (*pause)(const struct refit_driver_link *link, bool keep, struct refit_error *err);
    /* Begins, loads, finishes with the version. After any error the weights may be half-written. */
    enum refit_status (*load)(const struct refit_driver_link *link, const struct refit_driver_order *order,
                              struct refit_deadline deadline, struct refit_error *err);
    enum refit_status (*flush)(const struct refit_driver_link *link, struct refit_error *err);
    enum refit_status (*resume)(const struct refit_driver_link *link, struct refit_error *err);
};

extern const struct refit_driver_engine refit_driver_vllm, refit_driver_sglang;

/* "vllm=http://127.0.0.1:8000" taken apart. */
REFIT_MUST_CHECK enum refit_status refit_driver_engine_parse(const char *text,
                                                             const struct refit_driver_engine **engine,
                                                             struct refit_http_url *url, struct refit_error *err);
struct refit_deadline refit_driver_call_deadline(const struct refit_driver_link *link);
/* The text "weight_version" of an answer. */
REFIT_MUST_CHECK enum refit_status refit_driver_take_version(const json_t *answer, const char *path,
                                                             struct refit_driver_sight *out, struct refit_error *err);

#endif
