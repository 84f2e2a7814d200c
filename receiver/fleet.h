/* SPDX-License-Identifier: Apache-2.0
 *
 * The members of a fleet as one of them is told of them: an immutable, reference-counted list. Cards are not part of a
 * refit's identity: a member that was started anew has another.
 */
#ifndef REFIT_RECEIVER_FLEET_H
#define REFIT_RECEIVER_FLEET_H

#include "base/json.h"
#include "transport/transport.h"

#define REFIT_FLEET_MEMBERS_MAX 1024
#define REFIT_FLEET_SOURCES_MAX 1024
#define REFIT_FLEET_ID_MAX 128
#define REFIT_MEMBER_NAME_MAX 256

struct refit_member {
    const char *name;   /* as the lead calls it: its control address, say */
    const char *domain; /* equal ones share a fast path */
    const json_t *tcp, *local, *nccl; /* cards; NULL: not reached that way */
};

struct refit_fleet;

/* The member "fleet" of a request. REFIT_INVALID names what is wrong. *out is new, with one reference. */
REFIT_MUST_CHECK enum refit_status refit_fleet_from_json(const json_t *json, struct refit_fleet **out,
                                                         struct refit_error *err);
struct refit_fleet *refit_fleet_retain(struct refit_fleet *fleet); /* NULL is fine, as below */
void refit_fleet_release(struct refit_fleet *fleet);

const char *refit_fleet_id(const struct refit_fleet *fleet);
const uint8_t *refit_fleet_token(const struct refit_fleet *fleet);
uint32_t refit_fleet_self(const struct refit_fleet *fleet);
uint32_t refit_fleet_members(const struct refit_fleet *fleet); /* 0 for NULL */
uint32_t refit_fleet_sources(const struct refit_fleet *fleet); /* replicas that serve; 0 for NULL */
struct refit_member refit_fleet_member(const struct refit_fleet *fleet, uint32_t index);
bool refit_fleet_same_domain(const struct refit_fleet *fleet, uint32_t index); /* as this member */

/* 32 hex digits. */
bool refit_token_parse(const char *text, uint8_t out[static REFIT_TOKEN_BYTES]);

#endif
