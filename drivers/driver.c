/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's thread and what it knows: which version the engine has, and whether it has it whole.
 */
#include "drivers/driver.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/log.h"
#include "base/thread.h"
#include "drivers/driver_internal.h"

#define PAUSE_MIN_MS 1000
#define PAUSE_MAX_MS 30000
#define SILENT_MAX 3 /* looks without an answer until the engine counts as gone */

/* --- what is known ------------------------------------------------------------------------------------------------ */

void refit_driver_read(struct refit_driver *driver, struct refit_driver_snapshot *out)
{
    pthread_mutex_lock(&driver->lock);
    *out = driver->now;
    pthread_mutex_unlock(&driver->lock);
}

static void tell(struct refit_driver *driver)
{
    if (driver->notify)
        driver->notify(driver->notify_context);
}

void refit_driver_version_text(const struct refit_version *version, char out[static REFIT_DRIVER_VERSION_MAX])
{
    snprintf(out, REFIT_DRIVER_VERSION_MAX, "%" PRIu64, version->version);
}

/* `serial`: of the last install that whoever found this out knew of; when there was another one since, nothing happens.
 * NULL: an install's own word. True: there is something to tell. */
static bool change(struct refit_driver *driver, const uint64_t *serial, const struct refit_version *version,
                   bool torn, const char *reason)
{
    pthread_mutex_lock(&driver->lock);
    struct refit_driver_snapshot *now = &driver->now;
    bool known = !serial || *serial == driver->serial;
    bool news = known && (now->whole || version || strcmp(now->reason, reason) != 0);
    if (known) {
        now->whole = version != NULL;
        driver->torn = torn || (driver->torn && !version);
        memcpy(now->reason, reason, strlen(reason) + 1);
    }
    if (known && version) {
        now->version = *version;
        driver->pause_ms = 0;
    }
    pthread_mutex_unlock(&driver->lock);
    return news;
}

static bool become_whole(struct refit_driver *driver, const uint64_t *serial, const struct refit_version *version)
{
    if (!change(driver, serial, version, false, ""))
        return false;
    refit_log_event(REFIT_LOG_INFO, "engine has a version", refit_log_text("engine", driver->link.url.text),
                    refit_log_u64("version", version->version), refit_log_text("digest", version->digest));
    tell(driver);
    return true;
}

static void become_broken(struct refit_driver *driver, const uint64_t *serial, bool torn, const char *reason)
{
    if (!change(driver, serial, NULL, torn, reason))
        return;
    refit_log_event(REFIT_LOG_ERROR, "engine is not ready", refit_log_text("engine", driver->link.url.text),
                    refit_log_text("reason", reason));
    tell(driver);
}

void refit_driver_whole(struct refit_driver *driver, const struct refit_version *version)
{
    struct refit_error error;
    if (refit_driver_mark(driver, version, true, &error) != REFIT_OK)
        refit_log_event(REFIT_LOG_WARN,
                        "state not written: a restarted refitd would take the engine's weights for half-written",
                        REFIT_LOG_CAUSE(&error));
    become_whole(driver, NULL, version);
}

void refit_driver_broken(struct refit_driver *driver, const char *format, ...)
{
    char reason[REFIT_ERROR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    become_broken(driver, NULL, true, reason);
}

/* --- across restarts ---------------------------------------------------------------------------------------------- */

enum refit_status refit_driver_mark(struct refit_driver *driver, const struct refit_version *version, bool whole,
                                    struct refit_error *err)
{
    json_t *section = json_pack("{s:b, s:o, s:s, s:s}", "whole", (int)whole, "version",
                                refit_json_u64(version->version),
                                "label", version->label, "digest", version->digest);
    enum refit_status status = section ? refit_state_put(refit_bank_state(driver->bank), "engine", section, err)
                                       : refit_fail_alloc(err, "the engine's state", 256);
    json_decref(section);
    return status;
}

static bool copy_text(const json_t *section, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(section, key));
    return text && snprintf(out, size, "%s", text) < (int)size;
}

/* What it says is believed only as far as the engine confirms it, in look(). */
static void recall(struct refit_driver *driver)
{
    struct refit_driver_snapshot *now = &driver->now;
    json_t *section = refit_state_get(refit_bank_state(driver->bank), "engine");
    struct refit_version version = {0};
    bool good = section && refit_json_get_u64(section, "version", "engine", &version.version, NULL) == REFIT_OK &&
                copy_text(section, "label", version.label, sizeof version.label) &&
                copy_text(section, "digest", version.digest, sizeof version.digest);
    if (!good)
        snprintf(now->reason, sizeof now->reason, "no version was installed yet");
    else if (json_is_true(json_object_get(section, "whole")))
        snprintf(now->reason, sizeof now->reason, "the engine was not asked yet");
    else
        snprintf(now->reason, sizeof now->reason,
                 "the install of version %" PRIu64 " was cut off, and its slots ended with the "
                 "refitd that began it: the engine's weights may be half-written; a full refit is needed",
                 version.version);
    if (good && json_is_true(json_object_get(section, "whole")))
        now->version = version;
    json_decref(section);
}

/* --- looking at the engine ---------------------------------------------------------------------------------------- */

/* What the driver knew when it looked. */
struct known {
    uint64_t serial;
    bool installing, first, whole, torn;
    struct refit_version version;
};

static struct known know(struct refit_driver *driver)
{
    pthread_mutex_lock(&driver->lock);
    const struct refit_driver_snapshot *now = &driver->now;
    struct known known = {.serial = driver->serial, .installing = now->installing, .first = !now->looked,
                          .whole = now->whole, .torn = driver->torn, .version = now->version};
    pthread_mutex_unlock(&driver->lock);
    return known;
}

/* An engine that is busy may miss one look; one that is not there is not there. */
static void not_seen(struct refit_driver *driver, const struct known *known, enum refit_status status,
                     const struct refit_error *error)
{
    pthread_mutex_lock(&driver->lock);
    driver->silent++;
    bool gone = status != REFIT_TIMEOUT || driver->silent >= SILENT_MAX;
    pthread_mutex_unlock(&driver->lock);
    if (gone && known->whole)
        become_broken(driver, &known->serial, false, error->text);
}

/* False: an install began or ended meanwhile, so that what was seen is old. */
static bool note(struct refit_driver *driver, const struct known *known, const struct refit_driver_sight *sight)
{
    pthread_mutex_lock(&driver->lock);
    bool current = known->serial == driver->serial;
    if (current) {
        driver->silent = 0;
        driver->now.looked = true;
        memcpy(driver->now.found, sight->version, sizeof driver->now.found);
    }
    pthread_mutex_unlock(&driver->lock);
    return current;
}

/* True: it is what it should be. */
static bool confirm(struct refit_driver *driver, const struct known *known, const struct refit_driver_sight *sight)
{
    char version[REFIT_DRIVER_VERSION_MAX], reason[REFIT_ERROR_TEXT_MAX];
    refit_driver_version_text(&known->version, version);
    bool same = known->version.version != 0 && strcmp(version, sight->version) == 0;
    /* A restarted refitd finds what it left; or the engine did not answer for a while. */
    if (same && !known->whole && !known->torn && !sight->paused)
        return become_whole(driver, &known->serial, &known->version);
    snprintf(reason, sizeof reason,
             "the engine says it has weights \"%s\", version %s was installed; it was restarted, or "
             "somebody else changes it", sight->version, version);
    if (!same && known->version.version != 0 && (known->whole || known->first))
        become_broken(driver, &known->serial, true, reason);
    return same && known->whole;
}

/* What the bank serves is installed again, unless that failed a moment ago. */
static void put_right(struct refit_driver *driver)
{
    struct refit_error error;
    pthread_mutex_lock(&driver->lock);
    bool due = refit_clock_ns() >= driver->again_ns && !driver->stopping;
    pthread_mutex_unlock(&driver->lock);
    if (!due)
        return;
    enum refit_status status = refit_bank_reinstall(driver->bank, refit_deadline_in_ms(driver->load_ms), &error);
    if (status == REFIT_OK || status == REFIT_NOT_FOUND)
        return;
    pthread_mutex_lock(&driver->lock);
    driver->pause_ms = driver->pause_ms ? driver->pause_ms * 2 : PAUSE_MIN_MS;
    if (driver->pause_ms > PAUSE_MAX_MS)
        driver->pause_ms = PAUSE_MAX_MS;
    driver->again_ns = refit_clock_ns() + driver->pause_ms * 1000000;
    pthread_mutex_unlock(&driver->lock);
}

static bool is_current(struct refit_driver *driver, const struct known *known)
{
    pthread_mutex_lock(&driver->lock);
    bool current = known->serial == driver->serial;
    pthread_mutex_unlock(&driver->lock);
    return current;
}

/* A pause that was given up as unanswered may come into effect after the engine was resumed. An engine that does not say
 * whether it is paused is resumed at each look for a while: that changes nothing when it is not. */
static void undo_late_pause(struct refit_driver *driver, const struct known *known,
                            const struct refit_driver_sight *sight)
{
    struct refit_error error;
    if (pthread_mutex_trylock(&driver->changing) != 0)
        return;
    if (driver->late_pause > 0 && is_current(driver, known)) {
        driver->late_pause--;
        bool resume = sight->paused || !sight->knows_pause;
        if (resume && driver->engine->resume(&driver->link, &error) != REFIT_OK)
            refit_log_event(REFIT_LOG_WARN, "engine may be paused", REFIT_LOG_CAUSE(&error));
        else if (sight->paused)
            driver->late_pause = 0;
    }
    pthread_mutex_unlock(&driver->changing);
}

static void look(struct refit_driver *driver)
{
    struct refit_driver_sight sight;
    struct refit_error error;
    const struct known known = know(driver);
    if (known.installing)
        return;
    enum refit_status status = driver->engine->look(&driver->link, &sight, &error);
    if (status != REFIT_OK)
        not_seen(driver, &known, status, &error);
    else if (note(driver, &known, &sight) && !confirm(driver, &known, &sight))
        put_right(driver);
    else
        undo_late_pause(driver, &known, &sight);
}

static void *thread(void *argument)
{
    struct refit_driver *driver = argument;
    pthread_mutex_lock(&driver->lock);
    while (!driver->stopping) {
        pthread_mutex_unlock(&driver->lock);
        look(driver);
        pthread_mutex_lock(&driver->lock);
        struct timespec until = refit_deadline_timespec(refit_deadline_in_ms(driver->poll_ms));
        if (!driver->stopping)
            pthread_cond_timedwait(&driver->changed, &driver->lock, &until);
    }
    pthread_mutex_unlock(&driver->lock);
    return NULL;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static void init_locks(struct refit_driver *driver)
{
    refit_cond_init(&driver->changed);
    pthread_mutex_init(&driver->lock, NULL);
    pthread_mutex_init(&driver->exporting, NULL);
    pthread_mutex_init(&driver->changing, NULL);
}

static enum refit_status configure(struct refit_driver *driver, const struct refit_driver_config *config,
                                   struct refit_error *err)
{
    driver->link.load = config->load;
    driver->link.call_ms = config->call_ms ? config->call_ms : 30000;
    driver->load_ms = config->load_ms ? config->load_ms : 600000;
    driver->poll_ms = config->poll_ms ? config->poll_ms : 1000;
    enum refit_status status = refit_driver_engine_parse(config->engine, &driver->engine, &driver->link.url, err);
    if (status != REFIT_OK)
        return status;
    snprintf(driver->now.engine, sizeof driver->now.engine, "%s", driver->engine->name);
    if (snprintf(driver->path, sizeof driver->path, "%s", config->directory) >= (int)sizeof driver->path)
        return refit_fail(err, REFIT_INVALID, "%.80s...: the path is too long", config->directory);
    return refit_export_open(driver->path, &driver->directory, err);
}

enum refit_status refit_driver_create(const struct refit_driver_config *config, struct refit_driver **out,
                                      struct refit_error *err)
{
    struct refit_driver *driver = calloc(1, sizeof *driver);
    if (!driver)
        return refit_fail_alloc(err, "the engine's driver", sizeof *driver);
    driver->directory = -1;
    init_locks(driver);
    driver->hooks = (struct refit_bank_engine){.context = driver, .prepare = refit_driver_prepare,
                                               .install = refit_driver_install, .forget = refit_driver_forget};
    enum refit_status status = configure(driver, config, err);
    if (status != REFIT_OK) {
        refit_driver_destroy(driver);
        return status;
    }
    *out = driver;
    return REFIT_OK;
}

const struct refit_bank_engine *refit_driver_hooks(struct refit_driver *driver)
{
    return &driver->hooks;
}

enum refit_status refit_driver_start(struct refit_driver *driver, struct refit_bank *bank,
                                     void (*notify)(void *context),
                                     void *context, struct refit_error *err)
{
    driver->bank = bank;
    driver->notify = notify;
    driver->notify_context = context;
    recall(driver);
    enum refit_status status = refit_thread_start(&driver->thread, thread, driver, "the engine driver's thread", err);
    driver->thread_runs = status == REFIT_OK;
    return status;
}

void refit_driver_stop(struct refit_driver *driver)
{
    if (!driver->thread_runs)
        return;
    pthread_mutex_lock(&driver->lock);
    driver->stopping = true;
    pthread_cond_broadcast(&driver->changed);
    pthread_mutex_unlock(&driver->lock);
    pthread_join(driver->thread, NULL);
    driver->thread_runs = false;
}

void refit_driver_destroy(struct refit_driver *driver)
{
    if (!driver)
        return;
    refit_driver_stop(driver);
    refit_export_remove(&driver->export);
    refit_io_close(&driver->directory);
    pthread_cond_destroy(&driver->changed);
    pthread_mutex_destroy(&driver->lock);
    pthread_mutex_destroy(&driver->exporting);
    pthread_mutex_destroy(&driver->changing);
    free(driver);
}
