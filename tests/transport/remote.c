/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/transport/remote.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/transport/pull.h"

static int hold(struct world *world, uint32_t number, uint64_t rate, int from)
{
    char text[REFIT_CARD_MAX] = {0};
    struct refit_error err;
    struct refit_endpoint *holder;
    if (read(from, text, sizeof text - 1) <= 0)
        return 1;
    json_t *card = json_loads(text, 0, NULL);
    struct refit_endpoint_config config = world_holder(world, 0, 1);
    config.holder = number;
    config.rate_bytes_per_s = rate;
    const struct refit_transport *transport =
        refit_transport_find(json_string_value(json_object_get(card, "transport")));
    if (transport->open(&config, &holder, &err) != REFIT_OK ||
        transport->connect(holder, card, refit_deadline_in_ms(PULL_MS), &err) != REFIT_OK)
        return 2;
    enum refit_status status = transport->wait_done(holder, refit_deadline_in_ms(PULL_MS), &err);
    transport->close(holder);
    return status == REFIT_OK ? 0 : status == REFIT_PEER ? 3 : 4;
}

struct remote remote_start(struct world *world, uint32_t holder, uint64_t rate)
{
    int ends[2];
    struct remote remote;
    assert_int_equal(pipe(ends), 0);
    remote.pid = fork();
    assert_true(remote.pid >= 0);
    if (remote.pid == 0) {
        close(ends[1]);
        _exit(hold(world, holder, rate, ends[0]));
    }
    close(ends[0]);
    remote.to = ends[1];
    return remote;
}

void remote_connect(const struct remote *remote, const json_t *card)
{
    char *text = json_dumps(card, JSON_COMPACT);
    assert_non_null(text);
    assert_int_equal(write(remote->to, text, strlen(text)), (ssize_t)strlen(text));
    free(text);
}

void remote_stop(const struct remote *remote)
{
    int status;
    assert_int_equal(kill(remote->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(remote->pid, &status, WUNTRACED), remote->pid);
    assert_true(WIFSTOPPED(status));
}

int remote_wait(struct remote *remote)
{
    int status;
    assert_int_equal(waitpid(remote->pid, &status, 0), remote->pid);
    close(remote->to);
    return status;
}
