/* SPDX-License-Identifier: Apache-2.0
 *
 * Who the replicas are: a list, a file, the addresses behind a name, or several of these.
 *
 *     http://10.0.0.7:7070                       a replica
 *     http://10.0.0.7:7070+http://10.0.0.8:7070  a replica that spans pods; the first holds its rank 0
 *     file:PATH        a replica in each line; "#" at its beginning or behind a blank begins a comment. Read anew whenever
 *                      it is asked for, so a file that was replaced, or a mounted ConfigMap whose symbolic links were
 *                      swapped, counts from the next time on
 *     dns:NAME:PORT    a replica behind each A and AAAA record (a headless service), over http
 *     dns:https://NAME:PORT  the same over https; each must have NAME in its certificate
 *
 * What can't be read or looked up now is taken as it was the last time. The membership's epoch grows whenever the members
 * are others than before.
 *
 * A look-up runs on a thread of its own, so a resolver that hangs costs its deadline, no more; at most one per name.
 * One thread at a time per struct refit_members.
 */
#ifndef REFIT_SENDER_MEMBERS_H
#define REFIT_SENDER_MEMBERS_H

#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/error.h"

#define REFIT_MEMBERS_MAX 1024 /* replicas */
#define REFIT_MEMBER_PODS_MAX 64
#define REFIT_MEMBER_ADDRESS_MAX 64

/* The numeric addresses of `name`, at most `max`; *count 0 when there are none. May block. Any status but REFIT_OK: not
 * known now. */
typedef enum refit_status (*refit_members_resolve_fn)(void *context, const char *name,
                                                      char (*addresses)[REFIT_MEMBER_ADDRESS_MAX], size_t max,
                                                      size_t *count, struct refit_error *err);

struct refit_members_config {
    const char *const *texts; /* as above; borrowed until open returns */
    size_t count;
    const char *list;         /* more of them, separated by commas or white space; NULL: none */
    refit_members_resolve_fn resolve; /* NULL: the system's resolver; must outlive the process's look-ups */
    void *context;
};

/* One replica: its pods' base URLs in normal form, the one with rank 0 first. */
struct refit_members_item {
    char **urls; /* new */
    size_t count;
};

/* The members at one moment, in order: that of the texts, then of the lines, then of the addresses. */
struct refit_membership {
    uint64_t epoch;               /* 1 at first */
    struct refit_members_item *members; /* new */
    size_t count;
};

struct refit_members;

/* Texts that are not well formed are refused here, and a replica that is named twice. *out is new. */
REFIT_MUST_CHECK enum refit_status refit_members_open(const struct refit_members_config *config,
                                                      struct refit_members **out, struct refit_error *err);
/* The members as they are now; *out is new (refit_membership_release). REFIT_INVALID, REFIT_TIMEOUT, ...: a file or name
 * has never been known. */
REFIT_MUST_CHECK enum refit_status refit_members_read(struct refit_members *members, struct refit_deadline deadline,
                                                      struct refit_membership *out, struct refit_error *err);
/* Does not wait for a look-up that hangs. NULL is fine. */
void refit_members_close(struct refit_members *members);
void refit_membership_release(struct refit_membership *membership);
void refit_membership_remove(struct refit_membership *membership, size_t index);

#endif
