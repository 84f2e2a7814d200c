/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/fleet.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

struct refit_fleet {
    atomic_uint references;
    json_t *json; /* owned: texts and cards are its */
    const char *id;
    uint8_t token[REFIT_TOKEN_BYTES];
    uint32_t self, members, sources;
    struct refit_member member[];
};

bool refit_token_parse(const char *text, uint8_t out[static REFIT_TOKEN_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    if (strlen(text) != 2 * REFIT_TOKEN_BYTES || strspn(text, digits) != 2 * REFIT_TOKEN_BYTES)
        return false;
    for (size_t i = 0; i < REFIT_TOKEN_BYTES; i++)
        out[i] = (uint8_t)(((strchr(digits, text[2 * i]) - digits) << 4) | (strchr(digits, text[2 * i + 1]) - digits));
    return true;
}

static enum refit_status check_text(const char *text, size_t max, const char *what, struct refit_error *err)
{
    size_t len = strlen(text);
    if (len > 0 && len < max && refit_text_first_control(text) == len)
        return REFIT_OK;
    return refit_fail(err, REFIT_INVALID, "fleet: \"%s\" must have 1 to %zu bytes without control characters, found "
                      "%zu", what, max - 1, len);
}

static enum refit_status read_card(const json_t *json, const char *key, const json_t **out, struct refit_error *err)
{
    *out = json_object_get(json, key);
    if (!*out || json_is_null(*out)) {
        *out = NULL;
        return REFIT_OK;
    }
    return json_is_object(*out) ? REFIT_OK : refit_fail(err, REFIT_INVALID, "\"%s\" must be a card, an object", key);
}

static enum refit_status read_member(const json_t *json, struct refit_member *member, struct refit_error *err)
{
    static const char *const known[] = {"name", "domain", "tcp", "local", "nccl", NULL};
    if (!json_is_object(json))
        return refit_fail(err, REFIT_INVALID, "expected an object");
    enum refit_status status = refit_json_known(json, "member", known, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(json, "name", "member", &member->name, err);
    if (status == REFIT_OK)
        status = check_text(member->name, REFIT_MEMBER_NAME_MAX, "name", err);
    if (status == REFIT_OK)
        status = refit_json_get_string(json, "domain", "member", &member->domain, err);
    if (status == REFIT_OK)
        status = check_text(member->domain, REFIT_MEMBER_NAME_MAX, "domain", err);
    if (status == REFIT_OK)
        status = read_card(json, "tcp", &member->tcp, err);
    if (status == REFIT_OK)
        status = read_card(json, "local", &member->local, err);
    if (status == REFIT_OK)
        status = read_card(json, "nccl", &member->nccl, err);
    return status;
}

static enum refit_status read_head(struct refit_fleet *fleet, struct refit_error *err)
{
    static const char *const known[] = {"id", "token", "self", "members", "sources", NULL};
    const char *token = "";
    int64_t self = 0, sources = 0;
    enum refit_status status = refit_json_known(fleet->json, "fleet", known, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(fleet->json, "id", "fleet", &fleet->id, err);
    if (status == REFIT_OK)
        status = check_text(fleet->id, REFIT_FLEET_ID_MAX, "id", err);
    if (status == REFIT_OK)
        status = refit_json_get_string(fleet->json, "token", "fleet", &token, err);
    if (status == REFIT_OK && !refit_token_parse(token, fleet->token))
        status = refit_fail(err, REFIT_INVALID, "fleet: \"token\" must be %d lower-case hex digits",
                            2 * REFIT_TOKEN_BYTES);
    if (status == REFIT_OK)
        status = refit_json_get_int(fleet->json, "self", "fleet", 0, fleet->members - 1, &self, err);
    if (status == REFIT_OK)
        status = refit_json_opt_int(fleet->json, "sources", "fleet", 0, REFIT_FLEET_SOURCES_MAX, &sources, err);
    fleet->self = (uint32_t)self;
    fleet->sources = (uint32_t)sources;
    return status;
}

enum refit_status refit_fleet_from_json(const json_t *json, struct refit_fleet **out, struct refit_error *err)
{
    const json_t *list = json_object_get(json, "members");
    size_t count = json_array_size(list);
    if (!json_is_object(json) || !json_is_array(list) || count < 1 || count > REFIT_FLEET_MEMBERS_MAX)
        return refit_fail(err, REFIT_INVALID, "refit: \"fleet\" must be an object with 1 to %d \"members\", found %zu",
                          REFIT_FLEET_MEMBERS_MAX, count);
    struct refit_fleet *fleet = calloc(1, sizeof *fleet + count * sizeof fleet->member[0]);
    if (!fleet)
        return refit_fail_alloc(err, "the members of a fleet", count * sizeof fleet->member[0]);
    atomic_init(&fleet->references, 1);
    fleet->members = (uint32_t)count;
    /* A copy: the caller's document is shared with nobody from here on. */
    fleet->json = json_deep_copy(json);
    enum refit_status status = fleet->json ? read_head(fleet, err)
                                           : refit_fail_alloc(err, "the members of a fleet", count);
    for (uint32_t i = 0; i < count && status == REFIT_OK; i++) {
        status = read_member(json_array_get(json_object_get(fleet->json, "members"), i), &fleet->member[i], err);
        if (status != REFIT_OK)
            status = refit_error_prefix(err, status, "fleet: member %" PRIu32, i);
    }
    if (status == REFIT_OK)
        *out = fleet;
    else
        refit_fleet_release(fleet);
    return status;
}

struct refit_fleet *refit_fleet_retain(struct refit_fleet *fleet)
{
    if (fleet)
        atomic_fetch_add_explicit(&fleet->references, 1, memory_order_relaxed);
    return fleet;
}

void refit_fleet_release(struct refit_fleet *fleet)
{
    if (!fleet || atomic_fetch_sub_explicit(&fleet->references, 1, memory_order_acq_rel) != 1)
        return;
    json_decref(fleet->json);
    free(fleet);
}

const char *refit_fleet_id(const struct refit_fleet *fleet)
{
    return fleet->id;
}

const uint8_t *refit_fleet_token(const struct refit_fleet *fleet)
{
    return fleet->token;
}

uint32_t refit_fleet_self(const struct refit_fleet *fleet)
{
    return fleet->self;
}

uint32_t refit_fleet_members(const struct refit_fleet *fleet)
{
    return fleet ? fleet->members : 0;
}

uint32_t refit_fleet_sources(const struct refit_fleet *fleet)
{
    return fleet ? fleet->sources : 0;
}

struct refit_member refit_fleet_member(const struct refit_fleet *fleet, uint32_t index)
{
    return fleet->member[index];
}

bool refit_fleet_same_domain(const struct refit_fleet *fleet, uint32_t index)
{
    return strcmp(fleet->member[index].domain, fleet->member[fleet->self].domain) == 0;
}
