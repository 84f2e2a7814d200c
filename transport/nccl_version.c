/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/nccl_version.h"

#include <stdio.h>

void refit_nccl_version_text(int version, char text[REFIT_NCCL_VERSION_TEXT_MAX])
{
    snprintf(text, REFIT_NCCL_VERSION_TEXT_MAX, "%d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
}

/* Equal to the patch: NCCL compares this number between all ranks once they have met, and gives up where it differs. */
enum refit_status refit_nccl_check_versions(int ours, int theirs, const char *peer, struct refit_error *err)
{
    char here[REFIT_NCCL_VERSION_TEXT_MAX], there[REFIT_NCCL_VERSION_TEXT_MAX];
    if (ours == theirs)
        return REFIT_OK;
    refit_nccl_version_text(ours, here);
    refit_nccl_version_text(theirs, there);
    return refit_fail(err, REFIT_MISMATCH,
                      "NCCL is %s here and %s at %s, and a communicator takes one version only; install the same "
                      "libnccl.so.2 on both sides (REFIT_NCCL_LIBRARY names one of several), or use tcp",
                      here, there, peer);
}
