/* SPDX-License-Identifier: Apache-2.0
 *
 * The control API, line by line, on a real refitd with an engine attached in this process.
 */
#include "refitd.h"

#include <refit/engine.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "layouts/layout.h"

static struct refitd refitd;
static struct answer answer;
static struct refit_engine *engine;

static void start(void)
{
    struct refit_error err;
    refitd_start(&refitd, NULL);
    const struct refit_engine_config config = {.socket_path = refitd.socket,
                                               .ranks = 1,
                                               .label = "test",
                                               .layout = REFITD_LAYOUT,
                                               .layout_len = strlen(REFITD_LAYOUT)};
    if (refit_engine_attach(&config, REFITD_WAIT_MS, &engine, &err))
        fail_msg("%s", err.text);
}

static int set_up(void **state)
{
    refitd_prepare(&refitd);
    refitd_checkpoint(&refitd, "one.safetensors", 1);
    refitd_checkpoint(&refitd, "two.safetensors", 2);
    start();
    return 0;
}

/* Its exit code counts: a leak or a race in refitd is found at its end. */
static int tear_down(void **state)
{
    refit_engine_detach(engine);
    engine = NULL;
    int code = refitd_stop(&refitd);
    refitd_cleanup(&refitd);
    return code;
}

static json_t *get(const char *path)
{
    return http_json(refitd.control, "GET", path, NULL, 200);
}

static json_t *post(const char *path, const char *body, int expected)
{
    return http_json(refitd.control, "POST", path, body, expected);
}

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    assert_non_null(value);
    return value;
}

static int64_t number(const json_t *object, const char *key)
{
    assert_true(json_is_integer(json_object_get(object, key)));
    return json_integer_value(json_object_get(object, key));
}

/* Long-polls until the refit is in `phase`; returns its state, new. */
static json_t *wait_phase(const char *id, const char *phase)
{
    char path[256];
    snprintf(path, sizeof path, "/refit/%s", id);
    for (json_t *state = get(path);; state = get(path)) {
        if (strcmp(text(state, "phase"), phase) == 0)
            return state;
        if (json_is_true(json_object_get(state, "terminal")))
            fail_msg("expected %s, found %s", phase, json_dumps(state, 0));
        snprintf(path, sizeof path, "/refit/%s?after=%lld&wait_ms=30000", id, (long long)number(state, "sequence"));
        json_decref(state);
    }
}

static void begin(const char *body, char id[static 64])
{
    json_t *ticket = post("/refit", body, 202);
    snprintf(id, 64, "%s", text(ticket, "id"));
    json_decref(ticket);
}

static void load(int version, const char *file)
{
    char body[256], id[64];
    snprintf(body, sizeof body, "{\"version\":%d,\"checkpoint\":\"%s\",\"label\":\"v%d\"}", version, file, version);
    begin(body, id);
    json_decref(wait_phase(id, "committed"));
}

static void curl_alone_reloads_a_pod(void **state)
{
    load(1, "one.safetensors");
    json_t *weights = get("/v1/weights");
    const json_t *active = json_object_get(weights, "active");
    assert_int_equal(number(active, "version"), 1);
    assert_string_equal(text(active, "label"), "v1");
    assert_int_equal(strlen(text(active, "digest")), 64);
    assert_true(json_is_true(json_object_get(json_array_get(json_object_get(weights, "ranks"), 0), "attached")));
    json_t *ready = http_json(refitd.admin, "GET", "/readyz", NULL, 200);
    assert_int_equal(number(ready, "version"), 1);
    assert_string_equal(text(ready, "digest"), text(active, "digest"));
    json_decref(ready);
    json_decref(weights);

    struct refit_pin pin;
    assert_int_equal(refit_engine_wait(engine, REFITD_WAIT_MS, NULL), REFIT_OK);
    assert_int_equal(refit_engine_acquire(engine, REFIT_LATEST, &pin), REFIT_OK);
    assert_int_equal(pin.version, 1);
    refit_engine_release(engine, &pin);
}

static void a_restarted_refitd_takes_its_slots_back(void **state)
{
    struct refit_pin pin;
    load(7, "one.safetensors");
    assert_int_equal(refit_engine_wait(engine, REFITD_WAIT_MS, NULL), REFIT_OK);
    assert_int_equal(refit_engine_acquire(engine, REFIT_LATEST, &pin), REFIT_OK);
    assert_int_equal(kill(refitd.pid, SIGKILL), 0);
    assert_int_equal(refitd_wait(&refitd), 128 + SIGKILL);
    refitd_start(&refitd, NULL);
    refitd_expect_log(&refitd, "change=adopt from=0 to=7 label=v7", NULL, 0);
    refitd_await_ready(&refitd);
    refit_engine_release(engine, &pin);
    load(8, "two.safetensors");
}

static void rollback_holds_until_release(void **state)
{
    load(1, "one.safetensors");
    load(2, "two.safetensors");
    json_t *weights = get("/v1/weights");
    assert_true(json_is_true(json_object_get(weights, "rollback_available")));
    assert_int_equal(number(weights, "rollback_version"), 1);
    json_decref(weights);
    json_t *back = post("/rollback", NULL, 200);
    assert_int_equal(number(json_object_get(back, "active"), "version"), 1);
    assert_true(json_is_true(json_object_get(back, "held")));
    json_decref(back);
    http_call(refitd.control, "POST", "/refit", "{\"version\":3,\"checkpoint\":\"two.safetensors\"}", &answer);
    assert_problem(&answer, 409, "held");
    json_decref(post("/v1/release", "{}", 200));
    load(3, "two.safetensors");
    http_call(refitd.control, "POST", "/rollback", "{\"version\":77}", &answer);
    assert_problem(&answer, 404, "not-found");
}

static void a_staged_refit_is_committed_by_barrier(void **state)
{
    char id[64], path[128], body[256], digest[65];
    begin("{\"version\":1,\"checkpoint\":\"one.safetensors\",\"commit\":\"barrier\"}", id);
    json_t *staged = wait_phase(id, "staged");
    snprintf(digest, sizeof digest, "%s", text(staged, "digest"));
    json_decref(staged);
    snprintf(path, sizeof path, "/refit/%s/commit", id);
    snprintf(body, sizeof body, "{\"version\":1,\"digest\":\"%s\"}", digest);
    json_decref(post(path, body, 202));
    json_decref(wait_phase(id, "committed"));
    json_decref(post(path, body, 202));
    snprintf(path, sizeof path, "/refit/%s/abort", id);
    http_call(refitd.control, "POST", path, "{\"reason\":\"late\"}", &answer);
    assert_problem(&answer, 409, "committed");
}

static void another_digest_at_commit_aborts(void **state)
{
    char id[64], path[128], body[256];
    begin("{\"version\":1,\"checkpoint\":\"one.safetensors\",\"commit\":\"barrier\"}", id);
    json_decref(wait_phase(id, "staged"));
    snprintf(path, sizeof path, "/refit/%s/commit", id);
    snprintf(body, sizeof body, "{\"version\":1,\"digest\":\"%064d\"}", 0);
    http_call(refitd.control, "POST", path, body, &answer);
    assert_problem(&answer, 422, "digest-mismatch");
    json_t *aborted = wait_phase(id, "aborted");
    assert_string_equal(text(json_object_get(aborted, "error"), "status"), "corrupt");
    json_decref(aborted);
}

static void abort_may_be_repeated(void **state)
{
    char id[64], path[128];
    begin("{\"version\":1,\"checkpoint\":\"one.safetensors\",\"commit\":\"barrier\"}", id);
    json_decref(wait_phase(id, "staged"));
    snprintf(path, sizeof path, "/refit/%s/abort", id);
    json_decref(post(path, "{\"reason\":\"enough\"}", 200));
    json_decref(wait_phase(id, "aborted"));
    json_decref(post(path, "{\"reason\":\"enough\"}", 200));
    http_call(refitd.control, "POST", "/refit/unknown/abort", "{}", &answer);
    assert_problem(&answer, 404, "not-found");
}

static void a_refused_digest_stays_out(void **state)
{
    char digest[65], body[256], id[64];
    load(1, "one.safetensors");
    json_t *weights = get("/v1/weights");
    snprintf(digest, sizeof digest, "%s", text(json_object_get(weights, "active"), "digest"));
    json_decref(weights);
    snprintf(body, sizeof body, "{\"digest\":\"%s\"}", digest);
    json_decref(post("/v1/quarantine", body, 200));
    begin("{\"version\":2,\"checkpoint\":\"one.safetensors\"}", id);
    json_decref(wait_phase(id, "aborted"));
    snprintf(body, sizeof body, "{\"digest\":\"%s\",\"on\":false}", digest);
    json_decref(post("/v1/quarantine", body, 200));
    load(3, "one.safetensors");
    http_call(refitd.control, "POST", "/v1/quarantine", "{\"digest\":\"abc\"}", &answer);
    assert_problem(&answer, 400, "invalid");
}

static void events_end_with_the_refit(void **state)
{
    char id[64], line[8192], last[8192] = "", request[256];
    unsigned long long sequence = 0;
    begin("{\"version\":1,\"checkpoint\":\"one.safetensors\"}", id);
    int fd = http_connect(refitd.control);
    int len = snprintf(request, sizeof request, "GET /refit/%s/events HTTP/1.1\r\nHost: a\r\n\r\n", id);
    http_send(fd, request, (size_t)len);
    http_receive_head(fd, &answer);
    assert_string_equal(http_header(&answer, "Content-Type"), "text/event-stream");
    while (http_line(fd, line, sizeof line)) {
        if (strncmp(line, "data: ", 6) == 0)
            memcpy(last, line, sizeof last);
        else if (sscanf(line, "id: %llu", &sequence) == 1)
            assert_true(sequence > 0);
    }
    close(fd);
    assert_non_null(strstr(last, "\"phase\":\"committed\""));

    /* Who has seen the end already is told that there is no more. */
    fd = http_connect(refitd.control);
    len = snprintf(request, sizeof request, "GET /refit/%s/events HTTP/1.1\r\nHost: a\r\nLast-Event-ID: %llu\r\n\r\n",
                   id, sequence);
    http_send(fd, request, (size_t)len);
    http_receive_head(fd, &answer);
    assert_int_equal(answer.status, 204);
    close(fd);
    http_call(refitd.control, "GET", "/refit/unknown/events", NULL, &answer);
    assert_problem(&answer, 404, "not-found");
}

static void a_long_poll_ends_when_its_time_is_over(void **state)
{
    char id[64], path[128];
    begin("{\"version\":1,\"checkpoint\":\"one.safetensors\",\"commit\":\"barrier\"}", id);
    json_t *staged = wait_phase(id, "staged");
    snprintf(path, sizeof path, "/refit/%s?after=%lld&wait_ms=50", id, (long long)number(staged, "sequence"));
    json_decref(staged);
    json_decref(get(path));
    snprintf(path, sizeof path, "/refit/%s?wait_ms=30001", id);
    http_call(refitd.control, "GET", path, NULL, &answer);
    assert_problem(&answer, 400, "invalid");
    snprintf(path, sizeof path, "/refit/%s?after=x", id);
    http_call(refitd.control, "GET", path, NULL, &answer);
    assert_problem(&answer, 400, "invalid");
}

static void a_source_that_is_known_is_checked_all_the_same(void **state)
{
    struct refit_layout *layout;
    char path[128];
    assert_int_equal(refit_layout_parse(REFITD_LAYOUT, strlen(REFITD_LAYOUT), "layout", &layout, NULL), REFIT_OK);
    snprintf(path, sizeof path, "/v1/sources/%s", refit_layout_digest(layout));
    for (int i = 0; i < 2; i++) {
        http_call(refitd.control, "PUT", path, REFITD_LAYOUT, &answer);
        assert_int_equal(answer.status, 201);
        http_call(refitd.control, "PUT", path, refit_layout_text(layout, NULL), &answer);
        assert_int_equal(answer.status, 201);
        http_call(refitd.control, "PUT", path, "nonsense", &answer);
        assert_problem(&answer, 400, "invalid");
    }
    refit_layout_release(layout);
}

static void a_half_closed_client_gets_the_answer_of_its_long_poll(void **state)
{
    char id[64], request[256];
    begin("{\"version\":1,\"checkpoint\":\"one.safetensors\",\"commit\":\"barrier\"}", id);
    json_t *staged = wait_phase(id, "staged");
    int fd = http_connect(refitd.control);
    int len = snprintf(request, sizeof request, "GET /refit/%s?after=%lld&wait_ms=30000 HTTP/1.1\r\nHost: a\r\n\r\n", id,
                       (long long)number(staged, "sequence"));
    http_send(fd, request, (size_t)len);
    shutdown(fd, SHUT_WR);
    json_decref(staged);
    json_decref(get("/v1/weights")); /* by now the loop has seen both */
    snprintf(request, sizeof request, "/refit/%s/abort", id);
    json_decref(post(request, "{}", 200));
    http_receive(fd, &answer);
    assert_int_equal(answer.status, 200);
    assert_non_null(strstr(answer.body, "\"phase\":\"aborted\""));
    assert_true(http_closed(fd));
    close(fd);
}

static void a_lead_begins_commits_and_is_fenced(void **state)
{
    struct refit_error err;
    struct refit_layout *layout;
    char path[128], body[512];
    assert_int_equal(refit_layout_parse(REFITD_LAYOUT, strlen(REFITD_LAYOUT), "layout", &layout, &err), REFIT_OK);
    const char *digest = refit_layout_digest(layout);
    json_t *lead = post("/v1/lead", "{\"name\":\"trainer-a\"}", 200);
    int64_t epoch = number(lead, "epoch");
    json_decref(lead);
    http_call(refitd.control, "POST", "/v1/lead", "{\"name\":\"trainer-b\"}", &answer);
    assert_problem(&answer, 409, "other-lead");
    assert_non_null(strstr(answer.body, "trainer-a"));

    snprintf(body, sizeof body, "{\"source\":\"%s\"}", digest);
    http_call(refitd.control, "POST", "/v1/plan", body, &answer);
    assert_problem(&answer, 404, "not-found");
    snprintf(path, sizeof path, "/v1/sources/%064d", 0);
    http_call(refitd.control, "PUT", path, REFITD_LAYOUT, &answer);
    assert_problem(&answer, 422, "mismatch");
    snprintf(path, sizeof path, "/v1/sources/%s", digest);
    json_decref(http_json(refitd.control, "PUT", path, REFITD_LAYOUT, 201));
    json_t *plan = post("/v1/plan", body, 200);
    assert_int_equal(number(plan, "bytes"), 64 * 256 * 4 + 300 * 4);
    assert_int_equal(json_array_size(json_object_get(plan, "edges")), 1);
    json_decref(plan);

    snprintf(body, sizeof body,
             "{\"version\":1,\"epoch\":%lld,\"publish_id\":\"p1\",\"source\":\"%s\",\"transport\":\"tcp\"}",
             (long long)epoch, digest);
    json_t *ticket = post("/refit", body, 202);
    assert_int_equal(strlen(text(ticket, "token")), 32);
    assert_string_equal(text(json_object_get(ticket, "card"), "transport"), "tcp");
    json_t *again = post("/refit", body, 202);
    assert_string_equal(text(ticket, "id"), text(again, "id"));
    assert_true(json_is_true(json_object_get(again, "existing")));
    snprintf(path, sizeof path, "/refit/%s/commit", text(ticket, "id"));
    json_decref(ticket);
    json_decref(again);
    http_call(refitd.control, "POST", path, "{\"version\":1}", &answer);
    assert_problem(&answer, 503, "not-staged");
    snprintf(body, sizeof body,
             "{\"version\":1,\"epoch\":%lld,\"publish_id\":\"p1\",\"source\":\"%s\",\"transport\":\"local\"}",
             (long long)epoch, digest);
    http_call(refitd.control, "POST", "/refit", body, &answer);
    assert_problem(&answer, 422, "identity-reused");
    json_decref(post("/v1/lead", "{\"name\":\"trainer-b\",\"takeover\":true}", 200));
    snprintf(body, sizeof body, "{\"version\":2,\"epoch\":%lld,\"publish_id\":\"p2\",\"source\":\"%s\"}",
             (long long)epoch, digest);
    http_call(refitd.control, "POST", "/refit", body, &answer);
    assert_problem(&answer, 412, "stale-epoch");
    http_call(refitd.control, "POST", "/v1/lead", "{\"name\":\"trainer-c\"}", &answer);
    assert_problem(&answer, 409, "other-lead");
    snprintf(body, sizeof body, "{\"name\":\"trainer-b\",\"epoch\":%lld}", (long long)epoch);
    http_call(refitd.control, "POST", "/v1/resign", body, &answer);
    assert_problem(&answer, 412, "stale-epoch");
    snprintf(body, sizeof body, "{\"name\":\"trainer-c\",\"epoch\":%lld}", (long long)epoch + 1);
    http_call(refitd.control, "POST", "/v1/resign", body, &answer);
    assert_problem(&answer, 409, "other-lead");
    snprintf(body, sizeof body, "{\"name\":\"trainer-b\",\"epoch\":%lld}", (long long)epoch + 1);
    json_decref(post("/v1/resign", body, 200));
    json_decref(post("/v1/lead", "{\"name\":\"trainer-c\"}", 200));
    refit_layout_release(layout);
}

/* A request of a fleet; `self` and what follows the members are written as given. */
static void fleet_body(char *out, size_t size, int64_t epoch, const char *digest, const char *self, const char *port,
                       const char *more)
{
    snprintf(out, size,
             "{\"version\":3,\"epoch\":%lld,\"publish_id\":\"f\",\"source\":\"%s\",\"transport\":\"tcp\","
             "\"fleet\":{\"id\":\"f\",\"token\":\"00112233445566778899aabbccddeeff\",\"self\":%s,"
             "\"members\":[{\"name\":\"a\",\"domain\":\"d\"},{\"name\":\"b\",\"domain\":\"e\","
             "\"tcp\":{\"transport\":\"tcp\",\"address\":\"127.0.0.1\",\"port\":%s}}]}%s}",
             (long long)epoch, digest, self, port, more);
}

static void a_member_of_a_fleet_tells_who_holds_what(void **state)
{
    struct refit_layout *layout;
    char path[128], body[1024], digest[65];
    assert_int_equal(refit_layout_parse(REFITD_LAYOUT, strlen(REFITD_LAYOUT), "layout", &layout, NULL), REFIT_OK);
    snprintf(digest, sizeof digest, "%s", refit_layout_digest(layout));
    refit_layout_release(layout);
    json_t *lead = post("/v1/lead", "{\"name\":\"t\"}", 200);
    int64_t epoch = number(lead, "epoch");
    json_decref(lead);
    snprintf(path, sizeof path, "/v1/sources/%s", digest);
    json_decref(http_json(refitd.control, "PUT", path, REFITD_LAYOUT, 201));

    fleet_body(body, sizeof body, epoch, digest, "2", "9", "");
    http_call(refitd.control, "POST", "/refit", body, &answer);
    assert_problem(&answer, 400, "invalid");
    assert_non_null(strstr(answer.body, "self"));
    fleet_body(body, sizeof body, epoch, digest, "0", "9", ",\"ranks\":{\"first\":1,\"count\":1}");
    http_call(refitd.control, "POST", "/refit", body, &answer);
    assert_problem(&answer, 400, "invalid");

    fleet_body(body, sizeof body, epoch, digest, "0", "9",
               ",\"ranks\":{\"first\":0,\"count\":1},\"unchanged\":{\"since\":2,\"tensors\":[\"w\"]}");
    json_t *ticket = post("/refit", body, 202);
    assert_string_equal(text(ticket, "token"), "00112233445566778899aabbccddeeff");
    assert_true(json_is_false(json_object_get(ticket, "unchanged")));
    /* Another card is the same fleet, another member is not. */
    fleet_body(body, sizeof body, epoch, digest, "0", "10",
               ",\"ranks\":{\"first\":0,\"count\":1},\"unchanged\":{\"since\":2,\"tensors\":[\"w\"]}");
    json_t *again = post("/refit", body, 202);
    assert_true(json_is_true(json_object_get(again, "existing")));
    json_decref(again);
    fleet_body(body, sizeof body, epoch, digest, "1", "10", "");
    http_call(refitd.control, "POST", "/refit", body, &answer);
    assert_problem(&answer, 422, "identity-reused");

    snprintf(path, sizeof path, "/refit/%s", text(ticket, "id"));
    json_decref(wait_phase(text(ticket, "id"), "transfer"));
    snprintf(path, sizeof path, "/refit/%s/holders", text(ticket, "id"));
    json_t *holders = get(path);
    assert_int_equal(number(holders, "members"), 2);
    assert_int_equal(number(holders, "excess_bytes"), 0);
    json_decref(holders);
    http_call(refitd.control, "GET", "/refit/r9-0/holders", NULL, &answer);
    assert_problem(&answer, 404, "not-found");
    snprintf(path, sizeof path, "/refit/%s/abort", text(ticket, "id"));
    json_decref(post(path, "{}", 200));
    json_decref(ticket);
}

static void serving_is_asked_for_listed_and_ended(void **state)
{
    struct refit_layout *layout;
    char path[128], body[1024], id[64];
    load(1, "one.safetensors");
    assert_int_equal(refit_layout_parse(REFITD_LAYOUT, strlen(REFITD_LAYOUT), "layout", &layout, NULL), REFIT_OK);
    const char *digest = refit_layout_digest(layout);
    static const char format[] =
        "{\"version\":%d,\"refit\":\"f\",\"token\":\"00112233445566778899aabbccddeeff\",\"holder\":3,"
        "\"transport\":\"tcp\","
        "\"card\":{\"transport\":\"tcp\",\"address\":\"127.0.0.1\",\"port\":9},\"layout\":\"%s\",\"first_rank\":0,"
        "\"rank_count\":1,\"deadline_ms\":60000}";
    snprintf(body, sizeof body, format, 1, digest);
    http_call(refitd.control, "POST", "/v1/serve", body, &answer);
    assert_problem(&answer, 404, "not-found");
    assert_non_null(strstr(answer.body, "put it"));
    snprintf(path, sizeof path, "/v1/sources/%s", digest);
    json_decref(http_json(refitd.control, "PUT", path, REFITD_LAYOUT, 201));
    snprintf(body, sizeof body, format, 7, digest);
    http_call(refitd.control, "POST", "/v1/serve", body, &answer);
    assert_problem(&answer, 404, "not-found");
    assert_non_null(strstr(answer.body, "version 7"));
    snprintf(body, sizeof body, format, 1, digest);
    json_t *served = post("/v1/serve", body, 202);
    snprintf(id, sizeof id, "%s", text(served, "id"));
    json_decref(served);
    json_t *list = get("/v1/serve");
    const json_t *first = json_array_get(json_object_get(list, "serves"), 0);
    assert_string_equal(text(first, "id"), id);
    assert_string_equal(text(first, "state"), "dialling");
    json_decref(list);
    snprintf(path, sizeof path, "/v1/serve/%s/end", id);
    json_decref(post(path, "{}", 200));
    http_call(refitd.control, "POST", path, "{}", &answer);
    assert_problem(&answer, 404, "not-found");
    refit_layout_release(layout);
}

static void layout_and_host_are_told(void **state)
{
    char request[256];
    http_call(refitd.control, "GET", "/v1/layout", NULL, &answer);
    assert_int_equal(answer.status, 200);
    char tag[128];
    snprintf(tag, sizeof tag, "%s", http_header(&answer, "ETag"));
    assert_int_equal(strlen(tag), 66);
    int fd = http_connect(refitd.control);
    int len = snprintf(request, sizeof request, "GET /v1/layout HTTP/1.1\r\nHost: a\r\nIf-None-Match: %s\r\n\r\n", tag);
    http_send(fd, request, (size_t)len);
    http_receive_head(fd, &answer);
    assert_int_equal(answer.status, 304);
    close(fd);
    json_t *host = get("/v1/host");
    assert_int_equal(number(json_object_get(host, "ranks"), "count"), 1);
    assert_true(strlen(text(host, "boot_id")) > 30);
    assert_int_equal(number(json_object_get(json_object_get(host, "transports"), "tcp"), "port"), refitd.data);
    json_decref(host);
}

static void metrics_tell_what_happened(void **state)
{
    load(1, "one.safetensors");
    load(2, "two.safetensors");
    http_call(refitd.admin, "GET", "/metrics", NULL, &answer);
    assert_int_equal(answer.status, 200);
    assert_non_null(strstr(answer.body, "\nrefit_version 2\n"));
    assert_non_null(strstr(answer.body, "\nrefit_refits_total{outcome=\"committed\",reason=\"\"} 2\n"));
    assert_non_null(strstr(answer.body, "\nrefit_ranks_attached 1\n"));
    assert_non_null(strstr(answer.body, "\nrefit_needed_bytes_total 133472\n"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(curl_alone_reloads_a_pod),
        TEST(a_restarted_refitd_takes_its_slots_back),
        TEST(rollback_holds_until_release),
        TEST(a_staged_refit_is_committed_by_barrier),
        TEST(another_digest_at_commit_aborts),
        TEST(abort_may_be_repeated),
        TEST(a_refused_digest_stays_out),
        TEST(events_end_with_the_refit),
        TEST(a_long_poll_ends_when_its_time_is_over),
        TEST(a_source_that_is_known_is_checked_all_the_same),
        TEST(a_half_closed_client_gets_the_answer_of_its_long_poll),
        TEST(a_lead_begins_commits_and_is_fenced),
        TEST(a_member_of_a_fleet_tells_who_holds_what),
        TEST(serving_is_asked_for_listed_and_ended),
        TEST(layout_and_host_are_told),
        TEST(metrics_tell_what_happened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
