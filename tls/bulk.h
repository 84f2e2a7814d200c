/* SPDX-License-Identifier: Apache-2.0
 *
 * What follows the handshake of a TLS 1.3 connection, without OpenSSL's record layer, which copies every byte twice:
 * when OpenSSL has shaken hands its traffic secrets are taken, and records go from the caller's memory into the socket's
 * buffer, and back, in one pass. On the wire it is the same TLS 1.3. (Internal to tls/; why: docs/tls.md.)
 *
 * Application data, KeyUpdate (both ways, asked for or not), close_notify and other alerts. A client skips session
 * tickets. Any other message, and one that is cut over two records, ends the connection with an alert.
 *
 * The functions are the stream's (stream.h). When they fail, the report says why, or errno; neither: the peer closed
 * without a word.
 */
#ifndef REFIT_TLS_BULK_H
#define REFIT_TLS_BULK_H

#include "tls/record.h"
#include "tls/secrets.h"
#include "tls/socket.h"
#include "tls/stream.h"

struct refit_tls_bulk;
struct refit_tls_bulk_config {
    enum refit_tls_end end;
    uint16_t suite; /* as in the handshake */
    uint64_t records_per_key;
    struct refit_tls_socket *socket; /* borrowed; what is ahead begins with a record under the first traffic secret */
    struct refit_tls_report *report; /* borrowed */
};
/* NULL: this suite or these secrets are none, or no memory. The secrets are copied. */
struct refit_tls_bulk *refit_tls_bulk_open(const struct refit_tls_bulk_config *config,
                                           const struct refit_tls_secrets *secrets);
void refit_tls_bulk_free(struct refit_tls_bulk *bulk); /* NULL is fine */

/* `data` up to `len` may be written to even where *done is less: bytes there are whatever they were made. */
enum refit_tls_step refit_tls_bulk_read(struct refit_tls_bulk *bulk, void *data, size_t len, size_t *done);
enum refit_tls_step refit_tls_bulk_write(struct refit_tls_bulk *bulk, const struct iovec *iov, size_t count, bool more,
                                         size_t *done);
enum refit_tls_step refit_tls_bulk_flush(struct refit_tls_bulk *bulk);
enum refit_tls_step refit_tls_bulk_shutdown(struct refit_tls_bulk *bulk);

bool refit_tls_bulk_holds(const struct refit_tls_bulk *bulk); /* bytes of a record that the last read had no room for */
uint64_t refit_tls_bulk_key_updates(const struct refit_tls_bulk *bulk);

#endif
