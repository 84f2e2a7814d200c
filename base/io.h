/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors: whole reads and writes with a deadline, whole files, and passing descriptors over Unix sockets.
 * Functions are thread-safe; none takes ownership of a descriptor unless it says so.
 */
#ifndef REFIT_BASE_IO_H
#define REFIT_BASE_IO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/clock.h"
#include "base/error.h"

/* Exactly `len` bytes to a socket, blocking or not. REFIT_PEER when it closed or reset, REFIT_TIMEOUT. */
REFIT_MUST_CHECK enum refit_status refit_io_send_full(int fd, const void *data, size_t len,
                                                      struct refit_deadline deadline, const char *what,
                                                      struct refit_error *err);

/* Exactly `len` bytes of a file at `offset`. REFIT_CORRUPT names the file and both lengths when it ends early. */
REFIT_MUST_CHECK enum refit_status refit_io_pread_full(int fd, void *data, size_t len, uint64_t offset,
                                                       const char *path, struct refit_error *err);

/* A whole regular file of at most max_bytes; *data is new and NUL-terminated (not counted in *len). */
REFIT_MUST_CHECK enum refit_status refit_io_read_file(const char *path, size_t max_bytes, char **data, size_t *len,
                                                      struct refit_error *err);

/* Replaces a file whole (temporary file beside it, fsync, rename, fsync of the directory): a crash or a full disk leaves
 * the old one, and after REFIT_OK a loss of power the new one. */
REFIT_MUST_CHECK enum refit_status refit_io_replace_file(const char *path, const void *data, size_t len, mode_t mode,
                                                         struct refit_error *err);

/* One SOCK_SEQPACKET message with up to REFIT_IO_FDS_MAX descriptors (sent as copies). */
#define REFIT_IO_FDS_MAX 64
REFIT_MUST_CHECK enum refit_status refit_io_send_fds(int sock, const void *data, size_t len, const int *fds,
                                                     size_t fd_count, struct refit_error *err);
/* Receives one message; at most `len` bytes (a longer one is REFIT_INVALID) and `fd_max` descriptors, which the
 * caller owns (close-on-exec). *data_len 0 means the peer closed. Non-blocking sockets: REFIT_BUSY when empty.
 * On any error no descriptor is left open. */
REFIT_MUST_CHECK enum refit_status refit_io_recv_fds(int sock, void *data, size_t len, size_t *data_len, int *fds,
                                                     size_t fd_max, size_t *fd_count, struct refit_error *err);

/* A sealable memfd that can't be executed (kernels may insist on that); -1 with errno. */
int refit_io_memfd(const char *name);

/* close(2) when fd >= 0, and sets it to -1; keeps errno. */
void refit_io_close(int *fd);

/* Fills with bytes from the kernel's random source; ends the process if there is none (it can't go on safely). */
void refit_io_random(void *data, size_t len);

#endif
