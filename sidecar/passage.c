/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing the receiver, on a worker: capacity is reserved and touched, and everything that uses it joined.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "sidecar/listen_address.h"
#include "sidecar/notify.h"
#include "sidecar/sidecar.h"

struct passage {
    struct refit_job job;
    struct refit_sidecar *sidecar;
    struct refit_receiver *receiver;
    struct refit_error err;
    enum refit_status status;
};

static enum refit_status take_layout(struct refit_sidecar *sidecar, const char *path, struct refit_error *err)
{
    struct refit_checkpoint *checkpoint;
    enum refit_status status = refit_checkpoint_open(path, &checkpoint, err);
    if (status)
        return refit_error_prefix(err, status, "--layout");
    sidecar->layout = refit_layout_retain(refit_checkpoint_layout(checkpoint));
    refit_checkpoint_close(checkpoint);
    return REFIT_OK;
}

static enum refit_status load_layout(struct refit_sidecar *sidecar, struct refit_error *err)
{
    const char *path = sidecar->config->layout;
    struct stat st;
    char *text;
    size_t len;
    if (!path[0])
        return REFIT_OK;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return take_layout(sidecar, path, err);
    enum refit_status status = refit_io_read_file(path, REFIT_LAYOUT_TEXT_MAX, &text, &len, err);
    if (status)
        return refit_error_prefix(err, status, "--layout");
    status = refit_layout_parse(text, len, path, &sidecar->layout, err);
    free(text);
    return status;
}

static enum refit_status make_driver(struct refit_sidecar *sidecar, struct refit_error *err)
{
    const struct refit_config *config = sidecar->config;
    char beside[REFIT_CONFIG_TEXT_MAX + 16];
    if (!refit_config_drives(config))
        return REFIT_OK;
    snprintf(beside, sizeof beside, "%s.weights", config->socket);
    const struct refit_driver_config driver = {
        .engine = config->engine,
        .directory = config->engine_dir[0] ? config->engine_dir : beside,
        .load = (enum refit_driver_load)config->engine_load,
        .call_ms = (int64_t)config->engine_timeout_ms,
        .load_ms = (int64_t)config->engine_load_timeout_ms,
        .poll_ms = (int64_t)config->engine_poll_ms,
    };
    return refit_driver_create(&driver, &sidecar->driver, err);
}

static const char *or_null(const char *text)
{
    return text[0] ? text : NULL;
}

static void fill_receiver_config(const struct refit_sidecar *sidecar, const char *data_host, uint16_t data_port,
                                 struct refit_receiver_config *out)
{
    const struct refit_config *config = sidecar->config;
    *out = (struct refit_receiver_config){
        .bank = {.ranks = (uint32_t)config->ranks,
                 .first_rank = (uint32_t)config->first_rank,
                 .ranks_total = (uint32_t)config->ranks_total,
                 .slots = (uint32_t)config->slots,
                 .slot_bytes = config->slot_bytes,
                 .protection = (enum refit_protection)config->protection,
                 .swap = (enum refit_swap_mode)config->swap,
                 .socket_path = config->socket,
                 .state_path = or_null(config->state_file),
                 .layout = sidecar->layout,
                 .engine = sidecar->driver ? refit_driver_hooks(sidecar->driver) : NULL,
                 .adopt_ms = (int64_t)config->adopt_timeout_ms},
        .listener = {.tcp_address = data_host, .tcp_port = data_port, .advertise = or_null(config->advertise),
                     .tls = refit_guard_data_tls(sidecar->guard), .tls_name = or_null(config->data_tls_name)},
        .tls = refit_guard_peer_tls(sidecar->guard),
        .checkpoint_root = or_null(config->checkpoint_root),
        .streams = (unsigned)config->streams,
        .rate_bytes_per_s = config->rate,
        .nice = (int)config->nice,
        .deadline_ms = (int64_t)config->deadline_ms,
        .deadline_max_ms = (int64_t)config->deadline_max_ms,
        .staged_ttl_ms = (int64_t)config->staged_ttl_ms,
        .lead_ttl_ms = (int64_t)config->lead_ttl_ms,
        .relay_silence_ms = (int64_t)config->relay_silence_ms,
        .relay_stall_ms = (int64_t)config->relay_stall_ms,
        .verify = true,
    };
}

/* It may be mounted later, so it does not keep refitd from starting; but who mistyped it should not have to wait. */
static void look_at_checkpoint_root(const char *root)
{
    if (root[0] && access(root, R_OK | X_OK) != 0)
        refit_log_event(REFIT_LOG_WARN, "no checkpoint can be read below --checkpoint-root now",
                        refit_log_text("path", root), refit_log_errno(errno));
}

/* What was asked for and is not to be had is said, since trainers take another path then. */
static void tell_of_nccl(const struct refit_config *config, struct refit_receiver *receiver)
{
    json_t *card;
    struct refit_error err;
    if (config->receive != REFIT_RECEIVE_SIDECAR)
        return;
    if (refit_receiver_card(receiver, "nccl", &card, &err) != REFIT_OK) {
        refit_log_event(REFIT_LOG_WARN, "nccl is not offered", REFIT_LOG_CAUSE(&err));
        return;
    }
    refit_log_event(REFIT_LOG_INFO, "nccl is offered",
                    refit_log_i64("version", json_integer_value(json_object_get(card, "version"))));
    json_decref(card);
}

static void run_open(struct refit_job *job)
{
    struct passage *passage = (struct passage *)job;
    struct refit_receiver_config config;
    struct refit_config_memory memory;
    struct sockaddr_storage data;
    char host[64];
    int len;
    passage->status = refit_listen_address_parse(passage->sidecar->config->data, "data", &data, &len, &passage->err);
    if (passage->status == REFIT_OK)
        passage->status = load_layout(passage->sidecar, &passage->err);
    if (passage->status == REFIT_OK)
        passage->status = make_driver(passage->sidecar, &passage->err);
    if (passage->status)
        return;
    look_at_checkpoint_root(passage->sidecar->config->checkpoint_root);
    refit_listen_address_host(&data, host, sizeof host);
    passage->status = refit_config_read_memory(passage->sidecar->config, &memory, &passage->err);
    if (passage->status)
        return;
    fill_receiver_config(passage->sidecar, host, refit_listen_address_port(&data), &config);
    config.bank.memory = memory.cuda ? REFIT_ARENA_CUDA : REFIT_ARENA_HOST;
    config.bank.devices = memory.devices;
    config.bank.host_staging = passage->sidecar->config->staging == REFIT_STAGING_HOST;
    config.listener.nccl = passage->sidecar->config->receive != REFIT_RECEIVE_STAGED;
    config.listener.nccl_elsewhere = config.bank.in_engine = passage->sidecar->config->receive == REFIT_RECEIVE_IN_ENGINE;
    passage->status = refit_receiver_open(&config, &passage->receiver, &passage->err);
    if (passage->status == REFIT_OK)
        tell_of_nccl(passage->sidecar->config, passage->receiver);
    if (passage->status == REFIT_OK && passage->sidecar->driver)
        passage->status = refit_driver_start(passage->sidecar->driver, refit_receiver_bank(passage->receiver),
                                             refit_sidecar_wake, passage->sidecar, &passage->err);
}

static uint16_t data_port_of(struct refit_receiver *receiver)
{
    json_t *card;
    int64_t port = 0;
    if (refit_receiver_card(receiver, "tcp", &card, NULL))
        return 0;
    enum refit_status status = refit_json_get_int(card, "port", "card", 1, 65535, &port, NULL);
    json_decref(card);
    return status ? 0 : (uint16_t)port;
}

static enum refit_status announce(struct refit_sidecar *sidecar, struct refit_error *err)
{
    char text[128];
    unsigned control = refit_httpd_port(sidecar->control), admin = refit_httpd_port(sidecar->admin);
    enum refit_status status = REFIT_OK;
    int len = snprintf(text, sizeof text, "{\"admin\":%u,\"control\":%u,\"data\":%u}\n", admin, control,
                       sidecar->data_port);
    if (sidecar->config->ports_file[0])
        status = refit_io_replace_file(sidecar->config->ports_file, text, (size_t)len, 0644, err);
    if (status)
        return refit_error_prefix(err, status, "--ports-file");
    /* After the file is there: who waits for this line may read it. */
    refit_log_event(REFIT_LOG_INFO, "started", refit_log_u64("control", control), refit_log_u64("admin", admin),
                    refit_log_u64("data", sidecar->data_port), refit_log_text("socket", sidecar->config->socket),
                    refit_log_text("instance", refit_receiver_instance(sidecar->receiver)),
                    refit_log_text("software", REFIT_VERSION));
    refit_notify("READY=1");
    return REFIT_OK;
}

static void close_receiver(struct refit_sidecar *sidecar, struct refit_receiver *receiver);

static enum refit_status start_catch_up(struct refit_sidecar *sidecar, struct refit_error *err)
{
    const struct refit_catch_up_config config = {
        .config = sidecar->config,
        .receiver = sidecar->receiver,
        .traffic = &sidecar->traffic,
        .notify = refit_sidecar_wake,
        .context = sidecar,
    };
    return sidecar->config->siblings[0] ? refit_catch_up_start(&config, &sidecar->catch_up, err) : REFIT_OK;
}

static void finish_open(struct refit_job *job)
{
    struct passage *passage = (struct passage *)job;
    struct refit_sidecar *sidecar = passage->sidecar;
    sidecar->opening = false;
    if (passage->status) {
        refit_sidecar_fail(sidecar, &passage->err);
    } else if (sidecar->draining) {
        close_receiver(sidecar, passage->receiver);
    } else {
        sidecar->receiver = passage->receiver;
        sidecar->data_port = data_port_of(sidecar->receiver);
        refit_receiver_set_notify(sidecar->receiver, refit_sidecar_wake, sidecar);
        if (start_catch_up(sidecar, &passage->err) || announce(sidecar, &passage->err))
            refit_sidecar_fail(sidecar, &passage->err);
        refit_sidecar_wake(sidecar);
    }
    free(passage);
}

static void run_close(struct refit_job *job)
{
    struct refit_driver *driver = ((struct passage *)job)->sidecar->driver;
    struct refit_catch_up *catch_up = ((struct passage *)job)->sidecar->catch_up;
    ((struct passage *)job)->sidecar->catch_up = NULL; /* looked at only while there is a receiver */
    refit_catch_up_stop(catch_up);
    if (driver)
        refit_driver_stop(driver);
    refit_receiver_close(((struct passage *)job)->receiver);
}

static void finish_close(struct refit_job *job)
{
    struct passage *passage = (struct passage *)job;
    event_base_loopbreak(passage->sidecar->base);
    free(passage);
}

static enum refit_status submit_passage(struct refit_sidecar *sidecar, void (*run)(struct refit_job *),
                                        void (*done)(struct refit_job *), struct refit_receiver *receiver)
{
    struct passage *passage = calloc(1, sizeof *passage);
    if (!passage)
        return REFIT_NO_MEMORY;
    passage->job = (struct refit_job){.run = run, .done = done};
    passage->sidecar = sidecar;
    passage->receiver = receiver;
    refit_workers_submit(sidecar->workers, &passage->job);
    return REFIT_OK;
}

static void close_receiver(struct refit_sidecar *sidecar, struct refit_receiver *receiver)
{
    if (submit_passage(sidecar, run_close, finish_close, receiver))
        event_base_loopbreak(sidecar->base); /* the process ends anyway; the kernel closes what is open */
}

/* The receiver is closed when no worker uses it any more. */
void refit_sidecar_close_when_free(struct refit_sidecar *sidecar)
{
    struct refit_receiver *receiver = sidecar->leaving;
    if (!receiver || sidecar->in_flight)
        return;
    sidecar->leaving = NULL;
    close_receiver(sidecar, receiver);
}

void refit_sidecar_landed(struct refit_sidecar *sidecar)
{
    sidecar->in_flight--;
    refit_sidecar_close_when_free(sidecar);
}

enum refit_status refit_sidecar_open(struct refit_sidecar *sidecar, struct refit_error *err)
{
    return submit_passage(sidecar, run_open, finish_open, NULL)
               ? refit_fail_alloc(err, "the receiver", sizeof(struct passage))
               : REFIT_OK;
}
