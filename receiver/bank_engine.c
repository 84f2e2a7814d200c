/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine that installs weights itself, in place of engines that attach: what the bank asks of it, and when.
 */
#include "receiver/bank_internal.h"

static struct refit_bank_copy copy_of(const struct refit_bank *bank, uint32_t slot)
{
    return (struct refit_bank_copy){
        .version = bank->slot[slot].version, .layout = bank->layout, .arenas = bank->slot[slot].arena};
}

enum refit_status refit_bank_engine_prepare(struct refit_bank *bank, uint32_t slot, struct refit_deadline deadline,
                                            const atomic_bool *cancel, struct refit_error *err)
{
    struct refit_bank_copy copy = copy_of(bank, slot);
    refit_bank_unlock(bank);
    enum refit_status status = bank->engine->prepare(bank->engine->context, &copy, deadline, cancel, err);
    refit_bank_lock(bank);
    return status;
}

enum refit_status refit_bank_engine_install(struct refit_bank *bank, uint32_t to, const char *kv,
                                            struct refit_deadline deadline, struct refit_error *err)
{
    bool again = to == bank->active;
    struct refit_bank_copy copy = copy_of(bank, to), before = {.layout = NULL};
    if (!again && bank->active != REFIT_SLOT_NONE)
        before = copy_of(bank, bank->active);
    refit_bank_unlock(bank);
    enum refit_status status = bank->engine->install(bank->engine->context, &copy, before.layout ? &before : NULL, kv,
                                                     deadline, err);
    refit_bank_lock(bank);
    return status;
}

enum refit_status refit_bank_reinstall(struct refit_bank *bank, struct refit_deadline deadline, struct refit_error *err)
{
    refit_bank_lock(bank);
    enum refit_status status = refit_bank_enter_swap(bank, deadline, err);
    if (status == REFIT_OK) {
        status = bank->active == REFIT_SLOT_NONE
                     ? refit_fail(err, REFIT_NOT_FOUND, "no version is active")
                     : refit_bank_engine_install(bank, bank->active, "flush", deadline, err);
        refit_bank_leave_swap(bank);
    }
    refit_bank_unlock(bank);
    return status;
}
