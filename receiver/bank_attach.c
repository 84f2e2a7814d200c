/* SPDX-License-Identifier: Apache-2.0
 *
 * From a connection to a reader. The first message declares; whoever can't be admitted yet (slots are being made, a
 * swap runs, an adoption waits for others) waits with its connection open.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "memory/document.h"
#include "receiver/bank_internal.h"

#define PAGES_PER_RANK 16 /* processes of one rank that live without a connection; each costs descriptors here */
#define LAYOUT_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

/* --- the layout -------------------------------------------------------------------------------------------- */

static enum refit_status read_layout_fd(int fd, char **text, size_t *len, struct refit_error *err)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & LAYOUT_SEALS) != LAYOUT_SEALS || fstat(fd, &st) != 0)
        return refit_fail(err, REFIT_INVALID, "layout: not a memfd sealed against every change");
    if (st.st_size <= 0 || (uint64_t)st.st_size > REFIT_LAYOUT_TEXT_MAX)
        return refit_fail(err, REFIT_INVALID, "layout: %lld bytes, 1 to %u are accepted", (long long)st.st_size,
                          REFIT_LAYOUT_TEXT_MAX);
    *len = (size_t)st.st_size;
    *text = malloc(*len);
    if (!*text)
        return refit_fail_alloc(err, "the engine's layout", *len);
    return refit_io_pread_full(fd, *text, *len, 0, "the engine's layout", err);
}

/* Only the thread sets bank->layout once it runs, so it may read it without the lock. */
static enum refit_status take_layout(struct refit_bank *bank, const char *text, size_t len, struct refit_error *err)
{
    struct refit_layout *layout = NULL;
    char digest[REFIT_SHA256_HEX_MAX];
    refit_sha256_hex(text, len, digest);
    if (bank->layout && strcmp(digest, refit_layout_digest(bank->layout)) == 0)
        return REFIT_OK;
    uint64_t room;
    enum refit_status status = refit_document_enter(text, len, 1, "the engine's layout", &room, err);
    if (status != REFIT_OK)
        return status;
    status = refit_layout_parse(text, len, "the engine's layout", &layout, err);
    refit_document_leave(room);
    if (status == REFIT_OK && bank->layout && strcmp(refit_layout_digest(layout), refit_layout_digest(bank->layout)))
        status = refit_fail(err, REFIT_MISMATCH,
                            "layout %.16s differs from %.16s, which this replica serves; give every rank the same "
                            "document, or restart refitd",
                            refit_layout_digest(layout), refit_layout_digest(bank->layout));
    if (status == REFIT_OK)
        status = refit_bank_check_fits(bank, layout, err);
    if (status == REFIT_OK && !bank->layout) {
        refit_bank_lock(bank);
        bank->layout = refit_layout_retain(layout);
        refit_bank_changed(bank);
        refit_bank_unlock(bank);
    }
    refit_layout_release(layout);
    return status;
}

/* --- the first message ------------------------------------------------------------------------------------- */

static enum refit_status check_attach(const struct refit_bank *bank, const struct refit_client *client,
                                      struct refit_error *err)
{
    const struct refit_attach_message *m = &client->attach;
    size_t expected = m->returning ? bank->slots + 2 : 1;
    uint32_t end = bank->first_rank + bank->ranks;
    if (m->type != REFIT_ATTACH_ATTACH)
        return refit_fail(err, REFIT_INVALID, "the first message must be attach");
    if (m->abi != REFIT_CLAIM_ABI)
        return refit_fail(err, REFIT_MISMATCH, "abi %u, refitd speaks %d; use one release of both", m->abi,
                          REFIT_CLAIM_ABI);
    if (m->ranks != bank->ranks_total || m->rank < bank->first_rank || m->rank >= end)
        return refit_fail(err, REFIT_MISMATCH, "rank %u of %u, refitd serves ranks %u to %u of %u", m->rank, m->ranks,
                          bank->first_rank, end - 1, bank->ranks_total);
    if (m->stable && bank->swap == REFIT_SWAP_POINTER)
        return refit_fail(err, REFIT_MISMATCH, "rank %u needs addresses that don't change, refitd swaps by pointer; start "
                          "refitd with --swap copy, remap or in-place", m->rank);
    if (m->returning && m->swap != bank->swap)
        return refit_fail(err, REFIT_MISMATCH, "refitd now swaps by %s, rank %u was attached for %s; restart the engine",
                          refit_swap_mode_name(bank->swap), m->rank, refit_swap_mode_name(m->swap));
    if (client->fd_count != expected)
        return refit_fail(err, m->returning ? REFIT_MISMATCH : REFIT_INVALID,
                          "attach came with %zu descriptors, expected %zu%s", client->fd_count, expected,
                          m->returning ? "; the number of slots changed, restart the engine" : "");
    return REFIT_OK;
}

static enum refit_status declare(struct refit_bank *bank, struct refit_client *client, struct refit_error *err)
{
    char *text = NULL;
    size_t len = 0;
    enum refit_status status = check_attach(bank, client, err);
    if (status == REFIT_OK)
        client->attach.rank -= bank->first_rank; /* an index from here on */
    if (status == REFIT_OK)
        status = read_layout_fd(client->fds[0], &text, &len, err);
    if (status == REFIT_OK)
        status = take_layout(bank, text, len, err);
    free(text);
    return status;
}

void refit_bank_client_message(struct refit_bank *bank, struct refit_client *client)
{
    struct refit_error error;
    if (client->waiting) { /* nothing is due from it */
        client->gone = true;
        return;
    }
    enum refit_status status = refit_attach_receive(client->sock, &client->attach, client->fds,
                                                    REFIT_CLIENT_FDS_MAX, &client->fd_count, &error);
    if (status == REFIT_BUSY)
        return;
    if (status == REFIT_PEER) {
        client->gone = true;
        return;
    }
    if (status == REFIT_OK)
        status = declare(bank, client, &error);
    if (status != REFIT_OK) {
        refit_client_refuse(client, &error);
        return;
    }
    client->waiting = true;
}

/* --- admission --------------------------------------------------------------------------------------------- */

struct refit_reader *refit_bank_attached(struct refit_bank *bank, uint32_t rank)
{
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if (r->rank == rank && r->sock >= 0 && !r->broken)
            return r;
    }
    return NULL;
}

struct refit_reader *refit_bank_reader_of_page(struct refit_bank *bank, const struct refit_client *client)
{
    struct refit_slot_identity page;
    if (!client->attach.returning || refit_slot_identify(client->fds[1], &page, NULL) != REFIT_OK)
        return NULL;
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if (r->rank == client->attach.rank && r->sock < 0 && r->page.device == page.device &&
            r->page.inode == page.inode)
            return r;
    }
    return NULL;
}

static enum refit_status check_pages(struct refit_bank *bank, uint32_t rank, struct refit_error *err)
{
    uint32_t count = 0;
    for (const struct refit_reader *r = bank->readers; r; r = r->next)
        count += r->rank == rank;
    if (count < PAGES_PER_RANK)
        return REFIT_OK;
    return refit_fail(err, REFIT_BUSY, "rank %u: %u processes live that attached and lost their connection; end them",
                      refit_bank_rank_number(bank, rank), count);
}

static void log_attached(const struct refit_bank *bank, const struct refit_reader *reader, const char *how)
{
    refit_log_event(REFIT_LOG_INFO, "engine attached",
                    refit_log_u64("rank", refit_bank_rank_number(bank, reader->rank)),
                    refit_log_i64("pid", reader->pid), refit_log_text("label", reader->label),
                    refit_log_text("how", how));
}

/* The process kept its page and lost only the connection. */
static enum refit_status resume(struct refit_bank *bank, struct refit_client *client, struct refit_reader *reader,
                                struct refit_error *err)
{
    for (uint32_t i = 0; i < bank->slots; i++) {
        reader->asked[i] = 0;
        reader->refused[i] = false;
    }
    refit_client_becomes(bank, client, reader);
    log_attached(bank, reader, "reconnected");
    return refit_reader_greet(bank, reader, err);
}

/* A new process runs its hook on what it finds shown before refit_engine_attach returns, so these count as prepared. */
static void show_all(struct refit_bank *bank, struct refit_reader *reader)
{
    for (uint32_t i = 0; i < bank->slots; i++) {
        const struct refit_slot *s = &bank->slot[i];
        if (s->state != REFIT_SLOT_ACTIVE && (s->state != REFIT_SLOT_RETAINED || !refit_bank_shows_retained(bank)))
            continue;
        reader->prepared[i] = s->version.version;
        refit_reader_show(reader, i, &s->version);
    }
    refit_reader_flip(reader, bank->active != REFIT_SLOT_NONE ? bank->active : bank->closed);
}

/* Nobody was given its page, so nobody reads through it: the client has its connection back, to be told why. */
static void take_off(struct refit_bank *bank, struct refit_client *client, struct refit_reader *reader)
{
    bank->readers = reader->next; /* it was the latest */
    client->sock = reader->sock;
    client->pidfd = reader->pidfd;
    reader->sock = reader->pidfd = -1;
    refit_reader_destroy(reader);
}

static enum refit_status admit_new(struct refit_bank *bank, struct refit_client *client, bool show,
                                   struct refit_error *err)
{
    struct refit_reader *reader = NULL;
    enum refit_status status = refit_reader_create(client->attach.rank, bank->slots, &reader, err);
    if (status != REFIT_OK)
        return status;
    if (show)
        show_all(bank, reader);
    reader->next = bank->readers;
    bank->readers = reader;
    refit_client_becomes(bank, client, reader);
    status = refit_reader_greet(bank, reader, err);
    if (status == REFIT_OK)
        log_attached(bank, reader, show ? "new" : "returned-late");
    else
        take_off(bank, client, reader);
    return status;
}

/* Its slots are not ours (any more): it stops serving them, and once its last pin is gone it gets what we have. */
static enum refit_status admit_late(struct refit_bank *bank, struct refit_client *client, struct refit_error *err)
{
    struct refit_reader *old = NULL;
    enum refit_status status =
        refit_reader_take_back(client->attach.rank, bank->slots, client->fds[1], &old, err);
    if (status != REFIT_OK)
        return status;
    bool idle = true;
    refit_reader_flip(old, REFIT_SLOT_NONE);
    for (uint32_t i = 0; i < bank->slots; i++)
        idle = idle && refit_reader_idle(old, i);
    for (uint32_t i = 0; idle && i < bank->slots; i++)
        refit_claim_hide(old->claim, i);
    for (uint32_t i = 0; i < bank->slots; i++)
        idle = idle && refit_reader_idle(old, i);
    refit_reader_destroy(old);
    if (!idle)
        return refit_fail(err, REFIT_BUSY,
                          "rank %u came back with slots that this refitd does not have, and still holds pins on them; "
                          "release them",
                          refit_bank_rank_number(bank, client->attach.rank));
    return admit_new(bank, client, false, err);
}

static enum refit_status admit(struct refit_bank *bank, struct refit_client *client, struct refit_error *err)
{
    const struct refit_reader *other = refit_bank_attached(bank, client->attach.rank);
    if (other)
        return refit_fail(err, REFIT_CONFLICT, "rank %u is attached already, by process %d (%s)",
                          refit_bank_rank_number(bank, other->rank), (int)other->pid, other->label);
    struct refit_reader *known = refit_bank_reader_of_page(bank, client);
    if (known)
        return resume(bank, client, known, err);
    enum refit_status status = check_pages(bank, client->attach.rank, err);
    if (status != REFIT_OK)
        return status;
    return client->attach.returning ? admit_late(bank, client, err) : admit_new(bank, client, true, err);
}

/* False: not yet. */
static bool ready_to_admit(struct refit_bank *bank, struct refit_error *err, enum refit_status *status)
{
    refit_bank_lock(bank);
    bool busy = bank->adopting || bank->swapping || bank->allocating;
    bool lacks = !refit_bank_has_memory(bank);
    if (!busy && lacks)
        bank->allocating = true;
    refit_bank_unlock(bank);
    if (busy)
        return false;
    if (lacks) {
        *status = refit_bank_make_memory(bank, REFIT_SLOT_NONE, err);
        refit_bank_lock(bank);
        bank->allocating = false;
        refit_bank_changed(bank);
        refit_bank_unlock(bank);
        refit_bank_save(bank);
    }
    return true;
}

static void admit_one(struct refit_bank *bank, struct refit_client *client)
{
    struct refit_error error;
    enum refit_status status = REFIT_OK;
    if (bank->adopting && client->attach.returning) {
        refit_bank_adopt_client(bank, client);
        return;
    }
    if (!ready_to_admit(bank, &error, &status))
        return;
    refit_bank_lock(bank);
    if (bank->swapping || bank->allocating) { /* begun since we looked */
        refit_bank_unlock(bank);
        return;
    }
    if (status == REFIT_OK)
        status = admit(bank, client, &error);
    if (status == REFIT_OK)
        refit_bank_sync(bank);
    refit_bank_changed(bank);
    refit_bank_unlock(bank);
    if (status != REFIT_OK)
        refit_client_refuse(client, &error);
}

void refit_bank_admit(struct refit_bank *bank)
{
    for (struct refit_client *client = bank->clients; client; client = client->next) {
        if (client->waiting && !client->gone)
            admit_one(bank, client);
    }
}
