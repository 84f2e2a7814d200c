/* SPDX-License-Identifier: Apache-2.0
 *
 * Who gets the bytes from whom: members in classes. A class's members hold the same part of the same layout, so that their
 * plans have the same edges, and relay to each other. The classes of the layout that most members have are fed by the
 * trainer, once each; the others by members of that layout, which serve them what lands.
 */
#ifndef REFIT_SENDER_CLASSES_H
#define REFIT_SENDER_CLASSES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "layouts/layout.h"

#define REFIT_CLASS_ID_MAX 56
#define REFIT_CLASS_TOKEN_MAX 33
#define REFIT_CLASS_SERVERS_MAX 64 /* pods that serve one class */

struct refit_lead;
struct refit_replica;

struct refit_class {
    char id[REFIT_CLASS_ID_MAX];
    char token[REFIT_CLASS_TOKEN_MAX]; /* hex */
    json_t *members;                   /* what all of them are told; new */
    struct refit_replica *first;       /* one of them */
    size_t count;
    uint64_t egress; /* bytes that the trainer sent to it; under the lead's lock */
    struct refit_layout *source; /* retained; the trainer's, or another class's */
    struct refit_replica *servers[REFIT_CLASS_SERVERS_MAX]; /* of another class's layout; none: the trainer feeds it */
    size_t server_count;
};

/* From those that are ASKED, with the lead's lock held. Sets their class and number. REFIT_NO_MEMORY: no classes. */
REFIT_MUST_CHECK enum refit_status refit_classes_form(struct refit_lead *lead, struct refit_error *err);
void refit_classes_dissolve(struct refit_lead *lead);
/* `fleet` of the request of a member; new, NULL when out of memory. */
json_t *refit_class_json(const struct refit_replica *replica);

#endif
