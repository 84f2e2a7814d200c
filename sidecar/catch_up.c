/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/catch_up.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "base/io.h"
#include "base/log.h"
#include "base/thread.h"
#include "sidecar/fetch.h"
#include "sidecar/sibling_ask.h"

#define ASKED_AT_ONCE 8   /* siblings in a round */
#define ASKED_AT_START 32 /* before the first pause */
#define TRY_MAX_MS 600000
#define PAUSE_MIN_MS 500
#define PAUSE_MAX_MS 30000
#define LOOK_MS 200
#define MATES_MS 500 /* how often the other pods of this replica are asked at least */

struct refit_catch_up {
    struct refit_catch_up_config config;
    struct refit_credentials *credentials;
    struct refit_members *members;
    pthread_t thread;
    char domain[REFIT_BOOT_ID_MAX];

    pthread_mutex_t lock;
    pthread_cond_t changed; /* on CLOCK_MONOTONIC */
    bool stopping, halted, woken;
    uint64_t served; /* as the loop says */
    bool settled;
    struct refit_health_siblings shown;

    /* of the thread */
    struct refit_siblings siblings;
    struct refit_siblings_own own;
    struct refit_siblings_choice choice;
    int64_t members_ns; /* no look at who they are before */
    int64_t next_ns;  /* no try before */
    int64_t pause_ms; /* after failures */
    char broken[REFIT_REFIT_ID_MAX]; /* the last try, whose bytes may be kept; empty: none */
    bool started;     /* the first round is over */
    bool members_failed;
    char complaint[REFIT_ERROR_TEXT_MAX]; /* why the last try failed; empty: it did not */
};

/* --- what others see --------------------------------------------------------------------------------------------- */

void refit_catch_up_read(struct refit_catch_up *self, struct refit_health_siblings *out)
{
    pthread_mutex_lock(&self->lock);
    *out = self->shown;
    pthread_mutex_unlock(&self->lock);
}

void refit_catch_up_look(struct refit_catch_up *self, uint64_t version, bool settled)
{
    pthread_mutex_lock(&self->lock);
    self->served = version;
    self->settled = settled;
    self->woken = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

void refit_catch_up_halt(struct refit_catch_up *self)
{
    pthread_mutex_lock(&self->lock);
    self->halted = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

static bool is_over(struct refit_catch_up *self)
{
    pthread_mutex_lock(&self->lock);
    bool over = self->stopping || self->halted;
    pthread_mutex_unlock(&self->lock);
    return over;
}

/* Until then, or until it is to stop; with `woken` also until something changes here. */
static void rest(struct refit_catch_up *self, int64_t ms, bool woken)
{
    struct timespec until = refit_deadline_timespec(refit_deadline_in_ms(ms));
    pthread_mutex_lock(&self->lock);
    while (!self->stopping && !(woken && self->woken) &&
           pthread_cond_timedwait(&self->changed, &self->lock, &until) == 0)
        ;
    self->woken = false;
    pthread_mutex_unlock(&self->lock);
}

static bool is_part(const struct refit_siblings_own *own)
{
    return own->rank_count != 0 && own->rank_count < own->ranks;
}

/* Between three quarters and five quarters of it, so that those who started together do not ask together. */
static int64_t jitter(int64_t ms)
{
    uint32_t random;
    refit_io_random(&random, sizeof random);
    return ms * 3 / 4 + (int64_t)(random % 1024) * ms / 2048;
}

/* Why not all pods of this replica serve a version; empty: all do, or they do not know each other. */
static void find_apart(struct refit_catch_up *self, const struct refit_siblings_own *own, char *out, size_t size)
{
    struct refit_sibling *mate[REFIT_MATES_MAX];
    size_t count;
    uint32_t lacking;
    *out = '\0';
    if (!refit_siblings_mates(&self->siblings, own, mate, &count, &lacking))
        snprintf(out, size, "no sibling is known to have rank %" PRIu32 " of this replica", lacking);
    for (size_t i = 0; i < count && !*out; i++)
        if (mate[i]->holds == 0)
            snprintf(out, size, "%.180s, a pod of this replica, serves no version yet", mate[i]->url);
}

static void show(struct refit_catch_up *self, const struct refit_siblings_own *own, uint64_t fetching,
                 const char *waiting)
{
    const struct refit_siblings *siblings = &self->siblings;
    uint32_t known = 0;
    char apart[sizeof self->shown.apart] = "";
    bool part = is_part(own) && refit_siblings_know_replica(siblings, own);
    if (part)
        find_apart(self, own, apart, sizeof apart);
    for (size_t i = 0; i < siblings->count; i++)
        known += !siblings->item[i].self && !siblings->item[i].twin;
    pthread_mutex_lock(&self->lock);
    struct refit_health_siblings *shown = &self->shown, before = *shown;
    shown->known = known;
    shown->heard = self->choice.heard;
    shown->newest = self->choice.newest;
    shown->disputed = self->choice.disputed;
    shown->fetching = fetching;
    shown->part = part;
    snprintf(shown->apart, sizeof shown->apart, "%s", apart);
    snprintf(shown->waiting, sizeof shown->waiting, "%s", waiting);
    bool differs = memcmp(&before, shown, sizeof before) != 0;
    pthread_mutex_unlock(&self->lock);
    if (before.disputed != shown->disputed && shown->disputed)
        refit_log_event(REFIT_LOG_ERROR, "siblings serve one version with different digests",
                        refit_log_u64("version", self->choice.disputed));
    if (differs)
        self->config.notify(self->config.context);
}

/* --- asking them ------------------------------------------------------------------------------------------------- */

static void follow_members(struct refit_catch_up *self)
{
    struct refit_membership now;
    struct refit_error err;
    if (refit_clock_ns() < self->members_ns)
        return;
    self->members_ns = refit_clock_ns() + (int64_t)self->config.config->siblings_poll_ms * 1000000 / 2;
    enum refit_status status = refit_members_read(self->members, refit_deadline_in_ms(REFIT_FETCH_CALL_MS), &now, &err);
    if (status == REFIT_OK) {
        status = refit_siblings_follow(&self->siblings, &now, &err);
        refit_membership_release(&now);
    }
    if (status != REFIT_OK && !self->members_failed)
        refit_log_event(REFIT_LOG_WARN, "siblings are not known now", REFIT_LOG_CAUSE(&err));
    self->members_failed = status != REFIT_OK;
}

/* What is served here. False: not known yet. */
static bool look_here(struct refit_catch_up *self, struct refit_siblings_own *own, struct refit_receiver_snapshot *now)
{
    refit_receiver_read(self->config.receiver, now);
    const struct refit_bank_snapshot *bank = &now->bank;
    *own = (struct refit_siblings_own){.replica = self->config.config->replica, .first_rank = bank->first_rank,
                                       .rank_count = bank->ranks, .ranks = bank->ranks_total};
    snprintf(own->domain, sizeof own->domain, "%s", self->domain);
    if (bank->active < bank->slots)
        own->version = bank->slot[bank->active].version.version;
    for (uint32_t i = 0; i < bank->slots; i++)
        if (bank->slot[i].state == REFIT_SLOT_RETAINED && bank->slot[i].version.version > own->version &&
            bank->slot[i].version.version > own->back_from)
            own->back_from = bank->slot[i].version.version;
    pthread_mutex_lock(&self->lock);
    bool settled = self->settled;
    if (self->served > own->version)
        own->version = self->served;
    pthread_mutex_unlock(&self->lock);
    return settled && !bank->adopting;
}

/* Those of this replica more often: it is ready, and can fetch, only with them. */
static int64_t asked_again_ms(const struct refit_catch_up *self, const struct refit_sibling *sibling)
{
    int64_t pause_ms = (int64_t)self->config.config->siblings_poll_ms * 3 / 4;
    return sibling->mate && pause_ms > MATES_MS ? MATES_MS : pause_ms;
}

/* A few, and at the start more, until one of them has what is missing here. */
static void ask_around(struct refit_catch_up *self, const struct refit_siblings_own *own)
{
    unsigned most = self->started ? ASKED_AT_ONCE : ASKED_AT_START;
    struct refit_sibling *sibling;
    for (unsigned asked = 0; asked < most && !is_over(self); asked++) {
        sibling = refit_siblings_due(&self->siblings, refit_clock_ns());
        if (!sibling)
            break;
        refit_sibling_ask(sibling, self->config.receiver, self->credentials, asked_again_ms(self, sibling));
        refit_siblings_choose(&self->siblings, own, refit_clock_ns(), &self->choice);
        if (asked >= ASKED_AT_ONCE && self->choice.version.version)
            break;
    }
    refit_siblings_choose(&self->siblings, own, refit_clock_ns(), &self->choice);
    self->started = self->siblings.count > 0;
}

/* --- fetching it ------------------------------------------------------------------------------------------------- */

static void count(struct refit_catch_up *self, enum refit_health_catch_up result)
{
    pthread_mutex_lock(&self->lock);
    self->shown.results[result]++;
    pthread_mutex_unlock(&self->lock);
}

static void note_failure(struct refit_catch_up *self, const struct refit_error *err)
{
    self->pause_ms = self->pause_ms ? self->pause_ms * 2 : PAUSE_MIN_MS;
    if (self->pause_ms > PAUSE_MAX_MS)
        self->pause_ms = PAUSE_MAX_MS;
    int64_t pause_ms = jitter(self->pause_ms);
    self->next_ns = refit_clock_ns() + pause_ms * 1000000;
    snprintf(self->complaint, sizeof self->complaint, "%s", err->text);
    count(self, REFIT_HEALTH_CATCH_UP_FAILED);
    refit_log_event(REFIT_LOG_WARN, "not caught up with the siblings", refit_log_u64("version", self->choice.version.version),
                    REFIT_LOG_CAUSE(err), refit_log_i64("retry_ms", pause_ms));
}

static void note_success(struct refit_catch_up *self, const struct refit_fetch *fetch)
{
    self->pause_ms = 0;
    self->complaint[0] = '\0';
    count(self, fetch->superseded ? REFIT_HEALTH_CATCH_UP_SUPERSEDED : REFIT_HEALTH_CAUGHT_UP);
    if (fetch->superseded)
        refit_log_event(REFIT_LOG_INFO, "a publish took the place of catching up",
                        refit_log_u64("version", fetch->version.version));
    else
        refit_log_event(REFIT_LOG_INFO, "caught up with the siblings", refit_log_u64("version", fetch->version.version),
                        refit_log_text("sibling", fetch->source), refit_log_u64("siblings", fetch->sources));
}

static bool go_on(void *self)
{
    return !is_over(self);
}

static void rest_or_wake(void *self, int64_t ms)
{
    rest(self, ms, true);
}

static void show_begun(void *context, const char *url)
{
    struct refit_catch_up *self = context;
    char waiting[REFIT_URL_MAX + 64];
    uint64_t version = self->choice.version.version;
    snprintf(waiting, sizeof waiting, "version %" PRIu64 " is being fetched from %s", version, url);
    show(self, &self->own, version, waiting);
}

static void attempt(struct refit_catch_up *self)
{
    const struct refit_config *config = self->config.config;
    struct refit_error err;
    struct refit_fetch fetch = {
        .receiver = self->config.receiver,
        .traffic = self->config.traffic,
        .credentials = self->credentials,
        .siblings = &self->siblings,
        .own = &self->own,
        .domain = self->domain,
        .deadline_ms = config->deadline_ms < TRY_MAX_MS ? (int64_t)config->deadline_ms : TRY_MAX_MS,
        .go_on = go_on,
        .rest = rest_or_wake,
        .begun = show_begun,
        .context = self,
        .version = self->choice.version,
    };
    memcpy(fetch.resume, self->broken, sizeof fetch.resume);
    enum refit_status status = refit_fetch_run(&fetch, &err);
    memcpy(self->broken, fetch.resume, sizeof self->broken);
    if (status == REFIT_OK || fetch.superseded)
        note_success(self, &fetch);
    else if (!is_over(self))
        note_failure(self, &err);
}

/* --- the thread -------------------------------------------------------------------------------------------------- */

/* The pods of a replica fetch together, or not at all. */
static void find_obstacle_of_part(struct refit_catch_up *self, const struct refit_siblings_own *own, char *out,
                                  size_t size)
{
    struct refit_sibling *mate[REFIT_MATES_MAX];
    size_t count;
    uint32_t lacking;
    if (!refit_siblings_know_replica(&self->siblings, own)) {
        snprintf(out, size,
                 "this is a part of a replica, and its other pods are not known: give all of them one --replica");
        return;
    }
    if (own->first_rank != 0) {
        snprintf(out, size, "the pod with rank 0 of this replica leads what its pods fetch");
        return;
    }
    if (!refit_siblings_mates(&self->siblings, own, mate, &count, &lacking)) {
        snprintf(out, size, "no sibling is known to have rank %" PRIu32 " of this replica", lacking);
        return;
    }
    for (size_t i = 0; i < count && !*out; i++)
        if (mate[i]->heard_ns == 0)
            snprintf(out, size, "%s, a pod of this replica, does not answer", mate[i]->url);
}

static void find_obstacle_of_time(struct refit_catch_up *self, const struct refit_receiver_snapshot *now, char *out,
                                  size_t size)
{
    struct refit_session_snapshot session;
    bool runs = refit_receiver_session(self->config.receiver, NULL, &session, NULL) == REFIT_OK &&
                !refit_health_is_terminal(session.phase);
    if (now->held)
        snprintf(out, size, "held: newer versions are not wanted here");
    else if (runs)
        snprintf(out, size, "refit %s of version %" PRIu64 " is under way", session.id, session.version);
}

/* Why nothing is fetched now; empty: something can be. */
static void find_obstacle(struct refit_catch_up *self, const struct refit_siblings_own *own,
                          const struct refit_receiver_snapshot *now, char *out, size_t size)
{
    const struct refit_siblings_choice *choice = &self->choice;
    struct refit_layout *layout = refit_bank_layout(refit_receiver_bank(self->config.receiver));
    *out = '\0';
    if (choice->version.version == 0 && choice->disputed)
        snprintf(out, size, "siblings serve version %" PRIu64 " with different digests", choice->disputed);
    else if (choice->version.version == 0 && choice->withheld)
        snprintf(out, size, "version %" PRIu64 " is still being published, or was gone back from", choice->withheld);
    else if (choice->version.version == 0 && choice->newest > own->version)
        snprintf(out, size, "version %" PRIu64 " is served by parts of replicas only", choice->newest);
    else if (choice->version.version == 0)
        snprintf(out, size, "none of %" PRIu32 " siblings that answered serves a newer version", choice->heard);
    else if (!layout)
        snprintf(out, size, "no engine has attached, so there is no layout to fill");
    else if (is_part(own))
        find_obstacle_of_part(self, own, out, size);
    if (*out == '\0' && choice->version.version != 0)
        find_obstacle_of_time(self, now, out, size);
    refit_layout_release(layout);
}

static void step(struct refit_catch_up *self)
{
    struct refit_receiver_snapshot now;
    struct refit_siblings_own *own = &self->own;
    char waiting[REFIT_ERROR_TEXT_MAX + 64];
    follow_members(self);
    bool known = look_here(self, own, &now);
    ask_around(self, own);
    find_obstacle(self, own, &now, waiting, sizeof waiting);
    bool may = known && !waiting[0] && !is_over(self);
    if (may && refit_clock_ns() >= self->next_ns) {
        attempt(self);
        look_here(self, own, &now);
        refit_siblings_choose(&self->siblings, own, refit_clock_ns(), &self->choice);
        find_obstacle(self, own, &now, waiting, sizeof waiting);
    }
    if (!waiting[0] && self->complaint[0])
        snprintf(waiting, sizeof waiting, "the last try failed: %s", self->complaint);
    bool stale = own->version == 0 || self->choice.newest > own->version;
    show(self, own, 0, stale ? waiting : "");
}

/* Until siblings are to be asked again, or what is known to be missing may be fetched. */
static int64_t pause_of(const struct refit_catch_up *self)
{
    int64_t poll_ms = jitter((int64_t)self->config.config->siblings_poll_ms);
    int64_t left_ms = (self->next_ns - refit_clock_ns()) / 1000000 + 1;
    if (is_part(&self->own) && poll_ms > MATES_MS)
        poll_ms = MATES_MS;
    if (!self->choice.version.version)
        return poll_ms;
    if (left_ms < LOOK_MS)
        left_ms = LOOK_MS;
    return left_ms < poll_ms ? left_ms : poll_ms;
}

static void *catch_up_thread(void *arg)
{
    struct refit_catch_up *self = arg;
    while (!is_over(self)) {
        step(self);
        rest(self, pause_of(self), false);
    }
    return NULL;
}

/* --- from start to stop ------------------------------------------------------------------------------------------ */

static void destroy(struct refit_catch_up *self)
{
    refit_members_close(self->members);
    refit_credentials_close(self->credentials);
    refit_siblings_release(&self->siblings);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static enum refit_status open_parts(struct refit_catch_up *self, struct refit_error *err)
{
    const struct refit_config *config = self->config.config;
    const struct refit_members_config members = {.list = config->siblings};
    const struct refit_credentials_config credentials = {
        .cacert = config->siblings_cacert,
        .cert = config->siblings_cert,
        .key = config->siblings_key,
        .token_file = config->siblings_token_file,
        .plaintext_tokens = config->insecure_plaintext_tokens,
    };
    enum refit_status status = refit_members_open(&members, &self->members, err);
    if (status == REFIT_OK)
        status = refit_credentials_open(&credentials, &self->credentials, err);
    return status == REFIT_OK ? status : refit_error_prefix(err, status, "--siblings");
}

enum refit_status refit_catch_up_start(const struct refit_catch_up_config *config, struct refit_catch_up **out,
                                       struct refit_error *err)
{
    struct refit_catch_up *self = calloc(1, sizeof *self);
    if (!self)
        return refit_fail_alloc(err, "the thread that keeps up with siblings", sizeof *self);
    self->config = *config;
    pthread_mutex_init(&self->lock, NULL);
    refit_cond_init(&self->changed);
    refit_io_random(&self->siblings.seed, sizeof self->siblings.seed);
    refit_boot_id(self->domain);
    snprintf(self->shown.waiting, sizeof self->shown.waiting, "siblings have not been asked yet");
    enum refit_status status = open_parts(self, err);
    if (status == REFIT_OK)
        status = refit_thread_start(&self->thread, catch_up_thread, self, "the thread that keeps up with siblings", err);
    if (status != REFIT_OK) {
        destroy(self);
        return status;
    }
    *out = self;
    return REFIT_OK;
}

void refit_catch_up_stop(struct refit_catch_up *self)
{
    if (!self)
        return;
    pthread_mutex_lock(&self->lock);
    self->stopping = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->lock);
    pthread_join(self->thread, NULL);
    destroy(self);
}
