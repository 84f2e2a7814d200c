/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/leads.h"

#include <inttypes.h>
#include <string.h>

#include "base/text.h"

#define NS_PER_MS 1000000

static enum refit_status check_name(const char *name, struct refit_error *err)
{
    size_t len = name ? strnlen(name, REFIT_LEAD_NAME_MAX) : 0;
    if (len == 0 || len == REFIT_LEAD_NAME_MAX)
        return refit_fail(err, REFIT_INVALID, "name of a lead: expected 1 to %d bytes", REFIT_LEAD_NAME_MAX - 1);
    size_t control = refit_text_first_control(name);
    if (control < len)
        return refit_fail(err, REFIT_INVALID, "name of a lead: control character at byte %zu", control);
    return REFIT_OK;
}

enum refit_status refit_leads_admit(const struct refit_leads *leads, const char *name, bool takeover, bool working,
                                    int64_t ttl_ms, struct refit_error *err)
{
    enum refit_status status = check_name(name, err);
    if (status != REFIT_OK)
        return status;
    if (takeover || leads->name[0] == '\0' || strcmp(leads->name, name) == 0)
        return REFIT_OK;
    int64_t silent_ms = (refit_clock_ns() - leads->heard_ns) / NS_PER_MS;
    if (working)
        return refit_fail(err, REFIT_CONFLICT, "%s leads (epoch %" PRIu64 ") and a refit of its runs here; wait for "
                          "its end, or take over", leads->name, leads->epoch);
    if (leads->heard_ns != 0 && silent_ms < ttl_ms)
        return refit_fail(err, REFIT_CONFLICT, "%s leads (epoch %" PRIu64 "), heard %" PRId64 " ms ago; wait until it "
                          "was silent for %" PRId64 " ms, or take over", leads->name, leads->epoch, silent_ms, ttl_ms);
    return REFIT_OK;
}

static enum refit_status check_epoch(const struct refit_leads *leads, uint64_t epoch, struct refit_error *err)
{
    if (leads->epoch == 0)
        return refit_fail(err, REFIT_STALE, "epoch %" PRIu64 " is not current: none was issued here; lead again",
                          epoch);
    if (epoch != leads->epoch)
        return refit_fail(err, REFIT_STALE, "epoch %" PRIu64 " is not current: %" PRIu64 " was issued to %s; lead "
                          "again", epoch, leads->epoch, leads->name);
    return REFIT_OK;
}

enum refit_status refit_leads_check(struct refit_leads *leads, uint64_t epoch, struct refit_error *err)
{
    enum refit_status status = check_epoch(leads, epoch, err);
    if (status == REFIT_OK)
        leads->heard_ns = refit_clock_ns();
    return status;
}

enum refit_status refit_leads_resign(struct refit_leads *leads, const char *name, uint64_t epoch,
                                     struct refit_error *err)
{
    enum refit_status status = check_epoch(leads, epoch, err);
    if (status != REFIT_OK)
        return status;
    if (strcmp(leads->name, name) != 0)
        return refit_fail(err, REFIT_CONFLICT, "epoch %" PRIu64 " was issued to %s, so %.127s can't resign it", epoch,
                          leads->name, name);
    leads->heard_ns = 0;
    return REFIT_OK;
}
