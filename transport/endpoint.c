/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/endpoint.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "base/thread.h"

static enum refit_status check_config(const struct refit_endpoint_config *config, struct refit_error *err)
{
    size_t id = config->refit_id ? strlen(config->refit_id) : 0;
    if (id == 0 || id > REFIT_WIRE_ID_MAX)
        return refit_fail(err, REFIT_INVALID, "endpoint: the refit id must have 1 to %d bytes, found %zu", REFIT_WIRE_ID_MAX,
                          id);
    if (!config->plan)
        return refit_fail(err, REFIT_INVALID, "endpoint of refit %s: no plan", config->refit_id);
    if (config->streams < 1 || config->streams > REFIT_STREAMS_MAX)
        return refit_fail(err, REFIT_INVALID, "endpoint of refit %s: streams must be 1 to %d, found %u",
                          config->refit_id, REFIT_STREAMS_MAX, config->streams);
    if (config->role == REFIT_HOLDER)
        return REFIT_OK;
    if (config->holder < 1 || config->holder > REFIT_HOLDERS_MAX)
        return refit_fail(err, REFIT_INVALID, "receiver endpoint of refit %s: needs 1 to %u holders, found %u",
                          config->refit_id, REFIT_HOLDERS_MAX, config->holder);
    if (!config->inbox)
        return refit_fail(err, REFIT_INVALID, "receiver endpoint of refit %s: no inbox", config->refit_id);
    return REFIT_OK;
}

enum refit_status refit_endpoint_init(struct refit_endpoint *endpoint, const struct refit_endpoint_ops *ops,
                                      const struct refit_endpoint_config *config, struct refit_error *err)
{
    enum refit_status status = check_config(config, err);
    if (status != REFIT_OK)
        return status;
    endpoint->ops = ops;
    endpoint->config = *config;
    atomic_init(&endpoint->stopping, false);
    endpoint->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (endpoint->wake < 0)
        return refit_fail_errno(err, errno, "endpoint of refit %s: eventfd", config->refit_id);
    return REFIT_OK;
}

void refit_endpoint_release(struct refit_endpoint *endpoint)
{
    refit_io_close(&endpoint->wake);
}

void refit_endpoint_stop(struct refit_endpoint *endpoint)
{
    atomic_store_explicit(&endpoint->stopping, true, memory_order_release);
    eventfd_write(endpoint->wake, 1);
}

bool refit_endpoint_stopping(const struct refit_endpoint *endpoint)
{
    return atomic_load_explicit(&endpoint->stopping, memory_order_acquire);
}

enum refit_status refit_bulk_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, struct refit_error *err)
{
    return refit_thread_start(thread, run, arg, "a bulk thread", err);
}

void refit_bulk_thread_nice(int nice)
{
    /* On Linux the priority is a thread's own, and 0 names the caller. */
    if (nice != 0 && setpriority(PRIO_PROCESS, 0, nice) != 0)
        refit_log_event(REFIT_LOG_WARN, "bulk thread keeps its priority", refit_log_i64("nice", nice), refit_log_errno(errno));
}
