/* SPDX-License-Identifier: Apache-2.0
 *
 * Telling a service manager: datagrams to $NOTIFY_SOCKET, as sd_notify(3) describes them. systemd listens there for units of
 * Type=notify, and so does `refit exec`. Without that variable nothing is sent.
 */
#ifndef REFIT_SIDECAR_NOTIFY_H
#define REFIT_SIDECAR_NOTIFY_H

/* Lines of NAME=VALUE: "READY=1\nSTATUS=serving". Never blocks; what can't be sent is lost. */
void refit_notify(const char *lines);
/* WATCHDOG=1, when $WATCHDOG_USEC says that somebody waits for it ($WATCHDOG_PID, if there, must be this process). Call
 * once a second. */
void refit_notify_alive(void);

#endif
