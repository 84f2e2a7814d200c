/* SPDX-License-Identifier: Apache-2.0
 *
 * The page of GET /: one HTML document with its style and script inside (sidecar/page/), made for a browser that may load
 * nothing else. What matters most stands in it when it is sent; the script follows GET /status from there.
 */
#ifndef REFIT_SIDECAR_PAGE_H
#define REFIT_SIDECAR_PAGE_H

#include "base/buf.h"
#include "health/health.h"

/* False when out of memory. */
bool refit_page_render(const struct refit_health_view *view, struct refit_buf *out);

/* The value of Content-Security-Policy: nothing but the two inline parts, by their digests, and requests to ourselves. */
#define REFIT_PAGE_POLICY_MAX 384
void refit_page_policy(char out[static REFIT_PAGE_POLICY_MAX]);

#endif
