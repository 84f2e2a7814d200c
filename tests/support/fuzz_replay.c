/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target over files: fuzz_replay DIRECTORY... Each input is in memory of exactly its length, so that a
 * sanitizer sees a read past its end. Fails when a directory holds no file: nothing would have been tried.
 */
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/io.h"

#define INPUT_MAX (16u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool replay_file(const char *path)
{
    struct refit_error err;
    char *text = NULL;
    size_t len = 0;
    if (refit_io_read_file(path, INPUT_MAX, &text, &len, &err) != REFIT_OK) {
        fprintf(stderr, "%s\n", err.text);
        return false;
    }
    uint8_t *exact = malloc(len + (len == 0));
    if (exact) {
        for (size_t i = 0; i < len; i++)
            exact[i] = (uint8_t)text[i];
        LLVMFuzzerTestOneInput(exact, len);
    }
    free(exact);
    free(text);
    return exact != NULL;
}

static bool replay_directory(const char *name)
{
    DIR *directory = opendir(name);
    size_t count = 0;
    bool done = directory != NULL;
    for (const struct dirent *item; done && (item = readdir(directory));) {
        char path[4096];
        if (item->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", name, item->d_name);
        done = replay_file(path);
        count++;
    }
    if (directory)
        closedir(directory);
    printf("%s: %zu inputs\n", name, count);
    return done && count > 0;
}

int main(int argc, char **argv)
{
    bool done = argc > 1;
    for (int i = 1; i < argc; i++)
        done = replay_directory(argv[i]) && done;
    return done ? 0 : 1;
}
