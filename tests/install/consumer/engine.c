/* SPDX-License-Identifier: Apache-2.0 */
#include <refit/engine.h>

#include <stdio.h>

/* There is no refitd: what matters is that the library is found, links, and says so. */
int main(void)
{
    struct refit_engine_config config = {.socket_path = "/nonexistent/refitd.sock", .ranks = 1, .layout = "{}",
                                         .layout_len = 2};
    struct refit_engine *engine = NULL;
    struct refit_error err = {0};
    enum refit_status status = refit_engine_attach(&config, 1, &engine, &err);
    printf("%s: %s\n", refit_status_name(status), err.text);
    refit_engine_detach(engine);
    return status == REFIT_OK || err.text[0] == '\0';
}
