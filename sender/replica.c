/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/replica.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"

#define LEAVING_MS 2000

bool refit_replica_is_whole(const struct refit_replica *replica)
{
    return replica->first_rank == 0 && replica->rank_count == refit_layout_ranks(replica->layout);
}

bool refit_replica_same_part(const struct refit_replica *a, const struct refit_replica *b)
{
    return a->keeps == b->keeps && refit_replica_same_ranks(a, b);
}

bool refit_replica_same_ranks(const struct refit_replica *a, const struct refit_replica *b)
{
    return a->first_rank == b->first_rank && a->rank_count == b->rank_count &&
           strcmp(refit_layout_digest(a->layout), refit_layout_digest(b->layout)) == 0;
}

/* What stage_only left behind must not wait for its time to live, nor another lead for ours. */
static void *leave(void *context)
{
    struct refit_replica *replica = context;
    struct refit_deadline deadline = refit_deadline_in_ms(LEAVING_MS);
    struct refit_error err;
    if (replica->staged_kept && refit_control_abort(&replica->control, replica->ticket.id, "its lead closed", deadline,
                                                    &err) != REFIT_OK)
        refit_log_event(REFIT_LOG_WARN, "a staged refit could not be aborted", refit_log_text("refit", replica->ticket.id),
                        refit_log_text("replica", replica->control.url.text), REFIT_LOG_CAUSE(&err));
    if (refit_control_resign(&replica->control, replica->lead->name, replica->epoch, deadline, &err) != REFIT_OK)
        refit_log_event(REFIT_LOG_INFO, "the lead could not resign, its time to live ends it",
                        refit_log_text("replica", replica->control.url.text), REFIT_LOG_CAUSE(&err));
    return NULL;
}

void refit_replicas_leave(struct refit_replica **replicas, size_t count)
{
    /* On threads: replicas don't wait for each other, and the caller's thread may not block SIGPIPE. */
    struct refit_error err;
    for (size_t i = 0; i < count; i++) {
        struct refit_replica *replica = replicas[i];
        if (replica->epoch == 0)
            continue;
        replica->leaving = refit_thread_start(&replica->thread, leave, replica, "a thread to resign", &err) == REFIT_OK;
        if (!replica->leaving)
            refit_log_event(REFIT_LOG_WARN, "the lead could not resign, its time to live ends it",
                            refit_log_text("replica", replica->control.url.text), REFIT_LOG_CAUSE(&err));
    }
    for (size_t i = 0; i < count; i++)
        if (replicas[i]->leaving)
            pthread_join(replicas[i]->thread, NULL);
}

void refit_replica_destroy(struct refit_replica *replica)
{
    refit_layout_release(replica->layout);
    refit_tally_destroy(replica->tally);
    refit_tally_destroy(replica->again);
    refit_tally_destroy(replica->share);
    json_decref(replica->cards);
    json_decref(replica->ticket.card);
    free(replica);
}
