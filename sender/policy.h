/* SPDX-License-Identifier: Apache-2.0
 *
 * Who commits when: the words of a policy.
 *
 *     each                                     every replica when it is staged; one that fails does so alone
 *     all                                      none before every replica is staged; one that fails aborts all
 *     quorum:N                                 once N replicas are staged; when they can't be any more, none
 *     canary:N[,wait=TIME][,check=URL]         N replicas first; after TIME, and when URL answers 2xx, the rest; else those N
 *                                              are taken back and the rest is aborted
 */
#ifndef REFIT_SENDER_POLICY_H
#define REFIT_SENDER_POLICY_H

#include <stdint.h>

#include "base/error.h"
#include "sender/http_client.h"

enum refit_policy_kind { REFIT_POLICY_EACH, REFIT_POLICY_ALL, REFIT_POLICY_QUORUM, REFIT_POLICY_CANARY };

struct refit_policy {
    enum refit_policy_kind kind;
    uint32_t count;   /* quorum, canary: N */
    int64_t wait_ms;  /* canary */
    bool checks;      /* canary: `check` is there */
    struct refit_http_url check;
};

/* NULL or empty: each. REFIT_INVALID names what is wrong. */
REFIT_MUST_CHECK enum refit_status refit_policy_parse(const char *text, struct refit_policy *out,
                                                      struct refit_error *err);

#endif
