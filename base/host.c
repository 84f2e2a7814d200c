/* SPDX-License-Identifier: Apache-2.0 */
#include "base/host.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"

void refit_boot_id(char out[static REFIT_BOOT_ID_MAX])
{
    memset(out, 0, REFIT_BOOT_ID_MAX);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, out, REFIT_BOOT_ID_MAX - 1) : -1;
    refit_io_close(&fd);
    out[n > 0 ? strcspn(out, "\n") : 0] = '\0';
}
