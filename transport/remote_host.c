/* SPDX-License-Identifier: Apache-2.0
 *
 * What an engine keeps for receiving: the refits that it receives for (one, but for those that unwind), and the last plan.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/io.h"
#include "base/thread.h"
#include "transport/remote_executor.h"

struct refit_remote_host {
    pthread_mutex_t lock;
    struct refit_remote_executor *executors;
    struct refit_plan *plan; /* NULL: none yet */
};

enum refit_status refit_remote_host_create(struct refit_remote_host **out, struct refit_error *err)
{
    struct refit_remote_host *host = calloc(1, sizeof *host);
    if (!host)
        return refit_fail_alloc(err, "what an engine receives with", sizeof *host);
    pthread_mutex_init(&host->lock, NULL);
    refit_transports_keep();
    *out = host;
    return REFIT_OK;
}

void refit_remote_host_destroy(struct refit_remote_host *host)
{
    if (!host)
        return;
    refit_transports_let_go();
    refit_plan_release(host->plan);
    pthread_mutex_destroy(&host->lock);
    free(host);
}

/* ---- plans ---- */

static bool is_plan_of(const struct refit_plan *plan, const struct refit_remote_open *open)
{
    return plan && !open->wanted && refit_plan_first_rank(plan) == open->first_rank &&
           refit_plan_rank_count(plan) == open->rank_count &&
           strcmp(refit_layout_digest(refit_plan_source(plan)), open->source) == 0 &&
           strcmp(refit_layout_digest(refit_plan_destination(plan)), open->destination) == 0;
}

static enum refit_status read_layout(int fd, const char *digest, const char *what, struct refit_layout **out,
                                     struct refit_error *err)
{
    char *text = NULL;
    size_t len = 0;
    enum refit_status status = refit_remote_read(fd, REFIT_LAYOUT_TEXT_MAX, what, &text, &len, err);
    if (status == REFIT_OK)
        status = refit_layout_parse(text, len, what, out, err);
    free(text);
    if (status == REFIT_OK && strcmp(refit_layout_digest(*out), digest) != 0)
        status = refit_fail(err, REFIT_MISMATCH, "%s has another digest than refitd says", what);
    return status;
}

static enum refit_status build(struct refit_layout *source, struct refit_layout *destination,
                               const struct refit_remote_open *open, int wanted_fd, struct refit_plan **out,
                               struct refit_error *err)
{
    char *wanted = NULL;
    size_t len = 0, tensors = refit_layout_tensor_count(destination);
    enum refit_status status = REFIT_OK;
    if (open->wanted)
        status = refit_remote_read(wanted_fd, tensors, "the tensors that are wanted", &wanted, &len, err);
    if (status == REFIT_OK && open->wanted && len != tensors)
        status = refit_fail(err, REFIT_INVALID, "what is wanted of %zu of %zu tensors", len, tensors);
    struct refit_plan_scope scope = {.side = REFIT_DESTINATION, .rank = REFIT_ALL_RANKS, .first_rank = open->first_rank,
                                     .rank_count = open->rank_count, .wanted = (const uint8_t *)wanted};
    if (status == REFIT_OK)
        status = refit_plan_build(source, destination, scope, out, err);
    free(wanted);
    return status;
}

static enum refit_status make_plan(const struct refit_remote_open *open, const int *fds, struct refit_plan **out,
                                   struct refit_error *err)
{
    struct refit_layout *source = NULL, *destination = NULL;
    enum refit_status status = read_layout(fds[0], open->source, "the source's layout", &source, err);
    if (status == REFIT_OK)
        status = read_layout(fds[1], open->destination, "the layout served here", &destination, err);
    if (status == REFIT_OK)
        status = build(source, destination, open, fds[3], out, err);
    refit_layout_release(source);
    refit_layout_release(destination);
    return status;
}

enum refit_status refit_remote_host_plan(struct refit_remote_host *host, const struct refit_remote_open *open,
                                         const int *fds, size_t fd_count, struct refit_plan **out,
                                         struct refit_error *err)
{
    if (fd_count != 3u + open->wanted)
        return refit_fail(err, REFIT_INVALID, "%zu descriptors, %u are expected", fd_count, 3u + open->wanted);
    pthread_mutex_lock(&host->lock);
    *out = is_plan_of(host->plan, open) ? refit_plan_retain(host->plan) : NULL;
    pthread_mutex_unlock(&host->lock);
    if (*out)
        return REFIT_OK;
    enum refit_status status = make_plan(open, fds, out, err);
    if (status != REFIT_OK || open->wanted)
        return status;
    pthread_mutex_lock(&host->lock);
    struct refit_plan *old = host->plan;
    host->plan = refit_plan_retain(*out);
    pthread_mutex_unlock(&host->lock);
    refit_plan_release(old);
    return REFIT_OK;
}

/* ---- executors ---- */

static void executor_free(struct refit_remote_executor *executor)
{
    refit_io_close(&executor->sock);
    refit_io_close(&executor->wake);
    pthread_mutex_destroy(&executor->small);
    free(executor);
}

/* Joins those that are done, or all. */
static void reap(struct refit_remote_host *host, bool all)
{
    struct refit_remote_executor *ended = NULL;
    pthread_mutex_lock(&host->lock);
    for (struct refit_remote_executor **at = &host->executors; *at;) {
        struct refit_remote_executor *executor = *at;
        if (!all && !atomic_load_explicit(&executor->over, memory_order_acquire)) {
            at = &executor->next;
            continue;
        }
        *at = executor->next;
        executor->next = ended;
        ended = executor;
    }
    pthread_mutex_unlock(&host->lock);
    for (struct refit_remote_executor *executor = ended; executor; executor = executor->next)
        eventfd_write(executor->wake, 1);
    while (ended) {
        struct refit_remote_executor *executor = ended;
        ended = executor->next;
        pthread_join(executor->thread, NULL);
        executor_free(executor);
    }
}

enum refit_status refit_remote_host_serve(struct refit_remote_host *host, int sock, struct refit_error *err)
{
    reap(host, false);
    struct refit_remote_executor *executor = calloc(1, sizeof *executor);
    if (!executor) {
        refit_io_close(&sock);
        return refit_fail_alloc(err, "a refit that an engine receives for", sizeof *executor);
    }
    executor->host = host;
    executor->sock = sock;
    pthread_mutex_init(&executor->small, NULL);
    executor->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum refit_status status = executor->wake < 0 ? refit_fail_errno(err, errno, "eventfd") : REFIT_OK;
    pthread_mutex_lock(&host->lock);
    if (status == REFIT_OK)
        status = refit_thread_start(&executor->thread, refit_remote_executor_run, executor, "a thread that receives", err);
    if (status == REFIT_OK) {
        executor->next = host->executors;
        host->executors = executor;
    }
    pthread_mutex_unlock(&host->lock);
    if (status != REFIT_OK)
        executor_free(executor);
    return status;
}

void refit_remote_host_stop(struct refit_remote_host *host)
{
    reap(host, true);
}
