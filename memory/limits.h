/* SPDX-License-Identifier: Apache-2.0
 *
 * How much memory this process may still take: the cgroups above it, v1 and v2, and the machine.
 *
 * Pages of a slot are charged to the cgroup of the process that touches them first, and past the limit the kernel
 * kills instead of failing, so the limit is read before.
 */
#ifndef REFIT_MEMORY_LIMITS_H
#define REFIT_MEMORY_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#define REFIT_LIMIT_PATH_MAX 512

struct refit_limit {
    uint64_t available; /* UINT64_MAX: no limit is known */
    uint64_t limit;     /* of the tightest */
    const char *name;   /* static: "memory.max", "memory.limit_in_bytes", "MemAvailable"; "unknown" */
    char path[REFIT_LIMIT_PATH_MAX]; /* the file it was read from */
};

/* Reads ROOT/proc/self/{cgroup,mountinfo}, ROOT/proc/meminfo and the cgroup files below ROOT; "" is the real system.
 * What can't be read does not limit. In use = charged less the cgroup's inactive file pages, which the kernel
 * drops on demand (the working set that Kubernetes reports). */
struct refit_limit refit_limit_read(const char *root);

#endif
