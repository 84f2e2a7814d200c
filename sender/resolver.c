/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/resolver.h"

#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/thread.h"

/* Shared by the owner and the thread that looks up; the last to let go frees it. */
struct refit_resolver {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    unsigned references;
    bool running; /* a look-up is under way, or its answer was not taken yet */
    bool done;
    char name[256];
    refit_members_resolve_fn resolve;
    void *context;
    struct refit_error outcome;
    size_t count;
    char addresses[REFIT_MEMBERS_MAX][REFIT_MEMBER_ADDRESS_MAX];
};

static enum refit_status take_addresses(const struct addrinfo *found, char (*addresses)[REFIT_MEMBER_ADDRESS_MAX],
                                        size_t max, size_t *count)
{
    for (*count = 0; found && *count < max; found = found->ai_next)
        if (getnameinfo(found->ai_addr, found->ai_addrlen, addresses[*count], REFIT_MEMBER_ADDRESS_MAX, NULL, 0,
                        NI_NUMERICHOST) == 0)
            ++*count;
    return REFIT_OK;
}

static enum refit_status ask_system(void *context, const char *name, char (*addresses)[REFIT_MEMBER_ADDRESS_MAX],
                                    size_t max, size_t *count, struct refit_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    (void)context;
    int failed = getaddrinfo(name, NULL, &hints, &found);
    *count = 0;
    if (failed == EAI_NONAME || failed == EAI_NODATA)
        return REFIT_OK;
    if (failed)
        return refit_fail(err, REFIT_PEER, "%s: %s", name, gai_strerror(failed));
    take_addresses(found, addresses, max, count);
    freeaddrinfo(found);
    return REFIT_OK;
}

struct refit_resolver *refit_resolver_create(const char *name, refit_members_resolve_fn resolve, void *context)
{
    struct refit_resolver *resolver = calloc(1, sizeof *resolver);
    if (!resolver)
        return NULL;
    pthread_mutex_init(&resolver->lock, NULL);
    refit_cond_init(&resolver->answered);
    snprintf(resolver->name, sizeof resolver->name, "%s", name);
    resolver->references = 1;
    resolver->resolve = resolve ? resolve : ask_system;
    resolver->context = context;
    return resolver;
}

/* Unlocks. */
static void let_go(struct refit_resolver *resolver)
{
    bool last = --resolver->references == 0;
    pthread_mutex_unlock(&resolver->lock);
    if (!last)
        return;
    pthread_cond_destroy(&resolver->answered);
    pthread_mutex_destroy(&resolver->lock);
    free(resolver);
}

void refit_resolver_destroy(struct refit_resolver *resolver)
{
    if (!resolver)
        return;
    pthread_mutex_lock(&resolver->lock);
    let_go(resolver);
}

static void *look_up(void *context)
{
    struct refit_resolver *resolver = context;
    struct refit_error outcome = {0};
    size_t count = 0;
    pthread_detach(pthread_self());
    outcome.status = resolver->resolve(resolver->context, resolver->name, resolver->addresses, REFIT_MEMBERS_MAX, &count,
                                       &outcome);
    pthread_mutex_lock(&resolver->lock);
    resolver->outcome = outcome;
    resolver->count = count;
    resolver->done = true;
    pthread_cond_broadcast(&resolver->answered);
    let_go(resolver);
    return NULL;
}

/* With the lock held. */
static enum refit_status start(struct refit_resolver *resolver, struct refit_error *err)
{
    pthread_t thread;
    if (resolver->running)
        return REFIT_OK;
    resolver->done = false;
    enum refit_status status = refit_thread_start(&thread, look_up, resolver, "a thread to look up a name", err);
    resolver->running = status == REFIT_OK;
    resolver->references += resolver->running;
    return status;
}

static int compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

static size_t sort_addresses(char (*addresses)[REFIT_MEMBER_ADDRESS_MAX], size_t count)
{
    size_t kept = 0;
    qsort(addresses, count, sizeof *addresses, compare);
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || strcmp(addresses[kept - 1], addresses[i]) != 0)
            memmove(addresses[kept++], addresses[i], sizeof *addresses);
    return kept;
}

/* With the lock held. */
static enum refit_status take_answer(struct refit_resolver *resolver, char (*out)[REFIT_MEMBER_ADDRESS_MAX],
                                     size_t *count, struct refit_error *err)
{
    if (!resolver->done)
        return refit_fail(err, REFIT_TIMEOUT, "%s: the resolver has not answered", resolver->name);
    resolver->running = false;
    if (resolver->outcome.status != REFIT_OK)
        return refit_fail(err, resolver->outcome.status, "%s", resolver->outcome.text);
    *count = sort_addresses(resolver->addresses, resolver->count);
    memcpy(out, resolver->addresses, *count * sizeof *out);
    return REFIT_OK;
}

enum refit_status refit_resolver_ask(struct refit_resolver *resolver, struct refit_deadline deadline,
                                     char (*out)[REFIT_MEMBER_ADDRESS_MAX], size_t *count, struct refit_error *err)
{
    struct timespec until = refit_deadline_timespec(deadline);
    bool late = false;
    pthread_mutex_lock(&resolver->lock);
    enum refit_status status = start(resolver, err);
    while (status == REFIT_OK && !resolver->done && !late)
        late = pthread_cond_timedwait(&resolver->answered, &resolver->lock, &until) != 0;
    if (status == REFIT_OK)
        status = take_answer(resolver, out, count, err);
    pthread_mutex_unlock(&resolver->lock);
    return status;
}
