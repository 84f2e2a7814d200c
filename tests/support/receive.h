/* SPDX-License-Identifier: Apache-2.0
 *
 * What a test that speaks a protocol byte by byte reads.
 */
#ifndef REFIT_TESTS_SUPPORT_RECEIVE_H
#define REFIT_TESTS_SUPPORT_RECEIVE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/clock.h"

/* Exactly `len` bytes from a socket, blocking or not; false: it ended, or the deadline passed. */
bool receive_full(int fd, void *data, size_t len, struct refit_deadline deadline);

#endif
