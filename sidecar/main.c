/* SPDX-License-Identifier: Apache-2.0
 *
 * refitd: the sidecar of one serving replica.
 */
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"
#include "memory/cuda.h"
#include "sidecar/sidecar.h"
#include "transport/nccl_version.h"

/* A plan's arrays grow to tens of MiB and go again. As mappings of their own they move without a copy and are given
 * back whole; left to itself, glibc keeps such blocks in its heaps after the first ones were freed. */
static void give_memory_back(void)
{
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    mallopt(M_TRIM_THRESHOLD, 256 << 10);
}

/* With what was found on this machine, for it decides where slots can be. */
static void print_version(void)
{
    char cuda[REFIT_CUDA_DESCRIPTION_MAX], nccl[REFIT_NCCL_DESCRIPTION_MAX];
    refit_cuda_describe(cuda, sizeof cuda);
    refit_nccl_describe(nccl, sizeof nccl);
    printf("refitd %s\ncuda: %s\nnccl: %s\n", REFIT_VERSION, cuda, nccl);
}

/* Whoever starts us with standard error closed must not get log lines written into a socket that took its number. */
static void keep_standard_descriptors(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR); /* the lowest number that is free */
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

int main(int argc, char **argv)
{
    sigset_t signals;
    struct refit_config config;
    struct refit_error err;
    /* First of all: as process 1 of a container there is no default action for SIGTERM, but a blocked signal waits
     * until the loop reads it. Threads inherit the mask. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP); /* read the files again; under nohup, too */
    signal(SIGHUP, SIG_DFL);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    keep_standard_descriptors();
    give_memory_back();

    if (refit_config_load(argc, argv, environ, &config, &err)) {
        fprintf(stderr, "refitd: %s\n", err.text);
        return 2;
    }
    switch (config.action) {
    case REFIT_CONFIG_HELP: refit_config_help(stdout); return 0;
    case REFIT_CONFIG_VERSION: print_version(); return 0;
    case REFIT_CONFIG_PRINT: refit_config_print(&config, stdout); return 0;
    case REFIT_CONFIG_MANUAL: refit_config_manual(stdout, REFIT_VERSION); return 0;
    case REFIT_CONFIG_RUN: break;
    }
    refit_log_setup((enum refit_log_level)config.log_level, (enum refit_log_format)config.log_format, "refitd");
    return refit_sidecar_run(&config, &signals);
}
