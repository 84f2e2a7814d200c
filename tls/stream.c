/* SPDX-License-Identifier: Apache-2.0 */
#include "tls/stream.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "tls/bulk.h"
#include "tls/load.h"

#define RECORD_BYTES REFIT_TLS_CONTENT_MAX

struct refit_tls_stream {
    SSL *ssl;
    struct refit_tls_socket socket; /* its buffers are for records that OpenSSL or `bulk` makes, not the kernel */
    struct refit_tls_bulk *bulk;    /* owned; all that follows the handshake, where it can */
    struct refit_tls_secrets secrets;
    struct refit_tls_report report;
    short wants; /* of the last step */
    uint64_t records_per_key;
    bool failed, direct; /* direct: the kernel may encrypt, so records go straight to the socket */
    char *packed; /* small pieces on their way into one record; made when first needed */
    uint64_t records, key_updates; /* sent under the current key; how often it was replaced */
    char *held;   /* a record that OpenSSL could not get rid of: it wants the same bytes again */
    size_t held_len;
};

/* --- records to the socket -------------------------------------------------------------------------------------- */

/* One send for many records: OpenSSL writes one at a time. */
static int bio_write(BIO *bio, const char *data, int len)
{
    struct refit_tls_socket *socket = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (len <= 0)
        return 0;
    if ((size_t)len > REFIT_TLS_UNSENT - socket->unsent_to && !refit_tls_socket_drain(socket, true)) {
        if (refit_tls_would_block(errno))
            BIO_set_retry_write(bio);
        return -1;
    }
    memcpy(socket->unsent + socket->unsent_to, data, (size_t)len);
    socket->unsent_to += (size_t)len;
    return len;
}

/* OpenSSL asks for a header and then for its body: two calls for each record without this. (Its own reading ahead moves
 * all that it has to the front of its buffer for each record.) */
static int bio_read(BIO *bio, char *data, int len)
{
    struct refit_tls_socket *socket = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (len <= 0)
        return 0;
    if (socket->ahead_from == socket->ahead_to) {
        long got = refit_tls_socket_fetch(socket);
        if (got < 0 && refit_tls_would_block(errno))
            BIO_set_retry_read(bio);
        if (got <= 0)
            return (int)got;
    }
    size_t have = socket->ahead_to - socket->ahead_from, take = have < (size_t)len ? have : (size_t)len;
    memcpy(data, socket->ahead + socket->ahead_from, take);
    socket->ahead_from += take;
    return (int)take;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH || command == BIO_CTRL_DUP || command == BIO_CTRL_PUSH || command == BIO_CTRL_POP;
}

static int bio_create(BIO *bio)
{
    BIO_set_init(bio, 1);
    return 1;
}

static BIO_METHOD *method;
static pthread_once_t method_once = PTHREAD_ONCE_INIT;

static void make_method(void)
{
    BIO_METHOD *made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "records");
    if (made && BIO_meth_set_write(made, bio_write) && BIO_meth_set_read(made, bio_read) && BIO_meth_set_ctrl(made, bio_ctrl) &&
        BIO_meth_set_create(made, bio_create))
        method = made;
}

/* Whether this socket could be given to the kernel's TLS; that it was shows only after the handshake. */
static bool kernel_has_tls(int fd)
{
#if !defined(OPENSSL_NO_KTLS) && defined(TCP_ULP)
    char name[16] = "";
    socklen_t len = sizeof name;
    FILE *list = fopen("/proc/sys/net/ipv4/tcp_available_ulp", "re");
    bool there = false;
    while (list && !there && fscanf(list, "%15s", name) == 1)
        there = strcmp(name, "tls") == 0;
    if (list)
        fclose(list);
    return there && getsockopt(fd, IPPROTO_TCP, TCP_ULP, name, &len) == 0;
#else
    (void)fd;
    return false;
#endif
}

static enum refit_status join(struct refit_tls_stream *s, struct refit_error *err)
{
    BIO *bio;
    if (s->direct) {
        bio = BIO_new_socket(s->socket.fd, BIO_NOCLOSE);
    } else {
        pthread_once(&method_once, make_method);
        bio = refit_tls_socket_open(&s->socket, s->socket.fd) && method ? BIO_new(method) : NULL;
        if (bio)
            BIO_set_data(bio, &s->socket);
    }
    if (!bio)
        return refit_fail_alloc(err, "a TLS stream", REFIT_TLS_UNSENT + REFIT_TLS_AHEAD);
    SSL_set_bio(s->ssl, bio, bio);
    return REFIT_OK;
}

enum refit_status refit_tls_stream_open(struct refit_tls *tls, int fd, const char *host, struct refit_tls_stream **out,
                                        struct refit_error *err)
{
    struct refit_tls_stream *s = calloc(1, sizeof *s);
    if (!s)
        return refit_fail_alloc(err, "a TLS stream", sizeof *s);
    s->socket.fd = fd;
    s->records_per_key = refit_tls_records_per_key(tls);
    s->direct = kernel_has_tls(fd);
    enum refit_status status = refit_tls_session(tls, host, &s->report, &s->ssl, err);
    if (status == REFIT_OK)
        status = join(s, err);
    if (status == REFIT_OK)
        refit_tls_secrets_attach(s->ssl, &s->secrets);
    if (status == REFIT_OK)
        *out = s;
    else
        refit_tls_stream_free(s);
    return status;
}

void refit_tls_stream_free(struct refit_tls_stream *s)
{
    if (!s)
        return;
    SSL_free(s->ssl);
    refit_tls_bulk_free(s->bulk);
    refit_tls_socket_release(&s->socket);
    OPENSSL_cleanse(&s->secrets, sizeof s->secrets);
    free(s->packed);
    free(s->held);
    free(s);
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

static enum refit_tls_step fail(struct refit_tls_stream *s, int errnum, const char *what, struct refit_error *err)
{
    char why[512];
    s->failed = true;
    s->wants = 0;
    refit_tls_report_take(&s->report);
    refit_tls_report_text(&s->report, why, sizeof why);
    if (why[0])
        refit_fail(err, REFIT_PEER, "TLS %s: %s", what, why);
    else if (errnum)
        refit_fail(err, REFIT_PEER, "TLS %s: %s", what, strerror(errnum));
    else
        refit_fail(err, REFIT_PEER, "TLS %s: the peer closed the connection without a word", what);
    ERR_clear_error();
    return REFIT_TLS_FAILED;
}

static enum refit_tls_step fail_ssl(struct refit_tls_stream *s, int rc, int errnum, const char *what,
                                    struct refit_error *err)
{
    bool by_system = SSL_get_error(s->ssl, rc) == SSL_ERROR_SYSCALL;
    if (!by_system)
        (void)refit_tls_socket_drain(&s->socket, false); /* an alert that says why may go out */
    return fail(s, by_system ? errnum : 0, what, err);
}

/* What a call to OpenSSL means is asked of this thread's queue too, so it has to be empty before. It mostly is, and
 * clearing it takes longer than looking. */
static void forget_errors(void)
{
    if (ERR_peek_error() != 0)
        ERR_clear_error();
}

/* Gets rid of what waits inside, as far as that goes now. */
static enum refit_tls_step push(struct refit_tls_stream *s, bool more, const char *what, struct refit_error *err)
{
    size_t taken;
    if (s->held_len > 0) {
        ERR_clear_error();
        errno = 0;
        int rc = SSL_write_ex(s->ssl, s->held, s->held_len, &taken);
        if (rc == 1)
            s->held_len = 0;
        else if (SSL_get_error(s->ssl, rc) != SSL_ERROR_WANT_WRITE)
            return fail_ssl(s, rc, errno, what, err);
    }
    if (refit_tls_socket_drain(&s->socket, more) || refit_tls_would_block(errno))
        return REFIT_TLS_DONE;
    return fail(s, errno, what, err);
}

/* What a call to OpenSSL that returned `rc` (<= 0) means. */
static enum refit_tls_step judge(struct refit_tls_stream *s, int rc, int errnum, const char *what, struct refit_error *err)
{
    switch (SSL_get_error(s->ssl, rc)) {
    case SSL_ERROR_WANT_READ: s->wants = POLLIN; break;
    case SSL_ERROR_WANT_WRITE: s->wants = POLLOUT; break;
    case SSL_ERROR_ZERO_RETURN: s->wants = 0; return REFIT_TLS_END;
    default: return fail_ssl(s, rc, errnum, what, err);
    }
    return push(s, false, what, err) == REFIT_TLS_DONE ? REFIT_TLS_AGAIN : REFIT_TLS_FAILED;
}

static bool begin(struct refit_tls_stream *s, struct refit_error *err)
{
    forget_errors();
    errno = 0;
    if (s->failed)
        refit_fail(err, REFIT_PEER, "TLS: the stream has failed before");
    return !s->failed;
}

/* From here on without OpenSSL's records, where their keys are known. At this point it has sent none under a traffic
 * secret (tickets are off), and, since it reads record by record, has taken none from what is ahead. Where it has after
 * all, or speaks TLS 1.2, it goes on. */
static void take_over(struct refit_tls_stream *s)
{
    const struct refit_tls_bulk_config config = {
        .end = SSL_is_server(s->ssl) ? REFIT_TLS_SERVER : REFIT_TLS_CLIENT,
        .suite = SSL_CIPHER_get_protocol_id(SSL_get_current_cipher(s->ssl)),
        .records_per_key = s->records_per_key,
        .socket = &s->socket,
        .report = &s->report};
    if (!s->bulk && !s->direct && !SSL_has_pending(s->ssl))
        s->bulk = refit_tls_bulk_open(&config, &s->secrets);
    refit_tls_secrets_attach(s->ssl, NULL);
    OPENSSL_cleanse(&s->secrets, sizeof s->secrets);
}

/* A step of `bulk`, which waits for `events` when it says AGAIN. */
static enum refit_tls_step after(struct refit_tls_stream *s, enum refit_tls_step step, short events, const char *what,
                                 struct refit_error *err)
{
    if (step == REFIT_TLS_FAILED)
        return fail(s, errno, what, err);
    if (step != REFIT_TLS_DONE || events == POLLIN)
        s->wants = step == REFIT_TLS_END ? 0 : events;
    return step;
}

enum refit_tls_step refit_tls_stream_handshake(struct refit_tls_stream *s, struct refit_error *err)
{
    if (!begin(s, err))
        return REFIT_TLS_FAILED;
    int rc = SSL_do_handshake(s->ssl);
    if (rc != 1)
        return judge(s, rc, errno, "handshake", err);
    enum refit_tls_step step = refit_tls_stream_flush(s, err);
    if (step != REFIT_TLS_DONE)
        return step;
    s->wants = POLLIN;
    take_over(s);
    return step;
}

enum refit_tls_step refit_tls_stream_read(struct refit_tls_stream *s, void *data, size_t len, size_t *done,
                                          struct refit_error *err)
{
    *done = 0;
    if (!begin(s, err) || push(s, false, "write", err) != REFIT_TLS_DONE)
        return REFIT_TLS_FAILED;
    errno = 0;
    if (s->bulk)
        return after(s, refit_tls_bulk_read(s->bulk, data, len, done), POLLIN, "read", err);
    int rc = SSL_read_ex(s->ssl, data, len, done);
    if (rc != 1) {
        *done = 0;
        return judge(s, rc, errno, "read", err);
    }
    s->wants = POLLIN;
    return REFIT_TLS_DONE;
}

/* AES-GCM is good for 2^24.5 full records under one key (RFC 8446, 5.5). The kernel's TLS can't change keys with every
 * OpenSSL, so there it is left as it is. */
static void renew_key(struct refit_tls_stream *s)
{
    if (s->records < s->records_per_key || BIO_get_ktls_send(SSL_get_wbio(s->ssl)))
        return;
    if (SSL_key_update(s->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) /* goes out before the next record */
        s->key_updates++;
    s->records = 0;
}

/* One record that is encrypted but can't leave is held here, and counts as taken. */
static enum refit_tls_step hold(struct refit_tls_stream *s, const void *data, size_t len, struct refit_error *err)
{
    if (!s->held && !(s->held = malloc(RECORD_BYTES))) {
        s->failed = true;
        refit_fail_alloc(err, "a TLS record", RECORD_BYTES);
        return REFIT_TLS_FAILED;
    }
    memcpy(s->held, data, len);
    s->held_len = len;
    s->wants = POLLOUT;
    return REFIT_TLS_AGAIN;
}

static enum refit_tls_step write_some(struct refit_tls_stream *s, const void *data, size_t len, size_t *done,
                                      struct refit_error *err)
{
    enum refit_tls_step step = REFIT_TLS_DONE;
    for (size_t at = 0; at < len && step == REFIT_TLS_DONE;) {
        size_t one = len - at < RECORD_BYTES ? len - at : RECORD_BYTES, taken = one;
        const char *record = (const char *)data + at;
        forget_errors();
        errno = 0;
        renew_key(s);
        s->records++;
        int rc = SSL_write_ex(s->ssl, record, one, &taken);
        if (rc != 1) {
            taken = one;
            step = SSL_get_error(s->ssl, rc) == SSL_ERROR_WANT_WRITE ? hold(s, record, one, err)
                                                                     : judge(s, rc, errno, "write", err);
            if (s->held_len == 0)
                return step;
        }
        at += taken;
        *done += taken;
    }
    return step;
}

/* Whether there is room for more; AGAIN when not. */
static enum refit_tls_step begin_write(struct refit_tls_stream *s, struct refit_error *err)
{
    if (push(s, false, "write", err) != REFIT_TLS_DONE)
        return REFIT_TLS_FAILED;
    if (s->held_len == 0)
        return REFIT_TLS_DONE;
    s->wants = POLLOUT;
    return REFIT_TLS_AGAIN;
}

/* The end of a write: how it went, when some was taken. */
static enum refit_tls_step end_write(struct refit_tls_stream *s, enum refit_tls_step step, bool more, size_t *done,
                                     struct refit_error *err)
{
    if (step != REFIT_TLS_FAILED && push(s, more, "write", err) != REFIT_TLS_DONE)
        step = REFIT_TLS_FAILED;
    if (step == REFIT_TLS_FAILED)
        *done = 0;
    else if (*done > 0)
        step = REFIT_TLS_DONE;
    return step;
}

enum refit_tls_step refit_tls_stream_write(struct refit_tls_stream *s, const void *data, size_t len, size_t *done,
                                           struct refit_error *err)
{
    const struct iovec piece = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    *done = 0;
    if (!begin(s, err))
        return REFIT_TLS_FAILED;
    if (s->bulk)
        return after(s, refit_tls_bulk_write(s->bulk, &piece, 1, false, done), POLLOUT, "write", err);
    enum refit_tls_step step = begin_write(s, err);
    if (step == REFIT_TLS_DONE)
        step = write_some(s, data, len, done, err);
    return end_write(s, step, false, done, err);
}

/* Copies whole small pieces, up to one record; how many pieces that were. */
static size_t pack(struct refit_tls_stream *s, const struct iovec *pieces, size_t count, size_t *len)
{
    size_t at = 0;
    for (*len = 0; at < count && pieces[at].iov_len <= RECORD_BYTES - *len; at++) {
        if (pieces[at].iov_len)
            memcpy(s->packed + *len, pieces[at].iov_base, pieces[at].iov_len);
        *len += pieces[at].iov_len;
    }
    return at;
}

enum refit_tls_step refit_tls_stream_writev(struct refit_tls_stream *s, const struct iovec *pieces, size_t count,
                                            bool more, size_t *done, struct refit_error *err)
{
    *done = 0;
    if (!begin(s, err))
        return REFIT_TLS_FAILED;
    if (s->bulk)
        return after(s, refit_tls_bulk_write(s->bulk, pieces, count, more, done), POLLOUT, "write", err);
    if (!s->packed && !(s->packed = malloc(RECORD_BYTES))) {
        refit_fail_alloc(err, "a TLS record", RECORD_BYTES);
        return REFIT_TLS_FAILED;
    }
    enum refit_tls_step step = begin_write(s, err);
    for (size_t at = 0; at < count && step == REFIT_TLS_DONE;) {
        size_t len, packed = pack(s, pieces + at, count - at, &len);
        if (packed > 1)
            step = write_some(s, s->packed, len, done, err);
        else
            step = write_some(s, pieces[at].iov_base, pieces[at].iov_len, done, err);
        at += packed > 1 ? packed : 1;
    }
    return end_write(s, step, more, done, err);
}

enum refit_tls_step refit_tls_stream_flush(struct refit_tls_stream *s, struct refit_error *err)
{
    if (!begin(s, err) || push(s, false, "write", err) != REFIT_TLS_DONE)
        return REFIT_TLS_FAILED;
    if (refit_tls_stream_unsent(s) == 0)
        return REFIT_TLS_DONE;
    s->wants = POLLOUT;
    return REFIT_TLS_AGAIN;
}

enum refit_tls_step refit_tls_stream_shutdown(struct refit_tls_stream *s, struct refit_error *err)
{
    if (!begin(s, err))
        return REFIT_TLS_FAILED;
    if (s->bulk)
        return after(s, refit_tls_bulk_shutdown(s->bulk), POLLOUT, "shutdown", err);
    enum refit_tls_step step = begin_write(s, err);
    if (step != REFIT_TLS_DONE)
        return step;
    if (!(SSL_get_shutdown(s->ssl) & SSL_SENT_SHUTDOWN)) {
        int rc = SSL_shutdown(s->ssl);
        if (rc < 0)
            return judge(s, rc, errno, "shutdown", err);
    }
    return refit_tls_stream_flush(s, err);
}

/* --- looking ------------------------------------------------------------------------------------------------------- */

size_t refit_tls_stream_unsent(const struct refit_tls_stream *s)
{
    return s->socket.unsent_to - s->socket.unsent_from + s->held_len;
}

bool refit_tls_stream_holds(const struct refit_tls_stream *s)
{
    return s->socket.ahead_from < s->socket.ahead_to ||
           (s->bulk ? refit_tls_bulk_holds(s->bulk) : SSL_has_pending(s->ssl) != 0);
}

short refit_tls_stream_events(const struct refit_tls_stream *s)
{
    return (short)(s->wants | (refit_tls_stream_unsent(s) ? POLLOUT : 0));
}

void refit_tls_stream_read_info(const struct refit_tls_stream *s, struct refit_tls_stream_info *out)
{
    snprintf(out->version, sizeof out->version, "%s", SSL_get_version(s->ssl));
    snprintf(out->cipher, sizeof out->cipher, "%s", SSL_get_cipher_name(s->ssl));
    out->key_updates = s->bulk ? refit_tls_bulk_key_updates(s->bulk) : s->key_updates;
    out->own_records = s->bulk != NULL;
    out->kernel_sends = BIO_get_ktls_send(SSL_get_wbio(s->ssl)) == 1;
    out->kernel_receives = BIO_get_ktls_recv(SSL_get_rbio(s->ssl)) == 1;
}

void refit_tls_stream_peer(const struct refit_tls_stream *s, struct refit_tls_peer *out)
{
    refit_tls_peer_read(s->ssl, out);
}
