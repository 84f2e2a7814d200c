/* SPDX-License-Identifier: Apache-2.0
 *
 * Certificates for tests in other languages:
 *   pki DIRECTORY ca NAME
 *   pki DIRECTORY leaf NAME CA [SAN [FROM_S TO_S]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tls/pki.h"

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[2], "ca") == 0)
        return pki_make_ca(argv[1], argv[3]) ? 0 : 1;
    if ((argc == 5 || argc == 6 || argc == 8) && strcmp(argv[2], "leaf") == 0) {
        struct pki_leaf leaf = {.name = argv[3], .ca = argv[4], .san = argc > 5 && *argv[5] ? argv[5] : NULL};
        if (argc == 8) {
            leaf.from_s = atol(argv[6]);
            leaf.to_s = atol(argv[7]);
        }
        return pki_make_leaf(argv[1], &leaf) ? 0 : 1;
    }
    fprintf(stderr, "usage: pki DIRECTORY ca NAME | pki DIRECTORY leaf NAME CA [SAN [FROM_S TO_S]]\n");
    return 2;
}
