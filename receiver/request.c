/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/request.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "receiver/quarantine.h"

/* A fixed array from outside: it must end, and hold no control characters. */
static enum refit_status check_text(const char *text, size_t max, const char *member, struct refit_error *err)
{
    size_t len = strnlen(text, max);
    if (len == max)
        return refit_fail(err, REFIT_INVALID, "refit: member '%s' is longer than %zu bytes", member, max - 1);
    size_t control = refit_text_first_control(text);
    if (control < len)
        return refit_fail(err, REFIT_INVALID, "refit: member '%s' has a control character at byte %zu", member, control);
    return REFIT_OK;
}

static enum refit_status check_texts(const struct refit_request *in, struct refit_error *err)
{
    const struct { const char *text; size_t max; const char *member; } members[] = {
        {in->label, sizeof in->label, "label"},
        {in->publish_id, sizeof in->publish_id, "publish_id"},
        {in->source, sizeof in->source, "source"},
        {in->checkpoint, sizeof in->checkpoint, "checkpoint"},
        {in->transport, sizeof in->transport, "transport"},
        {in->digest, sizeof in->digest, "digest"},
        {in->kv, sizeof in->kv, "kv"},
        {in->body_digest, sizeof in->body_digest, "body_digest"},
        {in->resume, sizeof in->resume, "resume"},
    };
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        enum refit_status status = check_text(members[i].text, members[i].max, members[i].member, err);
        if (status != REFIT_OK)
            return status;
    }
    return REFIT_OK;
}

static enum refit_status check_digest(const char *digest, const char *member, struct refit_error *err)
{
    if (refit_is_sha256_hex(digest))
        return REFIT_OK;
    return refit_fail(err, REFIT_INVALID, "refit: member '%s' must be 64 lower-case hex digits, found '%s'", member,
                      digest);
}

enum refit_status refit_request_check_kv(const char *kv, struct refit_error *err)
{
    if (strcmp(kv, "flush") == 0 || strcmp(kv, "keep") == 0 || strcmp(kv, "namespace") == 0)
        return REFIT_OK;
    return refit_fail(err, REFIT_INVALID, "member 'kv' must be flush, keep or namespace, found '%.15s'", kv);
}

static enum refit_status check_publish(struct refit_request *request, struct refit_error *err)
{
    if (request->epoch == 0 && !request->catch_up)
        return refit_fail(err, REFIT_INVALID, "refit from a source: 'epoch' must be the one that POST /v1/lead gave");
    bool proved = request->digest[0] != '\0' || request->commit == REFIT_COMMIT_BARRIER;
    if (request->catch_up && (request->epoch != 0 || !proved))
        return refit_fail(err, REFIT_INVALID,
                          "catching up: it has no 'epoch', and a 'digest' or a commit that is asked for");
    if (request->publish_id[0] == '\0')
        return refit_fail(err, REFIT_INVALID, "refit from a source: 'publish_id' must not be empty");
    if (request->transport[0] == '\0')
        snprintf(request->transport, sizeof request->transport, "%s", refit_transport_tcp.name);
    if (!refit_transport_find(request->transport))
        return refit_fail(err, REFIT_INVALID, "refit: transport '%s' is not known; use tcp, local or nccl",
                          request->transport);
    return check_digest(request->source, "source", err);
}

static enum refit_status check_checkpoint(const struct refit_receiver_config *config, struct refit_request *request,
                                          struct refit_error *err)
{
    if (request->epoch != 0)
        return refit_fail(err, REFIT_INVALID, "refit from a checkpoint: it has no lead, so 'epoch' must be left out");
    if (!config->checkpoint_root)
        return refit_fail(err, REFIT_NOT_FOUND, "refit from checkpoint '%s': no checkpoint root is configured here",
                          request->checkpoint);
    snprintf(request->transport, sizeof request->transport, "file");
    struct refit_checkpoint_place place;
    enum refit_status status = refit_checkpoint_find(config->checkpoint_root, request->checkpoint, &place, err);
    if (status == REFIT_OK)
        refit_checkpoint_forget(&place);
    return status;
}

static enum refit_status check_deadline(const struct refit_receiver_config *config, struct refit_request *request,
                                        struct refit_error *err)
{
    if (request->deadline_ms == 0)
        request->deadline_ms = config->deadline_ms;
    if (request->deadline_ms > 0 && request->deadline_ms <= config->deadline_max_ms)
        return REFIT_OK;
    return refit_fail(err, REFIT_INVALID, "refit: 'deadline_ms' must be 1 to %" PRId64 ", found %" PRId64,
                      config->deadline_max_ms, request->deadline_ms);
}

/* A lead that takes us for other ranks would plan other edges. */
static enum refit_status check_ranks(const struct refit_receiver_config *config, const struct refit_request *request,
                                     struct refit_error *err)
{
    const struct refit_bank_config *bank = &config->bank;
    if (request->rank_count == 0 || (request->first_rank == bank->first_rank && request->rank_count == bank->ranks))
        return REFIT_OK;
    return refit_fail(err, REFIT_INVALID, "refit: 'ranks' names %" PRIu32 " from %" PRIu32 " on, held here are %" PRIu32
                      " from %" PRIu32 " on; ask for the host again", request->rank_count, request->first_rank,
                      bank->ranks, bank->first_rank);
}

static enum refit_status check_fleet(const struct refit_request *request, struct refit_error *err)
{
    if (request->checkpoint[0] != '\0' && (request->fleet || request->unchanged_since || request->resume[0]))
        return refit_fail(err, REFIT_INVALID, "refit from a checkpoint: it has no 'fleet', 'unchanged' or 'resume'");
    bool other = request->checkpoint[0] != '\0' || request->fleet || request->unchanged_since || request->resume[0];
    if (request->buckets != 0 && other)
        return refit_fail(err, REFIT_INVALID, "refit by 'broadcast': it moves everything, alone; no 'checkpoint', "
                          "'fleet', 'unchanged' or 'resume' goes with it");
    if (request->unchanged_since != 0 && !json_is_array(request->unchanged))
        return refit_fail(err, REFIT_INVALID, "refit: 'unchanged' must name 'tensors'");
    return REFIT_OK;
}

static enum refit_status check_source_kind(const struct refit_receiver_config *config, struct refit_request *request,
                                           struct refit_error *err)
{
    bool publish = request->source[0] != '\0', checkpoint = request->checkpoint[0] != '\0';
    if (publish == checkpoint)
        return refit_fail(err, REFIT_INVALID, "refit: exactly one of 'source' and 'checkpoint' must be given");
    return publish ? check_publish(request, err) : check_checkpoint(config, request, err);
}

enum refit_status refit_request_check(const struct refit_receiver_config *config, const struct refit_request *in,
                                      struct refit_request *out, struct refit_error *err)
{
    enum refit_status status = check_texts(in, err);
    if (status != REFIT_OK)
        return status;
    *out = *in;
    if (out->version == 0)
        return refit_fail(err, REFIT_INVALID, "refit: 'version' must be 1 or more");
    if (out->kv[0] == '\0')
        snprintf(out->kv, sizeof out->kv, "flush");
    status = refit_request_check_kv(out->kv, err);
    if (status == REFIT_OK && out->digest[0] != '\0')
        status = check_digest(out->digest, "digest", err);
    if (status == REFIT_OK)
        status = check_deadline(config, out, err);
    if (status == REFIT_OK)
        status = check_ranks(config, out, err);
    if (status == REFIT_OK)
        status = check_fleet(out, err);
    if (status == REFIT_OK)
        status = check_source_kind(config, out, err);
    return status;
}

enum refit_status refit_request_check_newer(const struct refit_bank_snapshot *bank, uint64_t version,
                                            struct refit_error *err)
{
    uint64_t active = bank->active != REFIT_SLOT_NONE ? bank->slot[bank->active].version.version : 0;
    if (version > active)
        return REFIT_OK;
    return refit_fail(err, REFIT_CONFLICT, "version %" PRIu64 " is not newer than %" PRIu64 ", which is served; "
                      "publish a newer number, or roll back", version, active);
}
