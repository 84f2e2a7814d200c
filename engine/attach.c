/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/attach.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/text.h"

enum member {
    M_ABI = 1 << 0,
    M_RANK = 1 << 1,
    M_RANKS = 1 << 2,
    M_PROCESS = 1 << 3,
    M_RETURNING = 1 << 4,
    M_SLOTS = 1 << 5,
    M_BYTES = 1 << 6,
    M_STATUS = 1 << 7,
    M_TEXT = 1 << 8,
    M_SLOT = 1 << 9,
    M_REFIT = 1 << 10,
    M_VERSION = 1 << 11,
    M_OK = 1 << 12,
    M_KV = 1 << 13,
    M_STABLE = 1 << 14,
    M_SWAP = 1 << 15,
    M_WINDOW = 1 << 16,
    M_DEVICE = 1 << 17,
    M_ID = 1 << 18,
    M_RECEIVE = 1 << 19,
    M_NCCL = 1 << 20,
};

static const struct {
    const char *name;
    unsigned members;
} types[] = {
    [REFIT_ATTACH_ATTACH] = {"attach", M_ABI | M_RANK | M_RANKS | M_PROCESS | M_RETURNING | M_STABLE | M_SWAP | M_WINDOW},
    [REFIT_ATTACH_ATTACHED] = {"attached", M_ABI | M_SLOTS | M_BYTES | M_SWAP | M_WINDOW | M_DEVICE | M_RECEIVE},
    [REFIT_ATTACH_REFUSED] = {"refused", M_STATUS | M_TEXT},
    [REFIT_ATTACH_SLOT] = {"slot", M_SLOT | M_ID},
    [REFIT_ATTACH_PREPARE] = {"prepare", M_REFIT | M_SLOT | M_VERSION},
    [REFIT_ATTACH_PREPARED] = {"prepared", M_REFIT | M_OK | M_TEXT},
    [REFIT_ATTACH_SWAPPING] = {"swapping", M_REFIT | M_VERSION | M_KV},
    [REFIT_ATTACH_READY] = {"ready", M_REFIT | M_OK | M_TEXT},
    [REFIT_ATTACH_SWAPPED] = {"swapped", M_VERSION | M_KV},
    [REFIT_ATTACH_DETACH] = {"detach", 0},
    [REFIT_ATTACH_MOVE] = {"move", M_REFIT | M_SLOT},
    [REFIT_ATTACH_MOVED] = {"moved", M_REFIT | M_OK | M_WINDOW | M_TEXT},
    [REFIT_ATTACH_ABLE] = {"able", M_OK | M_NCCL | M_TEXT},
    [REFIT_ATTACH_RECEIVE] = {"receive", M_REFIT},
};
#define TYPE_COUNT (sizeof types / sizeof types[0])

const char *refit_swap_mode_name(enum refit_swap_mode mode)
{
    static const char *const names[REFIT_SWAP_MODES] = {"pointer", "copy", "remap", "in-place"};
    return (unsigned)mode < REFIT_SWAP_MODES ? names[mode] : "unknown";
}

/* --- building ---------------------------------------------------------------------------------------------- */

static bool add_numbers(json_t *object, const struct refit_attach_message *m, unsigned members)
{
    int bad = 0;
    if (members & M_ABI)
        bad |= json_object_set_new(object, "abi", json_integer(m->abi));
    if (members & M_RANK)
        bad |= json_object_set_new(object, "rank", json_integer(m->rank));
    if (members & M_RANKS)
        bad |= json_object_set_new(object, "ranks", json_integer(m->ranks));
    if (members & M_SLOTS)
        bad |= json_object_set_new(object, "slots", json_integer(m->slots));
    if (members & M_SLOT)
        bad |= json_object_set_new(object, "slot", json_integer(m->slot));
    if (members & M_BYTES)
        bad |= json_object_set_new(object, "bytes", refit_json_u64(m->bytes));
    if (members & M_STATUS)
        bad |= json_object_set_new(object, "status", json_integer(m->status));
    if (members & M_RETURNING)
        bad |= json_object_set_new(object, "returning", json_boolean(m->returning));
    if (members & M_OK)
        bad |= json_object_set_new(object, "ok", json_boolean(m->ok));
    if (members & M_STABLE)
        bad |= json_object_set_new(object, "stable", json_boolean(m->stable));
    if (members & M_WINDOW)
        bad |= json_object_set_new(object, "window", json_integer(m->window));
    if ((members & M_RECEIVE) && m->receive)
        bad |= json_object_set_new(object, "receive", json_true());
    if (members & M_NCCL)
        bad |= json_object_set_new(object, "nccl", json_integer(m->nccl));
    return bad == 0;
}

static bool add_texts(json_t *object, const struct refit_attach_message *m, unsigned members)
{
    int bad = 0;
    if (members & M_PROCESS)
        bad |= json_object_set_new(object, "label", refit_json_text(m->label));
    if (members & M_TEXT)
        bad |= json_object_set_new(object, "text", refit_json_text(m->text));
    if (members & M_REFIT)
        bad |= json_object_set_new(object, "refit", refit_json_text(m->refit));
    if (members & M_KV)
        bad |= json_object_set_new(object, "kv", refit_json_text(m->kv));
    if (members & M_SWAP)
        bad |= json_object_set_new(object, "swap", json_string(refit_swap_mode_name(m->swap)));
    if (members & M_VERSION) {
        bad |= json_object_set_new(object, "version", refit_json_u64(m->version.version));
        bad |= json_object_set_new(object, "label", refit_json_text(m->version.label));
        bad |= json_object_set_new(object, "digest", refit_json_text(m->version.digest));
    }
    return bad == 0;
}

static json_t *hex_json(const uint8_t *bytes)
{
    char text[2 * REFIT_SLOT_ID_BYTES + 1];
    refit_text_hex(bytes, REFIT_SLOT_ID_BYTES, text);
    return json_string(text);
}

static bool on_device(const struct refit_attach_message *m, uint32_t slot)
{
    return slot < REFIT_SLOTS_MAX && (m->device.slots >> slot & 1);
}

/* Left out when all slots are in host memory. */
static bool add_device(json_t *object, const struct refit_attach_message *m, unsigned members)
{
    int bad = 0;
    if ((members & M_ID) && on_device(m, m->slot))
        bad |= json_object_set_new(object, "id", hex_json(m->device.id[m->slot]));
    if (!(members & M_DEVICE) || m->device.slots == 0)
        return bad == 0;
    json_t *slots = json_array();
    for (uint32_t i = 0; slots && i < m->slots; i++)
        bad |= json_array_append_new(slots, on_device(m, i) ? hex_json(m->device.id[i]) : json_string(""));
    json_t *device = json_object();
    bad |= json_object_set_new(object, "device", device);
    bad |= json_object_set_new(device, "uuid", hex_json(m->device.uuid));
    bad |= json_object_set_new(device, "granularity", refit_json_u64(m->device.granularity));
    bad |= json_object_set_new(device, "slots", slots);
    return bad == 0;
}

enum refit_status refit_attach_send(int sock, const struct refit_attach_message *message, const int *fds,
                                    size_t fd_count, struct refit_error *err)
{
    unsigned members = types[message->type].members;
    char *text = NULL;
    size_t len = 0;
    json_t *object = json_object();
    if (object && json_object_set_new(object, "type", json_string(types[message->type].name)) == 0 &&
        add_numbers(object, message, members) && add_texts(object, message, members) &&
        add_device(object, message, members))
        text = refit_json_canonical(object, &len);
    json_decref(object);
    if (!text)
        return refit_fail_alloc(err, "a message of the engine's socket", REFIT_ATTACH_MESSAGE_MAX);
    enum refit_status status = refit_io_send_fds(sock, text, len, fds, fd_count, err);
    free(text);
    return status;
}

/* --- reading ----------------------------------------------------------------------------------------------- */

static enum refit_status read_u32(const json_t *object, const char *key, uint32_t *out, struct refit_error *err)
{
    int64_t value = 0;
    enum refit_status status = refit_json_get_int(object, key, "message", 0, UINT32_MAX, &value, err);
    *out = (uint32_t)value;
    return status;
}

static enum refit_status read_bool(const json_t *object, const char *key, bool *out, struct refit_error *err)
{
    if (!json_is_boolean(json_object_get(object, key)))
        return refit_fail(err, REFIT_INVALID, "message: \"%s\" must be true or false", key);
    *out = json_is_true(json_object_get(object, key));
    return REFIT_OK;
}

static enum refit_status read_text(const json_t *object, const char *key, char *out, size_t size,
                                   struct refit_error *err)
{
    const char *text = NULL;
    enum refit_status status = refit_json_get_string(object, key, "message", &text, err);
    if (status != REFIT_OK)
        return status;
    if (strlen(text) >= size)
        return refit_fail(err, REFIT_INVALID, "message: \"%s\" has %zu bytes, at most %zu fit", key, strlen(text),
                          size - 1);
    strcpy(out, text);
    return REFIT_OK;
}

static enum refit_status read_status(const json_t *object, enum refit_status *out, struct refit_error *err)
{
    int64_t value = 0;
    enum refit_status status =
        refit_json_get_int(object, "status", "message", REFIT_INVALID, REFIT_SYSTEM, &value, err);
    *out = (enum refit_status)value;
    return status;
}

static enum refit_status read_swap(const json_t *object, enum refit_swap_mode *out, struct refit_error *err)
{
    const char *name = NULL;
    enum refit_status status = refit_json_get_string(object, "swap", "message", &name, err);
    for (unsigned mode = 0; status == REFIT_OK && mode < REFIT_SWAP_MODES; mode++) {
        *out = (enum refit_swap_mode)mode;
        if (strcmp(name, refit_swap_mode_name(*out)) == 0)
            return REFIT_OK;
    }
    return status == REFIT_OK ? refit_fail(err, REFIT_INVALID, "message: swap mode \"%.32s\" is not known", name) : status;
}

static enum refit_status read_version(const json_t *object, struct refit_version *out, struct refit_error *err)
{
    enum refit_status status = refit_json_get_u64(object, "version", "message", &out->version, err);
    if (status == REFIT_OK && out->version == 0)
        status = refit_fail(err, REFIT_INVALID, "message: version 0, versions are 1 or more");
    if (status == REFIT_OK)
        status = read_text(object, "label", out->label, sizeof out->label, err);
    if (status == REFIT_OK)
        status = read_text(object, "digest", out->digest, sizeof out->digest, err);
    return status;
}

static enum refit_status read_numbers(const json_t *object, unsigned members, struct refit_attach_message *m,
                                      struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    if (members & M_ABI)
        status = read_u32(object, "abi", &m->abi, err);
    if (status == REFIT_OK && (members & M_RANK))
        status = read_u32(object, "rank", &m->rank, err);
    if (status == REFIT_OK && (members & M_RANKS))
        status = read_u32(object, "ranks", &m->ranks, err);
    if (status == REFIT_OK && (members & M_SLOTS))
        status = read_u32(object, "slots", &m->slots, err);
    if (status == REFIT_OK && (members & M_SLOT))
        status = read_u32(object, "slot", &m->slot, err);
    if (status == REFIT_OK && (members & M_BYTES))
        status = refit_json_get_u64(object, "bytes", "message", &m->bytes, err);
    if (status == REFIT_OK && (members & M_STATUS))
        status = read_status(object, &m->status, err);
    if (status == REFIT_OK && (members & M_RETURNING))
        status = read_bool(object, "returning", &m->returning, err);
    if (status == REFIT_OK && (members & M_OK))
        status = read_bool(object, "ok", &m->ok, err);
    if (status == REFIT_OK && (members & M_STABLE))
        status = read_bool(object, "stable", &m->stable, err);
    if (status == REFIT_OK && (members & M_WINDOW))
        status = read_u32(object, "window", &m->window, err);
    if (status == REFIT_OK && (members & M_RECEIVE))
        status = refit_json_opt_bool(object, "receive", "message", &m->receive, err);
    if (status == REFIT_OK && (members & M_NCCL))
        status = read_u32(object, "nccl", &m->nccl, err);
    return status;
}

static enum refit_status read_texts(const json_t *object, unsigned members, struct refit_attach_message *m,
                                    struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    if (members & M_PROCESS)
        status = read_text(object, "label", m->label, sizeof m->label, err);
    if (status == REFIT_OK && (members & M_TEXT))
        status = read_text(object, "text", m->text, sizeof m->text, err);
    if (status == REFIT_OK && (members & M_REFIT))
        status = read_text(object, "refit", m->refit, sizeof m->refit, err);
    if (status == REFIT_OK && (members & M_KV))
        status = read_text(object, "kv", m->kv, sizeof m->kv, err);
    if (status == REFIT_OK && (members & M_SWAP))
        status = read_swap(object, &m->swap, err);
    if (status == REFIT_OK && (members & M_VERSION))
        status = read_version(object, &m->version, err);
    return status;
}

static enum refit_status read_hex(const json_t *value, const char *what, uint8_t *out, struct refit_error *err)
{
    const char *text = json_string_value(value);
    if (text && refit_text_unhex(text, out, REFIT_SLOT_ID_BYTES))
        return REFIT_OK;
    return refit_fail(err, REFIT_INVALID, "message: %s must be %d hex digits", what, 2 * REFIT_SLOT_ID_BYTES);
}

static enum refit_status read_slot_ids(const json_t *list, struct refit_attach_message *m, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    if (!json_is_array(list) || m->slots > REFIT_SLOTS_MAX || json_array_size(list) != m->slots)
        return refit_fail(err, REFIT_INVALID, "message: \"slots\" of the device must list %u ids", m->slots);
    for (uint32_t i = 0; i < m->slots && status == REFIT_OK; i++) {
        const json_t *id = json_array_get(list, i);
        if (json_is_string(id) && json_string_length(id) == 0)
            continue;
        m->device.slots |= 1u << i;
        status = read_hex(id, "a slot's id", m->device.id[i], err);
    }
    return status;
}

static enum refit_status read_device(const json_t *object, unsigned members, struct refit_attach_message *m,
                                     struct refit_error *err)
{
    const json_t *id = json_object_get(object, "id"), *device = json_object_get(object, "device");
    enum refit_status status = REFIT_OK;
    if ((members & M_ID) && id && m->slot < REFIT_SLOTS_MAX) {
        m->device.slots = 1u << m->slot;
        status = read_hex(id, "\"id\"", m->device.id[m->slot], err);
    }
    if (!(members & M_DEVICE) || !device || status != REFIT_OK)
        return status;
    if (!json_is_object(device))
        return refit_fail(err, REFIT_INVALID, "message: \"device\" must be an object");
    status = read_hex(json_object_get(device, "uuid"), "\"uuid\"", m->device.uuid, err);
    if (status == REFIT_OK)
        status = refit_json_get_u64(device, "granularity", "device", &m->device.granularity, err);
    return status == REFIT_OK ? read_slot_ids(json_object_get(device, "slots"), m, err) : status;
}

static enum refit_status read_message(const json_t *object, struct refit_attach_message *m, struct refit_error *err)
{
    const char *name = NULL;
    enum refit_status status = refit_json_get_string(object, "type", "message", &name, err);
    if (status != REFIT_OK)
        return status;
    size_t type = 0;
    while (type < TYPE_COUNT && strcmp(types[type].name, name) != 0)
        type++;
    if (type == TYPE_COUNT)
        return refit_fail(err, REFIT_INVALID, "message: type \"%.32s\" is not known", name);
    m->type = (enum refit_attach_type)type;
    status = read_numbers(object, types[type].members, m, err);
    if (status == REFIT_OK)
        status = read_texts(object, types[type].members, m, err);
    return status == REFIT_OK ? read_device(object, types[type].members, m, err) : status;
}

enum refit_status refit_attach_parse(const void *text, size_t len, struct refit_attach_message *message,
                                     struct refit_error *err)
{
    json_t *object = NULL;
    memset(message, 0, sizeof *message);
    enum refit_status status = refit_json_parse(text, len, "message", &object, err);
    if (status == REFIT_OK)
        status = read_message(object, message, err);
    json_decref(object);
    return status;
}

enum refit_status refit_attach_receive(int sock, struct refit_attach_message *message, int *fds, size_t fd_max,
                                       size_t *fd_count, struct refit_error *err)
{
    char text[REFIT_ATTACH_MESSAGE_MAX];
    size_t len = 0;
    memset(message, 0, sizeof *message);
    enum refit_status status = refit_io_recv_fds(sock, text, sizeof text, &len, fds, fd_max, fd_count, err);
    if (status != REFIT_OK)
        return status;
    if (len == 0 && *fd_count == 0)
        return refit_fail(err, REFIT_PEER, "the engine's socket: closed");
    status = refit_attach_parse(text, len, message, err);
    if (status != REFIT_OK) {
        for (size_t i = 0; i < *fd_count; i++)
            refit_io_close(&fds[i]);
        *fd_count = 0;
    }
    return status;
}
