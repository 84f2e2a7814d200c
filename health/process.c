/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "health/health.h"

static void read_memory(struct refit_health_process *out)
{
    unsigned long long size = 0, resident = 0;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file)
        return;
    if (fscanf(file, "%llu %llu", &size, &resident) == 2) {
        out->virtual_bytes = (uint64_t)size * page;
        out->resident_bytes = (uint64_t)resident * page;
    }
    fclose(file);
}

static uint64_t open_descriptors(void)
{
    uint64_t count = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return 0;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count - 1; /* less the one just opened */
}

/* Fields 20 and 22 of /proc/self/stat: threads, and the start in ticks after boot. The command before them may hold spaces
 * and brackets, so counting starts at the last ')'. */
static void read_stat(struct refit_health_process *out)
{
    char text[1024];
    unsigned long long threads = 0, ticks = 0;
    struct timespec now, boot;
    FILE *file = fopen("/proc/self/stat", "re");
    if (!file)
        return;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    const char *rest = strrchr(text, ')');
    if (!rest || sscanf(rest, ") %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu %*s %llu", &threads,
                        &ticks) != 2)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    clock_gettime(CLOCK_BOOTTIME, &boot);
    double booted = (double)(now.tv_sec - boot.tv_sec) + (double)(now.tv_nsec - boot.tv_nsec) / 1e9;
    out->threads = threads;
    out->start_time_seconds = booted + (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

void refit_health_read_process(struct refit_health_process *out)
{
    struct rusage usage = {0};
    struct rlimit limit = {0};
    getrusage(RUSAGE_SELF, &usage);
    getrlimit(RLIMIT_NOFILE, &limit);
    *out = (struct refit_health_process){
        .cpu_seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6,
        .open_fds = open_descriptors(),
        .max_fds = limit.rlim_cur,
    };
    read_memory(out);
    read_stat(out);
}
