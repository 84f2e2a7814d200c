/* SPDX-License-Identifier: Apache-2.0
 *
 * What an engine process and refitd say to each other: a SOCK_SEQPACKET Unix socket, one JSON object per message (at
 * most REFIT_ATTACH_MESSAGE_MAX bytes), descriptors beside it (base/io.h). Both sides build and read messages with
 * the functions here, so the format has one home.
 *
 *   engine -> refitd   attach    {abi, rank, ranks, label, returning, stable, swap, window}
 *                                                                      + layout memfd [+ claim, slot 0.., when returning]
 *   refitd -> engine   attached  {abi, slots, bytes, swap, window, device, receive}
 *                                                                      + claim memfd, slot 0.. (read-only)
 *                      refused   {status, text}                          and the socket is closed
 *                      slot      {slot, id}                            + its new memory (a slot was replaced)
 *                      prepare   {refit, slot, version, label, digest}
 *   engine -> refitd   prepared  {refit, ok, text}
 *   refitd -> engine   swapping  {refit, version, label, digest, kv}
 *   engine -> refitd   ready     {refit, ok, text}
 *   refitd -> engine   move      {refit, slot}                           the window shows this slot from now on
 *   engine -> refitd   moved     {refit, ok, window, text}
 *   refitd -> engine   swapped   {version, label, digest, kv}           no answer
 *   engine -> refitd   able      {ok, nccl, text}                      the answer to `receive` of `attached`
 *   refitd -> engine   receive   {refit}                               + a socket (transport/remote.h); no answer here
 *   engine -> refitd   detach    {}
 *
 * `device`, when slots are in a GPU's memory: {uuid, granularity, slots}, with a list that names each slot by its random id
 * (empty: that one is a memfd). Descriptors of such slots have no identity that could be asked for, so `slot` has an id, too.
 *
 * The layout travels as a sealed memfd, since a document can be larger than a message. An engine that reconnects to a
 * restarted refitd says `returning` and hands back its claim page and slots; refitd takes over what passes its
 * checks and answers with the descriptors that hold from now on (the same ones, or new ones).
 *
 * `receive` (left out: false): bytes are to come into slots by NCCL in the engine. It says whether it can, by the version of NCCL that
 * it found (23203 is 2.32.3), or why not.
 *
 * `swap` is how versions are swapped. In all modes but `pointer` an engine reads through a window, one range of addresses
 * that never changes; `window` is the slot that it shows (REFIT_SLOT_NONE: none). `stable`: the engine can do with
 * no other mode.
 */
#ifndef REFIT_ENGINE_ATTACH_H
#define REFIT_ENGINE_ATTACH_H

#include "base/json.h"
#include "engine/claim.h"

#define REFIT_ATTACH_MESSAGE_MAX 8192
#define REFIT_REFIT_ID_MAX 64 /* with its NUL */
#define REFIT_SLOT_ID_BYTES 16

/* The slots that are in a GPU's memory, and where. */
struct refit_attach_device {
    uint32_t slots; /* one bit each; 0: none is */
    uint8_t uuid[16];
    uint64_t granularity;
    uint8_t id[REFIT_SLOTS_MAX][REFIT_SLOT_ID_BYTES];
};

/* How a version takes the place of the one before it (docs/receiver.md, "Swap modes"). */
enum refit_swap_mode { REFIT_SWAP_POINTER, REFIT_SWAP_COPY, REFIT_SWAP_REMAP, REFIT_SWAP_IN_PLACE };
#define REFIT_SWAP_MODES 4
const char *refit_swap_mode_name(enum refit_swap_mode mode); /* "pointer", "copy", "remap", "in-place" */

enum refit_attach_type {
    REFIT_ATTACH_ATTACH, REFIT_ATTACH_ATTACHED, REFIT_ATTACH_REFUSED, REFIT_ATTACH_SLOT, REFIT_ATTACH_PREPARE,
    REFIT_ATTACH_PREPARED, REFIT_ATTACH_SWAPPING, REFIT_ATTACH_READY, REFIT_ATTACH_SWAPPED, REFIT_ATTACH_DETACH,
    REFIT_ATTACH_MOVE, REFIT_ATTACH_MOVED, REFIT_ATTACH_ABLE, REFIT_ATTACH_RECEIVE
};

/* One message, all types; a type uses the members its line above names, the rest is zero. Plain data. */
struct refit_attach_message {
    enum refit_attach_type type;
    uint32_t abi, rank, ranks, slots, slot, window, nccl;
    uint64_t bytes;
    bool returning, ok, stable, receive;
    enum refit_swap_mode swap;
    enum refit_status status;
    struct refit_version version;
    char label[64];
    char refit[REFIT_REFIT_ID_MAX];
    char kv[16];
    char text[256];
    struct refit_attach_device device; /* `slot` uses its own bit and id */
};

/* `sock` may be non-blocking: REFIT_BUSY when the peer does not read. Descriptors are sent as copies. */
REFIT_MUST_CHECK enum refit_status refit_attach_send(int sock, const struct refit_attach_message *message, const int *fds,
                                                     size_t fd_count, struct refit_error *err);
/* REFIT_BUSY: nothing there (non-blocking); REFIT_PEER: closed; REFIT_INVALID: not a message. The caller owns fds. */
REFIT_MUST_CHECK enum refit_status refit_attach_receive(int sock, struct refit_attach_message *message, int *fds,
                                                        size_t fd_max, size_t *fd_count, struct refit_error *err);
/* The text of one message; what refit_attach_receive() does with what it read. */
REFIT_MUST_CHECK enum refit_status refit_attach_parse(const void *text, size_t len,
                                                      struct refit_attach_message *message, struct refit_error *err);

#endif
