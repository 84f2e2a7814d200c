/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for a trainer: N ranks, each holding its FSDP shard (Shard(0), as fully_shard cuts) of a checkpoint, which
 * publish it to replicas through librefit-sender. One process per rank; rank 0 leads.
 *
 *   refit-example-trainer --checkpoint FILE --rank R --ranks N --lead HOST:PORT --version V URL...
 */
#include <getopt.h>
#include <jansson.h>
#include <refit/sender.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/safetensors.h"

struct options {
    const char *checkpoint, *lead, *label, *transport;
    uint64_t version;
    int rank, ranks;
    const char *const *to;
    int to_count;
};

struct shards {
    struct refit_sender_buffer *buffers;
    size_t count;
};

/* Rows of `tensor` that this rank holds: chunks of ceil(rows / ranks), the tail gets less or nothing. */
static void local_rows(const struct st_tensor *tensor, const struct options *o, int64_t *first, int64_t *rows)
{
    int64_t all = tensor->dims ? tensor->shape[0] : 1, chunk = (all + o->ranks - 1) / o->ranks;
    *first = o->rank * chunk < all ? o->rank * chunk : all;
    *rows = all - *first < chunk ? all - *first : chunk;
}

static int load_shard(struct refit_sender *sender, const struct st_file *file, const struct st_tensor *tensor,
                      const struct options *o, struct shards *shards)
{
    struct refit_error err;
    int64_t first, rows;
    local_rows(tensor, o, &first, &rows);
    if (rows == 0)
        return 0;
    uint64_t row_bytes = tensor->bytes / (uint64_t)(tensor->dims ? tensor->shape[0] : 1);
    void *memory = NULL;
    size_t bytes = (size_t)((uint64_t)rows * row_bytes);
    if (refit_sender_alloc(sender, bytes, &memory, &err) != REFIT_OK) {
        fprintf(stderr, "trainer: %s\n", err.text);
        return -1;
    }
    shards->buffers[shards->count++] = (struct refit_sender_buffer){.name = tensor->name, .data = memory, .bytes = bytes};
    return st_read(file, tensor, (uint64_t)first * row_bytes, memory, bytes);
}

static char *make_layout(const struct st_file *file, int ranks)
{
    json_t *entries = json_array();
    for (size_t i = 0; i < file->count; i++) {
        const struct st_tensor *t = &file->tensors[i];
        json_t *shape = json_array();
        for (int d = 0; d < t->dims; d++)
            json_array_append_new(shape, json_integer(t->shape[d]));
        json_array_append_new(entries, json_pack("{s:s, s:s, s:o, s:s, s:[s]}", "tensor", t->name, "dtype", t->dtype, "shape",
                                                 shape, "mesh", "fsdp", "placements", t->dims ? "Shard(0)" : "Replicate"));
    }
    json_t *document = json_pack("{s:s, s:i, s:{s:{s:[s], s:[i]}}, s:o}", "format", "refit-layout/1", "ranks", ranks,
                                 "meshes", "fsdp", "axes", "fsdp", "shape", ranks, "entries", entries);
    char *text = json_dumps(document, JSON_COMPACT);
    json_decref(document);
    return text;
}

static int register_shards(struct refit_sender *sender, const struct options *o, struct shards *shards)
{
    struct st_file file;
    struct refit_error err;
    if (st_open(&file, o->checkpoint) != 0)
        return -1;
    shards->buffers = calloc(file.count + 1, sizeof *shards->buffers);
    char *layout = make_layout(&file, o->ranks);
    int rc = shards->buffers && layout ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < file.count; i++)
        rc = load_shard(sender, &file, &file.tensors[i], o, shards);
    if (rc == 0 && refit_sender_register(sender, layout, strlen(layout), shards->buffers, shards->count, &err) != REFIT_OK) {
        fprintf(stderr, "trainer: register: %s\n", err.text);
        rc = -1;
    }
    free(layout);
    st_close(&file);
    return rc;
}

static void print_json(const struct refit_report *report)
{
    json_t *replicas = json_array();
    for (size_t i = 0; i < report->replica_count; i++) {
        const struct refit_replica_report *r = &report->replicas[i];
        json_array_append_new(
            replicas, json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "url", r->url,
                                "outcome", refit_outcome_name(r->outcome), "digest", r->digest, "transport", r->transport,
                                "bytes_needed", (json_int_t)r->bytes_needed, "bytes_moved", (json_int_t)r->bytes_moved,
                                "wire_bytes", (json_int_t)r->wire_bytes, "seconds", r->seconds, "plan_s", r->plan_s,
                                "wait_readers_s", r->wait_readers_s, "transfer_s", r->transfer_s, "verify_s", r->verify_s,
                                "prepare_s", r->prepare_s, "staged_s", r->staged_s, "swap_s", r->swap_s));
    }
    json_t *root = json_pack("{s:I, s:s, s:f, s:f, s:o}", "version", (json_int_t)report->version, "digest", report->digest,
                             "seconds", report->seconds, "sources_free_s", report->sources_free_s, "replicas", replicas);
    json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(root);
}

static int publish(struct refit_sender *sender, const struct options *o)
{
    struct refit_error err;
    struct refit_report report;
    struct refit_publish request = {.version = o->version, .label = o->label, .deadline_ms = 60000, .check_source = 1};
    enum refit_status status = refit_sender_publish(sender, &request, &report, &err);
    if (status != REFIT_OK)
        fprintf(stderr, "trainer: publish: %s\n", err.text);
    else if (o->rank == 0)
        print_json(&report);
    return status == REFIT_OK ? 0 : -1;
}

static int usage(const char *program)
{
    fprintf(stderr, "usage: %s --checkpoint FILE --version V [--rank R --ranks N --lead HOST:PORT] [--label TEXT]\n"
                    "          [--transport auto|tcp|local] URL...\n", program);
    return 2;
}

static int parse(int argc, char **argv, struct options *o)
{
    enum { CHECKPOINT = 1, RANK, RANKS, LEAD, VERSION, LABEL, TRANSPORT };
    static const struct option known[] = {
        {"checkpoint", 1, NULL, CHECKPOINT}, {"rank", 1, NULL, RANK}, {"ranks", 1, NULL, RANKS}, {"lead", 1, NULL, LEAD},
        {"version", 1, NULL, VERSION}, {"label", 1, NULL, LABEL}, {"transport", 1, NULL, TRANSPORT}, {0}};
    *o = (struct options){.ranks = 1};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (c) {
        case CHECKPOINT: o->checkpoint = optarg; break;
        case RANK: o->rank = atoi(optarg); break;
        case RANKS: o->ranks = atoi(optarg); break;
        case LEAD: o->lead = optarg; break;
        case VERSION: o->version = strtoull(optarg, NULL, 10); break;
        case LABEL: o->label = optarg; break;
        case TRANSPORT: o->transport = optarg; break;
        default: return -1;
        }
    }
    o->to = (const char *const *)(argv + optind);
    o->to_count = argc - optind;
    return !o->checkpoint || o->version == 0 || o->ranks < 1 || (o->ranks > 1 && !o->lead) ? -1 : 0;
}

int main(int argc, char **argv)
{
    struct options o;
    struct refit_error err;
    struct refit_sender *sender;
    struct shards shards = {0};
    if (parse(argc, argv, &o) != 0)
        return usage(argv[0]);
    struct refit_sender_config config = {.rank = (uint32_t)o.rank, .ranks = (uint32_t)o.ranks, .lead_address = o.lead,
                                         .replicas = o.to, .replica_count = (size_t)o.to_count, .name = "example-trainer",
                                         .transport = o.transport};
    if (refit_sender_open(&config, &sender, &err) != REFIT_OK) {
        fprintf(stderr, "trainer: open: %s\n", err.text);
        return 1;
    }
    int rc = register_shards(sender, &o, &shards);
    if (rc == 0)
        rc = publish(sender, &o);
    refit_sender_close(sender);
    free(shards.buffers);
    return rc == 0 ? 0 : 1;
}
