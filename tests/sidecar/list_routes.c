/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints what refitd routes: "control POST /refit/{} 65536 refit", one route a line: listener, method, path, most bytes of a body, role.
 */
#include <inttypes.h>
#include <stdio.h>

#include "sidecar/access.h"
#include "sidecar/routes.h"

static void list(const char *listener, const struct refit_route *table, size_t len)
{
    for (size_t i = 0; i < len; i++)
        printf("%s %s %s %" PRIu64 " %s\n", listener, table[i].method, table[i].path, table[i].body_bytes,
               refit_access_role_name(refit_access_needs(table[i].method, table[i].path)));
}

int main(void)
{
    list("control", refit_control_table, refit_control_table_len);
    list("admin", refit_admin_table, refit_admin_table_len);
    return 0;
}
