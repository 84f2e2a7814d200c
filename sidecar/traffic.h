/* SPDX-License-Identifier: Apache-2.0
 *
 * Who sends what in the latest refit, for the page: the plan between its source and the layout served here, summed up by
 * edge. A plan can take a while, so the sums are kept until another source comes, and only one worker at a time makes them.
 */
#ifndef REFIT_SIDECAR_TRAFFIC_H
#define REFIT_SIDECAR_TRAFFIC_H

#include <pthread.h>

#include "receiver/receiver.h"

struct refit_traffic {
    pthread_mutex_t lock;
    char refit[REFIT_REFIT_ID_MAX];
    char source[REFIT_SHA256_HEX_MAX]; /* digest; empty: a checkpoint */
    char checkpoint[1024];
    json_t *plan;                            /* of plan_source; owned */
    char plan_source[REFIT_SHA256_HEX_MAX];
    bool working;
};

void refit_traffic_init(struct refit_traffic *traffic);
void refit_traffic_release(struct refit_traffic *traffic);
/* This refit was begun. Any thread. */
void refit_traffic_note(struct refit_traffic *traffic, const char *refit, const struct refit_request *request);
/* The object of GET /traffic, new. REFIT_BUSY while another thread makes it. Blocks for a plan. */
REFIT_MUST_CHECK enum refit_status refit_traffic_json(struct refit_traffic *traffic, struct refit_receiver *receiver,
                                                      json_t **out, struct refit_error *err);

#endif
