/* SPDX-License-Identifier: Apache-2.0
 *
 * The bank's thread: it accepts, reads messages, notices deaths, and once a second moves pins out of full gates.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "receiver/bank_internal.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

#define FIRST_MESSAGE_MS 5000
#define TICK_MS 1000
#define ACCEPT_PAUSE_MS 100
#define SPARE_CLIENTS 64 /* connections beyond one per rank that may wait to attach */

/* --- clients ----------------------------------------------------------------------------------------------- */

/* A descriptor of the process, so that a number that was given to another one does no harm. */
static void identify_peer(struct refit_client *client)
{
    struct ucred peer = {0};
    socklen_t len = sizeof peer;
    if (getsockopt(client->sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0)
        client->pid = peer.pid;
    len = sizeof client->pidfd;
    if (getsockopt(client->sock, SOL_SOCKET, SO_PEERPIDFD, &client->pidfd, &len) == 0)
        return;
    client->pidfd = client->pid > 0 ? (int)syscall(SYS_pidfd_open, client->pid, 0) : -1;
}

static size_t count_clients(const struct refit_bank *bank)
{
    size_t count = 0;
    for (const struct refit_client *client = bank->clients; client; client = client->next)
        count++;
    return count;
}

static void accept_client(struct refit_bank *bank)
{
    int sock = accept4(bank->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (sock < 0) {
        /* Gone again; or descriptors or memory are out, and then poll would say at once that it waits still. */
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            bank->accept_again = refit_deadline_in_ms(ACCEPT_PAUSE_MS);
        return;
    }
    struct refit_client *client =
        count_clients(bank) < (size_t)bank->ranks + SPARE_CLIENTS ? calloc(1, sizeof *client) : NULL;
    if (!client) {
        close(sock);
        return;
    }
    client->sock = sock;
    client->pidfd = -1;
    client->deadline = refit_deadline_in_ms(FIRST_MESSAGE_MS);
    identify_peer(client);
    client->next = bank->clients;
    bank->clients = client;
}

static void client_release(struct refit_client *client)
{
    for (size_t i = 0; i < client->fd_count; i++)
        refit_io_close(&client->fds[i]);
    refit_io_close(&client->sock);
    refit_io_close(&client->pidfd);
    free(client);
}

void refit_client_becomes(struct refit_bank *bank, struct refit_client *client, struct refit_reader *reader)
{
    (void)bank;
    refit_io_close(&reader->pidfd);
    reader->sock = client->sock;
    reader->pidfd = client->pidfd;
    reader->pid = client->pid;
    reader->broken = reader->greeted = false;
    reader->window = client->attach.returning ? client->attach.window : REFIT_SLOT_NONE;
    reader->moving = 0;
    reader->nccl = 0;
    reader->unable[0] = '\0';
    memcpy(reader->label, client->attach.label, sizeof reader->label);
    client->sock = client->pidfd = -1;
    client->gone = true;
}

void refit_client_refuse(struct refit_client *client, const struct refit_error *error)
{
    struct refit_attach_message m = {.type = REFIT_ATTACH_REFUSED, .status = error->status};
    snprintf(m.text, sizeof m.text, "%.*s", (int)sizeof m.text - 1, error->text);
    refit_log_event(REFIT_LOG_WARN, "engine refused", refit_log_i64("pid", client->pid), REFIT_LOG_CAUSE(error));
    if (client->sock >= 0)
        (void)!refit_attach_send(client->sock, &m, NULL, 0, NULL);
    client->gone = true;
}

static void sweep_clients(struct refit_bank *bank)
{
    for (struct refit_client **at = &bank->clients; *at;) {
        struct refit_client *client = *at;
        if (!client->waiting && refit_deadline_passed(client->deadline))
            client->gone = true;
        if (!client->gone) {
            at = &client->next;
            continue;
        }
        *at = client->next;
        client_release(client);
    }
}

/* --- readers ----------------------------------------------------------------------------------------------- */

static void log_gone(const struct refit_bank *bank, const struct refit_reader *reader, bool died)
{
    const struct refit_log_field rank = refit_log_u64("rank", refit_bank_rank_number(bank, reader->rank));
    const struct refit_log_field pid = refit_log_i64("pid", reader->pid);
    const struct refit_log_field label = refit_log_text("label", reader->label);
    if (died)
        refit_log_event(REFIT_LOG_INFO, "engine died", rank, pid, label);
    else
        refit_log_event(REFIT_LOG_INFO, "engine detached", rank, pid, label);
}

static void drop_reader(struct refit_bank *bank, struct refit_reader *reader, bool died)
{
    struct refit_reader **at = &bank->readers;
    while (*at != reader)
        at = &(*at)->next;
    *at = reader->next;
    if (died)
        bank->readers_died++;
    log_gone(bank, reader, died);
    refit_reader_destroy(reader);
    refit_bank_sync(bank);
    refit_bank_changed(bank);
}

/* The connection is over; the page counts for as long as the process may read through it. */
static void disconnect(struct refit_bank *bank, struct refit_reader *reader, const char *reason)
{
    refit_log_event(REFIT_LOG_WARN, "engine disconnected",
                    refit_log_u64("rank", refit_bank_rank_number(bank, reader->rank)),
                    refit_log_i64("pid", reader->pid), refit_log_text("reason", reason));
    if (reader->pidfd < 0) {
        drop_reader(bank, reader, true);
        return;
    }
    refit_io_close(&reader->sock);
    reader->greeted = reader->broken = false;
    refit_bank_sync(bank);
    refit_bank_changed(bank);
}

static void on_prepared(struct refit_bank *bank, struct refit_reader *reader, const struct refit_attach_message *m)
{
    for (uint32_t i = 0; i < bank->slots; i++) {
        char serial[REFIT_REFIT_ID_MAX];
        struct refit_slot *s = &bank->slot[i];
        refit_bank_serial_text(s->serial, serial);
        if (strcmp(serial, m->refit) != 0 || s->version.version == 0 || reader->asked[i] != s->version.version)
            continue;
        reader->prepared[i] = m->ok ? s->version.version : 0;
        reader->refused[i] = !m->ok;
        memcpy(reader->reason, m->text, sizeof reader->reason);
        if (!m->ok)
            refit_log_event(REFIT_LOG_WARN, "engine refused a version",
                            refit_log_u64("rank", refit_bank_rank_number(bank, reader->rank)),
                            refit_log_u64("version", s->version.version), refit_log_text("reason", m->text));
    }
    refit_bank_sync(bank);
    refit_bank_changed(bank);
}

static void on_ready(struct refit_bank *bank, struct refit_reader *reader, const struct refit_attach_message *m)
{
    char serial[REFIT_REFIT_ID_MAX];
    refit_bank_serial_text(bank->swap_serial, serial);
    if (!bank->swapping || strcmp(serial, m->refit) != 0)
        return;
    reader->answered = true;
    reader->ready = m->ok;
    memcpy(reader->reason, m->text, sizeof reader->reason);
    refit_bank_changed(bank);
}

/* What is left in a socket that has ended may be its process's goodbye. */
static bool said_goodbye(const struct refit_reader *reader)
{
    struct refit_attach_message m = {0};
    int fds[1];
    size_t count = 0;
    while (reader->sock >= 0 && refit_attach_receive(reader->sock, &m, fds, 0, &count, NULL) == REFIT_OK) {
        if (m.type == REFIT_ATTACH_DETACH)
            return true;
    }
    return false;
}

static void reader_message(struct refit_bank *bank, struct refit_reader *reader)
{
    struct refit_attach_message m;
    struct refit_error error;
    int fds[1];
    size_t count = 0;
    enum refit_status status = refit_attach_receive(reader->sock, &m, fds, 0, &count, &error);
    if (status == REFIT_BUSY)
        return;
    /* A process that closes with messages unread resets the connection, and what it had said comes after that error. */
    if (status != REFIT_OK && said_goodbye(reader))
        drop_reader(bank, reader, false);
    else if (status != REFIT_OK)
        disconnect(bank, reader, error.text);
    else if (m.type == REFIT_ATTACH_PREPARED)
        on_prepared(bank, reader, &m);
    else if (m.type == REFIT_ATTACH_READY)
        on_ready(bank, reader, &m);
    else if (m.type == REFIT_ATTACH_MOVED)
        refit_bank_on_moved(bank, reader, &m);
    else if (m.type == REFIT_ATTACH_ABLE && bank->in_engine)
        refit_bank_on_able(bank, reader, &m);
    else if (m.type == REFIT_ATTACH_DETACH)
        drop_reader(bank, reader, false);
    else
        disconnect(bank, reader, "a message that an attached engine does not send");
}

/* --- the loop ---------------------------------------------------------------------------------------------- */

struct poll_set {
    struct pollfd *fds;
    size_t capacity;
};

static size_t count_fds(const struct refit_bank *bank)
{
    size_t count = 2 + 2 * count_clients(bank);
    for (const struct refit_reader *r = bank->readers; r; r = r->next)
        count += 2;
    return count;
}

/* Listener and wake, then sock and pidfd of each client, then of each reader, in list order. */
static size_t build_set(struct refit_bank *bank, struct poll_set *set)
{
    size_t need = count_fds(bank), n = 0;
    if (need > set->capacity) {
        struct pollfd *fds = realloc(set->fds, need * sizeof *fds);
        if (!fds)
            return 0;
        set->fds = fds;
        set->capacity = need;
    }
    bool accepting = refit_deadline_passed(bank->accept_again);
    set->fds[n++] = (struct pollfd){.fd = accepting ? bank->listener : -1, .events = POLLIN};
    set->fds[n++] = (struct pollfd){.fd = bank->wake, .events = POLLIN};
    for (const struct refit_client *client = bank->clients; client; client = client->next) {
        set->fds[n++] = (struct pollfd){.fd = client->sock, .events = POLLIN};
        set->fds[n++] = (struct pollfd){.fd = client->pidfd, .events = POLLIN};
    }
    for (const struct refit_reader *r = bank->readers; r; r = r->next) {
        set->fds[n++] = (struct pollfd){.fd = r->sock, .events = POLLIN};
        set->fds[n++] = (struct pollfd){.fd = r->pidfd, .events = POLLIN};
    }
    return n;
}

static void serve_clients(struct refit_bank *bank, const struct pollfd *at)
{
    for (struct refit_client *client = bank->clients; client; client = client->next, at += 2) {
        if (at[1].revents)
            client->gone = true;
        else if (at[0].revents)
            refit_bank_client_message(bank, client);
    }
}

static void serve_readers(struct refit_bank *bank, const struct pollfd *at)
{
    struct refit_reader *next;
    refit_bank_lock(bank);
    for (struct refit_reader *r = bank->readers; r; r = next, at += 2) {
        next = r->next;
        if (at[1].revents)
            drop_reader(bank, r, !said_goodbye(r));
        else if (r->broken)
            disconnect(bank, r, "does not read its messages");
        else if (at[0].revents)
            reader_message(bank, r);
    }
    refit_bank_unlock(bank);
}

/* Detached while there was no connection to say so on. */
static void drop_closed(struct refit_bank *bank)
{
    struct refit_reader *next;
    for (struct refit_reader *r = bank->readers; r; r = next) {
        next = r->next;
        if (r->sock < 0 && refit_claim_closed(r->claim))
            drop_reader(bank, r, false);
    }
}

static void harvest(struct refit_bank *bank)
{
    refit_bank_lock(bank);
    drop_closed(bank);
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if (refit_claim_harvest_due(r->claim))
            refit_claim_harvest(r->claim, r->gate);
    }
    refit_bank_sync(bank);
    refit_bank_unlock(bank);
}

static int next_tick(const struct refit_bank *bank, struct refit_deadline tick)
{
    if (bank->adopting)
        tick = refit_deadline_earlier(tick, bank->adopt_deadline);
    if (!refit_deadline_passed(bank->accept_again))
        tick = refit_deadline_earlier(tick, bank->accept_again);
    return refit_deadline_left_ms(tick);
}

static void drain_wake(struct refit_bank *bank)
{
    uint64_t count;
    (void)!read(bank->wake, &count, sizeof count);
}

static void turn(struct refit_bank *bank, struct poll_set *set, struct refit_deadline tick)
{
    refit_bank_lock(bank);
    size_t n = build_set(bank, set);
    refit_bank_unlock(bank);
    int ready = poll(set->fds, (nfds_t)n, next_tick(bank, tick));
    if (ready > 0) {
        size_t clients = count_clients(bank);
        drain_wake(bank);
        serve_readers(bank, set->fds + 2 + 2 * clients);
        serve_clients(bank, set->fds + 2);
        if (set->fds[0].revents)
            accept_client(bank);
    }
    sweep_clients(bank);
    refit_bank_admit(bank);
    sweep_clients(bank);
    if (bank->adopting)
        refit_bank_adopt_step(bank);
}

void *refit_bank_thread(void *argument)
{
    struct refit_bank *bank = argument;
    struct poll_set set = {0};
    struct refit_deadline tick = refit_deadline_in_ms(TICK_MS);
    while (!atomic_load_explicit(&bank->stop, memory_order_acquire)) {
        turn(bank, &set, tick);
        if (refit_deadline_passed(tick)) {
            harvest(bank);
            tick = refit_deadline_in_ms(TICK_MS);
        }
    }
    for (struct refit_client *client = bank->clients; client; client = client->next)
        client->gone = true;
    sweep_clients(bank);
    free(set.fds);
    return NULL;
}
