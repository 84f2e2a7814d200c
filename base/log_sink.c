/* SPDX-License-Identifier: Apache-2.0
 *
 * A file system can be full or hang, and a pipe's reader can stop reading: none of it may stop a refit. So a thread
 * writes, and a queue with a ceiling stands before it. Without the thread (in a library) the caller writes, if poll says
 * that standard error takes a line now; no lock is held then, since the process may fork at any time.
 */
#include "base/log_sink.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"

#define QUEUE_BYTES_MAX (1u << 20)

struct queued {
    struct queued *next;
    size_t len;
    char line[];
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t queued, drained;
    struct queued *first, **end;
    size_t bytes;
    bool writing; /* the thread holds a line outside the queue */
    bool stopping;
    pthread_t thread;
} sink = {.lock = PTHREAD_MUTEX_INITIALIZER};

static atomic_bool threaded;
static atomic_bool torn; /* the last write ended inside a line */
static atomic_uint_least64_t lost, reported;
static atomic_int last_errno;

uint64_t refit_log_lost(void)
{
    return atomic_load_explicit(&lost, memory_order_relaxed);
}

static void lose(int errnum)
{
    atomic_fetch_add_explicit(&lost, 1, memory_order_relaxed);
    if (errnum)
        atomic_store_explicit(&last_errno, errnum, memory_order_relaxed);
}

/* Whether standard error takes bytes now; with `patient`, waits until it does. */
static bool writable(bool patient)
{
    struct pollfd fd = {.fd = STDERR_FILENO, .events = POLLOUT};
    int n;
    do
        n = poll(&fd, 1, patient ? -1 : 0);
    while (n < 0 && errno == EINTR);
    return n > 0 && (fd.revents & POLLOUT) && !(fd.revents & (POLLERR | POLLNVAL));
}

/* 0, or the errno that kept some of it from being written. */
static int write_whole(const char *text, size_t len, bool patient)
{
    while (len > 0) {
        ssize_t n = write(STDERR_FILENO, text, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN && patient && writable(true))
            continue;
        if (n <= 0)
            return errno ? errno : EIO;
        atomic_store_explicit(&torn, text[n - 1] != '\n', memory_order_relaxed);
        text += n;
        len -= (size_t)n;
    }
    return 0;
}

static int write_line(const char *line, size_t len, bool patient)
{
    int errnum = 0;
    if (atomic_load_explicit(&torn, memory_order_relaxed))
        errnum = write_whole("\n", 1, patient);
    return errnum ? errnum : write_whole(line, len, patient);
}

/* The lines lost since this was last said; what is not said now is said with the next line. */
static void say_lost(bool patient)
{
    char line[512];
    uint64_t total = atomic_load_explicit(&lost, memory_order_relaxed);
    uint64_t before = atomic_exchange_explicit(&reported, total, memory_order_relaxed);
    if (total <= before)
        return;
    size_t len = refit_log_lost_line(line, sizeof line, total - before, total,
                                     atomic_load_explicit(&last_errno, memory_order_relaxed));
    if (write_line(line, len, patient) != 0)
        atomic_store_explicit(&reported, before, memory_order_relaxed);
}

static void emit(const char *line, size_t len, bool patient)
{
    say_lost(patient);
    int errnum = write_line(line, len, patient);
    if (errnum)
        lose(errnum);
}

static struct queued *take(void)
{
    struct queued *line = sink.first;
    sink.first = line->next;
    if (!sink.first)
        sink.end = &sink.first;
    sink.bytes -= line->len;
    return line;
}

static void *run(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&sink.lock);
    for (;;) {
        while (!sink.first && !sink.stopping)
            pthread_cond_wait(&sink.queued, &sink.lock);
        if (!sink.first)
            break;
        struct queued *line = take();
        sink.writing = true;
        pthread_mutex_unlock(&sink.lock);
        emit(line->line, line->len, true);
        free(line);
        pthread_mutex_lock(&sink.lock);
        sink.writing = false;
        pthread_cond_broadcast(&sink.drained);
    }
    pthread_mutex_unlock(&sink.lock);
    return NULL;
}

static void enqueue(const char *text, size_t len)
{
    struct queued *line = malloc(sizeof *line + len);
    if (!line) {
        lose(ENOMEM);
        return;
    }
    *line = (struct queued){.len = len};
    memcpy(line->line, text, len);
    pthread_mutex_lock(&sink.lock);
    bool room = !sink.stopping && sink.bytes + len <= QUEUE_BYTES_MAX;
    if (room) {
        *sink.end = line;
        sink.end = &line->next;
        sink.bytes += len;
        pthread_cond_signal(&sink.queued);
    }
    pthread_mutex_unlock(&sink.lock);
    if (!room) {
        free(line);
        lose(EAGAIN);
    }
}

void refit_log_sink(const char *line, size_t len)
{
    if (atomic_load_explicit(&threaded, memory_order_acquire))
        enqueue(line, len);
    else if (writable(false))
        emit(line, len, false);
    else
        lose(EAGAIN);
}

enum refit_status refit_log_start(struct refit_error *err)
{
    refit_cond_init(&sink.queued);
    refit_cond_init(&sink.drained);
    sink.first = NULL;
    sink.end = &sink.first;
    sink.stopping = false;
    enum refit_status status = refit_thread_start(&sink.thread, run, NULL, "the thread that writes the log", err);
    if (status == REFIT_OK)
        atomic_store_explicit(&threaded, true, memory_order_release);
    return status;
}

void refit_log_stop(int64_t timeout_ms)
{
    struct timespec until = refit_deadline_timespec(refit_deadline_in_ms(timeout_ms));
    if (!atomic_load_explicit(&threaded, memory_order_acquire))
        return;
    pthread_mutex_lock(&sink.lock);
    while ((sink.first || sink.writing) && pthread_cond_timedwait(&sink.drained, &sink.lock, &until) == 0)
        ;
    bool idle = !sink.first && !sink.writing;
    sink.stopping = true;
    pthread_cond_signal(&sink.queued);
    pthread_mutex_unlock(&sink.lock);
    if (idle) {
        pthread_join(sink.thread, NULL);
        atomic_store_explicit(&threaded, false, memory_order_release);
    } else {
        pthread_detach(sink.thread); /* it waits for whoever reads the log, and ends with the process */
    }
}
