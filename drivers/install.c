/* SPDX-License-Identifier: Apache-2.0
 *
 * One install: write, mark, pause, load, check, flush, resume; and the way back. The engine is resumed in one place
 * only, after its weights were loaded whole and it says that it has their version, or nothing was written to them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "drivers/driver_internal.h"

/* --- the copy for the engine -------------------------------------------------------------------------------------- */

static enum refit_status write_copy(struct refit_driver *driver, const struct refit_bank_copy *copy,
                                    struct refit_deadline deadline, const atomic_bool *cancel, struct refit_error *err)
{
    struct refit_export *export = &driver->export;
    bool same = export->there && export->version.version == copy->version.version &&
                strcmp(export->version.digest, copy->version.digest) == 0;
    if (same)
        return REFIT_OK;
    refit_export_remove(export); /* first: both together may not fit */
    int64_t begin = refit_clock_ns();
    enum refit_status status = refit_export_write(export, driver->directory, driver->path, copy, deadline, cancel, err);
    pthread_mutex_lock(&driver->lock);
    driver->now.write_ns = refit_clock_ns() - begin;
    pthread_mutex_unlock(&driver->lock);
    return status;
}

/* For an install, which then has it until drop_copy(). */
static enum refit_status take_copy(struct refit_driver *driver, const struct refit_bank_copy *copy,
                                   struct refit_deadline deadline, struct refit_error *err)
{
    pthread_mutex_lock(&driver->exporting);
    enum refit_status status = write_copy(driver, copy, deadline, NULL, err);
    driver->export_taken = true;
    pthread_mutex_unlock(&driver->exporting);
    return status;
}

static void drop_copy(struct refit_driver *driver)
{
    pthread_mutex_lock(&driver->exporting);
    refit_export_remove(&driver->export);
    driver->export_taken = false;
    pthread_mutex_unlock(&driver->exporting);
}

/* Ahead of time, so that the engine's pause is shorter. While another version is being installed, commit writes it. */
static enum refit_status write_ahead(struct refit_driver *driver, const struct refit_bank_copy *copy,
                                     struct refit_deadline deadline, const atomic_bool *cancel, struct refit_error *err)
{
    pthread_mutex_lock(&driver->exporting);
    enum refit_status status =
        driver->export_taken ? REFIT_OK : write_copy(driver, copy, deadline, cancel, err);
    pthread_mutex_unlock(&driver->exporting);
    return status;
}

void refit_driver_forget(void *context, const struct refit_version *version)
{
    struct refit_driver *driver = context;
    pthread_mutex_lock(&driver->exporting);
    if (!driver->export_taken && driver->export.version.version == version->version)
        refit_export_remove(&driver->export);
    pthread_mutex_unlock(&driver->exporting);
}

/* --- prepare ------------------------------------------------------------------------------------------------------ */

/* Somebody else paused it: what they do with it is not to be crossed. One that we left paused is ours. */
static enum refit_status check_free(struct refit_driver *driver, const struct refit_driver_sight *sight,
                                    struct refit_error *err)
{
    pthread_mutex_lock(&driver->lock);
    bool ours = !driver->now.whole;
    pthread_mutex_unlock(&driver->lock);
    if (!sight->paused || ours)
        return REFIT_OK;
    return refit_fail(err, REFIT_CONFLICT, "engine %s is paused, not by this refitd; resume it, then retry",
                      driver->link.url.text);
}

enum refit_status refit_driver_prepare(void *context, const struct refit_bank_copy *copy,
                                       struct refit_deadline deadline,
                                       const atomic_bool *cancel, struct refit_error *err)
{
    struct refit_driver *driver = context;
    struct refit_driver_sight sight;
    enum refit_status status = driver->engine->look(&driver->link, &sight, err);
    if (status == REFIT_OK)
        status = check_free(driver, &sight, err);
    if (status == REFIT_OK)
        status = write_ahead(driver, copy, deadline, cancel, err);
    return status == REFIT_OK ? status : refit_error_prefix(err, status, "prepare");
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

struct change {
    struct refit_driver *driver;
    const struct refit_bank_copy *copy;
    bool keep;  /* caches */
    bool flush; /* them, once the weights are there */
    struct refit_deadline deadline; /* for loading */
    bool touched; /* weights may be half-written */
    bool loaded;  /* they are whole, and the caches are theirs: only resuming is left */
    int64_t paused_at;
};

static enum refit_status load_once(const struct change *change, struct refit_error *err)
{
    char version[REFIT_DRIVER_VERSION_MAX];
    struct refit_driver *driver = change->driver;
    refit_driver_version_text(&change->copy->version, version);
    const struct refit_driver_order order = {.path = driver->export.path, .version = version};
    return driver->engine->load(&driver->link, &order, change->deadline, err);
}

/* An answer to a load that was given up may be taken by the engine's server for the next one's: then only the second
 * answer tells that the weights of the first are there. */
static enum refit_status load(struct change *change, struct refit_error *err)
{
    struct refit_driver *driver = change->driver;
    bool twice = driver->unanswered;
    int64_t begin = refit_clock_ns();
    change->touched = true;
    enum refit_status status = load_once(change, err);
    if (status == REFIT_OK && twice)
        status = load_once(change, err);
    driver->unanswered = status == REFIT_TIMEOUT || (twice && status != REFIT_OK);
    pthread_mutex_lock(&driver->lock);
    driver->now.load_ns = refit_clock_ns() - begin;
    pthread_mutex_unlock(&driver->lock);
    return status;
}

static enum refit_status check_version(const struct change *change, struct refit_error *err)
{
    char version[REFIT_DRIVER_VERSION_MAX];
    struct refit_driver_sight sight;
    struct refit_driver *driver = change->driver;
    enum refit_status status = driver->engine->look(&driver->link, &sight, err);
    if (status != REFIT_OK)
        return status;
    refit_driver_version_text(&change->copy->version, version);
    if (strcmp(sight.version, version) != 0)
        return refit_fail(err, REFIT_PEER, "engine says it has weights \"%s\" after \"%s\" was loaded", sight.version,
                          version);
    if (sight.knows_pause && !sight.paused)
        return refit_fail(err, REFIT_PEER,
                          "engine generates, though it was paused for loading \"%s\"; was it restarted?",
                          version);
    return REFIT_OK;
}

static enum refit_status resume(struct change *change, struct refit_error *err)
{
    struct refit_driver *driver = change->driver;
    enum refit_status status = driver->engine->resume(&driver->link, err);
    pthread_mutex_lock(&driver->lock);
    driver->now.paused_ns = refit_clock_ns() - change->paused_at;
    pthread_mutex_unlock(&driver->lock);
    return status;
}

static enum refit_status run(struct change *change, struct refit_error *err)
{
    struct refit_driver *driver = change->driver;
    change->paused_at = refit_clock_ns();
    enum refit_status status = driver->engine->pause(&driver->link, change->keep, err);
    driver->late_pause = status == REFIT_TIMEOUT ? REFIT_DRIVER_LATE_LOOKS : 0;
    if (status == REFIT_OK)
        status = load(change, err);
    if (status == REFIT_OK)
        status = check_version(change, err);
    if (status == REFIT_OK && change->flush)
        status = driver->engine->flush(&driver->link, err);
    change->loaded = status == REFIT_OK;
    return status == REFIT_OK ? resume(change, err) : status;
}

/* --- the way back ------------------------------------------------------------------------------------------------- */

/* Its caches belong to these weights, so requests go on with them: nothing is flushed. */
static enum refit_status restore(struct change *failed, const struct refit_bank_copy *from, bool *loaded,
                                 struct refit_error *err)
{
    struct refit_driver *driver = failed->driver;
    struct change back = {.driver = driver, .copy = from, .keep = failed->keep,
                          .deadline = refit_deadline_in_ms(driver->load_ms), .touched = true};
    if (!from)
        return refit_fail(err, REFIT_NOT_FOUND, "no slot holds the version before");
    enum refit_status status = take_copy(driver, from, back.deadline, err);
    if (status == REFIT_OK)
        status = run(&back, err);
    *loaded = back.loaded;
    return status;
}

/* Nothing was written; it may be paused, or be about to. */
static enum refit_status untouched(struct change *failed, bool was_whole, struct refit_error *err)
{
    if (!was_whole)
        return refit_fail(err, REFIT_CONFLICT, "its weights were not whole before");
    return resume(failed, err);
}

/* How far the way back came that failed, and what the engine is left as. */
static const char *left_as(const struct change *failed, bool loaded)
{
    if (failed->touched && loaded)
        return "the version before is loaded again, but the engine did not say that it was resumed";
    if (failed->touched)
        return "the version before could not be loaded again, and the engine stays paused";
    return "nothing was written, and the engine is not resumed";
}

/* `why` is how the install failed; what came of going back is added to it. */
static void recover(struct change *failed, const struct refit_bank_copy *from, const struct refit_version *before,
                    bool was_whole, struct refit_error *why)
{
    struct refit_driver *driver = failed->driver;
    struct refit_error error = {.status = REFIT_OK};
    size_t used = strlen(why->text);
    bool loaded = false;
    enum refit_status status =
        failed->touched ? restore(failed, from, &loaded, &error) : untouched(failed, was_whole, &error);
    const struct refit_version *now = failed->touched && from ? &from->version : before;
    if (status == REFIT_OK) {
        snprintf(why->text + used, sizeof why->text - used, "; the engine goes on with version %" PRIu64, now->version);
        refit_driver_whole(driver, now);
    } else {
        const char *left = left_as(failed, loaded);
        refit_driver_broken(driver, "version %" PRIu64 " was not installed: %.300s; %s: %.300s",
                            failed->copy->version.version, why->text, left, error.text);
        snprintf(why->text + used, sizeof why->text - used, "; %s: %.200s", left, error.text);
    }
    pthread_mutex_lock(&driver->lock);
    driver->now.restores += status == REFIT_OK && failed->touched;
    pthread_mutex_unlock(&driver->lock);
}

/* --- install ------------------------------------------------------------------------------------------------------ */

static enum refit_status take_kv(const char *kv, struct change *change, struct refit_error *err)
{
    change->keep = strcmp(kv, "keep") == 0;
    change->flush = strcmp(kv, "flush") == 0;
    if (change->keep || change->flush)
        return REFIT_OK;
    return refit_fail(err, REFIT_UNSUPPORTED, "kv \"%s\": engine %s can flush or keep its caches", kv,
                      change->driver->engine->name);
}

/* It was to be installed once more, and another install came first. */
static bool has_already(struct refit_driver *driver, const struct refit_version *version)
{
    pthread_mutex_lock(&driver->lock);
    const struct refit_driver_snapshot *now = &driver->now;
    bool same = now->whole && now->version.version == version->version &&
                strcmp(now->version.digest, version->digest) == 0;
    pthread_mutex_unlock(&driver->lock);
    return same;
}

static void begin(struct refit_driver *driver, bool *was_whole, struct refit_version *before)
{
    pthread_mutex_lock(&driver->lock);
    driver->serial++;
    driver->now.installing = true;
    driver->now.looked = true;
    *was_whole = driver->now.whole;
    *before = driver->now.version;
    pthread_mutex_unlock(&driver->lock);
}

static void end(struct refit_driver *driver, bool installed)
{
    pthread_mutex_lock(&driver->lock);
    driver->serial++;
    driver->now.installing = false;
    driver->now.installs += installed;
    driver->now.failures += !installed;
    driver->silent = 0;
    pthread_mutex_unlock(&driver->lock);
    drop_copy(driver);
}

/* Everything that can fail before the engine is asked for anything. */
static enum refit_status ready(struct change *change, const char *kv, struct refit_error *err)
{
    struct refit_driver *driver = change->driver;
    enum refit_status status = take_kv(kv, change, err);
    if (status == REFIT_OK)
        status = take_copy(driver, change->copy, change->deadline, err);
    if (status == REFIT_OK)
        status = refit_driver_mark(driver, &change->copy->version, false, err);
    return status;
}

enum refit_status refit_driver_install(void *context, const struct refit_bank_copy *to,
                                       const struct refit_bank_copy *from,
                                       const char *kv, struct refit_deadline deadline, struct refit_error *err)
{
    struct refit_driver *driver = context;
    struct refit_version before;
    struct refit_error why = {.status = REFIT_OK};
    bool was_whole;
    struct change change = {.driver = driver, .copy = to, .deadline = deadline};
    if (!from && has_already(driver, &to->version))
        return REFIT_OK;
    begin(driver, &was_whole, &before);
    enum refit_status status = ready(&change, kv, &why);
    if (status != REFIT_OK) {
        end(driver, false);
        return refit_fail(err, status, "%s; the engine was not touched", why.text);
    }
    pthread_mutex_lock(&driver->changing);
    status = run(&change, &why);
    if (status == REFIT_OK)
        refit_driver_whole(driver, &to->version);
    else
        recover(&change, from, &before, was_whole, &why);
    pthread_mutex_unlock(&driver->changing);
    end(driver, status == REFIT_OK);
    return status == REFIT_OK ? status : refit_fail(err, status, "install: %s", why.text);
}
