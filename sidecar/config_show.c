/* SPDX-License-Identifier: Apache-2.0
 *
 * The options as people read them: help, manual page, and the configuration in effect.
 */
#include <inttypes.h>
#include <string.h>

#include "base/roff.h"
#include "sidecar/config_table.h"
#include "sidecar/config_value.h"

static void print_wrapped(FILE *out, const char *name, const char *help, const char *fallback, const char *env)
{
    fprintf(out, "  --%s\n        %s\n        [default: %s] [env: %s]\n", name, help, *fallback ? fallback : "none",
            env);
}

static const struct {
    const char *name, *help;
} actions[] = {
    {"print-config", "print the options in effect and where each came from, as a configuration file, and exit"},
    {"print-manual", "print the manual page, refitd(8), and exit"},
    {"version", "print the version and exit"},
    {"help", "print this and exit"},
};

static const char *metavar_of(const struct refit_config_option *o)
{
    static const char *const metavar[] = {[TEXT] = " TEXT",         [NUMBER] = " N", [BYTES] = " BYTES",
                                          [DURATION] = " DURATION", [BOOL] = "",     [ADDRESS] = " ADDRESS:PORT",
                                          [ENDPOINT] = " ADDRESS:PORT|unix:/PATH", [MODE] = " MODE"};
    return o->kind == ONE_OF ? o->words : metavar[o->kind] + (metavar[o->kind][0] == ' ');
}

void refit_config_help(FILE *out)
{
    fprintf(out, "Usage: refitd [OPTION]...\n\n"
                 "Keeps the weights of one serving replica, takes in new versions while the old one is served, and\n"
                 "switches all its engine processes between two steps.\n\n"
                 "Each option is a flag, an environment variable and a key of the --config file. A flag overrides the\n"
                 "environment, which overrides the file. Bytes: 512MiB, 16GiB. Durations: 250ms, 30s, 10m.\n\n"
                 "Options:\n");
    for (size_t i = 0; i < refit_config_option_count; i++) {
        char env[64], name[96];
        refit_config_env_name(&refit_config_options[i], env);
        const char *metavar = metavar_of(&refit_config_options[i]);
        snprintf(name, sizeof name, "%s%s%s", refit_config_options[i].name, *metavar ? " " : "", metavar);
        print_wrapped(out, name, refit_config_options[i].help, refit_config_options[i].fallback, env);
    }
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        fprintf(out, "  --%s\n        %s\n", actions[i].name, actions[i].help);
}

static void print_manual_option(FILE *out, const struct refit_config_option *o)
{
    char env[64], flag[80], text[512];
    refit_config_env_name(o, env);
    snprintf(flag, sizeof flag, "--%s", o->name);
    snprintf(text, sizeof text, "%s\nDefault: %s. Environment: %s.", o->help, *o->fallback ? o->fallback : "none", env);
    refit_roff_item(out, flag, *metavar_of(o) ? metavar_of(o) : NULL, text);
}

void refit_config_manual(FILE *out, const char *version)
{
    refit_roff_head(out, "refitd", 8, "the sidecar of one serving replica", version);
    fprintf(out, ".SH SYNOPSIS\n.B refitd\n[\\fIOPTION\\fR]...\n.SH DESCRIPTION\n");
    refit_roff_text(out, "Keeps the weights of one serving replica, takes in new versions while the old one is served, and\n"
                         "switches all its engine processes between two steps.\n");
    fprintf(out, ".PP\n");
    refit_roff_text(out, "Each option is a flag, an environment variable and a key of the --config file. A flag overrides the\n"
                         "environment, which overrides the file. Bytes: 512MiB, 16GiB. Durations: 250ms, 30s, 10m.\n");
    fprintf(out, ".SH OPTIONS\n");
    for (size_t i = 0; i < refit_config_option_count; i++)
        print_manual_option(out, &refit_config_options[i]);
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        char flag[32];
        snprintf(flag, sizeof flag, "--%s", actions[i].name);
        refit_roff_item(out, flag, NULL, actions[i].help);
    }
    fprintf(out, ".SH \"EXIT STATUS\"\n");
    refit_roff_item(out, "0", NULL, "it was told to end, and ended in order");
    refit_roff_item(out, "1", NULL, "it could not start, or not end within --drain-timeout; the log says why");
    refit_roff_item(out, "2", NULL, "the configuration is wrong");
    fprintf(out, ".SH SIGNALS\n");
    refit_roff_item(out, "TERM, INT", NULL, "drain and end; a second one: end at once");
    refit_roff_item(out, "HUP", NULL, "read certificates, lists of tokens and names again, and open the audit log again");
    fprintf(out, ".SH \"SEE ALSO\"\n.BR refit (1)\n");
}

static void format(const struct refit_config *config, const struct refit_config_option *o, char *out, size_t size)
{
    const char *at = (const char *)config + o->offset;
    uint64_t value = 0;
    if (o->kind == TEXT || o->kind == ADDRESS || o->kind == ENDPOINT) {
        snprintf(out, size, "\"%s\"", at);
        return;
    }
    memcpy(&value, at, o->size < sizeof value ? o->size : sizeof value);
    const char *word = o->words;
    switch (o->kind) {
    case BYTES: refit_config_format_bytes(value, out, size); break;
    case DURATION: refit_config_format_duration(value, out, size); break;
    case BOOL: snprintf(out, size, "%s", value ? "true" : "false"); break;
    case MODE: snprintf(out, size, "%04" PRIo64, value); break;
    case ONE_OF:
        for (; value; value--)
            word += strcspn(word, "|") + 1;
        snprintf(out, size, "%.*s", (int)strcspn(word, "|"), word);
        break;
    default: snprintf(out, size, "%" PRIu64, value); break;
    }
}

static void print_source(const struct refit_config *config, const struct refit_config_option *o, FILE *out)
{
    char name[64];
    refit_config_env_name(o, name);
    switch ((enum refit_config_source)config->source[o - refit_config_options]) {
    case REFIT_CONFIG_DEFAULT: break;
    case REFIT_CONFIG_FILE: fprintf(out, "# from the file %s\n", config->config); break;
    case REFIT_CONFIG_ENVIRONMENT: fprintf(out, "# from the environment, %s\n", name); break;
    case REFIT_CONFIG_FLAG: fprintf(out, "# from the flag --%s\n", o->name); break;
    }
}

void refit_config_print(const struct refit_config *config, FILE *out)
{
    for (size_t i = 0; i < refit_config_option_count; i++) {
        char text[REFIT_CONFIG_TEXT_MAX + 8];
        if (strcmp(refit_config_options[i].name, "config") == 0)
            continue;
        format(config, &refit_config_options[i], text, sizeof text);
        print_source(config, &refit_config_options[i], out);
        fprintf(out, "%s = %s\n", refit_config_options[i].name, text);
    }
}
