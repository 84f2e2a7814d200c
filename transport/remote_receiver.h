/* SPDX-License-Identifier: Apache-2.0
 *
 * The half of a remote receiver that is in refitd: the ledger, and a thread that listens to engines. All under the
 * ledger's lock.
 *
 * A holder dials engine by engine, and is connected once it is so at all of them; when one has lost it, all drop it, so
 * that it dials all anew: what engines say of a connection is not taken for the next one's, for DROPPED lies between.
 * A batch is granted at the engine of the rank where it lands.
 */
#ifndef REFIT_TRANSPORT_REMOTE_RECEIVER_H
#define REFIT_TRANSPORT_REMOTE_RECEIVER_H

#include "transport/places.h"
#include "transport/receiving.h"
#include "transport/remote.h"
#include "transport/remote_wire.h"

#define REFIT_REMOTE_GRANTS_MAX 20 /* to one holder at an engine: what its endpoint takes */

struct refit_remote_granted {
    struct refit_grant grant;
    struct refit_segments segments; /* of where it lands; digests as they come */
    size_t have;                    /* digests that have come */
};

/* A holder at an engine. */
struct refit_remote_link {
    bool admitted; /* a connection was passed on, and not dropped since */
    bool up;       /* the engine says that it is connected */
    bool dropping; /* DROPPED is due */
    int64_t heard_ns;
    unsigned granted_count;
    struct refit_remote_granted granted[REFIT_REMOTE_GRANTS_MAX];
};

enum refit_remote_state {
    REFIT_REMOTE_IS_ENDED, /* not at work; so before it was told what to open */
    REFIT_REMOTE_IS_OPENING,
    REFIT_REMOTE_IS_OPEN,
    REFIT_REMOTE_IS_LOST,  /* not used any more; it may still be at work */
};

struct refit_remote_side {
    struct refit_remote_engine *engine; /* borrowed */
    enum refit_remote_state state;
    enum refit_status failed; /* why it is lost */
    bool closing;             /* CLOSE was said */
    bool mute;                /* its socket has ended; its process is looked at only */
    int64_t heard_ns;
    uint64_t counted[3];      /* of its last ALIVE */
    struct refit_remote_message *queue; /* owned: what its socket had no room for */
    size_t queue_count, queue_capacity;
};

struct refit_remote {
    struct refit_receiving base;
    pthread_t events;
    bool has_events, quits;
    int nudge; /* eventfd: something was queued, or the thread is to end */
    struct refit_peer *spreading; /* a batch of it is being copied, without the lock */
    struct refit_places places;   /* the thread's own */
    struct refit_remote_packet packet; /* the same */
    size_t side_count;
    struct refit_remote_side sides[REFIT_REMOTE_ENGINES_MAX];
};

static inline struct refit_remote *refit_remote_of(const struct refit_receiving *receiving)
{
    return (struct refit_remote *)(uintptr_t)receiving;
}
/* Its links, one per engine; NULL: it has never dialled. */
static inline struct refit_remote_link *refit_remote_links(const struct refit_peer *peer)
{
    return peer->flows;
}
static inline bool refit_remote_usable(const struct refit_remote_side *side)
{
    return side->state == REFIT_REMOTE_IS_OPEN;
}

/* remote_side.c: the lock is held. */
/* At once, or as soon as there is room. An engine that takes nothing is lost. */
void refit_remote_tell(struct refit_remote *remote, struct refit_remote_side *side,
                       const struct refit_remote_message *message);
void refit_remote_flush(struct refit_remote *remote, struct refit_remote_side *side);
/* It is not used any more: what it was granted ends. */
void refit_remote_lose(struct refit_remote *remote, struct refit_remote_side *side, enum refit_status status,
                       const char *why);
/* It writes no more. */
void refit_remote_end(struct refit_remote *remote, struct refit_remote_side *side, const char *why);
/* Whether it is connected at all engines has changed, perhaps. */
void refit_remote_join_peer(struct refit_remote *remote, struct refit_peer *peer);
void refit_remote_leave_peer(struct refit_remote *remote, struct refit_peer *peer, const char *why);
void refit_remote_drop_link(struct refit_remote *remote, struct refit_peer *peer, size_t side);
void refit_remote_end_grant(struct refit_remote *remote, struct refit_peer *peer, struct refit_remote_link *link,
                            unsigned at, enum refit_status status);
void refit_remote_end_grants(struct refit_remote *remote, struct refit_peer *peer, struct refit_remote_link *link,
                             enum refit_status status);

/* remote_events.c */
void *refit_remote_events_run(void *remote);

#endif
