/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference engine: serves embeddings over HTTP from weights that change while it serves.
 *
 *   POST /embed {"tokens": [101, 7592, 102]}
 *     -> {"embedding": [...], "version": 7, "label": "...", "digest": "...", "versions": [7, 7]}
 *
 * `versions` is what each rank pinned for this step. Numbers are printed so that they read back to the same bits.
 */
#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <getopt.h>
#include <jansson.h>
#include <refit/engine.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/minilm/group.h"
#include "examples/minilm/minilm.h"

#define STALE_RETRIES 8

struct options {
    const char *socket, *peer, *http, *ports_file, *cold;
    int rank, ranks;
};

/* Where the weights come from: refitd, or a file that was loaded once. */
struct server {
    struct options options;
    struct group group;
    struct refit_engine *engine;
    void *cold_block;
    const void *cold_table[ML_BUFFERS];
};

struct step_result {
    struct refit_version version;
    uint64_t versions[GROUP_RANKS_MAX];
    float embedding[MINILM_HIDDEN];
};

static int open_weights(struct server *server)
{
    const struct options *o = &server->options;
    if (o->cold) {
        server->cold_block = minilm_load_cold(o->cold, o->rank, o->ranks, server->cold_table);
        return server->cold_block ? 0 : -1;
    }
    struct refit_error err;
    char *layout = minilm_layout(o->ranks);
    struct refit_engine_config config = {.socket_path = o->socket, .rank = (uint32_t)o->rank, .ranks = (uint32_t)o->ranks,
                                         .label = "minilm", .layout = layout, .layout_len = strlen(layout)};
    enum refit_status status = refit_engine_attach(&config, 60000, &server->engine, &err);
    free(layout);
    if (status != REFIT_OK)
        fprintf(stderr, "minilm: attach: %s\n", err.text);
    return status == REFIT_OK ? 0 : -1;
}

static enum refit_status pin(struct server *server, uint64_t version, struct refit_pin *pin)
{
    *pin = (struct refit_pin){0};
    return server->engine ? refit_engine_acquire(server->engine, version, pin) : REFIT_OK;
}

static void unpin(struct server *server, const struct refit_pin *pin)
{
    if (server->engine)
        refit_engine_release(server->engine, pin);
}

static const void *const *table_of(struct server *server, const struct refit_pin *pin)
{
    return server->engine ? refit_engine_table(server->engine, pin) : server->cold_table;
}

static void describe(struct server *server, const struct refit_pin *pin, struct refit_version *version)
{
    *version = (struct refit_version){0};
    if (server->engine)
        refit_engine_version(server->engine, pin, version);
}

/* Pins the latest version here and the same one on every follower. A follower may find it stale for a moment (its page was
 * dropped and made anew); then the step is called off and tried again. Returns 0 with the pin held. */
static int pin_everywhere(struct server *server, struct group_step *step, struct refit_pin *held, struct step_result *result)
{
    for (int attempt = 0; attempt < STALE_RETRIES; attempt++) {
        struct group_ack acks[GROUP_RANKS_MAX];
        if (pin(server, REFIT_LATEST, held) != REFIT_OK)
            return -1;
        step->version = held->version;
        int32_t go = group_start(&server->group, step, acks) == 0;
        describe(server, held, &result->version);
        result->versions[0] = held->version;
        for (int r = 1; go && r < server->options.ranks; r++) {
            result->versions[r] = acks[r].version;
            go = acks[r].ok && strcmp(acks[r].digest, result->version.digest) == 0;
        }
        if (group_go(&server->group, go) == 0 && go)
            return 0;
        unpin(server, held);
        if (group_gather(&server->group) != 0)
            return -1;
    }
    return -1;
}

static int lead_step(struct server *server, struct group_step *step, struct step_result *result)
{
    struct refit_pin held;
    if (group_gather(&server->group) != 0 || pin_everywhere(server, step, &held, result) != 0)
        return -1;
    int rc = minilm_forward(table_of(server, &held), 0, server->options.ranks, step->tokens, step->count, group_reduce,
                            &server->group, result->embedding);
    unpin(server, &held);
    return rc;
}

static void follow(struct server *server)
{
    struct group_step step;
    float embedding[MINILM_HIDDEN];
    while (group_wait(&server->group, server->options.peer, &step) == 0) {
        struct refit_pin held;
        struct refit_version version = {0};
        struct group_ack ack = {.ok = pin(server, step.version, &held) == REFIT_OK, .version = step.version};
        if (ack.ok) {
            describe(server, &held, &version);
            memcpy(ack.digest, version.digest, sizeof ack.digest);
        }
        if (group_answer(&server->group, &ack) == 1)
            minilm_forward(table_of(server, &held), server->options.rank, server->options.ranks, step.tokens, step.count,
                           group_reduce, &server->group, embedding);
        if (ack.ok)
            unpin(server, &held);
    }
}

static int read_tokens(struct evhttp_request *request, struct group_step *step)
{
    struct evbuffer *body = evhttp_request_get_input_buffer(request);
    json_t *root = json_loadb((const char *)evbuffer_pullup(body, -1), evbuffer_get_length(body), 0, NULL);
    json_t *tokens = json_object_get(root, "tokens");
    size_t count = json_array_size(tokens);
    int rc = count > 0 && count <= MINILM_TOKENS_MAX ? 0 : -1;
    step->count = (int32_t)count;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        json_int_t token = json_is_integer(json_array_get(tokens, i)) ? json_integer_value(json_array_get(tokens, i)) : -1;
        if (token < 0 || token >= MINILM_VOCAB)
            rc = -1;
        else
            step->tokens[i] = (int32_t)token;
    }
    json_decref(root);
    return rc;
}

static void reply(struct evhttp_request *request, int code, struct evbuffer *body)
{
    evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Type", "application/json");
    evhttp_send_reply(request, code, NULL, body);
    evbuffer_free(body);
}

static void reply_text(struct evhttp_request *request, int code, const char *text)
{
    struct evbuffer *body = evbuffer_new();
    evbuffer_add_printf(body, "%s\n", text);
    reply(request, code, body);
}

static void reply_result(struct evhttp_request *request, const struct step_result *result, int ranks)
{
    struct evbuffer *body = evbuffer_new();
    json_t *label = json_string(result->version.label);
    char *quoted = json_dumps(label, JSON_ENCODE_ANY);
    evbuffer_add_printf(body, "{\"version\": %llu, \"label\": %s, \"digest\": \"%s\", \"versions\": [",
                        (unsigned long long)result->versions[0], quoted ? quoted : "\"\"", result->version.digest);
    for (int r = 0; r < ranks; r++)
        evbuffer_add_printf(body, "%s%llu", r ? ", " : "", (unsigned long long)result->versions[r]);
    evbuffer_add_printf(body, "], \"embedding\": [");
    for (int i = 0; i < MINILM_HIDDEN; i++)
        evbuffer_add_printf(body, "%s%.9g", i ? ", " : "", (double)result->embedding[i]);
    evbuffer_add_printf(body, "]}\n");
    free(quoted);
    json_decref(label);
    reply(request, 200, body);
}

static void on_embed(struct evhttp_request *request, void *context)
{
    struct server *server = context;
    struct group_step step = {0};
    struct step_result result;
    if (evhttp_request_get_command(request) != EVHTTP_REQ_POST)
        reply_text(request, 405, "{\"error\": \"POST {\\\"tokens\\\": [...]}\"}");
    else if (read_tokens(request, &step) != 0)
        reply_text(request, 400, "{\"error\": \"tokens: 1 to 256 integers from 0 to 30521\"}");
    else if (lead_step(server, &step, &result) != 0)
        reply_text(request, 503, "{\"error\": \"no version is served yet, or a rank is missing\"}");
    else
        reply_result(request, &result, server->options.ranks);
}

static void on_signal(evutil_socket_t number, short what, void *base)
{
    (void)number;
    (void)what;
    event_base_loopbreak(base);
}

static int write_port(const char *path, int port)
{
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *out = fopen(temporary, "w");
    if (!out || fprintf(out, "{\"http\": %d}\n", port) < 0 || fclose(out) != 0 || rename(temporary, path) != 0)
        return -1;
    return 0;
}

static int bind_http(struct evhttp *http, const struct options *o)
{
    char host[64];
    const char *colon = strrchr(o->http, ':');
    snprintf(host, sizeof host, "%.*s", colon ? (int)(colon - o->http) : 0, o->http);
    struct evhttp_bound_socket *bound =
        colon ? evhttp_bind_socket_with_handle(http, host, (uint16_t)atoi(colon + 1)) : NULL;
    if (!bound) {
        fprintf(stderr, "minilm: can't listen on %s\n", o->http);
        return -1;
    }
    struct sockaddr_in address = {0};
    socklen_t len = sizeof address;
    getsockname(evhttp_bound_socket_get_fd(bound), (struct sockaddr *)&address, &len);
    return o->ports_file ? write_port(o->ports_file, ntohs(address.sin_port)) : 0;
}

static int lead(struct server *server)
{
    struct event_base *base = event_base_new();
    struct evhttp *http = evhttp_new(base);
    struct event *term = evsignal_new(base, SIGTERM, on_signal, base), *intr = evsignal_new(base, SIGINT, on_signal, base);
    evhttp_set_max_body_size(http, 64 << 10);
    evhttp_set_cb(http, "/embed", on_embed, server);
    event_add(term, NULL);
    event_add(intr, NULL);
    int rc = bind_http(http, &server->options);
    if (rc == 0)
        event_base_dispatch(base);
    event_free(term);
    event_free(intr);
    evhttp_free(http);
    event_base_free(base);
    return rc;
}

static int usage(const char *program)
{
    fprintf(stderr,
            "usage: %s --socket PATH | --cold FILE.safetensors  [--rank R --ranks T --peer PATH]\n"
            "          [--http ADDRESS:PORT] [--ports-file PATH]\n"
            "Serves all-MiniLM-L6-v2 embeddings from refitd's slots, or from a file loaded once.\n"
            "With T ranks (1, 2, 3, 4 or 6) start one process per rank; rank 0 serves HTTP.\n", program);
    return 2;
}

static int parse(int argc, char **argv, struct options *o)
{
    enum { SOCKET = 1, COLD, RANK, RANKS, PEER, HTTP, PORTS };
    static const struct option known[] = {
        {"socket", 1, NULL, SOCKET}, {"cold", 1, NULL, COLD}, {"rank", 1, NULL, RANK}, {"ranks", 1, NULL, RANKS},
        {"peer", 1, NULL, PEER}, {"http", 1, NULL, HTTP}, {"ports-file", 1, NULL, PORTS}, {0}};
    *o = (struct options){.ranks = 1, .http = "127.0.0.1:0"};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (c) {
        case SOCKET: o->socket = optarg; break;
        case COLD: o->cold = optarg; break;
        case RANK: o->rank = atoi(optarg); break;
        case RANKS: o->ranks = atoi(optarg); break;
        case PEER: o->peer = optarg; break;
        case HTTP: o->http = optarg; break;
        case PORTS: o->ports_file = optarg; break;
        default: return -1;
        }
    }
    int fits = o->ranks >= 1 && o->ranks <= GROUP_RANKS_MAX && MINILM_HEADS % o->ranks == 0;
    return !fits || o->rank < 0 || o->rank >= o->ranks || !o->socket == !o->cold || (o->ranks > 1 && !o->peer) ? -1 : 0;
}

int main(int argc, char **argv)
{
    struct server server = {0};
    if (parse(argc, argv, &server.options) != 0)
        return usage(argv[0]);
    if (group_open(&server.group, server.options.peer, server.options.rank, server.options.ranks) != 0 ||
        open_weights(&server) != 0)
        return 1;
    int rc = 0;
    if (server.options.rank == 0)
        rc = lead(&server);
    else
        follow(&server);
    refit_engine_detach(server.engine);
    free(server.cold_block);
    group_close(&server.group);
    return rc == 0 ? 0 : 1;
}
