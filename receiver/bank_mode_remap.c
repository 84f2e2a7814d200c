/* SPDX-License-Identifier: Apache-2.0
 *
 * Mode remap: engines read through a window, one range of addresses, and at a swap the staged slot's memory appears in it. Only
 * the engine can do that, so it is asked, in its pause, and answers.
 */
#include <inttypes.h>
#include <string.h>

#include "receiver/bank_internal.h"

#define WAIT_MS 20
#define BACK_MS 5000 /* for mapping the old slot again, after a swap that failed, perhaps at its deadline */

static void send_move(struct refit_bank *bank, struct refit_reader *reader, uint32_t slot)
{
    struct refit_attach_message m = {.type = REFIT_ATTACH_MOVE, .slot = slot};
    reader->moving = ++bank->serial;
    reader->window = REFIT_SLOT_NONE;
    refit_bank_serial_text(reader->moving, m.refit);
    refit_reader_send(reader, &m, NULL, 0);
}

void refit_bank_on_moved(struct refit_bank *bank, struct refit_reader *reader, const struct refit_attach_message *m)
{
    char serial[REFIT_REFIT_ID_MAX];
    refit_bank_serial_text(reader->moving, serial);
    if (reader->moving == 0 || strcmp(serial, m->refit) != 0)
        return;
    reader->moving = 0;
    reader->window = m->window < bank->slots ? m->window : REFIT_SLOT_NONE;
    memcpy(reader->reason, m->text, sizeof reader->reason);
    refit_bank_sync(bank);
    refit_bank_changed(bank);
}

static void move_all(struct refit_bank *bank, uint32_t to)
{
    for (struct refit_reader *r = bank->readers; r; r = r->next) {
        if (refit_reader_attached(r) && (r->window != to || r->moving))
            send_move(bank, r, to);
    }
}

/* REFIT_BUSY: *who has not answered. */
static enum refit_status moved_by_all(const struct refit_bank *bank, uint32_t to, const struct refit_reader **who,
                                      struct refit_error *err)
{
    *who = NULL;
    for (const struct refit_reader *r = bank->readers; r; r = r->next) {
        if (r->moving)
            *who = r;
        else if (refit_reader_attached(r) && r->window != to)
            return refit_fail(err, REFIT_CONFLICT, "rank %u (%s) could not map slot %u: %s",
                              refit_bank_rank_number(bank, r->rank), r->label, to, r->reason);
    }
    if (!*who)
        return refit_bank_all_connected(bank, err);
    return refit_reader_attached(*who) ? REFIT_BUSY : refit_bank_all_connected(bank, err);
}

static enum refit_status await_moved(struct refit_bank *bank, uint32_t to, struct refit_deadline deadline,
                                     struct refit_error *err)
{
    for (;;) {
        const struct refit_reader *who;
        enum refit_status status = moved_by_all(bank, to, &who, err);
        if (status != REFIT_BUSY || !who || !refit_reader_attached(who))
            return status;
        uint32_t rank = refit_bank_rank_number(bank, who->rank);
        status = refit_bank_pause(bank, deadline, NULL, WAIT_MS);
        if (status != REFIT_OK)
            return refit_fail(err, status, "swap: rank %u did not map slot %u before the deadline", rank, to);
    }
}

/* Whoever can't show what it showed starts over: its connection is closed, and it comes back with an empty window. */
static void move_back(struct refit_bank *bank, uint32_t to)
{
    struct refit_error ignored;
    move_all(bank, to);
    struct refit_deadline deadline = refit_deadline_in_ms(BACK_MS);
    (void)!await_moved(bank, to, deadline, &ignored);
    for (struct refit_reader *r = bank->readers; r; r = r->next)
        r->broken = r->broken || r->window != to;
    refit_bank_wake(bank);
}

enum refit_status refit_bank_move_windows(struct refit_bank *bank, uint32_t to, struct refit_deadline deadline,
                                          struct refit_error *err)
{
    move_all(bank, to);
    enum refit_status status = await_moved(bank, to, deadline, err);
    if (status != REFIT_OK && bank->active != REFIT_SLOT_NONE)
        move_back(bank, bank->active);
    return status;
}

static bool reads_nothing(const struct refit_bank *bank, const struct refit_reader *reader)
{
    for (uint32_t i = 0; i < bank->slots; i++) {
        if (!refit_reader_idle(reader, i))
            return false;
    }
    return true;
}

bool refit_bank_window_follows(struct refit_bank *bank, struct refit_reader *reader, uint32_t slot)
{
    if (bank->swap != REFIT_SWAP_REMAP || (reader->window == slot && !reader->moving))
        return true;
    if (reader->moving)
        return false;
    refit_reader_flip(reader, REFIT_SLOT_BUSY);
    for (uint32_t i = 0; i < bank->slots; i++) {
        refit_claim_hide(reader->claim, i);
        reader->shown[i] = 0;
    }
    if (reads_nothing(bank, reader))
        send_move(bank, reader, slot);
    return false;
}
