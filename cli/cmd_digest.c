/* SPDX-License-Identifier: Apache-2.0
 *
 * The digest of a checkpoint as a replica reports it, so that anyone can compare a file with what a pod serves.
 */
#include <stdio.h>

#include "checkpoint/checkpoint.h"
#include "cli/commands.h"
#include "cli/remote.h"

struct digest_options {
    const char *checkpoint, *like, *layout;
    uint64_t threads;
    bool tensors, json;
};

/* The layout whose tensors count; *out NULL: the checkpoint's own. */
static enum refit_status wanted_layout(const struct digest_options *o, struct refit_layout **out, struct refit_error *err)
{
    *out = NULL;
    if (!o->like && !o->layout)
        return REFIT_OK;
    return refit_cli_layout(o->like ? NULL : o->layout, o->like, out, err);
}

/* The model digest over the tensors of `wanted`, whose digests come from the checkpoint's. */
static enum refit_status digest_of_subset(const struct refit_layout *wanted, const struct refit_layout *have,
                                          const struct refit_tally *from, char hex[static REFIT_SHA256_HEX_MAX],
                                          struct refit_error *err)
{
    struct refit_tally *tally = refit_tally_create(refit_layout_tensor_count(wanted));
    if (!tally)
        return refit_fail_alloc(err, "tensor digests", refit_layout_tensor_count(wanted) * sizeof(struct refit_digest));
    enum refit_status status = REFIT_OK;
    for (uint32_t id = 0; status == REFIT_OK && id < refit_layout_tensor_count(wanted); id++) {
        struct refit_tensor tensor;
        uint32_t source;
        refit_layout_tensor(wanted, id, &tensor);
        if (refit_layout_find(have, tensor.name, &source))
            refit_tally_add(tally, id, refit_tally_get(from, source));
        else
            status = refit_fail(err, REFIT_NOT_FOUND, "the checkpoint lacks %s, which the layout has", tensor.name);
    }
    if (status == REFIT_OK)
        status = refit_model_digest(wanted, tally, "exact", hex, err);
    refit_tally_destroy(tally);
    return status;
}

/* As sha256sum writes, or one document. */
static void print_digests(const struct digest_options *o, const struct refit_layout *layout, const struct refit_tally *tally,
                          const char *model)
{
    json_t *list = json_array();
    for (uint32_t id = 0; o->tensors && id < refit_layout_tensor_count(layout); id++) {
        struct refit_tensor tensor;
        char hex[REFIT_DIGEST_HEX_MAX];
        refit_layout_tensor(layout, id, &tensor);
        refit_digest_hex(refit_tally_get(tally, id), hex);
        json_array_append_new(list, json_pack("{s:s, s:s}", "tensor", tensor.name, "digest", hex));
        if (!o->json)
            printf("%s  %s\n", hex, tensor.name);
    }
    json_t *root = json_pack("{s:s, s:s}", "checkpoint", o->checkpoint, "digest", model);
    if (o->tensors)
        json_object_set(root, "tensors", list);
    if (o->json)
        refit_cli_print_json(json_incref(root));
    else
        printf("%s  %s\n", model, o->checkpoint);
    json_decref(root);
    json_decref(list);
}

static enum refit_status digest(const struct digest_options *o, const struct refit_checkpoint *checkpoint, struct refit_error *err)
{
    struct refit_layout *wanted;
    struct refit_tally *tally = NULL;
    char hex[REFIT_SHA256_HEX_MAX];
    enum refit_status status = wanted_layout(o, &wanted, err);
    if (status == REFIT_OK)
        status = refit_checkpoint_digest(checkpoint, (unsigned)o->threads, &tally, hex, err);
    if (status == REFIT_OK && wanted)
        status = digest_of_subset(wanted, refit_checkpoint_layout(checkpoint), tally, hex, err);
    if (status == REFIT_OK)
        print_digests(o, refit_checkpoint_layout(checkpoint), tally, hex);
    refit_tally_destroy(tally);
    refit_layout_release(wanted);
    return status;
}

static int run_digest(const struct digest_options *o)
{
    struct refit_error err;
    struct refit_checkpoint *checkpoint;
    enum refit_status status = refit_checkpoint_open(o->checkpoint, &checkpoint, &err);
    if (status == REFIT_OK) {
        status = digest(o, checkpoint, &err);
        refit_checkpoint_close(checkpoint);
    }
    if (status != REFIT_OK)
        fprintf(stderr, "refit digest: %s (%s)\n", err.text, refit_status_action(status));
    return status == REFIT_OK ? REFIT_EXIT_OK : REFIT_EXIT_FAILED;
}

static int run(const struct refit_cli_command *self, int argc, char **argv)
{
    struct refit_cli_list words = {0};
    struct digest_options o = {.threads = 2};
    const struct refit_cli_option options[] = {
        {"like", REFIT_CLI_TEXT, "URL", "count only the tensors that this replica serves", &o.like, false},
        {"layout", REFIT_CLI_TEXT, "FILE", "count only the tensors of a layout document", &o.layout, false},
        {"tensors", REFIT_CLI_FLAG, NULL, "the digest of each tensor, too", &o.tensors, false},
        {"threads", REFIT_CLI_COUNT, "N", "that read (2)", &o.threads, false},
        {"output", REFIT_CLI_OUTPUT, "FORMAT", "json or text", &o.json, false},
        {0}};
    int rc = refit_cli_parse(self, options, argc, argv, &words, 1, 1);
    if (rc == REFIT_EXIT_PARSED) {
        o.checkpoint = words.items[0];
        rc = run_digest(&o);
    }
    refit_cli_list_release(&words);
    return rc;
}

const struct refit_cli_command refit_cli_digest = {
    .name = "digest", .arguments = "CHECKPOINT", .summary = "the digest of a checkpoint, as replicas report it",
    .examples = "  refit digest model.safetensors\n  refit digest runs/step-8 --like http://10.0.0.7:7070\n", .run = run};
