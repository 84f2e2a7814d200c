/* SPDX-License-Identifier: Apache-2.0
 *
 * Which host this is, so that two processes can tell whether they share one.
 */
#ifndef REFIT_BASE_HOST_H
#define REFIT_BASE_HOST_H

#define REFIT_BOOT_ID_MAX 64

/* The kernel's boot id: equal for all processes and containers of one running kernel. Empty when it can't be read. */
void refit_boot_id(char out[static REFIT_BOOT_ID_MAX]);

#endif
