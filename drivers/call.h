/* SPDX-License-Identifier: Apache-2.0
 *
 * One call to an engine's HTTP server: JSON out, JSON back, a deadline, a bounded answer. (Internal.)
 */
#ifndef REFIT_DRIVERS_CALL_H
#define REFIT_DRIVERS_CALL_H

#include "base/json.h"
#include "sender/http_client.h"

/* `body` is stolen, NULL: none. *answer is new, NULL when the answer was empty or is not JSON; `answer` may be NULL.
 * What is not 2xx is an error with the engine's own words: REFIT_NOT_FOUND for 404 and 405 (no such route there),
 * REFIT_CONFLICT for other 4xx, REFIT_PEER otherwise. */
REFIT_MUST_CHECK enum refit_status refit_driver_post(const struct refit_http_url *url, const char *path, json_t *body,
                                                     struct refit_deadline deadline, json_t **answer,
                                                     struct refit_error *err);
/* The same with a body that there must be: NULL is what json_pack() came to, an error. */
REFIT_MUST_CHECK enum refit_status refit_driver_post_json(const struct refit_http_url *url, const char *path,
                                                          json_t *body, struct refit_deadline deadline,
                                                          json_t **answer, struct refit_error *err);
REFIT_MUST_CHECK enum refit_status refit_driver_get(const struct refit_http_url *url, const char *path,
                                                    struct refit_deadline deadline, json_t **answer,
                                                    struct refit_error *err);
/* The answer's "success" is there and false: REFIT_CONFLICT with its "message". */
REFIT_MUST_CHECK enum refit_status refit_driver_check_success(const json_t *answer, const char *path,
                                                              struct refit_error *err);

#endif
