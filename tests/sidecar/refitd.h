/* SPDX-License-Identifier: Apache-2.0
 *
 * A real refitd process on ports of the kernel's choice, and HTTP on plain sockets, byte by byte where a test wants so.
 */
#ifndef REFIT_TESTS_SIDECAR_REFITD_H
#define REFIT_TESTS_SIDECAR_REFITD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <cmocka.h>

#include "base/json.h"

#define REFITD_WAIT_MS 30000 /* for anything that must happen; never slept through */
#define REFITD_LAYOUT                                                                                               \
    "{\"format\":\"refit-layout/1\",\"ranks\":1,\"meshes\":{\"m\":{\"axes\":[\"tp\"],\"shape\":[1]}},\"entries\":[" \
    "{\"tensor\":\"w\",\"dtype\":\"F32\",\"shape\":[64,256],\"mesh\":\"m\",\"placements\":[\"Replicate\"]},"        \
    "{\"tensor\":\"b\",\"dtype\":\"F32\",\"shape\":[300],\"mesh\":\"m\",\"placements\":[\"Replicate\"]}]}"

struct refitd {
    char dir[64];
    char socket[128], root[128], layout[128], ports[128];
    pid_t pid;
    int log;       /* its standard error */
    bool reported; /* a sanitizer had something to say there */
    uint16_t control, admin, data;
};

/* A scratch directory with an empty checkpoint root and a layout file. */
void refitd_prepare(struct refitd *refitd);
/* Starts it with these arguments after the usual ones (socket, ports, layout, root); NULL ends them. Does not wait. */
void refitd_spawn(struct refitd *refitd, const char *const *extra);
/* The same, and waits until it has written its ports. */
void refitd_start(struct refitd *refitd, const char *const *extra);
/* Waits for a line of its log that holds `text`; the test fails when the log ends first. The line is put into `line`
 * (may be NULL). */
void refitd_expect_log(struct refitd *refitd, const char *text, char *line, size_t size);
/* Asks /readyz until it says 200: a change is logged before the last rank counts as attached. */
void refitd_await_ready(struct refitd *refitd);
/* Its exit code; the test fails when it doesn't end. */
int refitd_wait(struct refitd *refitd);
/* SIGTERM and wait; removes nothing. */
int refitd_stop(struct refitd *refitd);
/* Ends what still runs and removes the directory; the test fails when a sanitizer reported anything in refitd. */
void refitd_cleanup(struct refitd *refitd);

/* A checkpoint file below the root with the layout's tensors, its bytes a function of the seed. */
void refitd_checkpoint(const struct refitd *refitd, const char *name, uint64_t seed);

struct answer {
    int status;
    char head[8192];
    char body[65536];
    size_t body_len;
};

int http_connect(uint16_t port);
void http_send(int fd, const void *data, size_t len);
/* One whole answer: head, and body by its Content-Length. */
void http_receive(int fd, struct answer *answer);
/* One answer to HEAD: no body. */
void http_receive_head(int fd, struct answer *answer);
/* The peer closes: true; bytes or the deadline: false. */
bool http_closed(int fd);
/* A line without its end; false when the connection ended. */
bool http_line(int fd, char *line, size_t size);

/* One request on a connection of its own. */
void http_call(uint16_t port, const char *method, const char *path, const char *body, struct answer *answer);
/* The same, with the status expected; the body parsed, new. */
json_t *http_json(uint16_t port, const char *method, const char *path, const char *body, int expected);
/* The value of a header, or NULL; in a static buffer. */
const char *http_header(const struct answer *answer, const char *name);
/* Asserts that `answer` is a problem of that type. */
void assert_problem(const struct answer *answer, int status, const char *type);

#endif
