/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/table.h"

#define BAR 30

/* A terminal that takes no cursor movements. */
static bool is_dumb(void)
{
    const char *term = getenv("TERM");
    return !term || strcmp(term, "dumb") == 0;
}

void refit_cli_progress_init(struct refit_cli_progress *progress)
{
    *progress = (struct refit_cli_progress){.terminal = isatty(STDERR_FILENO) == 1 && !is_dumb()};
}

void refit_cli_progress_release(struct refit_cli_progress *progress)
{
    free(progress->phases);
    *progress = (struct refit_cli_progress){0};
}

static void draw_bar(const struct refit_replica_progress *r)
{
    char done[16], due[16], bar[BAR + 1];
    double part = r->bytes_due ? (double)r->bytes_done / (double)r->bytes_due : 0;
    int full = (int)(part * BAR);
    for (int i = 0; i < BAR; i++)
        bar[i] = i < full ? '#' : '-';
    bar[BAR] = '\0';
    fprintf(stderr, "\r\033[K%s [%s] %3.0f%%  %s of %s  %s\n", r->url, bar, part * 100,
            refit_cli_bytes(r->bytes_done, done, sizeof done), refit_cli_bytes(r->bytes_due, due, sizeof due), r->phase);
}

static void say_change(struct refit_cli_progress *progress, const struct refit_replica_progress *r, size_t index)
{
    if (strncmp(progress->phases[index], r->phase, sizeof *progress->phases - 1) == 0)
        return;
    snprintf(progress->phases[index], sizeof *progress->phases, "%s", r->phase);
    fprintf(stderr, "%s: %s\n", r->url, r->phase);
}

void refit_cli_progress_show(void *context, const struct refit_replica_progress *replicas, size_t count)
{
    struct refit_cli_progress *progress = context;
    if (progress->count < count) {
        char(*phases)[32] = realloc(progress->phases, count * sizeof *phases);
        if (!phases)
            return;
        memset(phases + progress->count, 0, (count - progress->count) * sizeof *phases);
        progress->phases = phases;
        progress->count = count;
    }
    if (progress->terminal && progress->drawn)
        fprintf(stderr, "\033[%zuA", progress->drawn);
    for (size_t i = 0; i < count; i++) {
        if (progress->terminal)
            draw_bar(&replicas[i]);
        else
            say_change(progress, &replicas[i], i);
    }
    progress->drawn = count;
}
