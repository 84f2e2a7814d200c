/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/classes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "sender/replica.h"

#define SERVING_REPLICAS_MAX 4 /* of another layout that a class is fed by */

static bool is_asked(const struct refit_replica *replica)
{
    return replica->stage == REFIT_REPLICA_ASKED;
}

static bool same_layout(const struct refit_replica *a, const struct refit_replica *b)
{
    return strcmp(refit_layout_digest(a->layout), refit_layout_digest(b->layout)) == 0;
}

/* One whose layout most members have; the first of them when several have as many. */
static const struct refit_replica *find_primary(const struct refit_lead *lead)
{
    const struct refit_replica *best = NULL;
    size_t most = 0;
    for (size_t i = 0; i < lead->replica_count; i++) {
        size_t alike = 0;
        for (size_t k = 0; is_asked(lead->replicas[i]) && k < lead->replica_count; k++)
            alike += is_asked(lead->replicas[k]) && same_layout(lead->replicas[i], lead->replicas[k]);
        if (alike > most) {
            most = alike;
            best = lead->replicas[i];
        }
    }
    return best;
}

static json_t *member_json(const struct refit_replica *replica)
{
    json_t *member = json_pack("{s:s, s:s}", "name", replica->control.url.text, "domain", replica->domain);
    if (member && replica->cards)
        json_object_update(member, replica->cards);
    return member;
}

static bool add_member(struct refit_class *class, struct refit_replica *replica)
{
    replica->class = class;
    replica->self = (uint32_t)class->count++;
    return json_array_append_new(class->members, member_json(replica)) == 0;
}

static bool start_class(struct refit_lead *lead, struct refit_replica *replica)
{
    uint8_t token[16];
    size_t number = lead->class_count++;
    struct refit_class *class = &lead->classes[number];
    *class = (struct refit_class){.first = replica, .members = json_array()};
    if (number == 0)
        snprintf(class->id, sizeof class->id, "%s", lead->publish_id);
    else
        snprintf(class->id, sizeof class->id, "%s.%zu", lead->publish_id, number);
    refit_io_random(token, sizeof token);
    for (size_t i = 0; i < sizeof token; i++)
        snprintf(class->token + 2 * i, 3, "%02x", token[i]);
    return class->members && add_member(class, replica);
}

static struct refit_class *class_of(const struct refit_lead *lead, const struct refit_replica *replica)
{
    for (size_t i = 0; i < lead->class_count; i++)
        if (refit_replica_same_part(lead->classes[i].first, replica))
            return &lead->classes[i];
    return NULL;
}

static bool classify(struct refit_lead *lead)
{
    bool ok = true;
    for (size_t i = 0; ok && i < lead->replica_count; i++) {
        struct refit_replica *replica = lead->replicas[i];
        struct refit_class *class = is_asked(replica) ? class_of(lead, replica) : NULL;
        if (is_asked(replica))
            ok = class ? add_member(class, replica) : start_class(lead, replica);
    }
    return ok;
}

static bool unit_serves(const struct refit_unit *unit, const struct refit_replica *primary)
{
    bool all = true;
    for (size_t i = 0; i < unit->pod_count; i++)
        all = all && is_asked(unit->pods[i]) && same_layout(unit->pods[i], primary);
    return all;
}

/* Whole replicas of the primary layout, beginning with another one for each class. */
static void choose_servers(struct refit_lead *lead, struct refit_class *class, const struct refit_replica *primary)
{
    size_t replicas = 0, from = (size_t)(class - lead->classes);
    for (size_t i = 0; i < lead->unit_count && replicas < SERVING_REPLICAS_MAX; i++) {
        const struct refit_unit *unit = &lead->units[(i + from) % lead->unit_count];
        if (!unit_serves(unit, primary) || class->server_count + unit->pod_count > REFIT_CLASS_SERVERS_MAX)
            continue;
        for (size_t k = 0; k < unit->pod_count; k++)
            class->servers[class->server_count++] = unit->pods[k];
        replicas++;
    }
}

static void choose_sources(struct refit_lead *lead, const struct refit_replica *primary)
{
    for (size_t i = 0; i < lead->class_count; i++) {
        struct refit_class *class = &lead->classes[i];
        /* What serves sends all it has, so a class that keeps a part is better fed by the trainer; and only the trainer's
         * ranks can check the memory that a class's bytes came from. */
        if (!same_layout(class->first, primary) && !class->first->keeps && !lead->publish.check_source)
            choose_servers(lead, class, primary);
        class->source = refit_layout_retain(class->server_count ? primary->layout : lead->source);
    }
}

enum refit_status refit_classes_form(struct refit_lead *lead, struct refit_error *err)
{
    const struct refit_replica *primary = find_primary(lead);
    lead->classes = calloc(lead->replica_count, sizeof *lead->classes);
    if (!lead->classes || !classify(lead)) {
        refit_classes_dissolve(lead);
        return refit_fail_alloc(err, "a fleet", lead->replica_count * sizeof *lead->classes);
    }
    if (primary)
        choose_sources(lead, primary);
    return REFIT_OK;
}

void refit_classes_dissolve(struct refit_lead *lead)
{
    for (size_t i = 0; i < lead->replica_count; i++)
        lead->replicas[i]->class = NULL;
    for (size_t i = 0; i < lead->class_count; i++) {
        json_decref(lead->classes[i].members);
        refit_layout_release(lead->classes[i].source);
    }
    free(lead->classes);
    lead->classes = NULL;
    lead->class_count = 0;
}

json_t *refit_class_json(const struct refit_replica *replica)
{
    const struct refit_class *class = replica->class;
    json_t *fleet = json_pack("{s:s, s:s, s:I, s:O}", "id", class->id, "token", class->token, "self",
                              (json_int_t)replica->self, "members", class->members);
    if (fleet && class->server_count)
        json_object_set_new(fleet, "sources", json_integer((json_int_t)class->server_count));
    return fleet;
}
