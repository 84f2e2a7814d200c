/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/fetch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/log.h"

#define CANDIDATES_MAX 16
#define LOOK_MS 200        /* at a refit that runs, beside being told that it changed */
#define STALL_NS 10000000000ll /* without a byte: others are asked */

struct try {
    struct refit_layout *own, *source;
    struct refit_fetch_order order;
    struct refit_sibling *candidate[CANDIDATES_MAX]; /* the first pods of replicas */
    size_t candidates;
    struct refit_fetch_target *target; /* new; this refitd first, if it lacks the version */
    size_t targets;
    struct refit_sibling *mate[REFIT_MATES_MAX];
    size_t mates;
    uint64_t landed; /* bytes, when it was looked at last */
    int64_t landed_ns;
};

static enum refit_status open_control(const struct refit_fetch *fetch, const struct refit_sibling *sibling,
                                      struct refit_control *out, struct refit_error *err)
{
    enum refit_status status = refit_control_init(out, sibling->url, err);
    out->credentials = fetch->credentials;
    return status;
}

static bool spans(const struct refit_fetch *fetch)
{
    return fetch->own->rank_count != 0 && fetch->own->rank_count < fetch->own->ranks;
}

/* --- setting up -------------------------------------------------------------------------------------------------- */

static void make_names(const struct refit_fetch *fetch, struct try *try)
{
    uint8_t token[REFIT_TOKEN_BYTES];
    uint64_t random;
    refit_io_random(&random, sizeof random);
    for (size_t i = 0; i < try->targets; i++) {
        struct refit_fetch_target *target = &try->target[i];
        int used = snprintf(target->publish_id, sizeof target->publish_id, "catch-up-%" PRIu64 "-%016" PRIx64,
                            fetch->version.version, random);
        if (i > 0)
            snprintf(target->publish_id + used, sizeof target->publish_id - (size_t)used, ".%zu", i);
        refit_io_random(token, sizeof token);
        for (size_t k = 0; k < sizeof token; k++)
            snprintf(target->token + 2 * k, 3, "%02x", token[k]);
    }
}

static void add_own_target(const struct refit_fetch *fetch, struct try *try)
{
    struct refit_fetch_target *target = &try->target[try->targets++];
    target->receiver = fetch->receiver;
    target->traffic = fetch->traffic;
    target->before = fetch->own->version;
    if (spans(fetch)) {
        target->first_rank = fetch->own->first_rank;
        target->rank_count = fetch->own->rank_count;
    }
}

static enum refit_status add_mate(const struct refit_fetch *fetch, struct try *try, struct refit_sibling *mate,
                                  struct refit_error *err)
{
    struct refit_fetch_target *target = &try->target[try->targets++];
    target->pod = mate;
    target->first_rank = mate->first_rank;
    target->rank_count = mate->rank_count;
    target->before = mate->active.version;
    return open_control(fetch, mate, &target->control, err);
}

/* Those that lack the version; the others keep what they have. */
static enum refit_status find_targets(struct refit_fetch *fetch, struct try *try, struct refit_error *err)
{
    uint32_t lacking = 0;
    enum refit_status status = REFIT_OK;
    if (spans(fetch) && !refit_siblings_mates(fetch->siblings, fetch->own, try->mate, &try->mates, &lacking))
        return refit_fail(err, REFIT_BUSY, "nobody is known to have rank %" PRIu32 " of this replica", lacking);
    try->target = calloc(try->mates + 1, sizeof *try->target);
    if (!try->target)
        return refit_fail_alloc(err, "the pods of this replica", (try->mates + 1) * sizeof *try->target);
    if (fetch->own->version != fetch->version.version)
        add_own_target(fetch, try);
    for (size_t i = 0; i < try->mates && status == REFIT_OK; i++)
        if (try->mate[i]->active.version != fetch->version.version)
            status = add_mate(fetch, try, try->mate[i], err);
    if (status == REFIT_OK)
        make_names(fetch, try);
    return status;
}

/* The layout that the bytes come in. */
static enum refit_status take_source(struct refit_fetch *fetch, struct try *try, struct refit_error *err)
{
    struct refit_control control;
    struct refit_sibling *first = try->candidate[0];
    enum refit_status status = REFIT_OK;
    if (strcmp(refit_layout_digest(try->own), first->layout) == 0) {
        try->source = refit_layout_retain(try->own);
        return REFIT_OK;
    }
    status = open_control(fetch, first, &control, err);
    if (status == REFIT_OK)
        status = refit_control_layout(&control, refit_deadline_in_ms(REFIT_FETCH_LAYOUT_MS), &try->source, err);
    if (status == REFIT_OK && strcmp(refit_layout_digest(try->source), first->layout) != 0)
        status = refit_fail(err, REFIT_STALE, "%s serves another layout than a moment ago", first->url);
    if (status != REFIT_OK)
        refit_sibling_failed(first, refit_clock_ns());
    return status;
}

static uint32_t count_holders(struct refit_fetch *fetch, struct try *try)
{
    struct refit_sibling *pods[REFIT_MATES_MAX];
    size_t most = 1;
    for (size_t i = 0; i < try->candidates; i++) {
        size_t count = refit_siblings_pods(fetch->siblings, try->candidate[i], pods);
        most = count > most ? count : most;
    }
    return (uint32_t)(REFIT_FETCH_REPLICAS_MAX * most);
}

/* --- who serves it ----------------------------------------------------------------------------------------------- */

static json_t *order_for(const struct try *try, const struct refit_fetch_target *target)
{
    json_int_t holder = (json_int_t)refit_layout_ranks(try->source) + 1 + target->serves;
    json_t *json = json_pack("{s:o, s:s, s:s, s:I, s:s, s:O, s:s, s:I}", "version",
                             refit_json_u64(try->order.version.version), "refit", target->publish_id, "token",
                             target->token, "holder", holder, "transport", "tcp", "card", target->card, "layout",
                             refit_layout_digest(try->own), "deadline_ms",
                             (json_int_t)refit_deadline_left_ms(try->order.deadline));
    if (json && target->rank_count) {
        json_object_set_new(json, "first_rank", json_integer(target->first_rank));
        json_object_set_new(json, "rank_count", json_integer(target->rank_count));
    }
    return json;
}

static enum refit_status post_order(struct refit_control *control, const json_t *order, char id[static REFIT_REFIT_ID_MAX],
                                    struct refit_error *err)
{
    json_t *answer = NULL;
    const char *name = "";
    enum refit_status status = refit_control_call(control, REFIT_HTTP_POST, "/v1/serve", order,
                                                  refit_deadline_in_ms(REFIT_FETCH_LAYOUT_MS), &answer, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(answer, "id", "serve", &name, err);
    snprintf(id, REFIT_REFIT_ID_MAX, "%s", name);
    json_decref(answer);
    return status;
}

/* One that does not know our layout says so, and is given it. */
static enum refit_status ask_pod(const struct refit_fetch *fetch, struct try *try, struct refit_fetch_target *target,
                                 struct refit_sibling *pod, struct refit_error *err)
{
    struct refit_control control;
    size_t len;
    char *id = target->serve[target->serves].id;
    const char *digest = refit_layout_digest(try->own), *text = refit_layout_text(try->own, &len);
    json_t *order = order_for(try, target);
    if (!order)
        return refit_fail_alloc(err, "an order", 0);
    enum refit_status status = open_control(fetch, pod, &control, err);
    if (status == REFIT_OK)
        status = post_order(&control, order, id, err);
    if (status == REFIT_NOT_FOUND && strstr(err->text, digest)) {
        status = refit_control_put_source(&control, digest, text, len, refit_deadline_in_ms(REFIT_FETCH_LAYOUT_MS), err);
        if (status == REFIT_OK)
            status = post_order(&control, order, id, err);
    }
    json_decref(order);
    if (status == REFIT_OK)
        target->serve[target->serves++].by = pod;
    return status;
}

/* They would go on dialling otherwise, if they have not been heard of yet, and keep the version for it. */
static void end_serving(const struct refit_fetch *fetch, struct refit_fetch_target *target, uint32_t from)
{
    struct refit_control control;
    struct refit_error ignored;
    char path[REFIT_REFIT_ID_MAX + 32];
    for (uint32_t i = from; i < target->serves; i++) {
        snprintf(path, sizeof path, "/v1/serve/%s/end", target->serve[i].id);
        if (open_control(fetch, target->serve[i].by, &control, &ignored) == REFIT_OK)
            (void)!refit_control_call(&control, REFIT_HTTP_POST, path, NULL, refit_deadline_in_ms(REFIT_FETCH_CALL_MS), NULL,
                                      &ignored); /* it ends by itself, too, if later */
    }
    target->serves = from;
}

/* All pods of it, or none. */
static enum refit_status ask_replica(const struct refit_fetch *fetch, struct try *try,
                                     struct refit_fetch_target *target,
                                     struct refit_sibling *head, struct refit_error *err)
{
    struct refit_sibling *pods[REFIT_MATES_MAX];
    uint32_t before = target->serves;
    size_t count = refit_siblings_pods(fetch->siblings, head, pods);
    enum refit_status status = REFIT_OK;
    if (count == 0 || before + count > try->order.holders)
        return refit_fail(err, REFIT_BUSY, "%s: not all pods of its replica serve the version any more", head->url);
    for (size_t i = 0; i < count && status == REFIT_OK; i++) {
        status = ask_pod(fetch, try, target, pods[i], err);
        if (status != REFIT_OK)
            refit_sibling_failed(pods[i], refit_clock_ns());
    }
    if (status != REFIT_OK)
        end_serving(fetch, target, before);
    return status;
}

static bool is_near(const struct refit_fetch *fetch, const struct refit_sibling *sibling)
{
    return fetch->domain[0] && strcmp(sibling->domain, fetch->domain) == 0;
}

/* As many as there is room for, one after the other; whoever does not want to is passed over. With one in this domain, those
 * elsewhere are left alone. */
static enum refit_status find_sources(struct refit_fetch *fetch, struct try *try, struct refit_fetch_target *target,
                                      struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    while (target->asked < try->candidates && target->replicas < REFIT_FETCH_REPLICAS_MAX &&
           fetch->go_on(fetch->context)) {
        struct refit_sibling *head = try->candidate[target->asked++];
        if (target->replicas > 0 && is_near(fetch, target->serve[0].by) && !is_near(fetch, head))
            break;
        status = ask_replica(fetch, try, target, head, err);
        if (status == REFIT_OK) {
            target->replicas++;
            continue;
        }
        refit_log_event(REFIT_LOG_INFO, "sibling does not serve what is missing here", refit_log_text("refit",
                                                                                                      target->id),
                        refit_log_u64("version", fetch->version.version), refit_log_text("sibling", head->url),
                        REFIT_LOG_CAUSE(err));
    }
    if (target->replicas > 0)
        return REFIT_OK;
    return status != REFIT_OK ? status : refit_fail(err, REFIT_ABORTED, "refitd is shutting down");
}

/* --- until it is there ------------------------------------------------------------------------------------------- */

/* REFIT_PEER: nothing has come for too long. Whoever was asked is to blame: the receiver has passed by those of them that fail
 * one by one. */
static enum refit_status watch_progress(struct try *try, struct refit_error *err)
{
    int64_t now_ns = refit_clock_ns();
    uint64_t landed = 0;
    bool moving = false;
    for (size_t i = 0; i < try->targets; i++) {
        landed += try->target[i].bytes_done;
        moving = moving || try->target[i].phase == REFIT_CONTROL_TRANSFER;
    }
    if (!moving || landed != try->landed || try->landed_ns == 0) {
        try->landed = landed;
        try->landed_ns = now_ns;
    }
    if (now_ns - try->landed_ns < STALL_NS)
        return REFIT_OK;
    return refit_fail(err, REFIT_PEER, "nothing came from %s and others for %lld s", try->candidate[0]->url,
                      STALL_NS / 1000000000);
}

static enum refit_status look(struct refit_fetch *fetch, struct refit_fetch_target *target, struct refit_error *err)
{
    enum refit_status status = refit_fetch_target_look(target, err);
    if (status != REFIT_OK || target->phase != REFIT_CONTROL_ABORTED)
        return status;
    fetch->superseded = refit_fetch_target_is_replaced(target);
    return refit_fail(err, target->error.status == REFIT_OK ? REFIT_ABORTED : target->error.status, "%s%s%s",
                      target->pod ? target->pod->url : "", target->pod ? ": " : "", target->error.text);
}

/* Until `count` targets from the first on have come to this phase. */
static enum refit_status await(struct refit_fetch *fetch, struct try *try, size_t from, size_t count,
                               enum refit_control_phase phase, struct refit_error *err)
{
    for (;;) {
        enum refit_status status = REFIT_OK;
        bool all = true;
        for (size_t i = from; i < from + count && status == REFIT_OK; i++) {
            if (try->target[i].phase < phase || try->target[i].phase == REFIT_CONTROL_STAGED)
                status = look(fetch, &try->target[i], err);
            all = all && try->target[i].phase >= phase;
        }
        if (status == REFIT_OK && all)
            return REFIT_OK;
        if (status == REFIT_OK && !fetch->go_on(fetch->context))
            status = refit_fail(err, REFIT_ABORTED, "refitd is shutting down");
        if (status == REFIT_OK && refit_deadline_passed(try->order.deadline))
            status = refit_fail(err, REFIT_TIMEOUT, "not all pods have the version before the deadline");
        if (status == REFIT_OK)
            status = watch_progress(try, err);
        if (status != REFIT_OK)
            return status;
        fetch->rest(fetch->context, LOOK_MS);
    }
}

static enum refit_status begin(struct refit_fetch *fetch, struct try *try, size_t index, struct refit_error *err)
{
    struct refit_fetch_target *target = &try->target[index];
    const char *resume = target->pod ? target->pod->broken : fetch->resume;
    enum refit_status status = refit_fetch_target_begin(target, &try->order, resume, err);
    if (status != REFIT_OK)
        return refit_error_prefix(err, status, "%s", refit_fetch_target_name(target));
    if (index == 0)
        fetch->begun(fetch->context, try->candidate[0]->url);
    status = find_sources(fetch, try, target, err);
    if (status == REFIT_OK && index == 0) {
        fetch->sources = target->replicas;
        snprintf(fetch->source, sizeof fetch->source, "%s", target->serve[0].by->url);
    }
    return status;
}

/* The leader's readers let go of a version before the others' slot is reclaimed. */
static enum refit_status begin_all(struct refit_fetch *fetch, struct try *try, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (size_t i = 0; i < try->targets && status == REFIT_OK; i++) {
        status = begin(fetch, try, i, err);
        if (status == REFIT_OK && !try->target[i].pod && try->targets > 1)
            status = await(fetch, try, i, 1, REFIT_CONTROL_TRANSFER, err);
    }
    return status;
}

/* --- a replica that spans pods ----------------------------------------------------------------------------------- */

static enum refit_status add_own_digests(struct refit_fetch *fetch, struct refit_tally *sum, struct refit_error *err)
{
    struct refit_layout *layout = NULL;
    struct refit_tally *own = NULL;
    enum refit_status status = refit_receiver_digests(fetch->receiver, fetch->version.version, &layout, &own, err);
    for (uint32_t i = 0; status == REFIT_OK && i < refit_tally_count(sum); i++)
        refit_tally_add(sum, i, refit_tally_get(own, i));
    refit_tally_destroy(own);
    refit_layout_release(layout);
    return status;
}

/* Digests of tensors are sums over the parts: what all pods have together is the version, or nobody commits. */
static enum refit_status prove(struct refit_fetch *fetch, struct try *try, struct refit_error *err)
{
    char model[REFIT_SHA256_HEX_MAX];
    uint32_t tensors = refit_layout_tensor_count(try->own);
    struct refit_tally *sum = refit_tally_create(tensors);
    enum refit_status status = sum ? add_own_digests(fetch, sum, err)
                                   : refit_fail_alloc(err, "a tally", tensors * sizeof(struct refit_digest));
    for (size_t i = 0; i < try->mates && status == REFIT_OK; i++) {
        struct refit_control control;
        status = open_control(fetch, try->mate[i], &control, err);
        if (status == REFIT_OK)
            status = refit_control_digests(&control, fetch->version.version, try->own, sum,
                                           refit_deadline_in_ms(REFIT_FETCH_LAYOUT_MS), err);
    }
    if (status == REFIT_OK)
        status = refit_model_digest(try->own, sum, "exact", model, err);
    refit_tally_destroy(sum);
    if (status == REFIT_OK && strcmp(model, fetch->version.digest) != 0)
        status = refit_fail(err, REFIT_CORRUPT,
                            "version %" PRIu64 ": what the pods of this replica have adds up to digest %s, "
                            "the siblings' is %s", fetch->version.version, model, fetch->version.digest);
    return status;
}

static enum refit_status commit(struct refit_fetch *fetch, struct try *try, size_t from, size_t count,
                                struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    for (size_t i = from; i < from + count && status == REFIT_OK; i++)
        status = refit_fetch_target_commit(&try->target[i], fetch->version.version, fetch->version.digest, err);
    return status == REFIT_OK ? await(fetch, try, from, count, REFIT_CONTROL_COMMITTED, err) : status;
}

/* The pod with rank 0 last: its leader names the version of every step. */
static enum refit_status switch_together(struct refit_fetch *fetch, struct try *try, struct refit_error *err)
{
    size_t others = !try->target[0].pod; /* from there on */
    enum refit_status status = await(fetch, try, 0, try->targets, REFIT_CONTROL_STAGED, err);
    if (status == REFIT_OK)
        status = prove(fetch, try, err);
    if (status == REFIT_OK)
        status = commit(fetch, try, others, try->targets - others, err);
    if (status == REFIT_OK)
        status = commit(fetch, try, 0, others, err);
    return status;
}

/* --- its end ------------------------------------------------------------------------------------------------------ */

/* Those who were asked and did not deliver are not the first to be asked again. */
static void blame(struct refit_fetch_target *target, enum refit_status status)
{
    if (status != REFIT_PEER && status != REFIT_CORRUPT && status != REFIT_TIMEOUT)
        return;
    for (uint32_t i = 0; i < target->serves; i++)
        refit_sibling_failed(target->serve[i].by, refit_clock_ns());
}

/* What has landed may be of use to the next try, unless it is wrong. */
static void leave(struct refit_fetch *fetch, struct refit_fetch_target *target, enum refit_status status,
                  const struct refit_error *err)
{
    char *resume = target->pod ? target->pod->broken : fetch->resume;
    struct refit_error ignored;
    if (status != REFIT_OK && target->id[0]) {
        (void)!refit_fetch_target_look(target, &ignored); /* it may have been committed meanwhile */
        refit_fetch_target_abort(target, err->text);
        refit_fetch_target_take_back(target);
    }
    memcpy(resume, target->id, REFIT_REFIT_ID_MAX);
    if (status == REFIT_OK || status == REFIT_CORRUPT)
        resume[0] = '\0';
    if (target->pod) {
        target->pod->due_ns = 0; /* what it serves now is to be known soon */
        target->pod->pause_ms = 0;
    }
}

static enum refit_status run(struct refit_fetch *fetch, struct try *try, struct refit_error *err)
{
    enum refit_status status = begin_all(fetch, try, err);
    if (status == REFIT_OK)
        status = spans(fetch) ? switch_together(fetch, try, err) : await(fetch, try, 0, 1, REFIT_CONTROL_COMMITTED,
                                                                         err);
    for (size_t i = 0; i < try->targets; i++) {
        blame(&try->target[i], status);
        end_serving(fetch, &try->target[i], 0);
        leave(fetch, &try->target[i], status, err);
    }
    return status;
}

static enum refit_status set_up(struct refit_fetch *fetch, struct try *try, struct refit_error *err)
{
    if (!try->own || try->candidates == 0)
        return refit_fail(err, REFIT_BUSY, "nobody serves version %" PRIu64 " any more", fetch->version.version);
    enum refit_status status = find_targets(fetch, try, err);
    if (status == REFIT_OK && try->targets == 0)
        status = refit_fail(err, REFIT_BUSY, "version %" PRIu64 " is here already", fetch->version.version);
    return status == REFIT_OK ? take_source(fetch, try, err) : status;
}

enum refit_status refit_fetch_run(struct refit_fetch *fetch, struct refit_error *err)
{
    struct try try = {.mates = 0};
    try.own = refit_bank_layout(refit_receiver_bank(fetch->receiver));
    try.candidates = refit_siblings_sources(fetch->siblings, &fetch->version, fetch->domain, try.candidate,
                                            CANDIDATES_MAX);
    enum refit_status status = set_up(fetch, &try, err);
    if (status == REFIT_OK) {
        try.order = (struct refit_fetch_order){.version = fetch->version, .source = try.source,
                                               .holders = count_holders(fetch, &try),
                                               .deadline = refit_deadline_in_ms(fetch->deadline_ms),
                                               .domain = fetch->domain};
        status = run(fetch, &try, err);
    }
    for (size_t i = 0; i < try.targets; i++)
        refit_fetch_target_release(&try.target[i]);
    free(try.target);
    refit_layout_release(try.source);
    refit_layout_release(try.own);
    return status;
}
