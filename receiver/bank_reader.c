/* SPDX-License-Identifier: Apache-2.0
 *
 * One process's claim page, from refitd's side. What the page says only ever delays: slots, sizes and offsets are ours.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "receiver/bank_internal.h"

#define PAGE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

/* --- life -------------------------------------------------------------------------------------------------- */

static struct refit_reader *new_reader(uint32_t rank)
{
    struct refit_reader *reader = calloc(1, sizeof *reader);
    if (reader) {
        reader->rank = rank;
        reader->sock = reader->pidfd = reader->claim_fd = -1;
        reader->gate = reader->uncounted = reader->window = REFIT_SLOT_NONE;
    }
    return reader;
}

void refit_reader_destroy(struct refit_reader *reader)
{
    if (!reader)
        return;
    if (reader->claim)
        munmap(reader->claim, REFIT_CLAIM_BYTES);
    refit_io_close(&reader->claim_fd);
    refit_io_close(&reader->sock);
    refit_io_close(&reader->pidfd);
    free(reader);
}

static enum refit_status map_page(struct refit_reader *reader, struct refit_error *err)
{
    void *at = mmap(NULL, REFIT_CLAIM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, reader->claim_fd, 0);
    if (at == MAP_FAILED)
        return refit_fail_errno(err, errno, "claim page of rank %u: map", reader->rank);
    reader->claim = at;
    return refit_slot_identify(reader->claim_fd, &reader->page, err);
}

enum refit_status refit_reader_create(uint32_t rank, uint32_t slots, struct refit_reader **out,
                                      struct refit_error *err)
{
    struct refit_reader *reader = new_reader(rank);
    if (!reader)
        return refit_fail_alloc(err, "a reader", sizeof *reader);
    enum refit_status status = REFIT_OK;
    reader->claim_fd = refit_io_memfd("refit-claim");
    if (reader->claim_fd < 0 || ftruncate(reader->claim_fd, REFIT_CLAIM_BYTES) != 0 ||
        fcntl(reader->claim_fd, F_ADD_SEALS, PAGE_SEALS | F_SEAL_SEAL) != 0)
        status = refit_fail_errno(err, errno, "claim page of rank %u: create", rank);
    if (status == REFIT_OK)
        status = map_page(reader, err);
    if (status != REFIT_OK) {
        refit_reader_destroy(reader);
        return status;
    }
    refit_claim_init(reader->claim, slots);
    *out = reader;
    return REFIT_OK;
}

/* A page that could shrink would be a SIGBUS in refitd's hands. */
static enum refit_status check_page_fd(int fd, struct refit_error *err)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & PAGE_SEALS) != PAGE_SEALS || fstat(fd, &st) != 0)
        return refit_fail(err, REFIT_INVALID, "claim page: not a memfd sealed against shrink and grow");
    if (st.st_size != REFIT_CLAIM_BYTES)
        return refit_fail(err, REFIT_INVALID, "claim page: %lld bytes, expected %d", (long long)st.st_size,
                          REFIT_CLAIM_BYTES);
    return REFIT_OK;
}

static enum refit_status check_page(const struct refit_reader *reader, uint32_t slots, struct refit_error *err)
{
    const struct refit_claim *claim = reader->claim;
    if (claim->magic != REFIT_CLAIM_MAGIC || claim->abi != REFIT_CLAIM_ABI)
        return refit_fail(err, REFIT_MISMATCH, "claim page of rank %u: abi %u, expected %d; restart the engine",
                          reader->rank, claim->abi, REFIT_CLAIM_ABI);
    if (claim->slots != slots)
        return refit_fail(err, REFIT_MISMATCH, "claim page of rank %u: %u slots, refitd now has %u; restart the engine",
                          reader->rank, claim->slots, slots);
    return REFIT_OK;
}

enum refit_status refit_reader_take_back(uint32_t rank, uint32_t slots, int claim_fd, struct refit_reader **out,
                                         struct refit_error *err)
{
    enum refit_status status = check_page_fd(claim_fd, err);
    if (status != REFIT_OK)
        return status;
    struct refit_reader *reader = new_reader(rank);
    if (!reader)
        return refit_fail_alloc(err, "a reader", sizeof *reader);
    reader->claim_fd = fcntl(claim_fd, F_DUPFD_CLOEXEC, 3);
    if (reader->claim_fd < 0)
        status = refit_fail_errno(err, errno, "claim page of rank %u: duplicate", rank);
    if (status == REFIT_OK)
        status = map_page(reader, err);
    if (status == REFIT_OK)
        status = check_page(reader, slots, err);
    if (status != REFIT_OK) {
        refit_reader_destroy(reader);
        return status;
    }
    uint32_t gate = refit_claim_gate_slot(reader->claim);
    reader->gate = gate < slots ? gate : REFIT_SLOT_NONE;
    reader->uncounted = refit_claim_interrupted(reader->claim);
    for (uint32_t i = 0; i < slots; i++)
        reader->shown[i] = refit_claim_shown(reader->claim, i);
    *out = reader;
    return REFIT_OK;
}

/* --- pins and flips ---------------------------------------------------------------------------------------- */

bool refit_reader_attached(const struct refit_reader *reader)
{
    return reader->sock >= 0 && reader->greeted && !reader->broken;
}

bool refit_reader_idle(const struct refit_reader *reader, uint32_t slot)
{
    return reader->gate != slot && reader->uncounted != slot && refit_claim_pins(reader->claim, slot) == 0;
}

void refit_reader_flip(struct refit_reader *reader, uint32_t to)
{
    if (reader->gate == to)
        return;
    refit_claim_flip(reader->claim, reader->gate, to);
    reader->gate = to;
}

void refit_reader_show(struct refit_reader *reader, uint32_t slot, const struct refit_version *version)
{
    if (reader->shown[slot] == version->version)
        return;
    refit_claim_show(reader->claim, slot, version);
    reader->shown[slot] = version->version;
}

void refit_bank_forget(struct refit_bank *bank, uint32_t slot)
{
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        refit_claim_unstage(r->claim, slot);
        r->prepared[slot] = r->asked[slot] = 0;
        r->refused[slot] = false;
    }
}

/* --- messages ---------------------------------------------------------------------------------------------- */

void refit_reader_send(struct refit_reader *reader, const struct refit_attach_message *message, const int *fds,
                       size_t fd_count)
{
    if (reader->sock < 0 || reader->broken)
        return;
    /* A process that lets its socket fill up does not answer either: the thread drops the connection. */
    if (refit_attach_send(reader->sock, message, fds, fd_count, NULL) != REFIT_OK)
        reader->broken = true;
}

void refit_bank_serial_text(uint64_t serial, char out[static REFIT_REFIT_ID_MAX])
{
    snprintf(out, REFIT_REFIT_ID_MAX, "%" PRIu64, serial);
}

void refit_bank_send_swapped(struct refit_bank *bank, struct refit_reader *reader, const char *kv)
{
    struct refit_attach_message m = {.type = REFIT_ATTACH_SWAPPED};
    if (bank->active == REFIT_SLOT_NONE)
        return;
    m.version = bank->slot[bank->active].version;
    snprintf(m.kv, sizeof m.kv, "%s", kv);
    refit_reader_send(reader, &m, NULL, 0);
}

static enum refit_status export_all(struct refit_bank *bank, const struct refit_reader *reader, int *fds,
                                    size_t *count, struct refit_error *err)
{
    for (uint32_t i = 0; i < bank->slots; i++) {
        enum refit_status status = refit_bank_export(bank, i, reader->rank, &fds[*count], err);
        if (status != REFIT_OK)
            return status;
        ++*count;
    }
    return REFIT_OK;
}

/* What it shows already, if that can be what it reads. */
static uint32_t window_for(const struct refit_bank *bank, const struct refit_reader *reader)
{
    if (bank->swap != REFIT_SWAP_REMAP)
        return bank->live;
    if (reader->window < bank->slots)
        return reader->window;
    return bank->active != REFIT_SLOT_NONE ? bank->active : 0;
}

enum refit_status refit_reader_greet(struct refit_bank *bank, struct refit_reader *reader, struct refit_error *err)
{
    struct refit_attach_message m = {.type = REFIT_ATTACH_ATTACHED, .abi = REFIT_CLAIM_ABI, .slots = bank->slots,
                                     .bytes = refit_bank_rank_bytes(bank, reader->rank), .swap = bank->swap,
                                     .window = window_for(bank, reader), .receive = bank->in_engine};
    int fds[REFIT_CLIENT_FDS_MAX] = {reader->claim_fd};
    size_t count = 1;
    refit_bank_describe_device(bank, reader->rank, &m.device);
    enum refit_status status = export_all(bank, reader, fds, &count, err);
    if (status == REFIT_OK)
        status = refit_attach_send(reader->sock, &m, fds, count, err);
    for (size_t i = 1; i < count; i++)
        refit_io_close(&fds[i]);
    reader->greeted = status == REFIT_OK;
    reader->window = m.window;
    return status;
}

/* --- catching up ------------------------------------------------------------------------------------------- */

static bool slot_wants_prepare(const struct refit_slot *s)
{
    return s->preparing || s->state == REFIT_SLOT_STAGED || s->state == REFIT_SLOT_ACTIVE ||
           s->state == REFIT_SLOT_RETAINED;
}

static void ask_prepare(struct refit_bank *bank, struct refit_reader *reader, uint32_t slot)
{
    const struct refit_slot *s = &bank->slot[slot];
    if (reader->asked[slot] == s->version.version || !refit_reader_idle(reader, slot))
        return;
    struct refit_attach_message m = {.type = REFIT_ATTACH_PREPARE, .slot = slot, .version = s->version};
    refit_bank_serial_text(s->serial, m.refit);
    refit_claim_stage(reader->claim, slot, &s->version);
    reader->asked[slot] = s->version.version;
    refit_reader_send(reader, &m, NULL, 0);
}

static bool may_show(const struct refit_bank *bank, const struct refit_slot *s)
{
    return s->state == REFIT_SLOT_ACTIVE || (s->state == REFIT_SLOT_RETAINED && refit_bank_shows_retained(bank));
}

static void sync_reader(struct refit_bank *bank, struct refit_reader *reader)
{
    for (uint32_t i = 0; i < bank->slots; i++) {
        const struct refit_slot *s = &bank->slot[i];
        if (!slot_wants_prepare(s))
            continue;
        if (reader->prepared[i] != s->version.version)
            ask_prepare(bank, reader, i);
        else if (may_show(bank, s))
            refit_reader_show(reader, i, &s->version);
    }
}

static void sync_gate(struct refit_bank *bank, struct refit_reader *reader)
{
    uint32_t active = bank->active;
    if (active == REFIT_SLOT_NONE || reader->gate == active ||
        reader->prepared[active] != bank->slot[active].version.version ||
        !refit_bank_window_follows(bank, reader, active))
        return;
    refit_reader_show(reader, active, &bank->slot[active].version);
    refit_reader_flip(reader, active);
    refit_bank_send_swapped(bank, reader, "flush");
}

static bool followers_show_active(const struct refit_bank *bank)
{
    for (const struct refit_reader *r = bank->readers; r; r = r->next) {
        if (r->rank != 0 && refit_reader_attached(r) && bank->active != REFIT_SLOT_NONE &&
            r->shown[bank->active] != bank->slot[bank->active].version.version)
            return false;
    }
    return true;
}

void refit_bank_sync(struct refit_bank *bank)
{
    for (struct refit_reader *r = bank->readers; r && !bank->paused; r = r->next) {
        if (refit_reader_attached(r))
            sync_reader(bank, r);
    }
    if (bank->swapping || bank->adopting)
        return;
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if (r->rank != 0 && refit_reader_attached(r))
            sync_gate(bank, r);
    }
    for (struct refit_reader *r = bank->readers; r && followers_show_active(bank); r = r->next) {
        if (r->rank == 0 && refit_reader_attached(r))
            sync_gate(bank, r);
    }
}
