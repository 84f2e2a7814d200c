/* SPDX-License-Identifier: Apache-2.0
 *
 * A relay between holders and a listener on loopback: counts what crosses the sockets, and can change or cut it.
 */
#ifndef REFIT_TESTS_TRANSPORT_RELAY_H
#define REFIT_TESTS_TRANSPORT_RELAY_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct relay;

/* Sees each read from a holder before it is passed on: `before` bytes of that connection went before. It may change the
 * bytes; it returns how many of them to pass on, and fewer than `len` cuts the connection there. NULL: all. */
typedef size_t (*relay_hook)(void *ctx, uint64_t before, uint8_t *data, size_t len);

struct relay *relay_start(uint16_t port, relay_hook hook, void *ctx);
json_t *relay_card(const struct relay *relay); /* new */
/* Ends it; bytes towards the receiver and towards the holders. */
void relay_stop(struct relay *relay, uint64_t *up, uint64_t *down);

#endif
