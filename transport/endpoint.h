/* SPDX-License-Identifier: Apache-2.0
 *
 * What all endpoints share inside transport/: a table of operations per role, counters, the wake descriptor that ends
 * every wait, and how bulk threads are started.
 */
#ifndef REFIT_TRANSPORT_ENDPOINT_H
#define REFIT_TRANSPORT_ENDPOINT_H

#include <pthread.h>
#include <stdatomic.h>

#include "transport/transport.h"

#define REFIT_WIRE_ID_MAX 128      /* of a refit id, without a NUL */
#define REFIT_STREAMS_MAX 16  /* connections of one holder */
/* Batches that one holder owes beyond REFIT_GRANTS_PER_STREAM for each stream: enough that a thread which has landed a
 * batch finds the next one granted, and that a relay has a choice of what to send first; so few that a slow holder does
 * not hoard what others could send. */
#define REFIT_QUEUE_MAX 4
/* That one connection may owe: with `local` it is the holder's only one. */
#define REFIT_OWED_MAX (REFIT_STREAMS_MAX * REFIT_GRANTS_PER_STREAM + REFIT_QUEUE_MAX)

/* One role of one transport. Operations of the other role are NULL. */
struct refit_endpoint_ops {
    enum refit_status (*card)(struct refit_endpoint *endpoint, json_t **out, struct refit_error *err);
    enum refit_status (*connect)(struct refit_endpoint *endpoint, const json_t *card, struct refit_deadline deadline,
                                 struct refit_error *err);
    enum refit_status (*post)(struct refit_endpoint *endpoint, uint32_t holder, const struct refit_edge *edge,
                              uint32_t batch, struct refit_error *err);
    void (*look)(struct refit_endpoint *endpoint, uint32_t holder, struct refit_holder_state *out);
    void (*drop)(struct refit_endpoint *endpoint, uint32_t holder);
    enum refit_status (*wait_done)(struct refit_endpoint *endpoint, struct refit_deadline deadline,
                                   struct refit_error *err);
    enum refit_status (*finish)(struct refit_endpoint *endpoint, struct refit_deadline deadline,
                                struct refit_error *err);
    void (*abort)(struct refit_endpoint *endpoint);
    void (*close)(struct refit_endpoint *endpoint); /* after abort */
};

struct refit_endpoint_counters {
    _Atomic uint64_t payload_bytes, wire_bytes, copied_bytes, pack_ns, verify_ns;
};

/* The first member of every endpoint. */
struct refit_endpoint {
    const struct refit_endpoint_ops *ops;
    struct refit_endpoint_config config;
    struct refit_endpoint_counters counters;
    int wake;              /* eventfd, readable from abort on and never drained */
    atomic_bool stopping;
};

enum refit_status refit_endpoint_init(struct refit_endpoint *endpoint, const struct refit_endpoint_ops *ops,
                                      const struct refit_endpoint_config *config, struct refit_error *err);
void refit_endpoint_release(struct refit_endpoint *endpoint);
/* From here on every wait on `wake` ends. Any thread, any number of times. */
void refit_endpoint_stop(struct refit_endpoint *endpoint);
bool refit_endpoint_stopping(const struct refit_endpoint *endpoint);

/* How long a peer may take for one step of what it has agreed to. */
static inline int64_t refit_endpoint_patience_ms(const struct refit_endpoint *endpoint)
{
    return endpoint->config.patience_ms ? (int64_t)endpoint->config.patience_ms : 20000;
}

static inline void refit_count(_Atomic uint64_t *counter, uint64_t more)
{
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

/* All signals blocked: the process's own threads handle them. */
enum refit_status refit_bulk_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, struct refit_error *err);
/* Called by a bulk thread about itself. */
void refit_bulk_thread_nice(int nice);

#endif
