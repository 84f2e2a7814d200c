/* SPDX-License-Identifier: Apache-2.0
 *
 * Ports that somebody will listen at later: a lead's, a refitd's that is started again.
 */
#ifndef REFIT_TESTS_SUPPORT_PORT_H
#define REFIT_TESTS_SUPPORT_PORT_H

#include <stdint.h>

/* A port of loopback that nobody listens at, of no other test for as long as this process lives. Not one that the kernel
 * gives out by itself: another process could get it before its listener is there. 0: none is left. */
uint16_t port_reserve(void);

#endif
