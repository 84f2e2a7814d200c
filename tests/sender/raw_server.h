/* SPDX-License-Identifier: Apache-2.0
 *
 * A peer that says exactly what a test tells it to: answers one connection with given bytes.
 */
#ifndef REFIT_TESTS_SENDER_RAW_SERVER_H
#define REFIT_TESTS_SENDER_RAW_SERVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct raw_server {
    int listener;
    uint16_t port;
    char url[64];
    pthread_t thread;
    /* What to do once a whole request head has come: */
    const char *answer;    /* sent first; may be NULL */
    size_t repeat;         /* then `filler` so many times */
    const char *filler;
    bool trickle;          /* `answer` byte by byte, for ever again, until the client goes */
    bool hold;             /* keep the connection open until the client goes */
    bool again;            /* then the next connection, until the server is stopped */
    /* What came: */
    char request[4096];    /* the last */
    unsigned served;       /* connections; after the stop */
};

void raw_server_start(struct raw_server *server);
/* Joins; the client must have gone, or never have come. */
void raw_server_stop(struct raw_server *server);

#endif
