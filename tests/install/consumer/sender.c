/* SPDX-License-Identifier: Apache-2.0 */
#include <refit/sender.h>

#include <stdio.h>
#include <string.h>

/* No replica is needed to register memory and to be told what is wrong with it. */
int main(void)
{
    static const char layout[] = "{\"format\": \"refit-layout/1\", \"ranks\": 1, \"meshes\": {\"m\": {\"axes\": [\"x\"], "
                                 "\"shape\": [1]}}, \"entries\": [{\"tensor\": \"w\", \"dtype\": \"F32\", \"shape\": [4], "
                                 "\"mesh\": \"m\", \"placements\": [\"Replicate\"]}]}";
    static const float weights[4];
    const char *replicas[] = {"http://127.0.0.1:1"};
    struct refit_sender_config config = {.ranks = 1, .replicas = replicas, .replica_count = 1};
    struct refit_sender_buffer right = {.name = "w", .data = weights, .bytes = sizeof weights};
    struct refit_sender_buffer wrong = {.name = "w", .data = weights, .bytes = 4};
    struct refit_sender *sender = NULL;
    struct refit_error err = {0};
    if (refit_sender_open(&config, &sender, &err) != REFIT_OK ||
        refit_sender_register(sender, layout, strlen(layout), &right, 1, &err) != REFIT_OK) {
        printf("%s: %s\n", refit_status_name(err.status), err.text);
        return 1;
    }
    enum refit_status status = refit_sender_register(sender, layout, strlen(layout), &wrong, 1, &err);
    printf("%s: %s (%s)\n", refit_status_name(status), err.text, refit_outcome_name(REFIT_OUTCOME_COMMITTED));
    refit_sender_close(sender);
    return status != REFIT_MISMATCH;
}
