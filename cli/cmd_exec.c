/* SPDX-License-Identifier: Apache-2.0
 *
 * refit exec -- ENGINE: refitd and the engine in one container, for GPUs that a device plugin gives to one container only.
 * refit exec --install DIR: what an init container does to bring both programs into the engine's container.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/supervisor.h"

#define FILE_MAX (256u << 20)
#define MANIFEST_MAX (64u << 10)

/* The directory of this program, such as /opt/refit/bin. */
static bool own_directory(char out[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
    if (n <= 0)
        return false;
    out[n] = '\0';
    char *slash = strrchr(out, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return true;
}

/* --- install -------------------------------------------------------------------------------------------------------- */

static enum refit_status copy_file(const char *root, const char *name, const char *target, struct refit_error *err)
{
    char from[2 * PATH_MAX], to[2 * PATH_MAX], *data;
    size_t len;
    if (name[0] == '/' || strstr(name, ".."))
        return refit_fail(err, REFIT_INVALID, "MANIFEST: %s: expected a path below %s", name, root);
    snprintf(from, sizeof from, "%s/%s", root, name);
    snprintf(to, sizeof to, "%s/%s", target, name);
    char *slash = strrchr(to, '/');
    *slash = '\0';
    if (mkdir(to, 0755) != 0 && errno != EEXIST)
        return refit_fail_errno(err, errno, "can't make %s", to);
    *slash = '/';
    enum refit_status status = refit_io_read_file(from, FILE_MAX, &data, &len, err);
    if (status != REFIT_OK)
        return status;
    status = refit_io_replace_file(to, data, len, 0755, err);
    free(data);
    return status;
}

/* The bundle's MANIFEST names its files, one a line. */
static enum refit_status install_bundle(const char *root, const char *target, size_t *count, struct refit_error *err)
{
    char path[PATH_MAX + 16], *text;
    size_t len;
    snprintf(path, sizeof path, "%s/MANIFEST", root);
    enum refit_status status = refit_io_read_file(path, MANIFEST_MAX, &text, &len, err);
    if (status != REFIT_OK)
        return refit_error_prefix(err, status, "this program is not in a bundle with its libraries");
    char *rest = text;
    for (char *line; status == REFIT_OK && (line = strsep(&rest, "\n"));) {
        if (!*line)
            continue;
        status = copy_file(root, line, target, err);
        *count += status == REFIT_OK;
    }
    free(text);
    return status;
}

static int install(const char *target)
{
    struct refit_error err;
    char root[PATH_MAX];
    size_t count = 0;
    char *slash = own_directory(root) ? strrchr(root, '/') : NULL;
    if (!slash) {
        fprintf(stderr, "refit exec: can't find the directory of this program\n");
        return REFIT_EXIT_FAILED;
    }
    *slash = '\0';
    if (install_bundle(root, target, &count, &err) != REFIT_OK) {
        fprintf(stderr, "refit exec: %s\n", err.text);
        return REFIT_EXIT_FAILED;
    }
    printf("%zu files installed in %s\n", count, target);
    return REFIT_EXIT_OK;
}

/* --- exec ----------------------------------------------------------------------------------------------------------- */

static int supervise(const char *refitd, struct refit_supervisor_options *options)
{
    char path[PATH_MAX + 16], name[] = "refitd";
    const char *format = getenv("REFIT_LOG_FORMAT");
    if (!refitd && own_directory(path) && strlen(path) < PATH_MAX) {
        strcat(path, "/refitd");
        refitd = access(path, X_OK) == 0 ? path : name;
    }
    options->refitd = refitd ? refitd : name;
    refit_log_setup(REFIT_LOG_INFO, format && strcmp(format, "json") == 0 ? REFIT_LOG_JSON : REFIT_LOG_TEXT, "refit-exec");
    return refit_supervise(options);
}

static int run(const struct refit_cli_command *self, int argc, char **argv)
{
    struct refit_cli_list none = {0};
    const char *refitd = NULL, *target = NULL;
    struct refit_supervisor_options options = {.start_ms = 600000, .grace_ms = 30000, .refitd_grace_ms = 15000};
    const struct refit_cli_option known[] = {
        {"refitd", REFIT_CLI_TEXT, "PATH", "refitd (default: beside this program, then in PATH)", &refitd, false},
        {"start-timeout", REFIT_CLI_DURATION, "TIME", "for refitd to be ready (default: 10m)", &options.start_ms, false},
        {"grace", REFIT_CLI_DURATION, "TIME", "from SIGTERM to the engine's end (default: 30s)", &options.grace_ms, false},
        {"refitd-grace", REFIT_CLI_DURATION, "TIME", "then to refitd's (default: 15s)", &options.refitd_grace_ms, false},
        {"install", REFIT_CLI_TEXT, "DIR", "copy this program, refitd and their libraries there, and end", &target, false},
        {0}};
    int mark = 1;
    while (mark < argc && strcmp(argv[mark], "--") != 0)
        mark++;
    int rc = refit_cli_parse(self, known, mark, argv, &none, 0, 0);
    refit_cli_list_release(&none);
    if (rc != REFIT_EXIT_PARSED)
        return rc;
    if (target && mark >= argc)
        return install(target);
    if (target || mark + 1 >= argc) {
        fprintf(stderr, "refit exec: expected either --install DIR or -- ENGINE [ARGUMENT...]\nTry 'refit exec --help'.\n");
        return REFIT_EXIT_USAGE;
    }
    options.engine = argv + mark + 1;
    return supervise(refitd, &options);
}

const struct refit_cli_command refit_cli_exec = {
    .name = "exec", .arguments = "[options] -- ENGINE [ARGUMENT...]",
    .summary = "run refitd (configured by REFIT_* variables) and an engine in one container",
    .examples = "  REFIT_SLOT_BYTES=16GiB refit exec --grace 60s -- python3 serve.py --port 8000\n"
                "  refit exec --install /opt/refit\n",
    .run = run};
