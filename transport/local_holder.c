/* SPDX-License-Identifier: Apache-2.0
 *
 * The holder on the same host: passes descriptors of its memory, then digests what is granted, on one thread. What the
 * receiver can't read there is packed into a ring of sealed slots that it maps read-only.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "transport/address.h"
#include "transport/greeting.h"
#include "transport/holding.h"
#include "transport/local.h"
#include "transport/local_pieces.h"

#define GREETING_PACKET 8192

struct local_holder {
    struct refit_holding holding;
    struct refit_serving serving;
    struct refit_stream stream; /* of packets; its fd under holding.lock */
    bool has_thread;
    pthread_t thread;
    int ring_fd;
    uint8_t *ring;
    unsigned ring_slots;
    struct refit_segments segments;
    uint8_t packet[REFIT_LOCAL_PACKET_MAX];
};

/* ---- serving grants ---- */

static enum refit_status read_batch(struct local_holder *holder, const struct refit_arena *arena,
                                    struct refit_walk walk, uint32_t slot_plus_1, struct refit_error *err)
{
    struct refit_endpoint_counters *counters = &holder->holding.base.counters;
    struct refit_completion completion;
    enum refit_status status;
    int64_t start = refit_clock_ns();
    if (slot_plus_1 == 0) {
        status = refit_memory_digest(arena, walk, &holder->segments, &completion, err);
    } else {
        uint8_t *slot = holder->ring + (size_t)(slot_plus_1 - 1) * REFIT_BATCH_BYTES_MAX;
        status = refit_memory_pack(arena, walk, slot, &holder->segments, &completion, err);
        refit_count(&counters->copied_bytes, walk.left);
    }
    status = refit_completion_end(&completion, status, refit_deadline_in_ms(REFIT_ABORT_MS), err);
    refit_count(slot_plus_1 ? &counters->pack_ns : &counters->verify_ns, (uint64_t)(refit_clock_ns() - start));
    return status;
}

static enum refit_status send_digests(struct local_holder *holder, const struct refit_frame *grant,
                                      struct refit_error *err)
{
    uint32_t total = holder->segments.digesting ? (uint32_t)holder->segments.count : 0;
    uint32_t first = 0;
    do {
        uint32_t count = total - first < REFIT_LOCAL_DIGESTS ? total - first : REFIT_LOCAL_DIGESTS;
        struct refit_frame frame = {
            .type = REFIT_FRAME_DIGESTS, .length = count, .edge = grant->edge, .batch = grant->batch};
        uint8_t *at = holder->packet;
        memcpy(at, &frame, sizeof frame);
        memcpy(at + sizeof frame, &first, sizeof first);
        memcpy(at + sizeof frame + sizeof first, &total, sizeof total);
        refit_digests_encode(&holder->segments, first, count, at + sizeof frame + sizeof first + sizeof total);
        struct iovec iov = {.iov_base = at,
                            .iov_len = sizeof frame + sizeof first + sizeof total + (size_t)count * REFIT_DIGEST_BYTES};
        enum refit_status status = refit_stream_send(&holder->stream, &iov, 1, 0, holder->holding.base.wake, err);
        if (status != REFIT_OK)
            return status;
        first += count;
    } while (first < total);
    return REFIT_OK;
}

static enum refit_status send_batch(struct refit_serving *serving, const struct refit_owed *owed,
                                    struct refit_error *err)
{
    struct local_holder *holder = (struct local_holder *)serving->holding;
    const struct refit_frame *grant = &owed->grant;
    const struct refit_arena *arena;
    struct refit_walk walk;
    if (grant->argument > holder->ring_slots)
        return refit_fail(err, REFIT_PEER, "the receiver named ring slot %u of %u", grant->argument - 1,
                          holder->ring_slots);
    if (!refit_view_window(&holder->holding.view, owed->edge, grant->batch, &arena, &walk))
        return refit_fail(err, REFIT_INVALID, "no arena here has edge %016llx, which was offered",
                          (unsigned long long)grant->edge);
    enum refit_status status = refit_serving_pace(serving, walk.left, err);
    if (status == REFIT_OK)
        status = read_batch(holder, arena, walk, grant->argument, err);
    return status == REFIT_OK ? send_digests(holder, grant, err) : status;
}

static void *holder_run(void *arg)
{
    struct local_holder *holder = arg;
    struct refit_error err = {.status = REFIT_OK};
    enum refit_status status = refit_serving_run(&holder->serving, &err);
    shutdown(holder->stream.fd, status == REFIT_OK ? SHUT_WR : SHUT_RDWR);
    refit_holding_ended(&holder->holding, status, &err);
    return NULL;
}

/* ---- the ring ---- */

static enum refit_status ring_create(struct local_holder *holder, struct refit_error *err)
{
    unsigned slots = holder->holding.base.config.streams * REFIT_GRANTS_PER_STREAM;
    if (slots > REFIT_LOCAL_RING_SLOTS_MAX)
        slots = REFIT_LOCAL_RING_SLOTS_MAX;
    size_t bytes = (size_t)slots * REFIT_BATCH_BYTES_MAX;
    holder->ring_fd = refit_io_memfd("refit-ring");
    if (holder->ring_fd < 0 || ftruncate(holder->ring_fd, (off_t)bytes) != 0)
        return refit_fail_errno(err, errno, "a ring of %zu bytes", bytes);
    void *ring = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, holder->ring_fd, 0);
    if (ring == MAP_FAILED)
        return refit_fail_errno(err, errno, "mapping a ring of %zu bytes", bytes);
    holder->ring = ring;
    holder->ring_slots = slots;
    /* Neither side can pull the memory away from under the other; and later mappings can't write. */
    if (fcntl(holder->ring_fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
        return refit_fail_errno(err, errno, "sealing a ring");
    return REFIT_OK;
}

static void ring_destroy(struct local_holder *holder)
{
    if (holder->ring)
        munmap(holder->ring, (size_t)holder->ring_slots * REFIT_BATCH_BYTES_MAX);
    refit_io_close(&holder->ring_fd);
}

/* ---- dialling ---- */

static enum refit_status send_greeting(struct local_holder *holder, int fd, struct refit_deadline deadline,
                                       struct refit_error *err)
{
    struct refit_buf greeting;
    refit_buf_init(&greeting, REFIT_GREETING_HEAD_BYTES + REFIT_OFFER_MAX * (size_t)REFIT_GREETING_EDGE_BYTES);
    enum refit_status status = refit_greeting_encode(&holder->holding.base.config, 0, 0, &greeting, err);
    /* The head is a packet of its own: the listener reads no further before it has proven the token. */
    for (size_t at = 0, part = REFIT_GREETING_HEAD_BYTES; status == REFIT_OK && at < greeting.len; at += part) {
        if (at > 0)
            part = greeting.len - at < GREETING_PACKET ? greeting.len - at : GREETING_PACKET;
        struct iovec iov = {.iov_base = greeting.data + at, .iov_len = part};
        status = refit_wire_send(fd, &iov, 1, 0, holder->holding.base.wake, deadline, err);
    }
    refit_buf_release(&greeting);
    return status;
}

/* Twice an answer: to the greeting, and to the list of pieces. */
static enum refit_status introduce(struct local_holder *holder, int fd, struct refit_deadline deadline,
                                   struct refit_error *err)
{
    int wake = holder->holding.base.wake;
    struct refit_stream stream = {.fd = fd};
    enum refit_status status = send_greeting(holder, fd, deadline, err);
    if (status == REFIT_OK || status == REFIT_PEER)
        status = refit_greeting_await(&stream, wake, deadline, err);
    if (status == REFIT_OK)
        status = refit_local_pieces_send(fd, &holder->holding.view, holder->holding.base.config.landed != NULL,
                                         holder->ring_fd, holder->ring_slots, wake, deadline, err);
    if (status == REFIT_OK)
        status = refit_greeting_await(&stream, wake, deadline, err);
    return status;
}

static enum refit_status parse_card(const json_t *card, struct sockaddr_un *address, struct refit_error *err)
{
    const char *path;
    enum refit_status status = refit_json_get_string(card, "path", "card", &path, err);
    if (status != REFIT_OK)
        return status;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address->sun_path)
        return refit_fail(err, REFIT_INVALID, "card: \"path\" is longer than %zu bytes", sizeof address->sun_path - 1);
    strcpy(address->sun_path, path);
    return REFIT_OK;
}

static void reap(struct refit_holding *holding)
{
    struct local_holder *holder = (struct local_holder *)holding;
    if (holder->has_thread)
        pthread_join(holder->thread, NULL);
    holder->has_thread = false;
    pthread_mutex_lock(&holder->holding.lock);
    refit_stream_close(&holder->stream);
    pthread_mutex_unlock(&holder->holding.lock);
}

static enum refit_status start(struct local_holder *holder, int fd, struct refit_error *err)
{
    pthread_mutex_lock(&holder->holding.lock);
    holder->stream.fd = fd;
    holder->serving = (struct refit_serving){.holding = &holder->holding,
                                             .stream = &holder->stream,
                                             .send = send_batch,
                                             .segments = &holder->segments};
    enum refit_status status = refit_holding_began(&holder->holding, err);
    if (status == REFIT_OK)
        status = refit_bulk_thread_start(&holder->thread, holder_run, holder, err);
    if (status == REFIT_OK) {
        holder->has_thread = true;
        holder->holding.running++;
    } else {
        holder->stream.fd = -1;
    }
    pthread_mutex_unlock(&holder->holding.lock);
    return status;
}

static enum refit_status dial(struct refit_holding *holding, const json_t *card, struct refit_deadline deadline,
                              struct refit_error *err)
{
    struct local_holder *holder = (struct local_holder *)holding;
    struct sockaddr_un address;
    int fd = -1;
    enum refit_status status = parse_card(card, &address, err);
    if (status != REFIT_OK)
        return status;
    status = refit_address_dial((struct sockaddr *)&address, sizeof address, SOCK_SEQPACKET, address.sun_path,
                                holder->holding.base.wake, deadline, &fd, err);
    if (status == REFIT_OK)
        status = introduce(holder, fd, deadline, err);
    if (status == REFIT_OK)
        status = start(holder, fd, err);
    if (status == REFIT_OK)
        return REFIT_OK;
    refit_io_close(&fd);
    return refit_error_prefix(err, status, "refit %s, holder %u, dialling %s", holder->holding.base.config.refit_id,
                              holder->holding.base.config.holder, address.sun_path);
}

static void hang_up(struct refit_holding *holding)
{
    struct local_holder *holder = (struct local_holder *)holding;
    pthread_mutex_lock(&holding->lock);
    if (holder->stream.fd >= 0)
        refit_stream_shutdown(&holder->stream);
    pthread_mutex_unlock(&holding->lock);
}

static void release(struct refit_holding *holding)
{
    struct local_holder *holder = (struct local_holder *)holding;
    ring_destroy(holder);
    refit_segments_release(&holder->segments);
}

static const struct refit_holding_kind local_kind = {
    .dial = dial,
    .hang_up = hang_up,
    .reap = reap,
    .release = release,
};

enum refit_status refit_local_holder_open(const struct refit_endpoint_config *config, struct refit_endpoint **out,
                                          struct refit_error *err)
{
    struct local_holder *holder = calloc(1, sizeof *holder);
    if (!holder)
        return refit_fail_alloc(err, "an endpoint", sizeof *holder);
    holder->stream.fd = holder->ring_fd = -1;
    enum refit_status status = refit_holding_open(&holder->holding, &local_kind, config, err);
    if (status != REFIT_OK) {
        free(holder);
        return status;
    }
    refit_segments_init(&holder->segments, config->verify);
    status = ring_create(holder, err);
    if (status == REFIT_OK)
        *out = &holder->holding.base;
    else
        holder->holding.base.ops->close(&holder->holding.base);
    return status;
}
