/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines that bring bytes into a slot themselves (docs/receiver.md, "In the engine"): which can, each one's socket for the
 * time of a refit, and slots that one of them may still write, which nobody gets before it has ended.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/io.h"
#include "base/log.h"
#include "receiver/bank_internal.h"

/* --- who can ----------------------------------------------------------------------------------------------- */

void refit_bank_on_able(struct refit_bank *bank, struct refit_reader *reader, const struct refit_attach_message *m)
{
    const struct refit_log_field rank = refit_log_u64("rank", refit_bank_rank_number(bank, reader->rank));
    reader->nccl = m->ok ? (int)(m->nccl & INT32_MAX) : 0;
    snprintf(reader->unable, sizeof reader->unable, "%s", m->text);
    if (m->ok)
        refit_log_event(REFIT_LOG_INFO, "engine can receive by nccl", rank, refit_log_i64("version", reader->nccl));
    else
        refit_log_event(REFIT_LOG_WARN, "engine can't receive by nccl", rank, refit_log_text("reason", m->text));
    refit_bank_changed(bank);
}

static enum refit_status check_reader(const struct refit_bank *bank, uint32_t rank, const struct refit_reader *reader,
                                      struct refit_error *err)
{
    uint32_t number = refit_bank_rank_number(bank, rank);
    if (!reader || !refit_reader_attached(reader))
        return refit_fail(err, REFIT_UNSUPPORTED, "transport \"nccl\": bytes are received in the engines here, and none is "
                          "attached as rank %u; use tcp, or start it", number);
    if (reader->nccl == 0)
        return refit_fail(err, REFIT_UNSUPPORTED, "transport \"nccl\": the engine of rank %u can't receive: %s; use tcp",
                          number, reader->unable[0] ? reader->unable : "it has not said yet that it can");
    return REFIT_OK;
}

/* The lock is held. */
static enum refit_status check_all(struct refit_bank *bank, int *version, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (uint32_t rank = 0; rank < bank->ranks && status == REFIT_OK; rank++) {
        const struct refit_reader *reader = refit_bank_attached(bank, rank);
        status = check_reader(bank, rank, reader, err);
        if (status == REFIT_OK && rank > 0 && reader->nccl != *version)
            status = refit_fail(err, REFIT_UNSUPPORTED, "transport \"nccl\": the engines here have different versions of it, "
                                "%d and %d", *version, reader->nccl);
        if (status == REFIT_OK)
            *version = reader->nccl;
    }
    return status;
}

enum refit_status refit_bank_can_receive(struct refit_bank *bank, int *version, struct refit_error *err)
{
    *version = 0;
    refit_bank_lock(bank);
    enum refit_status status = check_all(bank, version, err);
    refit_bank_unlock(bank);
    return status;
}

/* --- for the time of a refit ------------------------------------------------------------------------------- */

static enum refit_status engage(struct refit_bank *bank, uint32_t rank, const char *refit_id,
                                struct refit_remote_engine *out, struct refit_error *err)
{
    struct refit_reader *reader = refit_bank_attached(bank, rank);
    struct refit_attach_message m = {.type = REFIT_ATTACH_RECEIVE};
    int ends[2];
    enum refit_status status = check_reader(bank, rank, reader, err);
    if (status != REFIT_OK)
        return status;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return refit_fail_errno(err, errno, "socketpair");
    *out = (struct refit_remote_engine){.rank = refit_bank_rank_number(bank, rank), .pid = reader->pid, .sock = ends[0],
                                        .pidfd = -1, .ended = true};
    if (reader->pidfd >= 0 && (out->pidfd = fcntl(reader->pidfd, F_DUPFD_CLOEXEC, 0)) < 0)
        status = refit_fail_errno(err, errno, "a descriptor of the engine's process");
    snprintf(m.refit, sizeof m.refit, "%.*s", (int)sizeof m.refit - 1, refit_id);
    if (status == REFIT_OK)
        refit_reader_send(reader, &m, &ends[1], 1);
    refit_io_close(&ends[1]);
    return status;
}

static void release(struct refit_remote_engine *engine)
{
    refit_io_close(&engine->sock);
    refit_io_close(&engine->pidfd);
}

enum refit_status refit_bank_engage(struct refit_bank *bank, const char *refit_id, struct refit_remote_engine *engines,
                                    struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (uint32_t rank = 0; rank < bank->ranks; rank++)
        engines[rank] = (struct refit_remote_engine){.sock = -1, .pidfd = -1, .ended = true};
    refit_bank_lock(bank);
    for (uint32_t rank = 0; rank < bank->ranks && status == REFIT_OK; rank++)
        status = engage(bank, rank, refit_id, &engines[rank], err);
    refit_bank_unlock(bank);
    for (uint32_t rank = 0; rank < bank->ranks && status != REFIT_OK; rank++)
        release(&engines[rank]);
    return status;
}

static void keep_writer(struct refit_bank *bank, uint32_t slot, const struct refit_remote_engine *engine)
{
    struct refit_bank_writer *writer = &bank->writers[bank->writer_count];
    refit_log_event(REFIT_LOG_ERROR, "slot is not used until an engine has stopped writing it",
                    refit_log_u64("slot", slot), refit_log_u64("rank", engine->rank), refit_log_i64("pid", engine->pid),
                    refit_log_text("reason", engine->why));
    *writer = (struct refit_bank_writer){.slot = slot, .engine = *engine};
    bank->writer_count++;
}

enum refit_status refit_bank_disengage(struct refit_bank *bank, uint32_t slot, struct refit_remote_engine *engines,
                                       struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    refit_bank_lock(bank);
    for (uint32_t rank = 0; rank < bank->ranks; rank++) {
        struct refit_remote_engine *engine = &engines[rank];
        if (refit_remote_ended(engine)) {
            release(engine);
            continue;
        }
        status = refit_fail(err, REFIT_PEER, "the engine of rank %u (process %d) receives no more: %s; it has not said that it "
                            "has stopped, and may still write into slot %u", engine->rank, (int)engine->pid, engine->why,
                            slot);
        keep_writer(bank, slot, engine);
    }
    refit_bank_changed(bank);
    refit_bank_unlock(bank);
    return status;
}

/* --- slots that may be written still (the lock is held) ------------------------------------------------------ */

static void forget_ended(struct refit_bank *bank)
{
    for (size_t i = bank->writer_count; i-- > 0;) {
        struct refit_bank_writer *writer = &bank->writers[i];
        if (!refit_remote_ended(&writer->engine))
            continue;
        release(&writer->engine);
        *writer = bank->writers[--bank->writer_count];
    }
}

const struct refit_bank_writer *refit_bank_written(struct refit_bank *bank, uint32_t slot)
{
    forget_ended(bank);
    for (size_t i = 0; i < bank->writer_count; i++)
        if (slot == REFIT_SLOT_NONE || bank->writers[i].slot == slot)
            return &bank->writers[i];
    return NULL;
}

void refit_bank_release_writers(struct refit_bank *bank)
{
    while (bank->writer_count > 0)
        release(&bank->writers[--bank->writer_count].engine);
}
