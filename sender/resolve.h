/* SPDX-License-Identifier: Apache-2.0
 *
 * What a lead that died has left behind, found out and finished: every member is asked, and nothing else is known.
 *
 * The publish in question is that of the newest version that is staged, or being committed, anywhere. When a replica has
 * committed it, those that are staged commit, too; when none has, they are aborted. Either can be asked for. Nobody is led
 * for that, so it does not disturb who leads; it is for when that one is gone. Repeatable.
 */
#ifndef REFIT_SENDER_RESOLVE_H
#define REFIT_SENDER_RESOLVE_H

#include "sender/members.h"
#include "sender/report.h"

enum refit_resolve_choice { REFIT_RESOLVE_AUTO, REFIT_RESOLVE_COMMIT, REFIT_RESOLVE_ABORT };

/* *out is new (refit_report_release): a report as that of the publish would have been. REFIT_OK: it was made, whatever
 * is in it. */
REFIT_MUST_CHECK enum refit_status refit_resolve(const struct refit_membership *members,
                                                 enum refit_resolve_choice choice, struct refit_deadline deadline,
                                                 struct refit_report_store *out, struct refit_error *err);

#endif
