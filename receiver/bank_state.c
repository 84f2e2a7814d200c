/* SPDX-License-Identifier: Apache-2.0
 *
 * The bank's section of the state file: what each slot holds and which memory it is on each rank: the inode of a memfd,
 * the id of a slot on a device.
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "receiver/bank_internal.h"

/* --- writing ----------------------------------------------------------------------------------------------- */

static json_t *memory_json(const struct refit_bank *bank, uint32_t slot)
{
    json_t *list = json_array();
    for (uint32_t rank = 0; list && rank < bank->ranks; rank++) {
        char id_text[2 * sizeof(struct refit_slot_identity) + 1];
        struct refit_slot_identity id;
        refit_bank_identify(bank->slot[slot].arena[rank], &id);
        refit_text_hex(&id, sizeof id, id_text);
        json_array_append_new(list, refit_bank_on_device(bank, slot)
                                        ? json_string(id_text)
                                        : json_pack("[o,o]", refit_json_u64(id.device), refit_json_u64(id.inode)));
    }
    return list;
}

static json_t *slot_json(const struct refit_bank *bank, uint32_t slot)
{
    const struct refit_slot *s = &bank->slot[slot];
    return json_pack("{s:s, s:o, s:s, s:s, s:o, s:o}", "state", refit_slot_state_name(s->state), "version",
                     refit_json_u64(s->version.version), "label", s->version.label, "digest", s->version.digest,
                     "retired_order", refit_json_u64(s->retired_order), "memory", memory_json(bank, slot));
}

static json_t *bank_json(const struct refit_bank *bank)
{
    json_t *slots = json_array();
    for (uint32_t i = 0; slots && i < bank->slots; i++)
        json_array_append_new(slots, slot_json(bank, i));
    json_t *object = json_pack("{s:i, s:i, s:s, s:s, s:o}", "ranks", (int)bank->ranks, "first_rank",
                               (int)bank->first_rank, "protection",
                               refit_protection_name(refit_bank_protection(bank)), "layout",
                               bank->layout ? refit_layout_digest(bank->layout) : "", "slots", slots);
    if (object && bank->swap_to != REFIT_SLOT_NONE)
        json_object_set_new(object, "swap_to", json_integer(bank->swap_to));
    if (object && bank->swap != REFIT_SWAP_POINTER) {
        json_object_set_new(object, "live", json_integer(bank->live));
        json_object_set_new(object, "exchanging", json_boolean(bank->exchanging));
        /* A refit in place that is under way is torn, if this is what a restart finds. */
        json_object_set_new(object, "torn", json_boolean(bank->closed != REFIT_SLOT_NONE));
    }
    return object;
}

enum refit_status refit_bank_try_save(struct refit_bank *bank, struct refit_error *err)
{
    pthread_mutex_lock(&bank->save_lock);
    refit_bank_lock(bank);
    json_t *object = bank_json(bank);
    refit_bank_unlock(bank);
    enum refit_status status = object ? refit_state_put(bank->state, "bank", object, err)
                                      : refit_fail_alloc(err, "the bank's state", sizeof *bank);
    pthread_mutex_unlock(&bank->save_lock);
    json_decref(object);
    return status;
}

void refit_bank_save(struct refit_bank *bank)
{
    struct refit_error error;
    if (refit_bank_try_save(bank, &error) != REFIT_OK)
        refit_log_event(REFIT_LOG_WARN, "state file not written, a restart would not find what changed",
                        REFIT_LOG_CAUSE(&error));
}

/* --- reading ----------------------------------------------------------------------------------------------- */

static enum refit_status read_state(const json_t *object, enum refit_slot_state *out, struct refit_error *err)
{
    const char *name = NULL;
    enum refit_status status = refit_json_get_string(object, "state", "slot", &name, err);
    for (int state = REFIT_SLOT_FREE; status == REFIT_OK && state <= REFIT_SLOT_RETAINED; state++) {
        if (strcmp(name, refit_slot_state_name((enum refit_slot_state)state)) == 0) {
            *out = (enum refit_slot_state)state;
            return REFIT_OK;
        }
    }
    return status == REFIT_OK ? refit_fail(err, REFIT_INVALID, "slot: state \"%s\" is not known", name) : status;
}

static enum refit_status read_text(const json_t *object, const char *key, char *out, size_t size,
                                   struct refit_error *err)
{
    const char *text = NULL;
    enum refit_status status = refit_json_get_string(object, key, "slot", &text, err);
    if (status == REFIT_OK && strlen(text) >= size)
        status = refit_fail(err, REFIT_INVALID, "slot: \"%s\" is too long", key);
    if (status == REFIT_OK)
        strcpy(out, text);
    return status;
}

static enum refit_status read_memory(const struct refit_bank *bank, const json_t *object,
                                     struct refit_slot_identity *out, struct refit_error *err)
{
    const json_t *list = json_object_get(object, "memory");
    if (!json_is_array(list) || json_array_size(list) != bank->ranks)
        return refit_fail(err, REFIT_INVALID, "slot: memory of %u ranks expected", bank->ranks);
    for (uint32_t rank = 0; rank < bank->ranks; rank++) {
        const json_t *pair = json_array_get(list, rank);
        if (json_is_string(pair) && refit_text_unhex(json_string_value(pair), &out[rank], sizeof out[rank]))
            continue;
        const json_t *device = json_array_get(pair, 0), *inode = json_array_get(pair, 1);
        if (!json_is_integer(device) || !json_is_integer(inode))
            return refit_fail(err, REFIT_INVALID, "slot: memory of rank %u is neither a pair of numbers nor an id", rank);
        out[rank].device = (uint64_t)json_integer_value(device);
        out[rank].inode = (uint64_t)json_integer_value(inode);
    }
    return REFIT_OK;
}

static enum refit_status read_record(const struct refit_bank *bank, const json_t *object,
                                     struct refit_slot_record *out, struct refit_error *err)
{
    enum refit_status status = read_state(object, &out->state, err);
    if (status == REFIT_OK)
        status = refit_json_get_u64(object, "version", "slot", &out->version.version, err);
    if (status == REFIT_OK)
        status = refit_json_get_u64(object, "retired_order", "slot", &out->retired_order, err);
    if (status == REFIT_OK)
        status = read_text(object, "label", out->version.label, sizeof out->version.label, err);
    if (status == REFIT_OK)
        status = read_text(object, "digest", out->version.digest, sizeof out->version.digest, err);
    if (status == REFIT_OK)
        status = read_memory(bank, object, out->memory, err);
    return status;
}

/* Of the modes that keep addresses constant. A torn slot is handed back as well, for it is where those addresses are. */
static enum refit_status read_modes(struct refit_bank *bank, const json_t *object, struct refit_error *err)
{
    int64_t live = 0;
    enum refit_status status = refit_json_opt_int(object, "live", "bank", 0, (int64_t)bank->slots - 1, &live, err);
    bank->record_live = (uint32_t)live;
    if (status == REFIT_OK && bank->device_slots > 0 && !refit_bank_on_device(bank, bank->record_live))
        status = refit_fail(err, REFIT_MISMATCH, "slot %lld was the live one, which is now in host memory",
                            (long long)live);
    bank->record_exchanging = json_is_true(json_object_get(object, "exchanging"));
    bank->record_torn = json_is_true(json_object_get(object, "torn"));
    return status;
}

static enum refit_status read_bank(struct refit_bank *bank, const json_t *object, struct refit_error *err)
{
    int64_t ranks = 0, first = 0, swap_to = REFIT_SLOT_NONE;
    const json_t *slots = json_object_get(object, "slots");
    enum refit_status status = refit_json_get_int(object, "ranks", "bank", 1, REFIT_BANK_RANKS_MAX, &ranks, err);
    if (status == REFIT_OK)
        status = refit_json_opt_int(object, "swap_to", "bank", 0, REFIT_SLOT_NONE, &swap_to, err);
    if (status == REFIT_OK)
        status = refit_json_opt_int(object, "first_rank", "bank", 0, INT32_MAX, &first, err);
    if (status == REFIT_OK && (ranks != bank->ranks || first != bank->first_rank || json_array_size(slots) != bank->slots))
        status = refit_fail(err, REFIT_MISMATCH, "%lld ranks from %lld on with %zu slots, now %u from %u on and %u are "
                            "configured", (long long)ranks, (long long)first, json_array_size(slots), bank->ranks,
                            bank->first_rank, bank->slots);
    if (status == REFIT_OK)
        status = read_text(object, "layout", bank->record_layout, sizeof bank->record_layout, err);
    for (uint32_t i = 0; status == REFIT_OK && i < bank->slots; i++)
        status = read_record(bank, json_array_get(slots, i), &bank->record[i], err);
    bank->record_swap_to = (uint32_t)swap_to;
    if (status == REFIT_OK)
        status = read_modes(bank, object, err);
    return status;
}

/* Without a version that was served there is nothing to wait for. */
static bool names_version(const struct refit_bank *bank)
{
    bool found = bank->record_swap_to < bank->slots || bank->record_torn;
    for (uint32_t i = 0; i < bank->slots; i++)
        found = found || bank->record[i].state == REFIT_SLOT_ACTIVE;
    return found;
}

bool refit_bank_load(struct refit_bank *bank)
{
    struct refit_error error;
    json_t *object = refit_state_get(bank->state, "bank");
    if (!object)
        return false;
    enum refit_status status = read_bank(bank, object, &error);
    json_decref(object);
    if (status == REFIT_OK)
        return names_version(bank);
    if (status != REFIT_MISMATCH) {
        refit_state_drop(bank->state, "bank", error.text);
        return false;
    }
    refit_log_event(REFIT_LOG_WARN, "recorded slots not usable, starting without them", REFIT_LOG_CAUSE(&error));
    return false;
}
