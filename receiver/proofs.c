/* SPDX-License-Identifier: Apache-2.0 */
#include "receiver/proofs.h"

#include <stdio.h>
#include <string.h>

#include "receiver/quarantine.h"

static struct refit_proof *find(struct refit_proofs *proofs, uint64_t version, const char *digest)
{
    for (uint32_t i = 0; i < proofs->count; i++)
        if (proofs->items[i].version == version && strcmp(proofs->items[i].digest, digest) == 0)
            return &proofs->items[i];
    return NULL;
}

void refit_proofs_add(struct refit_proofs *proofs, uint64_t version, const char *digest, const char *model)
{
    struct refit_proof *proof = find(proofs, version, digest);
    if (!proof && proofs->count == REFIT_PROOFS_MAX) {
        proofs->count--;
        memmove(&proofs->items[0], &proofs->items[1], proofs->count * sizeof proofs->items[0]);
    }
    if (!proof)
        proof = &proofs->items[proofs->count++];
    proof->version = version;
    snprintf(proof->digest, sizeof proof->digest, "%s", digest);
    snprintf(proof->model, sizeof proof->model, "%s", model);
}

const char *refit_proofs_find(const struct refit_proofs *proofs, uint64_t version, const char *digest)
{
    for (uint32_t i = 0; i < proofs->count; i++)
        if (proofs->items[i].version == version && strcmp(proofs->items[i].digest, digest) == 0)
            return proofs->items[i].model;
    return "";
}

json_t *refit_proofs_json(const struct refit_proofs *proofs)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < proofs->count; i++) {
        const struct refit_proof *proof = &proofs->items[i];
        json_array_append_new(list, json_pack("{s:o, s:s, s:s}", "version", refit_json_u64(proof->version), "digest",
                                              proof->digest, "model", proof->model));
    }
    return list;
}

static enum refit_status read_proof(struct refit_proofs *proofs, const json_t *json, struct refit_error *err)
{
    uint64_t version = 0;
    const char *digest = "", *model = "";
    enum refit_status status = refit_json_get_u64(json, "version", "proved", &version, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(json, "digest", "proved", &digest, err);
    if (status == REFIT_OK)
        status = refit_json_get_string(json, "model", "proved", &model, err);
    if (status == REFIT_OK && (!refit_is_sha256_hex(digest) || !refit_is_sha256_hex(model)))
        status = refit_fail(err, REFIT_INVALID, "proved: \"digest\" and \"model\" must be 64 lower-case hex digits");
    if (status == REFIT_OK)
        refit_proofs_add(proofs, version, digest, model);
    return status;
}

enum refit_status refit_proofs_read(struct refit_proofs *proofs, const json_t *json, struct refit_error *err)
{
    enum refit_status status = REFIT_OK;
    size_t i;
    const json_t *item;
    if (json && !json_is_array(json))
        return refit_fail(err, REFIT_INVALID, "\"proved\" must be an array");
    json_array_foreach(json, i, item)
        if (status == REFIT_OK)
            status = read_proof(proofs, item, err);
    return status;
}
