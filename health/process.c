/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "health/health.h"

static uint64_t resident_bytes(void)
{
    unsigned long long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file)
        return 0;
    if (fscanf(file, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    fclose(file);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
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

/* Field 22 of /proc/self/stat: ticks after boot. The command before it may hold spaces, so counting starts at the ')'.
 */
static double start_time(void)
{
    unsigned long long ticks = 0;
    struct timespec now, boot;
    FILE *file = fopen("/proc/self/stat", "re");
    if (!file)
        return 0;
    if (fscanf(file, "%*[^)]) %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
               &ticks) != 1)
        ticks = 0;
    fclose(file);
    clock_gettime(CLOCK_REALTIME, &now);
    clock_gettime(CLOCK_BOOTTIME, &boot);
    double booted = (double)(now.tv_sec - boot.tv_sec) + (double)(now.tv_nsec - boot.tv_nsec) / 1e9;
    return ticks ? booted + (double)ticks / (double)sysconf(_SC_CLK_TCK) : 0;
}

void refit_health_read_process(struct refit_health_process *out)
{
    struct rusage usage = {0};
    struct rlimit limit = {0};
    getrusage(RUSAGE_SELF, &usage);
    getrlimit(RLIMIT_NOFILE, &limit);
    *out = (struct refit_health_process){
        .resident_bytes = resident_bytes(),
        .cpu_seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6,
        .open_fds = open_descriptors(),
        .max_fds = limit.rlim_cur,
        .start_time_seconds = start_time(),
    };
}
