/* SPDX-License-Identifier: Apache-2.0
 *
 * The receiving end of any transport: the operations of an endpoint that grants, over a table of what its connections
 * can do. A transport embeds struct refit_receiving as its first member.
 */
#ifndef REFIT_TRANSPORT_RECEIVING_H
#define REFIT_TRANSPORT_RECEIVING_H

#include "transport/grants.h"
#include "transport/listener.h"
#include "transport/rate.h"

struct refit_receiving;

/* All with the ledger's lock held, but `join` and `free`. */
struct refit_receiving_kind {
    const char *name; /* of the transport whose card holders get */
    /* The peer has a queue, or room: grants what can be. */
    void (*dispatch)(struct refit_receiving *receiving, struct refit_peer *peer);
    /* Its connections are shut down, and nothing of them begins to land from here on. */
    void (*cut)(struct refit_receiving *receiving, struct refit_peer *peer);
    /* Something that was cut is still landing; when it no longer does, grants.event is broadcast. */
    bool (*landing)(const struct refit_receiving *receiving, const struct refit_peer *peer);
    /* What was granted on connections that were cut ends with `status`, and refit_peer_left is called for each. */
    void (*reap)(struct refit_receiving *receiving, struct refit_peer *peer, enum refit_status status);
    /* When it was last heard, see refit_holder_state. */
    int64_t (*heard)(struct refit_receiving *receiving, struct refit_peer *peer);
    void (*say_done)(struct refit_receiving *receiving, struct refit_peer *peer);
    /* Ends the threads, which see base.wake and grants.stopped. */
    void (*join)(struct refit_receiving *receiving);
    void (*free)(struct refit_receiving *receiving); /* the transport's own, and then itself */
};

struct refit_receiving {
    struct refit_endpoint base;
    const struct refit_receiving_kind *kind;
    struct refit_gate gate;
    bool listening; /* registered with the listener */
    struct refit_grants grants;
    struct refit_rate rate;
    pthread_mutex_t abort_lock;
    bool aborted;
};

REFIT_MUST_CHECK enum refit_status refit_receiving_init(struct refit_receiving *receiving,
                                                        const struct refit_receiving_kind *kind,
                                                        const struct refit_endpoint_config *config,
                                                        struct refit_error *err);
void refit_receiving_release(struct refit_receiving *receiving); /* by kind->free */
/* From here on holders are admitted. */
REFIT_MUST_CHECK enum refit_status
refit_receiving_listen(struct refit_receiving *receiving, enum refit_gate_kind kind,
                       enum refit_status (*admit)(struct refit_gate *gate, const struct refit_greeting *greeting,
                                                  const uint8_t *edges, const struct refit_stream *stream,
                                                  struct refit_error *err),
                       struct refit_error *err);
static inline struct refit_receiving *refit_receiving_of_gate(struct refit_gate *gate)
{
    return (struct refit_receiving *)((char *)gate - offsetof(struct refit_receiving, gate));
}
/* With the lock held: the peer of a greeting, with what it offers; refused when no more bytes are needed. */
REFIT_MUST_CHECK enum refit_status refit_receiving_welcome(struct refit_receiving *receiving,
                                                           const struct refit_greeting *greeting, const uint8_t *edges,
                                                           struct refit_peer **out, struct refit_error *err);

#endif
