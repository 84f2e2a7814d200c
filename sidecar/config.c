/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/config.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/json.h"
#include "drivers/driver.h"
#include "receiver/bank.h"
#include "sidecar/listen_address.h"
#include "sidecar/config_table.h"
#include "sidecar/config_value.h"
#include "transport/endpoint.h"

#define FILE_MAX (64u << 10)

#define AT(member) offsetof(struct refit_config, member), sizeof(((struct refit_config *)0)->member)

const struct refit_config_option refit_config_options[] = {
    {"config", TEXT, AT(config), "", 0, 0, NULL,
     "file to read options from: one JSON object, or lines of `key = value`"},
    {"control", ENDPOINT, AT(control), "127.0.0.1:7070", 0, 0, NULL,
     "address of the control API, or unix:/PATH; port 0: the kernel's choice"},
    {"control-mode", MODE, AT(control_mode), "0600", 0, 0777, NULL, "permissions of the socket of --control unix:/PATH"},
    {"admin", ADDRESS, AT(admin), "0.0.0.0:7071", 0, 0, NULL, "address of probes and metrics (read-only)"},
    {"data", ADDRESS, AT(data), "0.0.0.0:7072", 0, 0, NULL, "address where bulk bytes come in"},
    {"advertise", TEXT, AT(advertise), "", 0, 0, NULL,
     "address that trainers dial for bulk bytes; empty: the one of --data"},
    {"tls-cert", TEXT, AT(tls_cert), "", 0, 0, NULL, "file with the certificate chain of the control API; empty: plain HTTP"},
    {"tls-key", TEXT, AT(tls_key), "", 0, 0, NULL, "file with the key of --tls-cert"},
    {"tls-client-ca", TEXT, AT(tls_client_ca), "", 0, 0, NULL,
     "file with the CAs that sign clients; clients must then show a certificate"},
    {"tls-client-optional", BOOL, AT(tls_client_optional), "false", 0, 0, NULL,
     "let clients without a certificate in, for their tokens"},
    {"tls-client-role", ONE_OF, AT(tls_client_role), "refit", 0, 0, "none|read|refit|admin",
     "role of client certificates that --tls-client-names does not list"},
    {"tls-client-names", TEXT, AT(tls_client_names), "", 0, 0, NULL,
     "file with lines ROLE:KIND:NAME for names in client certificates (KIND uri, dns, ip, email or cn)"},
    {"data-tls", ONE_OF, AT(data_tls), "auto", 0, 0, "auto|on|off",
     "TLS for bulk bytes that come in; auto: where --tls-cert or --data-tls-cert is given"},
    {"data-tls-cert", TEXT, AT(data_tls_cert), "", 0, 0, NULL,
     "file with the certificate chain of --data, also shown to other refitd that are sent bytes; empty: --tls-cert"},
    {"data-tls-key", TEXT, AT(data_tls_key), "", 0, 0, NULL, "file with the key of --data-tls-cert"},
    {"data-tls-client-ca", TEXT, AT(data_tls_client_ca), "", 0, 0, NULL,
     "file with the CAs that sign who sends bytes, which must then show a certificate; empty: --tls-client-ca"},
    {"data-tls-ca", TEXT, AT(data_tls_ca), "", 0, 0, NULL,
     "file with the CAs that sign other refitd, for bytes sent to them; empty: --siblings-cacert, else the clients' CAs, else "
     "the system's"},
    {"data-tls-name", TEXT, AT(data_tls_name), "", 0, 0, NULL,
     "name that who sends bytes must find in the certificate; empty: the address dialled"},
    {"token-file", TEXT, AT(token_file), "", 0, 0, NULL,
     "file with lines ROLE:TOKEN or ROLE:NAME:TOKEN (ROLE read, refit or admin); requests must then carry one"},
    {"insecure-control", BOOL, AT(insecure_control), "false", 0, 0, NULL,
     "allow --control beyond loopback although requests are not authenticated"},
    {"insecure-plaintext-tokens", BOOL, AT(insecure_plaintext_tokens), "false", 0, 0, NULL,
     "allow tokens on a --control beyond loopback without TLS"},
    {"audit-log", TEXT, AT(audit_log), "", 0, 0, NULL, "file to append the audit lines to; empty: the log only"},
    {"ports-file", TEXT, AT(ports_file), "", 0, 0, NULL,
     "file to write the ports in use to, as JSON, once all are bound"},
    {"control-connections", NUMBER, AT(control_connections), "256", 1, 65536, NULL,
     "connections to the control API at once"},
    {"admin-connections", NUMBER, AT(admin_connections), "64", 1, 65536, NULL,
     "connections to the admin listener at once"},
    {"socket", TEXT, AT(socket), "/run/refit/refitd.sock", 0, 0, NULL, "Unix socket where engines attach"},
    {"state-file", TEXT, AT(state_file), "", 0, 0, NULL, "what a restarted refitd goes on from; empty: SOCKET.state"},
    {"ranks", NUMBER, AT(ranks), "1", 1, REFIT_BANK_RANKS_MAX, NULL, "engine processes of this replica"},
    {"first-rank", NUMBER, AT(first_rank), "0", 0, REFIT_RANKS_MAX - 1, NULL,
     "of a replica that spans several refitd: the ranks served here begin with it"},
    {"ranks-total", NUMBER, AT(ranks_total), "0", 0, REFIT_RANKS_MAX, NULL,
     "ranks of the whole replica; 0: those of --ranks are all"},
    {"replica", TEXT, AT(replica), "", 0, 0, NULL,
     "name of the replica that this is a part of, the same in all its pods: so they find each other among --siblings"},
    {"slots", NUMBER, AT(slots), "2", 1, 16, NULL, "whole copies of the weights kept; 1 with --swap in-place"},
    {"slot-bytes", BYTES, AT(slot_bytes), "0", 0, 0, NULL,
     "bytes per slot and rank, reserved at start; 0: sized by --layout, or by the first engine"},
    {"memory", TEXT, AT(memory), "host", 0, 0, NULL,
     "where slots are: host; cuda (rank i has device i); or cuda:0,1,... with a device for each of --ranks"},
    {"staging", ONE_OF, AT(staging), "device", 0, 0, "device|host",
     "where slots on a GPU wait for their swap: device; host, where two copies do not fit (with --swap copy)"},
    {"receive", ONE_OF, AT(receive), "staged", 0, 0, "staged|in-engine|sidecar",
     "how bytes come into slots on a GPU: staged (through host memory, by copy engines); in-engine (from trainers' GPUs, too, by "
     "NCCL in the engines' processes); sidecar (experimental: by NCCL in refitd, which then shares the GPU's computing with the "
     "engine)"},
    {"protection", ONE_OF, AT(protection), "uid", 0, 0, "uid|seal",
     "how slots are kept from being written: uid (the engine has another uid) or seal"},
    {"swap", ONE_OF, AT(swap), "pointer", 0, 0, "pointer|copy|remap|in-place",
     "how a version takes the place of the one before: pointer, or with constant addresses by copy, remap or in-place"},
    {"layout", TEXT, AT(layout), "", 0, 0, NULL,
     "the layout served here: a file with it, or a checkpoint's directory; empty: the first engine declares it"},
    {"engine", TEXT, AT(engine), "native", 0, 0, NULL,
     "native: it attaches to --socket; vllm=URL or sglang=URL: it is told over HTTP to load what --engine-dir holds"},
    {"engine-dir", TEXT, AT(engine_dir), "", 0, 0, NULL,
     "directory where an engine over HTTP finds weights, under the same path as here; empty: SOCKET.weights"},
    {"engine-load", ONE_OF, AT(engine_load), "rpc", 0, 0, "rpc|transfer",
     "how vLLM is given the path: rpc (its reload_weights) or transfer (a weight transfer backend that takes one)"},
    {"engine-timeout", DURATION, AT(engine_timeout_ms), "30s", 1, 0, NULL,
     "longest time of a call to the engine that moves no weights"},
    {"engine-load-timeout", DURATION, AT(engine_load_timeout_ms), "10m", 1, 0, NULL,
     "longest time that the engine may take to load the version before again, after a failure"},
    {"engine-poll", DURATION, AT(engine_poll_ms), "1s", 1, 0, NULL,
     "how often an engine over HTTP is asked which version it has"},
    {"adopt-timeout", DURATION, AT(adopt_timeout_ms), "10s", 0, 0, NULL,
     "after a restart, how long engines may hand their slots back"},
    {"checkpoint-root", TEXT, AT(checkpoint_root), "", 0, 0, NULL,
     "directory below which POST /refit may name checkpoints; empty: none may"},
    {"initial-checkpoint", TEXT, AT(initial_checkpoint), "", 0, 0, NULL,
     "checkpoint to serve first: a path below --checkpoint-root"},
    {"initial-version", NUMBER, AT(initial_version), "1", 1, INT64_MAX, NULL, "version of --initial-checkpoint"},
    {"initial-label", TEXT, AT(initial_label), "initial", 0, 0, NULL, "label of --initial-checkpoint"},
    {"streams", NUMBER, AT(streams), "2", 1, REFIT_STREAMS_MAX, NULL, "tcp connections per holder"},
    {"rate", BYTES, AT(rate), "0", 0, 0, NULL, "most bulk bytes per second; 0: unlimited"},
    {"nice", NUMBER, AT(nice), "0", 0, 19, NULL, "niceness of bulk threads"},
    {"deadline", DURATION, AT(deadline_ms), "10m", 1, 0, NULL, "of a refit that names none"},
    {"deadline-max", DURATION, AT(deadline_max_ms), "24h", 1, 0, NULL, "the longest deadline a refit may name"},
    {"staged-ttl", DURATION, AT(staged_ttl_ms), "10m", 1, 0, NULL,
     "a staged refit that nobody commits aborts itself after this"},
    {"lead-ttl", DURATION, AT(lead_ttl_ms), "15s", 1, 0, NULL, "a lead that was silent this long may be replaced"},
    {"relay-silence", DURATION, AT(relay_silence_ms), "500ms", 1, 3600000, NULL,
     "a member of the fleet that owes bytes and is silent this long is passed by"},
    {"relay-stall", DURATION, AT(relay_stall_ms), "2s", 1, 3600000, NULL,
     "one that lives but delivers nothing while others do, or has not dialled, is passed by after this"},
    {"siblings", TEXT, AT(siblings), "", 0, 0, NULL,
     "replicas to fetch a version from that is missing here: URLs, file:PATH or dns:NAME:PORT; this one may be among them"},
    {"siblings-poll", DURATION, AT(siblings_poll_ms), "5s", 100, 3600000, NULL,
     "how often some of them are asked what they serve"},
    {"siblings-cacert", TEXT, AT(siblings_cacert), "", 0, 0, NULL, "file with the CAs that sign siblings; empty: the system's"},
    {"siblings-cert", TEXT, AT(siblings_cert), "", 0, 0, NULL, "file with the certificate to show siblings"},
    {"siblings-key", TEXT, AT(siblings_key), "", 0, 0, NULL, "file with the key of --siblings-cert"},
    {"siblings-token-file", TEXT, AT(siblings_token_file), "", 0, 0, NULL,
     "file whose first line has the token to show siblings, of role refit"},
    {"ready-min-version", NUMBER, AT(ready_min_version), "0", 0, INT64_MAX, NULL, "ready only from this version on"},
    {"startup-needs-weights", BOOL, AT(startup_needs_weights), "false", 0, 0, NULL,
     "/startupz also waits for a first version"},
    {"drain-timeout", DURATION, AT(drain_timeout_ms), "10s", 1, 0, NULL, "longest time from SIGTERM to exit"},
    {"log-level", ONE_OF, AT(log_level), "info", 0, 0, "error|warn|info|debug", "what is logged"},
    {"log-format", ONE_OF, AT(log_format), "text", 0, 0, "text|json", "how it is logged"},
};
#define OPTION_COUNT (sizeof refit_config_options / sizeof *refit_config_options)
const size_t refit_config_option_count = OPTION_COUNT;
_Static_assert(OPTION_COUNT <= REFIT_CONFIG_OPTIONS_MAX, "a source for each option");

void refit_config_env_name(const struct refit_config_option *o, char out[static 64])
{
    size_t n = (size_t)snprintf(out, 64, "REFIT_%s", o->name);
    for (size_t i = 0; i < n; i++)
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

static const struct refit_config_option *find(const char *name, size_t len)
{
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (strlen(refit_config_options[i].name) == len && memcmp(refit_config_options[i].name, name, len) == 0)
            return &refit_config_options[i];
    return NULL;
}

/* --- setting one value ---------------------------------------------------------------------------------------- */

static void *member(struct refit_config *config, const struct refit_config_option *o)
{
    return (char *)config + o->offset;
}

static bool parse_one_of(const char *words, const char *text, uint64_t *out)
{
    size_t len = strlen(text);
    for (uint64_t i = 0;; i++) {
        size_t word = strcspn(words, "|");
        if (word == len && memcmp(words, text, len) == 0) {
            *out = i;
            return true;
        }
        if (!words[word])
            return false;
        words += word + 1;
    }
}

static void describe(const struct refit_config_option *o, char *out, size_t size)
{
    switch (o->kind) {
    case TEXT: snprintf(out, size, "a text of at most %zu bytes", o->size - 1); break;
    case ADDRESS: snprintf(out, size, "a numeric ADDRESS:PORT such as 127.0.0.1:7070"); break;
    case ENDPOINT: snprintf(out, size, "a numeric ADDRESS:PORT such as 127.0.0.1:7070, or unix:/PATH"); break;
    case MODE: snprintf(out, size, "permissions in octal digits such as 0660"); break;
    case BOOL: snprintf(out, size, "true or false"); break;
    case ONE_OF: snprintf(out, size, "one of %s", o->words); break;
    case BYTES: snprintf(out, size, "bytes such as 1048576, 512MiB or 16GiB"); break;
    case DURATION: snprintf(out, size, "a duration with its unit such as 250ms, 30s, 10m or 1h"); break;
    case NUMBER: snprintf(out, size, "a whole number from %" PRIu64 " to %" PRIu64, o->min, o->max); break;
    }
}

static bool in_range(const struct refit_config_option *o, uint64_t value)
{
    return value >= o->min && (o->max == 0 || value <= o->max);
}

static bool store_number(struct refit_config *config, const struct refit_config_option *o, const char *text)
{
    uint64_t value = 0;
    bool good = o->kind == BYTES      ? refit_config_parse_bytes(text, &value)
                : o->kind == DURATION ? refit_config_parse_duration(text, &value)
                : o->kind == ONE_OF   ? parse_one_of(o->words, text, &value)
                : o->kind == MODE     ? refit_config_parse_mode(text, &value)
                                      : refit_config_parse_number(text, &value);
    if (good && in_range(o, value)) {
        memcpy(member(config, o), &value, sizeof value);
        return true;
    }
    return false;
}

static bool store(struct refit_config *config, const struct refit_config_option *o, const char *text)
{
    struct sockaddr_storage address;
    int len;
    if (o->kind == BOOL)
        return refit_config_parse_bool(text, member(config, o));
    if (o->kind != TEXT && o->kind != ADDRESS && o->kind != ENDPOINT)
        return store_number(config, o, text);
    bool is_path = o->kind == ENDPOINT && refit_listen_address_unix(text);
    if (o->kind != TEXT && !is_path && refit_listen_address_parse(text, o->name, &address, &len, NULL))
        return false;
    return snprintf(member(config, o), o->size, "%s", text) < (int)o->size;
}

static enum refit_status set(struct refit_config *config, const struct refit_config_option *o, const char *text,
                             enum refit_config_source source, const char *from, struct refit_error *err)
{
    char expected[160];
    if (store(config, o, text)) {
        config->source[o - refit_config_options] = (uint8_t)source;
        return REFIT_OK;
    }
    describe(o, expected, sizeof expected);
    return refit_fail(err, REFIT_INVALID, "%s: expected %s, found \"%.100s\"", from, expected, text);
}

/* --- the sources ---------------------------------------------------------------------------------------------- */

static enum refit_status apply_defaults(struct refit_config *config, struct refit_error *err)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        enum refit_status status = set(config, &refit_config_options[i], refit_config_options[i].fallback, REFIT_CONFIG_DEFAULT, refit_config_options[i].name, err);
        if (status)
            return status;
    }
    return REFIT_OK;
}

static enum refit_status apply_environment(struct refit_config *config, char *const *environment,
                                           struct refit_error *err)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        char name[64];
        refit_config_env_name(&refit_config_options[i], name);
        size_t len = strlen(name);
        for (char *const *e = environment; *e; e++) {
            if (strncmp(*e, name, len) != 0 || (*e)[len] != '=')
                continue;
            enum refit_status status = set(config, &refit_config_options[i], *e + len + 1, REFIT_CONFIG_ENVIRONMENT, name, err);
            if (status)
                return status;
        }
    }
    return REFIT_OK;
}

static enum refit_status apply_key(struct refit_config *config, const char *path, const char *key, size_t key_len,
                                   const char *text, struct refit_error *err)
{
    char from[REFIT_CONFIG_TEXT_MAX + 80];
    const struct refit_config_option *o = find(key, key_len);
    if (!o || strcmp(o->name, "config") == 0)
        return refit_fail(err, REFIT_INVALID, "%s: unknown key \"%.*s\"; refitd --help lists them", path,
                          (int)(key_len < 80 ? key_len : 80), key);
    snprintf(from, sizeof from, "%s: %s", path, o->name);
    return set(config, o, text, REFIT_CONFIG_FILE, from, err);
}

static enum refit_status apply_json(struct refit_config *config, const char *path, const char *text, size_t len,
                                    struct refit_error *err)
{
    json_t *object, *value;
    const char *key;
    enum refit_status status = refit_json_parse(text, len, path, &object, err);
    if (status)
        return status;
    json_object_foreach(object, key, value)
    {
        char number[32];
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        const char *word = json_is_string(value)    ? json_string_value(value)
                           : json_is_integer(value) ? number
                           : json_is_true(value)    ? "true"
                           : json_is_false(value)   ? "false"
                                                    : NULL;
        status = word ? apply_key(config, path, key, strlen(key), word, err)
                      : refit_fail(err, REFIT_INVALID, "%s: %s: expected a string, an integer or a boolean", path, key);
        if (status)
            break;
    }
    json_decref(object);
    return status;
}

static char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    size_t len = strlen(text);
    while (len && isspace((unsigned char)text[len - 1]))
        text[--len] = '\0';
    return text;
}

static enum refit_status apply_line(struct refit_config *config, const char *path, int number, char *line,
                                    struct refit_error *err)
{
    line = trim(line);
    if (!*line || *line == '#')
        return REFIT_OK;
    char *mark = strchr(line, '=');
    if (!mark)
        return refit_fail(err, REFIT_INVALID, "%s: line %d: expected `key = value`, found \"%.100s\"", path, number,
                          line);
    *mark = '\0';
    char *key = trim(line), *value = trim(mark + 1);
    size_t len = strlen(value);
    if (len >= 2 && value[0] == '"' && value[len - 1] == '"') {
        value[len - 1] = '\0';
        value++;
    }
    return apply_key(config, path, key, strlen(key), value, err);
}

static enum refit_status apply_file(struct refit_config *config, const char *path, struct refit_error *err)
{
    char *text;
    size_t len;
    enum refit_status status = refit_io_read_file(path, FILE_MAX, &text, &len, err);
    if (status)
        return refit_error_prefix(err, status, "--config");
    if (strlen(text) != len) {
        status = refit_fail(err, REFIT_INVALID, "%s: holds a NUL byte; expected text", path);
    } else if (text[strspn(text, " \t\r\n")] == '{') {
        status = apply_json(config, path, text, len, err);
    } else {
        char *rest = text;
        for (int number = 1; status == REFIT_OK && rest; number++)
            status = apply_line(config, path, number, strsep(&rest, "\n"), err);
    }
    free(text);
    return status;
}

static bool apply_action(const char *arg, struct refit_config *config)
{
    if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0)
        config->action = REFIT_CONFIG_HELP;
    else if (strcmp(arg, "--version") == 0)
        config->action = REFIT_CONFIG_VERSION;
    else if (strcmp(arg, "--print-config") == 0)
        config->action = REFIT_CONFIG_PRINT;
    else if (strcmp(arg, "--print-manual") == 0)
        config->action = REFIT_CONFIG_MANUAL;
    else
        return false;
    return true;
}

/* One argument, perhaps with the next one as its value. `only` (may be NULL) restricts what is set to one option. */
static enum refit_status apply_argument(int argc, char *const *argv, int *i, const struct refit_config_option *only,
                                        struct refit_config *config, struct refit_error *err)
{
    const char *arg = argv[*i];
    char from[80];
    if (apply_action(arg, config))
        return REFIT_OK;
    if (strncmp(arg, "--", 2) != 0)
        return refit_fail(err, REFIT_INVALID, "unexpected argument \"%.100s\"; refitd takes options only, see --help",
                          arg);
    size_t len = strcspn(arg + 2, "=");
    const struct refit_config_option *o = find(arg + 2, len);
    const char *value = arg[2 + len] ? arg + 3 + len : NULL;
    const struct refit_config_option *off = len > 3 && strncmp(arg + 2, "no-", 3) == 0 ? find(arg + 5, len - 3) : NULL;
    if (off && off->kind == BOOL && !value) {
        o = off;
        value = "false";
    }
    if (!o)
        return refit_fail(err, REFIT_INVALID, "unknown option \"%.100s\"; refitd --help lists them", arg);
    if (!value && o->kind == BOOL)
        value = "true";
    if (!value && *i + 1 < argc)
        value = argv[++*i];
    if (!value)
        return refit_fail(err, REFIT_INVALID, "--%s: expected a value, found nothing", o->name);
    snprintf(from, sizeof from, "--%s", o->name);
    if (only && only != o)
        return REFIT_OK;
    return set(config, o, value, REFIT_CONFIG_FLAG, from, err);
}

static enum refit_status apply_arguments(int argc, char *const *argv, const struct refit_config_option *only,
                                         struct refit_config *config, struct refit_error *err)
{
    for (int i = 1; i < argc; i++) {
        enum refit_status status = apply_argument(argc, argv, &i, only, config, err);
        if (status)
            return status;
    }
    return REFIT_OK;
}

/* --- what belongs together -------------------------------------------------------------------------------------- */

bool refit_config_drives(const struct refit_config *config)
{
    return strcmp(config->engine, "native") != 0;
}

static enum refit_status check_tls(const struct refit_config *config, struct refit_error *err)
{
    if (!config->tls_cert[0] != !config->tls_key[0])
        return refit_fail(err, REFIT_INVALID, "--tls-cert and --tls-key belong together, found only --tls-%s",
                          config->tls_cert[0] ? "cert" : "key");
    if (config->tls_client_ca[0] && !config->tls_cert[0])
        return refit_fail(err, REFIT_INVALID, "--tls-client-ca %s: --tls-cert and --tls-key are needed beside it",
                          config->tls_client_ca);
    if ((config->tls_client_names[0] || config->tls_client_optional) && !config->tls_client_ca[0])
        return refit_fail(err, REFIT_INVALID, "--tls-client-%s: --tls-client-ca is needed beside it",
                          config->tls_client_names[0] ? "names" : "optional");
    return REFIT_OK;
}

static const char *first_of(const char *one, const char *other)
{
    return one[0] ? one : other;
}

void refit_config_read_data_tls(const struct refit_config *config, struct refit_config_data_tls *out)
{
    bool off = config->data_tls == REFIT_DATA_TLS_OFF, own = config->data_tls_client_ca[0] != '\0';
    *out = (struct refit_config_data_tls){.cert = first_of(config->data_tls_cert, config->tls_cert),
                                          .key = first_of(config->data_tls_key, config->tls_key),
                                          .client_ca = first_of(config->data_tls_client_ca, config->tls_client_ca),
                                          .client_optional = !own && config->tls_client_optional};
    out->ca = first_of(config->data_tls_ca, first_of(config->siblings_cacert, out->client_ca));
    out->demanded = !off && out->cert[0];
}

static enum refit_status check_data_tls(const struct refit_config *config, struct refit_error *err)
{
    struct refit_config_data_tls tls;
    refit_config_read_data_tls(config, &tls);
    if (!config->data_tls_cert[0] != !config->data_tls_key[0])
        return refit_fail(err, REFIT_INVALID, "--data-tls-cert and --data-tls-key belong together, found only --data-tls-%s",
                          config->data_tls_cert[0] ? "cert" : "key");
    if (config->data_tls == REFIT_DATA_TLS_ON && !tls.cert[0])
        return refit_fail(err, REFIT_INVALID, "--data-tls on: --data-tls-cert or --tls-cert is needed beside it");
    if (config->data_tls_client_ca[0] && !tls.demanded)
        return refit_fail(err, REFIT_INVALID, "--data-tls-client-ca %s: bulk bytes have no TLS here; name a --data-tls-cert",
                          config->data_tls_client_ca);
    return REFIT_OK;
}

static enum refit_status check_control(const struct refit_config *config, struct refit_error *err)
{
    struct sockaddr_storage control;
    int len;
    enum refit_status status = check_tls(config, err);
    if (status)
        return status;
    if (refit_listen_address_unix(config->control))
        return config->tls_cert[0] ? refit_fail(err, REFIT_INVALID, "--control %s: a Unix socket takes no --tls-cert; its "
                                                "permissions (--control-mode) say who may connect", config->control)
                                   : REFIT_OK;
    status = refit_listen_address_parse(config->control, "control", &control, &len, err);
    if (status || refit_listen_address_is_loopback(&control))
        return status;
    if (!config->token_file[0] && !config->tls_client_ca[0] && !config->insecure_control)
        return refit_fail(err, REFIT_INVALID,
                          "--control %s: reachable beyond loopback without authentication; name a --tls-client-ca or a "
                          "--token-file, bind it to 127.0.0.1, or allow it with --insecure-control",
                          config->control);
    if (config->token_file[0] && !config->tls_cert[0] && !config->insecure_plaintext_tokens)
        return refit_fail(err, REFIT_INVALID,
                          "--control %s: tokens would cross the network in the clear; name a --tls-cert, or allow it with "
                          "--insecure-plaintext-tokens",
                          config->control);
    return REFIT_OK;
}

static enum refit_status check_engine(const struct refit_config *config, struct refit_error *err)
{
    if (!refit_config_drives(config))
        return REFIT_OK;
    enum refit_status status = refit_driver_check_engine(config->engine, err);
    if (status)
        return refit_error_prefix(err, status, "--engine");
    if (!config->layout[0])
        return refit_fail(err, REFIT_INVALID, "--engine %s: --layout is needed beside it, for such an engine declares none: a "
                          "layout, or the checkpoint that the engine was started with", config->engine);
    return REFIT_OK;
}

static enum refit_status check(const struct refit_config *config, struct refit_error *err)
{
    enum refit_status status = check_control(config, err);
    if (status == REFIT_OK)
        status = check_data_tls(config, err);
    if (status)
        return status;
    if (config->initial_checkpoint[0] && !config->checkpoint_root[0])
        return refit_fail(err, REFIT_INVALID, "--initial-checkpoint %s: --checkpoint-root is needed beside it",
                          config->initial_checkpoint);
    if (config->ranks_total && config->first_rank + config->ranks > config->ranks_total)
        return refit_fail(err, REFIT_INVALID, "--first-rank %" PRIu64 ": with --ranks %" PRIu64
                          " it is beyond --ranks-total %" PRIu64, config->first_rank, config->ranks, config->ranks_total);
    if (!config->ranks_total && config->first_rank)
        return refit_fail(err, REFIT_INVALID, "--first-rank %" PRIu64 ": --ranks-total is needed beside it",
                          config->first_rank);
    status = check_engine(config, err);
    if (status == REFIT_OK)
        status = refit_config_check_memory(config, err);
    if (status)
        return status;
    if (config->deadline_ms > config->deadline_max_ms)
        return refit_fail(err, REFIT_INVALID, "--deadline: longer than --deadline-max");
    return REFIT_OK;
}

enum refit_status refit_config_load(int argc, char *const *argv, char *const *environment, struct refit_config *out,
                                    struct refit_error *err)
{
    memset(out, 0, sizeof *out);
    enum refit_status status = apply_defaults(out, err);
    /* Flags and environment are read before the file for the sake of --config alone, and applied after it. */
    if (status == REFIT_OK)
        status = apply_environment(out, environment, err);
    if (status == REFIT_OK)
        status = apply_arguments(argc, argv, find("config", 6), out, err);
    if (status == REFIT_OK && out->config[0]) {
        status = apply_file(out, out->config, err);
        if (status == REFIT_OK)
            status = apply_environment(out, environment, err);
    }
    if (status == REFIT_OK)
        status = apply_arguments(argc, argv, NULL, out, err);
    if (status == REFIT_OK && (out->action == REFIT_CONFIG_RUN || out->action == REFIT_CONFIG_PRINT))
        status = check(out, err);
    return status;
}
