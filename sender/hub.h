/* SPDX-License-Identifier: Apache-2.0
 *
 * Framed connections between ranks, read by one thread.
 *
 * A frame is its length (u32, of what follows), a type (u8), a turn (u64, the caller's) and a body. A hub polls a listening socket (may be none) and all
 * links, assembles frames without ever blocking on one peer, and calls back on its own thread. A trusted link that
 * closes, sends a malformed length or is told to go by `frame` is lost, once, with the reason.
 *
 * Links that came in by the listener are strangers until refit_hub_trust(): their frames are short, they have
 * REFIT_HUB_GREETING_MS to say who they are, and there are at most REFIT_HUB_STRANGERS of them.
 */
#ifndef REFIT_SENDER_HUB_H
#define REFIT_SENDER_HUB_H

#include <stdint.h>

#include "base/clock.h"
#include "base/error.h"

#define REFIT_HUB_GREETING_MS 5000
#define REFIT_HUB_GREETING_BYTES 4096
#define REFIT_HUB_STRANGERS 64

struct refit_hub;
struct refit_tls;
struct refit_rank_wire;

struct refit_frame {
    uint8_t type;
    uint64_t turn;
    const void *body;
    size_t len;
};

struct refit_hub_config {
    int listener;           /* listening socket, owned by the hub from now on; -1: none */
    struct refit_tls *tls;  /* server's end, borrowed: connections that come in speak TLS; NULL: plain */
    struct refit_rank_wire *first; /* link 0, trusted at once; taken, also on an error. NULL: none */
    size_t links_max;
    size_t frame_max;       /* bytes of a trusted link's frame */
    /* On the hub's thread; must not block. False: the link is dropped with *why. */
    bool (*frame)(void *context, size_t link, const struct refit_frame *frame, struct refit_error *why);
    void (*lost)(void *context, size_t link, const struct refit_error *why);
    void *context;
};

REFIT_MUST_CHECK enum refit_status refit_hub_start(const struct refit_hub_config *config, struct refit_hub **out,
                                                   struct refit_error *err);
/* Joins the thread, closes all links; no callback comes after. NULL is fine. */
void refit_hub_stop(struct refit_hub *hub);

/* From `frame` only; nothing happens to a link that is trusted already. */
void refit_hub_trust(struct refit_hub *hub, size_t link);
/* Any thread; frames of different callers don't mix. REFIT_PEER: the link is lost. */
REFIT_MUST_CHECK enum refit_status refit_hub_send(struct refit_hub *hub, size_t link, const struct refit_frame *frame,
                                                  struct refit_deadline deadline, struct refit_error *err);
/* No more connections are taken. */
void refit_hub_close_listener(struct refit_hub *hub);

#endif
