/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum refit_status malformed(const char *what, const char *text, struct refit_error *err)
{
    return refit_fail(err, REFIT_INVALID,
                      "--%s: expected a numeric ADDRESS:PORT such as 127.0.0.1:7070 or [::1]:7070, found \"%s\"", what,
                      text);
}

static bool parse_port(const char *text, uint16_t *port)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    unsigned long value = strtoul(text, &end, 10);
    if (*end || value > 65535)
        return false;
    *port = (uint16_t)value;
    return true;
}

enum refit_status refit_listen_address_parse(const char *text, const char *what, struct sockaddr_storage *out,
                                             int *out_len, struct refit_error *err)
{
    const char *colon = strrchr(text, ':');
    char host[64];
    uint16_t port;
    if (!colon || !parse_port(colon + 1, &port) || (size_t)(colon - text) >= sizeof host)
        return malformed(what, text, err);
    bool bracketed = text[0] == '[' && colon > text + 1 && colon[-1] == ']';
    int len = (int)(colon - text);
    snprintf(host, sizeof host, "%.*s", bracketed ? len - 2 : len, text + bracketed);

    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    memset(out, 0, sizeof *out);
    if (bracketed && inet_pton(AF_INET6, host, &v6.sin6_addr) == 1) {
        memcpy(out, &v6, sizeof v6);
        *out_len = (int)sizeof v6;
    } else if (!bracketed && inet_pton(AF_INET, strcmp(host, "localhost") ? host : "127.0.0.1", &v4.sin_addr) == 1) {
        memcpy(out, &v4, sizeof v4);
        *out_len = (int)sizeof v4;
    } else {
        return malformed(what, text, err);
    }
    return REFIT_OK;
}

const char *refit_listen_address_unix(const char *text)
{
    return strncmp(text, "unix:/", 6) == 0 ? text + 5 : NULL;
}

bool refit_listen_address_is_loopback(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    if (address->ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
    return false;
}

void refit_listen_address_host(const struct sockaddr_storage *address, char *out, size_t size)
{
    const void *bytes = address->ss_family == AF_INET6
                            ? (const void *)&((const struct sockaddr_in6 *)address)->sin6_addr
                            : (const void *)&((const struct sockaddr_in *)address)->sin_addr;
    if (!inet_ntop(address->ss_family, bytes, out, (socklen_t)size))
        snprintf(out, size, "unknown");
}

uint16_t refit_listen_address_port(const struct sockaddr_storage *address)
{
    return ntohs(address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                                : ((const struct sockaddr_in *)address)->sin_port);
}

void refit_listen_address_print(const struct sockaddr *address, char *out, size_t size)
{
    struct sockaddr_storage copy = {0};
    char host[48];
    memcpy(&copy, address, address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
    refit_listen_address_host(&copy, host, sizeof host);
    snprintf(out, size, address->sa_family == AF_INET6 ? "[%s]:%u" : "%s:%u", host, refit_listen_address_port(&copy));
}

uint16_t refit_listen_address_port_of(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t len = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        return 0;
    return refit_listen_address_port(&address);
}
