/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks of one tensor-parallel engine: a leader and its followers on a Unix socket. The leader starts each step by naming
 * the version all ranks must pin; every rank answers with what it pinned, and the leader says go or not. That is all
 * it takes for a replica to switch at one step boundary.
 */
#ifndef EXAMPLES_GROUP_H
#define EXAMPLES_GROUP_H

#include <stddef.h>
#include <stdint.h>

#define GROUP_RANKS_MAX 8

struct group {
    int rank, ranks;
    int listener;              /* leader */
    int peer[GROUP_RANKS_MAX]; /* leader: by rank; follower: [0] is the leader. -1: not there */
    float *scratch;
};

struct group_step {
    uint64_t version;
    int32_t count;
    int32_t tokens[256];
};

struct group_ack {
    int32_t ok;
    uint64_t version;
    char digest[65];
};

/* 0 or -1. ranks == 1 needs no path. */
int group_open(struct group *group, const char *path, int rank, int ranks);
void group_close(struct group *group);

/* Leader: takes in followers that dialled; 0 when all are there. Never blocks. */
int group_gather(struct group *group);
/* Leader: start a step; acks[r] for r >= 1 is what each follower pinned. 0, or -1 when one is lost. */
int group_start(struct group *group, const struct group_step *step, struct group_ack acks[GROUP_RANKS_MAX]);
/* Leader: everyone pinned the version (go), or the step is called off. */
int group_go(struct group *group, int32_t go);

/* Follower: (re)connects and waits for the next step; -1 when the process should end. */
int group_wait(struct group *group, const char *path, struct group_step *step);
/* Follower: answers, and waits for the leader's word; 1 go, 0 called off, -1 leader lost. */
int group_answer(struct group *group, const struct group_ack *ack);

/* minilm_reduce over the group; context is the group. */
int group_reduce(void *context, float *x, size_t count);

#endif
