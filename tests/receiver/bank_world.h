/* SPDX-License-Identifier: Apache-2.0
 *
 * A directory with a socket, a bank (in the test or in a process) and ranks as processes that take commands. The
 * teardown ends what a failed test left. Include after cmocka.h.
 */
#ifndef REFIT_TESTS_RECEIVER_BANK_WORLD_H
#define REFIT_TESTS_RECEIVER_BANK_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

#include "receiver/bank.h"

#define WORLD_PROCESSES 16
#define RANK_BYTES 65536

struct process {
    pid_t pid; /* 0: none */
    int sock;
};

struct bank_world {
    char dir[64];
    char socket_path[96];
    char state_path[104];
    enum refit_swap_mode swap;
    unsigned long rank_bytes; /* 0: RANK_BYTES */
    struct refit_bank *bank;
    struct process process[WORLD_PROCESSES];
    pid_t stray; /* a forked child of a rank */
    int steps[2]; /* between the two ranks */
    char answer[1024];
};

int bank_world_setup(void **state);
int bank_world_teardown(void **state);

/* Opens the bank in this process. */
void bank_open(struct bank_world *world, uint32_t ranks, uint32_t slots, enum refit_protection protection);
/* With slots on devices, by ordinal; NULL: rank i has device i. */
enum refit_status bank_open_cuda(struct bank_world *world, uint32_t ranks, uint32_t slots, const int *devices,
                                 struct refit_error *error);
struct refit_bank_snapshot bank_now(struct bank_world *world);
/* Until the snapshot satisfies `done`. */
void bank_await(struct bank_world *world, bool (*done)(const struct refit_bank_snapshot *now, uint64_t value),
                uint64_t value);

/* A rank: index `at` of the world's processes. `uid` 0: as the test. */
void start_rank(struct bank_world *world, unsigned at, uint32_t rank, uint32_t ranks, const char *name, uid_t uid);
void start_bank(struct bank_world *world, unsigned at, uint32_t ranks, uint32_t slots, const char *protection,
                const char *adopt_ms);
void kill_process(struct bank_world *world, unsigned at);
/* Sends a command, returns the status of the answer; its text is world->answer. */
__attribute__((format(printf, 3, 4)))
enum refit_status command(struct bank_world *world, unsigned at, const char *format, ...);
/* The same in two parts, for commands that end only when something else happens. */
void tell_process(struct bank_world *world, unsigned at, const char *text);
enum refit_status hear_process(struct bank_world *world, unsigned at);
void attach_rank(struct bank_world *world, unsigned at, uint32_t rank, uint32_t ranks);
/* Asks until the answer to `text` contains `expected`; each round waits for an answer. */
void await_answer(struct bank_world *world, unsigned at, const char *text, const char *expected);

#endif
