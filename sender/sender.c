/* SPDX-License-Identifier: Apache-2.0 */
#include <refit/sender.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/io.h"
#include "sender/gather.h"
#include "sender/sender_internal.h"
#include "transport/endpoint.h"

#define CONNECT_TIMEOUT_MS 60000
#define ANSWER_MS 5000 /* beyond a step's deadline, for the lead's word on which rank is missing */

/* ---- what comes from the other ranks ---- */

static void member_message(void *context, uint32_t rank, enum refit_message type, const void *body, size_t len)
{
    struct refit_sender *sender = context;
    (void)rank;
    refit_server_message(sender->server, type, body, len);
}

/* Without a lead nobody will commit what this rank serves. */
static void member_lost(void *context, uint32_t rank, const struct refit_error *why)
{
    struct refit_sender *sender = context;
    (void)rank;
    (void)why;
    refit_server_stop_all(sender->server);
}

static void lead_message(void *context, uint32_t rank, enum refit_message type, const void *body, size_t len)
{
    struct refit_sender *sender = context;
    if (type == REFIT_MESSAGE_SERVED)
        refit_lead_on_served(sender->lead, rank, body, len);
}

static void lead_lost(void *context, uint32_t rank, const struct refit_error *why)
{
    struct refit_sender *sender = context;
    refit_lead_on_lost(sender->lead, rank, why);
}

/* ---- open and close ---- */

static enum refit_status check_config(const struct refit_sender_config *config, struct refit_error *err)
{
    if (config->ranks == 0 || config->ranks > REFIT_RANKS_MAX || config->rank >= config->ranks)
        return refit_fail(err, REFIT_INVALID, "rank %u of %u: expected a rank below the number of ranks (1 to %d)",
                          config->rank, config->ranks, REFIT_RANKS_MAX);
    if (config->streams > REFIT_STREAMS_MAX)
        return refit_fail(err, REFIT_INVALID, "streams: expected 1 to %d, or 0 for the default, found %u", REFIT_STREAMS_MAX,
                          config->streams);
    if (config->ranks > 1 && !config->lead_address)
        return refit_fail(err, REFIT_INVALID, "lead_address is needed for %u ranks: \"host:port\" of rank 0",
                          config->ranks);
    return REFIT_OK;
}

static enum refit_status open_lead(struct refit_sender *sender, const struct refit_sender_config *config, int own,
                                   struct refit_error *err)
{
    struct refit_lead_config lead = {.ranks = config->ranks,
                                     .members = {.texts = config->replicas, .count = config->replica_count,
                                                 .list = config->members},
                                     .name = config->name, .takeover = config->takeover != 0, .transport = config->transport};
    struct refit_ranks_handlers handlers = {.message = lead_message, .lost = lead_lost, .context = sender};
    lead.credentials = sender->credentials;
    enum refit_status status = refit_lead_create(&lead, &sender->lead, err);
    if (status != REFIT_OK) {
        refit_io_close(&own);
        return status;
    }
    status = refit_ranks_listen(config->ranks > 1 ? config->lead_address : NULL, config->ranks, own, &sender->trust,
                                &handlers,
                                &sender->lead_ranks, err);
    if (status == REFIT_OK)
        refit_lead_set_ranks(sender->lead, sender->lead_ranks);
    return status;
}

/* Rank 0 is a rank like the others: it is its own lead's first member, over a socket pair. */
static enum refit_status join_own_lead(struct refit_sender *sender, const struct refit_sender_config *config,
                                       const struct refit_ranks_handlers *member, struct refit_error *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        return refit_fail_errno(err, errno, "cannot make a socket pair");
    enum refit_status status = open_lead(sender, config, pair[0], err);
    if (status != REFIT_OK) {
        refit_io_close(&pair[1]);
        return status;
    }
    return refit_ranks_join_over(pair[1], 0, config->ranks, member, &sender->member, err);
}

static enum refit_status join(struct refit_sender *sender, const struct refit_sender_config *config,
                              struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_ranks_handlers member = {.message = member_message, .lost = member_lost, .context = sender};
    return config->rank == 0 ? join_own_lead(sender, config, &member, err)
                             : refit_ranks_join(config->lead_address, config->rank, config->ranks, &sender->trust,
                                                &member,
                                                deadline, &sender->member, err);
}

/* All ranks leave open together, or none does. */
static enum refit_status meet(struct refit_sender *sender, struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_buf welcome;
    if (sender->lead) {
        struct refit_error outcome = {0};
        outcome.status = refit_ranks_wait_all(sender->lead_ranks, deadline, &outcome);
        enum refit_status told = refit_outcome_send(sender->lead_ranks, UINT32_MAX, REFIT_MESSAGE_WELCOME, &outcome,
                                                    NULL, 0, deadline, outcome.status == REFIT_OK ? err : NULL);
        if (outcome.status == REFIT_OK && told != REFIT_OK)
            return told;
    }
    enum refit_status status = refit_ranks_take(sender->member, REFIT_MESSAGE_WELCOME, refit_deadline_after(deadline, ANSWER_MS), &welcome, err);
    if (status == REFIT_OK)
        status = refit_outcome_read(&welcome, NULL, NULL, err);
    refit_buf_release(&welcome);
    return status;
}

/* Only the lead calls control APIs, so only it needs the token. */
static enum refit_status open_credentials(struct refit_sender *sender, const struct refit_sender_config *config,
                                          struct refit_error *err)
{
    const struct refit_credentials_config credentials = {.cacert = config->cacert, .cert = config->cert, .key = config->key,
                                                         .token_file = config->rank == 0 ? config->token_file : "",
                                                         .plaintext_tokens = config->insecure_plaintext_tokens != 0};
    return refit_credentials_open(&credentials, &sender->credentials, err);
}

/* How the ranks know each other. */
static enum refit_status open_trust(struct refit_sender *sender, const struct refit_sender_config *config,
                                    struct refit_error *err)
{
    if (config->ranks == 1)
        return REFIT_OK;
    enum refit_status status = refit_trust_read_secret(&sender->trust, config->job_secret_file, err);
    if (status == REFIT_OK)
        status = refit_credentials_ranks_tls(sender->credentials, config->rank == 0, &sender->trust.tls, err);
    return status;
}

enum refit_status refit_sender_open(const struct refit_sender_config *config, struct refit_sender **out,
                                    struct refit_error *err)
{
    enum refit_status status = check_config(config, err);
    if (status != REFIT_OK)
        return status;
    struct refit_sender *sender = calloc(1, sizeof *sender);
    if (!sender)
        return refit_fail_alloc(err, "a sender", sizeof *sender);
    refit_transports_keep();
    sender->rank = config->rank;
    sender->ranks = config->ranks;
    sender->connect_timeout_ms = config->connect_timeout_ms > 0 ? config->connect_timeout_ms : CONNECT_TIMEOUT_MS;
    struct refit_deadline deadline = refit_deadline_in_ms(sender->connect_timeout_ms);
    status = open_credentials(sender, config, err);
    struct refit_server_config server = {.rank = config->rank, .streams = config->streams,
                                         .credentials = sender->credentials};
    if (status == REFIT_OK)
        status = open_trust(sender, config, err);
    if (status == REFIT_OK)
        status = refit_server_create(&server, &sender->server, err);
    if (status == REFIT_OK)
        status = join(sender, config, deadline, err);
    if (status == REFIT_OK) {
        refit_server_set_ranks(sender->server, sender->member);
        status = meet(sender, deadline, err);
    }
    if (status != REFIT_OK)
        refit_sender_close(sender);
    else
        *out = sender;
    return status;
}

static void drop_source(struct refit_sender *sender)
{
    if (sender->server)
        refit_server_set_source(sender->server, NULL, NULL);
    refit_plan_cache_destroy(sender->plans);
    if (!sender->checkpoint)
        refit_arena_release(sender->arena);
    refit_checkpoint_close(sender->checkpoint);
    refit_layout_release(sender->layout);
    sender->plans = NULL;
    sender->arena = NULL;
    sender->checkpoint = NULL;
    sender->layout = NULL;
    sender->gathers = false;
}

/* The lead ends first, since it needs the ranks to let go; then what this rank serves; then the connections, which
 * tell the others. */
void refit_sender_close(struct refit_sender *sender)
{
    if (!sender)
        return;
    if (sender->lead)
        refit_lead_end(sender->lead);
    if (sender->server)
        refit_server_end(sender->server);
    refit_ranks_close(sender->member);
    refit_ranks_close(sender->lead_ranks);
    refit_lead_destroy(sender->lead);
    refit_trust_wipe(&sender->trust);
    refit_tls_close(sender->trust.tls);
    refit_credentials_close(sender->credentials);
    drop_source(sender);
    refit_server_destroy(sender->server);
    refit_shared_free_all(&sender->shared);
    refit_report_release(&sender->report);
    free(sender->progress_items);
    free(sender);
    refit_transports_let_go();
}

enum refit_status refit_sender_alloc(struct refit_sender *sender, size_t bytes, void **out, struct refit_error *err)
{
    return refit_shared_alloc(&sender->shared, bytes, out, err);
}

/* ---- steps that all ranks take together ---- */

static enum refit_status first_error(const struct refit_buf *bodies, uint32_t ranks, struct refit_error *err)
{
    for (uint32_t i = 0; i < ranks; i++) {
        struct refit_error of_rank;
        if (refit_outcome_read(&bodies[i], NULL, NULL, &of_rank) != REFIT_OK)
            return ranks == 1 ? refit_fail(err, of_rank.status, "%s", of_rank.text)
                              : refit_fail(err, of_rank.status, "rank %u: %s", i, of_rank.text);
    }
    return REFIT_OK;
}

static enum refit_status gather_and_decide(struct refit_sender *sender, const struct refit_step *step,
                                           struct refit_buf *bodies, struct refit_deadline deadline,
                                           const void **answer, size_t *len, struct refit_error *err)
{
    enum refit_status status = refit_ranks_take(sender->lead_ranks, step->said, deadline, bodies, err);
    if (status == REFIT_OK)
        status = first_error(bodies, sender->ranks, err);
    if (status == REFIT_OK && step->decide)
        status = step->decide(sender, bodies, step->context, answer, len, err);
    return status;
}

/* The lead's half of a step; what goes wrong in it goes to all ranks as the outcome. */
static enum refit_status lead_step(struct refit_sender *sender, const struct refit_step *step,
                                   struct refit_deadline deadline, struct refit_error *err)
{
    const void *answer = NULL;
    size_t len = 0;
    struct refit_error outcome = {0};
    struct refit_buf *bodies = calloc(sender->ranks, sizeof *bodies);
    if (!bodies)
        return refit_fail_alloc(err, "the ranks' messages", sender->ranks * sizeof *bodies);
    outcome.status = gather_and_decide(sender, step, bodies, deadline, &answer, &len, &outcome);
    struct refit_error unsent;
    enum refit_status status = refit_outcome_send(sender->lead_ranks, UINT32_MAX, step->answered, &outcome, answer, len,
                                                  refit_deadline_in_ms(sender->connect_timeout_ms), &unsent);
    for (uint32_t i = 0; i < sender->ranks; i++)
        refit_buf_release(&bodies[i]);
    free(bodies);
    if (outcome.status != REFIT_OK || status == REFIT_OK)
        return REFIT_OK;
    if (err)
        *err = unsent;
    return status;
}

void refit_sender_next_turn(struct refit_sender *sender)
{
    sender->turn++;
    refit_ranks_set_turn(sender->member, sender->turn);
    if (sender->lead)
        refit_ranks_set_turn(sender->lead_ranks, sender->turn);
}

enum refit_status refit_sender_step(struct refit_sender *sender, const struct refit_step *step,
                                    const struct refit_error *mine, const void *body, size_t len,
                                    struct refit_deadline deadline, struct refit_buf *answer, struct refit_error *err)
{
    refit_buf_init(answer, 0);
    enum refit_status status = refit_outcome_send(sender->member, 0, step->said, mine, body, len, deadline, err);
    if (status == REFIT_OK && sender->lead)
        status = lead_step(sender, step, deadline, err);
    if (status == REFIT_OK)
        status = refit_ranks_take(sender->member, step->answered, refit_deadline_after(deadline, ANSWER_MS), answer, err);
    return status == REFIT_OK ? refit_outcome_read(answer, NULL, NULL, err) : status;
}

/* ---- register ---- */

struct merging {
    struct refit_layout **parts;
    struct refit_layout *merged;
};

static enum refit_status parse_parts(struct refit_sender *sender, const struct refit_buf *bodies,
                                     struct merging *merging, struct refit_error *err)
{
    for (uint32_t i = 0; i < sender->ranks; i++) {
        const void *text = NULL;
        size_t len = 0;
        char what[32];
        snprintf(what, sizeof what, "layout of rank %u", i);
        enum refit_status status = refit_outcome_read(&bodies[i], &text, &len, err);
        /* Ranks that describe the whole mesh all send the same text. */
        if (status == REFIT_OK && i > 0 && bodies[i].len == bodies[0].len &&
            memcmp(bodies[i].data, bodies[0].data, bodies[0].len) == 0)
            merging->parts[i] = refit_layout_retain(merging->parts[0]);
        else if (status == REFIT_OK)
            status = refit_layout_parse(text, len, what, &merging->parts[i], err);
        if (status != REFIT_OK)
            return status;
    }
    return refit_layout_merge(merging->parts, sender->ranks, &merging->merged, err);
}

static enum refit_status merge(struct refit_sender *sender, const struct refit_buf *bodies, void *context,
                               const void **answer, size_t *len, struct refit_error *err)
{
    struct merging *merging = context;
    merging->parts = calloc(sender->ranks, sizeof(struct refit_layout *));
    enum refit_status status = merging->parts ? parse_parts(sender, bodies, merging, err)
                                              : refit_fail_alloc(err, "the ranks' layouts", sender->ranks);
    for (uint32_t i = 0; merging->parts && i < sender->ranks; i++)
        refit_layout_release(merging->parts[i]);
    free(merging->parts);
    if (status != REFIT_OK)
        return status;
    if (refit_layout_ranks(merging->merged) != sender->ranks)
        return refit_fail(err, REFIT_MISMATCH, "the layout is of %u ranks, the sender was opened with %u",
                          refit_layout_ranks(merging->merged), sender->ranks);
    *answer = refit_layout_text(merging->merged, len);
    return REFIT_OK;
}

/* What each rank registers becomes one layout, known to all. */
static enum refit_status agree_on_layout(struct refit_sender *sender, const struct refit_error *mine, const void *text,
                                         size_t len, struct refit_deadline deadline, struct refit_layout **out,
                                         struct refit_error *err)
{
    struct merging merging = {0};
    struct refit_step step = {.said = REFIT_MESSAGE_REGISTER, .answered = REFIT_MESSAGE_MERGED, .decide = merge,
                              .context = &merging};
    struct refit_buf answer;
    enum refit_status status = refit_sender_step(sender, &step, mine, text, len, deadline, &answer, err);
    if (status == REFIT_OK && !merging.merged) {
        const void *merged = NULL;
        status = refit_outcome_read(&answer, &merged, &len, err);
        if (status == REFIT_OK)
            status = refit_layout_parse(merged, len, "the mesh's layout", &merging.merged, err);
    }
    refit_buf_release(&answer);
    if (status == REFIT_OK)
        *out = merging.merged;
    else
        refit_layout_release(merging.merged);
    return status;
}

static enum refit_status agree_on_binding(struct refit_sender *sender, const struct refit_error *mine,
                                          struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_step step = {.said = REFIT_MESSAGE_BOUND, .answered = REFIT_MESSAGE_REGISTERED};
    struct refit_buf answer;
    enum refit_status status = refit_sender_step(sender, &step, mine, NULL, 0, deadline, &answer, err);
    refit_buf_release(&answer);
    return status;
}

static enum refit_status use_source(struct refit_sender *sender, struct refit_layout *layout, struct refit_error *err)
{
    enum refit_status status = refit_plan_cache_create(layout, sender->rank, &sender->plans, err);
    if (status != REFIT_OK)
        return status;
    sender->layout = refit_layout_retain(layout);
    refit_server_set_source(sender->server, sender->plans, sender->arena);
    if (!sender->lead)
        return REFIT_OK;
    refit_lead_set_source(sender->lead, layout, NULL);
    refit_lead_set_device(sender->lead, sender->arena && refit_arena_device(sender->arena) >= 0);
    return REFIT_OK;
}

static enum refit_status check_idle(const struct refit_sender *sender, struct refit_error *err)
{
    return sender->publishing ? refit_fail(err, REFIT_BUSY, "a publish is under way; wait for its report") : REFIT_OK;
}

enum refit_status refit_sender_register(struct refit_sender *sender, const char *layout, size_t layout_len,
                                        const struct refit_sender_buffer *buffers, size_t count,
                                        struct refit_error *err)
{
    struct refit_deadline deadline = refit_deadline_in_ms(sender->connect_timeout_ms);
    struct refit_layout *merged = NULL;
    struct refit_error mine = {0};
    enum refit_status status = check_idle(sender, err);
    if (status != REFIT_OK)
        return status;
    drop_source(sender);
    refit_sender_next_turn(sender);
    status = agree_on_layout(sender, &mine, layout, layout_len, deadline, &merged, err);
    if (status != REFIT_OK)
        return status;
    mine.status = refit_source_bind(merged, sender->rank, buffers, count, sender->shared, &sender->arena, &mine);
    status = agree_on_binding(sender, &mine, deadline, err);
    if (status == REFIT_OK)
        status = use_source(sender, merged, err);
    if (status != REFIT_OK)
        drop_source(sender);
    refit_layout_release(merged);
    return status;
}

enum refit_status refit_sender_register_checkpoint(struct refit_sender *sender, const char *path,
                                                   struct refit_error *err)
{
    enum refit_status status = check_idle(sender, err);
    if (status != REFIT_OK)
        return status;
    if (sender->ranks != 1)
        return refit_fail(err, REFIT_UNSUPPORTED, "a checkpoint is registered by one rank; the sender has %u",
                          sender->ranks);
    drop_source(sender);
    status = refit_checkpoint_open(path, &sender->checkpoint, err);
    if (status != REFIT_OK)
        return status;
    sender->arena = refit_checkpoint_arena(sender->checkpoint);
    status = use_source(sender, refit_checkpoint_layout(sender->checkpoint), err);
    if (status != REFIT_OK)
        drop_source(sender);
    return status;
}

enum refit_status refit_sender_register_gather(struct refit_sender *sender, const struct refit_sender_tensor *tensors,
                                               size_t count, refit_gather_fn gather, void *context, struct refit_error *err)
{
    const struct refit_gathering gathering = {.gather = gather, .context = context};
    struct refit_layout *layout = NULL;
    enum refit_status status = check_idle(sender, err);
    if (status != REFIT_OK)
        return status;
    if (sender->ranks != 1)
        return refit_fail(err, REFIT_UNSUPPORTED, "tensors that a callback gathers are registered by one rank; the sender has %u",
                          sender->ranks);
    if (!gather || count == 0)
        return refit_fail(err, REFIT_INVALID, "a gather callback and at least one tensor are needed");
    drop_source(sender);
    status = refit_gather_layout(tensors, count, &layout, err);
    if (status == REFIT_OK)
        status = use_source(sender, layout, err);
    if (status == REFIT_OK) {
        refit_lead_set_source(sender->lead, layout, &gathering);
        sender->gathers = true;
    } else {
        drop_source(sender);
    }
    refit_layout_release(layout);
    return status;
}
