/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/page.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Made from sidecar/page/ by cmake/embed.cmake. */
extern const unsigned char refit_page_html[], refit_page_css[], refit_page_js[];
extern const unsigned long refit_page_html_len, refit_page_css_len, refit_page_js_len;

#define SHA256_BYTES 32
#define SHA256_BASE64_MAX 48

/* --- values ------------------------------------------------------------------------------------------------------ */

static void put_escaped(struct refit_buf *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&': refit_buf_printf(out, "&amp;"); break;
        case '<': refit_buf_printf(out, "&lt;"); break;
        case '>': refit_buf_printf(out, "&gt;"); break;
        case '"': refit_buf_printf(out, "&quot;"); break;
        case '\'': refit_buf_printf(out, "&#39;"); break;
        default: refit_buf_append_u8(out, (uint8_t)*text);
        }
    }
}

static void put_or_dash(struct refit_buf *out, const char *text)
{
    put_escaped(out, text[0] ? text : "–");
}

static const struct refit_bank_slot *served(const struct refit_health_view *view)
{
    const struct refit_bank_snapshot *bank = view->receiver ? &view->receiver->bank : NULL;
    return bank && bank->active < bank->slots ? &bank->slot[bank->active] : NULL;
}

static void put_version(const struct refit_health_view *view, struct refit_buf *out)
{
    if (served(view))
        refit_buf_printf(out, "%" PRIu64, served(view)->version.version);
    else
        refit_buf_printf(out, "none");
}

static void put_label(const struct refit_health_view *view, struct refit_buf *out)
{
    put_or_dash(out, served(view) ? served(view)->version.label : "");
}

static void put_digest(const struct refit_health_view *view, struct refit_buf *out)
{
    put_or_dash(out, served(view) ? served(view)->version.digest : "");
}

static void put_layout(const struct refit_health_view *view, struct refit_buf *out)
{
    put_escaped(out, view->receiver && view->receiver->layout[0] ? view->receiver->layout : "not known yet");
}

static void put_instance(const struct refit_health_view *view, struct refit_buf *out)
{
    put_or_dash(out, view->receiver ? view->receiver->instance : "");
}

static void put_software(const struct refit_health_view *view, struct refit_buf *out)
{
    put_escaped(out, view->software);
}

static void put_since(const struct refit_health_view *view, struct refit_buf *out)
{
    char text[32] = "";
    struct tm utc;
    time_t seconds = served(view) ? (time_t)(served(view)->since_ms / 1000) : 0;
    if (seconds && gmtime_r(&seconds, &utc))
        strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &utc);
    put_or_dash(out, text);
}

static void put_model(const struct refit_health_view *view, struct refit_buf *out)
{
    if (view->receiver && view->receiver->model_bytes)
        refit_buf_printf(out, "%" PRIu64 " bytes", view->receiver->model_bytes);
    else
        put_or_dash(out, "");
}

static void put_memory(const struct refit_health_view *view, struct refit_buf *out)
{
    const struct refit_bank_snapshot *bank = view->receiver ? &view->receiver->bank : NULL;
    const char *before = ": device ";
    put_or_dash(out, bank ? refit_health_memory_name(bank) : "");
    for (uint32_t i = 0; bank && i < bank->ranks && i < sizeof bank->rank / sizeof bank->rank[0]; i++) {
        bool known = bank->rank[i].device < 0;
        for (uint32_t k = 0; k < i; k++)
            known = known || bank->rank[k].device == bank->rank[i].device;
        if (known)
            continue;
        refit_buf_printf(out, "%s%d", before, bank->rank[i].device);
        before = ", ";
    }
}

static void put_rollback(const struct refit_health_view *view, struct refit_buf *out)
{
    if (!view->receiver || !view->receiver->bank.rollback_available)
        refit_buf_printf(out, "not available");
    else
        refit_buf_printf(out, "to version %" PRIu64, view->receiver->bank.rollback_version);
    if (view->receiver && view->receiver->held)
        refit_buf_printf(out, " (held: nothing newer is installed)");
}

static void put_ready(const struct refit_health_view *view, struct refit_buf *out)
{
    struct refit_health_verdict verdict = refit_health_ready(view);
    json_decref(verdict.body);
    refit_buf_printf(out, "%s", verdict.ok ? "ok" : "unavailable");
}

static void put_ready_text(const struct refit_health_view *view, struct refit_buf *out)
{
    struct refit_health_verdict verdict = refit_health_ready(view);
    size_t i;
    json_t *reason;
    refit_buf_printf(out, verdict.ok ? "Ready" : "Not ready");
    json_array_foreach(json_object_get(verdict.body, "reasons"), i, reason)
    {
        refit_buf_printf(out, i ? "; " : ": ");
        put_escaped(out, json_string_value(reason));
    }
    json_decref(verdict.body);
}

static void put_refit(const struct refit_health_view *view, struct refit_buf *out)
{
    const struct refit_session_snapshot *session = view->session;
    if (!session) {
        refit_buf_printf(out, "None since refitd was started.");
        return;
    }
    refit_buf_printf(out, "%s: version %" PRIu64 ", %s, %" PRIu64 " of %" PRIu64 " bytes",
                     refit_health_is_terminal(session->phase) ? "Last" : "Running", session->version,
                     refit_phase_name(session->phase), session->bytes_done, session->bytes_due);
    if (session->phase == REFIT_PHASE_ABORTED) {
        refit_buf_printf(out, ": ");
        put_escaped(out, session->error.text);
    }
}

static void put_style(const struct refit_health_view *view, struct refit_buf *out)
{
    (void)view;
    refit_buf_append(out, refit_page_css, refit_page_css_len);
}

static void put_script(const struct refit_health_view *view, struct refit_buf *out)
{
    (void)view;
    refit_buf_append(out, refit_page_js, refit_page_js_len);
}

/* --- the document ------------------------------------------------------------------------------------------------ */

/* What "{{name}}" in the document stands for. */
static const struct {
    const char *name;
    void (*put)(const struct refit_health_view *view, struct refit_buf *out);
} marks[] = {
    {"version", put_version},   {"label", put_label},       {"digest", put_digest},       {"layout", put_layout},
    {"since", put_since},       {"model", put_model},       {"memory", put_memory},       {"rollback", put_rollback},
    {"ready", put_ready},       {"refit", put_refit},       {"style", put_style},         {"ready_text", put_ready_text},
    {"instance", put_instance}, {"script", put_script},     {"software", put_software},
};

static void put_mark(const struct refit_health_view *view, const char *name, size_t len, struct refit_buf *out)
{
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strlen(marks[i].name) == len && memcmp(marks[i].name, name, len) == 0)
            marks[i].put(view, out);
}

bool refit_page_render(const struct refit_health_view *view, struct refit_buf *out)
{
    const char *at = (const char *)refit_page_html, *end = at + refit_page_html_len;
    while (at < end) {
        const char *open = memmem(at, (size_t)(end - at), "{{", 2);
        const char *close = open ? memmem(open, (size_t)(end - open), "}}", 2) : NULL;
        if (!close)
            break;
        refit_buf_append(out, at, (size_t)(open - at));
        put_mark(view, open + 2, (size_t)(close - open) - 2, out);
        at = close + 2;
    }
    refit_buf_append(out, at, (size_t)(end - at));
    return !out->failed;
}

static void sha256_base64(const unsigned char *data, size_t len, char out[static SHA256_BASE64_MAX])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned digest_len = 0;
    out[0] = '\0';
    if (EVP_Digest(data, len, digest, &digest_len, EVP_sha256(), NULL) == 1 && digest_len == SHA256_BYTES)
        EVP_EncodeBlock((unsigned char *)out, digest, SHA256_BYTES);
}

void refit_page_policy(char out[static REFIT_PAGE_POLICY_MAX])
{
    char style[SHA256_BASE64_MAX], script[SHA256_BASE64_MAX];
    sha256_base64(refit_page_css, refit_page_css_len, style);
    sha256_base64(refit_page_js, refit_page_js_len, script);
    snprintf(out, REFIT_PAGE_POLICY_MAX,
             "default-src 'none'; style-src 'sha256-%s'; script-src 'sha256-%s'; connect-src 'self'; img-src data:; "
             "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
             style, script);
}
