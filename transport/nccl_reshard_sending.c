/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nccl_reshard.h"

#include <string.h>

#include "base/log.h"

static const struct refit_endpoint_config *config_of(const struct refit_nccl_sending *sending)
{
    return &sending->holding->base.config;
}

void refit_nccl_sharing_offer(struct refit_nccl_sending *sending, const char *card_id)
{
    const struct refit_view *view = &sending->holding->view;
    const char *id = refit_nccl_reshard_id();
    sending->sharing.offers = id && card_id && strcmp(id, card_id) == 0 && view->side == REFIT_SOURCE &&
                              view->rank != REFIT_ALL_RANKS && config_of(sending)->rate_bytes_per_s == 0;
    if (id && card_id && strcmp(id, card_id) != 0)
        refit_log_limited(REFIT_LOG_WARN, "no reshard: the receiver has another NCCL M2N",
                          refit_log_text("refit", config_of(sending)->refit_id), refit_log_text("here", id),
                          refit_log_text("there", card_id));
}

static enum refit_status deny(struct refit_nccl_sending *sending, enum refit_denial why, struct refit_error *err)
{
    const struct refit_frame frame = {.type = REFIT_FRAME_DENIED, .edge = sending->sharing.tag, .argument = why};
    return refit_nccl_say(sending, frame, err);
}

/* What we find of the same plan, once. False: nothing that could be asked for. */
static bool has_list(struct refit_nccl_sending *sending, const struct refit_nccl_shard *shard)
{
    struct refit_nccl_sharing *sharing = &sending->sharing;
    struct refit_error err;
    if (sharing->offers && !sharing->listed)
        sharing->listed = refit_reshard_list_build(sending->holding->view.plan, &sharing->list, &err) == REFIT_OK;
    return sharing->offers && sharing->listed && sharing->list.count > 0 && sharing->list.digest == shard->list &&
           sharing->list.sources + sharing->list.destinations == shard->ranks;
}

enum refit_status refit_nccl_sharing_ask(struct refit_nccl_sending *sending, struct refit_error *err)
{
    struct refit_nccl_sharing *sharing = &sending->sharing;
    struct refit_nccl_shard shard;
    enum refit_status status = refit_nccl_shard_decode(&sending->frame, sending->payload, &shard, err);
    if (status != REFIT_OK)
        return status;
    if (sharing->source)
        return refit_fail(err, REFIT_PEER, "the receiver asked for a reshard in the middle of one");
    sharing->tag = shard.tag;
    memcpy(sharing->unique, shard.unique, sizeof sharing->unique);
    sharing->ran = false;
    if (!has_list(sending, &shard))
        return deny(sending, REFIT_DENIED_UNKNOWN, err);
    struct refit_nccl_source *source = refit_nccl_source_of(sending, config_of(sending)->arenas[0]);
    if (source->burst != REFIT_NCCL_OFF || !refit_turn_try(&source->seat))
        return deny(sending, REFIT_DENIED_BUSY, err);
    sharing->source = source;
    return refit_nccl_say(sending, (struct refit_frame){.type = REFIT_FRAME_STARTED, .edge = shard.tag}, err);
}

/* The turn is kept until the receiver says PAUSE, whatever has come of it. */
static enum refit_status say_ran(struct refit_nccl_sending *sending, enum refit_status ended, struct refit_error *err)
{
    const struct refit_frame frame = {
        .type = REFIT_FRAME_RAN, .edge = sending->sharing.tag, .argument = (uint32_t)ended};
    sending->sharing.ran = true;
    return refit_nccl_say(sending, frame, err);
}

enum refit_status refit_nccl_sharing_run(struct refit_nccl_sending *sending, struct refit_error *err)
{
    struct refit_nccl_sharing *sharing = &sending->sharing;
    const struct refit_view *view = &sending->holding->view;
    struct refit_error why;
    if (!sharing->source || sharing->member || sharing->ran || sending->frame.edge != sharing->tag)
        return refit_fail(err, REFIT_PEER, "the receiver runs a reshard that it did not ask for");
    struct refit_nccl_member_config config = {
        .device = sharing->source->device, .list = &sharing->list, .layout = refit_plan_source(view->plan),
        .side = REFIT_SOURCE, .layout_rank = view->rank, .arena = config_of(sending)->arenas[0],
        .rank = view->rank};
    memcpy(config.unique, sharing->unique, sizeof config.unique);
    sending->poll_ns = REFIT_NCCL_POLL_NS;
    enum refit_status status = refit_nccl_member_start(&config, &sharing->member, &why);
    return status == REFIT_OK ? REFIT_OK : say_ran(sending, status, err);
}

enum refit_status refit_nccl_sharing_step(struct refit_nccl_sending *sending, struct refit_error *err)
{
    struct refit_nccl_sharing *sharing = &sending->sharing;
    struct refit_error why = {.status = REFIT_OK};
    if (!sharing->member || sharing->ran)
        return REFIT_OK;
    enum refit_status status = refit_nccl_member_poll(sharing->member, &why);
    if (status == REFIT_BUSY)
        return REFIT_OK;
    if (status != REFIT_OK) {
        refit_log_limited(REFIT_LOG_WARN, "a rank of a reshard failed",
                          refit_log_text("refit", config_of(sending)->refit_id), REFIT_LOG_CAUSE(&why));
        refit_nccl_member_end(sharing->member);
        sharing->member = NULL;
    }
    return say_ran(sending, status, err);
}

void refit_nccl_sharing_break_off(struct refit_nccl_sending *sending)
{
    struct refit_nccl_sharing *sharing = &sending->sharing;
    refit_nccl_member_end(sharing->member);
    sharing->member = NULL;
    if (sharing->source)
        refit_turn_leave(&sharing->source->seat);
    sharing->source = NULL;
}

bool refit_nccl_sharing_pause(struct refit_nccl_sending *sending)
{
    if (sending->frame.edge != sending->sharing.tag || sending->sharing.tag == 0)
        return false;
    refit_nccl_sharing_break_off(sending);
    return true;
}

void refit_nccl_sharing_release(struct refit_nccl_sending *sending)
{
    refit_reshard_list_release(&sending->sharing.list);
    sending->sharing.listed = false;
}
