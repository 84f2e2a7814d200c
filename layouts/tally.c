/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "layouts/tally.h"

#define NAMES_BYTES_MAX ((size_t)1 << 31)
/* " dtype d0,...,d7 hex\n" */
#define FACTS_MAX (16 + REFIT_DIMS_MAX * 21 + REFIT_DIGEST_HEX_MAX + 4)

struct accumulator {
    _Atomic uint64_t d[2];
};

struct refit_tally {
    uint32_t tensors;
    struct accumulator sums[];
};

struct refit_tally *refit_tally_create(uint32_t tensors)
{
    struct refit_tally *tally = calloc(1, sizeof(*tally) + (size_t)tensors * sizeof(tally->sums[0]));
    if (tally) {
        tally->tensors = tensors;
    }
    return tally;
}

void refit_tally_destroy(struct refit_tally *tally)
{
    free(tally);
}

void refit_tally_add(struct refit_tally *tally, uint32_t tensor, struct refit_digest part)
{
    struct accumulator *sum = &tally->sums[tensor];
    atomic_fetch_add_explicit(&sum->d[0], part.d[0], memory_order_relaxed);
    atomic_fetch_add_explicit(&sum->d[1], part.d[1], memory_order_relaxed);
}

struct refit_digest refit_tally_get(const struct refit_tally *tally, uint32_t tensor)
{
    const struct accumulator *sum = &tally->sums[tensor];
    return (struct refit_digest){{
        atomic_load_explicit(&sum->d[0], memory_order_relaxed),
        atomic_load_explicit(&sum->d[1], memory_order_relaxed),
    }};
}

uint32_t refit_tally_count(const struct refit_tally *tally)
{
    return tally->tensors;
}

char *refit_tally_hex(const struct refit_tally *tally)
{
    const size_t width = REFIT_DIGEST_HEX_MAX - 1;
    char *text = malloc(tally->tensors * width + 1);
    if (text) {
        text[0] = '\0';
    }
    for (uint32_t i = 0; text && i < tally->tensors; i++) {
        char hex[REFIT_DIGEST_HEX_MAX];
        refit_digest_hex(refit_tally_get(tally, i), hex);
        memcpy(text + i * width, hex, sizeof(hex));
    }
    return text;
}

static uint64_t read_hex(const char *text)
{
    uint64_t value = 0;
    for (int i = 0; i < 16; i++) {
        value = value << 4 | (uint64_t)(text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10);
    }
    return value;
}

bool refit_tally_add_hex(struct refit_tally *sum, const char *text, size_t len)
{
    const size_t width = REFIT_DIGEST_HEX_MAX - 1;
    if (len != sum->tensors * width || strspn(text, "0123456789abcdef") != len) {
        return false;
    }
    for (uint32_t i = 0; i < sum->tensors; i++, text += width) {
        refit_tally_add(sum, i, (struct refit_digest){{read_hex(text), read_hex(text + 16)}});
    }
    return true;
}

/* Names end to end, and where each begins: 45,000 expert tensors take 3 MB. */
struct name_key {
    uint32_t offset;
    uint32_t tensor;
};

struct names {
    struct refit_buf text;
    struct name_key *keys;
};

static int by_name(const void *a, const void *b, void *text)
{
    const char *x = (const char *)text + ((const struct name_key *)a)->offset;
    const char *y = (const char *)text + ((const struct name_key *)b)->offset;
    return strcmp(x, y);
}

static enum refit_status names_sort(struct names *names, const struct refit_layout *layout, uint32_t count,
                                    struct refit_error *err)
{
    refit_buf_init(&names->text, NAMES_BYTES_MAX);
    names->keys = calloc(count ? count : 1, sizeof(*names->keys));
    if (!names->keys) {
        return refit_fail_alloc(err, "the model digest's name index", count * sizeof(*names->keys));
    }
    for (uint32_t id = 0; id < count; id++) {
        struct refit_tensor tensor;
        refit_layout_tensor(layout, id, &tensor);
        names->keys[id] = (struct name_key){.offset = (uint32_t)names->text.len, .tensor = id};
        if (!refit_buf_append(&names->text, tensor.name, strlen(tensor.name) + 1)) {
            return refit_fail_alloc(err, "the model digest's names", names->text.len);
        }
    }
    qsort_r(names->keys, count, sizeof(*names->keys), by_name, names->text.data);
    return REFIT_OK;
}

static void names_release(struct names *names)
{
    refit_buf_release(&names->text);
    free(names->keys);
}

/* What follows the name in a tensor's line; returns its length. */
static size_t facts_format(char text[static FACTS_MAX], const struct refit_tensor *tensor, struct refit_digest digest)
{
    char hex[REFIT_DIGEST_HEX_MAX];
    size_t len = (size_t)snprintf(text, FACTS_MAX, " %s ", refit_dtype_name(tensor->dtype));
    for (uint32_t d = 0; d < tensor->dims; d++) {
        len += (size_t)snprintf(text + len, FACTS_MAX - len, "%s%" PRId64, d ? "," : "", tensor->shape[d]);
    }
    refit_digest_hex(digest, hex);
    return len + (size_t)snprintf(text + len, FACTS_MAX - len, " %s\n", hex);
}

static bool hash_lines(EVP_MD_CTX *hash, const struct refit_layout *layout, const struct refit_tally *tally,
                       const struct names *names)
{
    for (uint32_t i = 0; i < tally->tensors; i++) {
        const uint32_t id = names->keys[i].tensor;
        struct refit_tensor tensor;
        char facts[FACTS_MAX];
        refit_layout_tensor(layout, id, &tensor);
        const size_t len = facts_format(facts, &tensor, refit_tally_get(tally, id));
        if (!EVP_DigestUpdate(hash, tensor.name, strlen(tensor.name)) || !EVP_DigestUpdate(hash, facts, len)) {
            return false;
        }
    }
    return true;
}

static bool hash_model(const struct refit_layout *layout, const struct refit_tally *tally, const struct names *names,
                       const char *profile, uint8_t out[static EVP_MAX_MD_SIZE])
{
    static const char title[] = "refit-model/1 ";
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    const bool ok = hash && EVP_DigestInit_ex(hash, EVP_sha256(), NULL)
                    && EVP_DigestUpdate(hash, title, sizeof(title) - 1)
                    && EVP_DigestUpdate(hash, profile, strlen(profile)) && EVP_DigestUpdate(hash, "\n", 1)
                    && hash_lines(hash, layout, tally, names) && EVP_DigestFinal_ex(hash, out, NULL);
    EVP_MD_CTX_free(hash);
    return ok;
}

enum refit_status refit_model_digest(const struct refit_layout *layout, const struct refit_tally *tally,
                                     const char *profile, char hex[static REFIT_SHA256_HEX_MAX],
                                     struct refit_error *err)
{
    const uint32_t count = refit_layout_tensor_count(layout);
    struct names names = {.keys = NULL};
    uint8_t sha[EVP_MAX_MD_SIZE];
    if (count != tally->tensors) {
        return refit_fail(err, REFIT_INVALID, "the tally has %u tensors and its layout %u: make it from that layout",
                          tally->tensors, count);
    }
    enum refit_status status = names_sort(&names, layout, count, err);
    if (status == REFIT_OK && !hash_model(layout, tally, &names, profile, sha)) {
        status = refit_fail(err, REFIT_SYSTEM, "libcrypto has no SHA-256: the model's digest can't be computed");
    }
    names_release(&names);
    for (size_t i = 0; status == REFIT_OK && i < (REFIT_SHA256_HEX_MAX - 1) / 2; i++) {
        (void)snprintf(hex + 2 * i, 3, "%02x", sha[i]);
    }
    return status;
}
