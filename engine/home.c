/* SPDX-License-Identifier: Apache-2.0
 *
 * Where an engine and its claim pages lie: in one range of addresses, the pages first.
 *
 * A request that comes after some idle milliseconds finds nothing of them in any cache, and what it then waits for is
 * above all the translation of addresses: an engine on the heap and a page wherever mmap put it are two walks through
 * page tables that share no level. Neighbours share all but the last step, which halves what such an acquire takes.
 */
#include <stdint.h>
#include <sys/mman.h>

#include "engine/engine_internal.h"

#define HOME_PAGES 8 /* claim pages with a place here: of so many attachments to a refitd that kept none; later ones lie anywhere */

struct home {
    _Alignas(4096) uint8_t pages[HOME_PAGES][REFIT_CLAIM_BYTES];
    struct refit_engine engine;
};

_Static_assert(offsetof(struct home, engine) == sizeof(((struct home *)0)->pages), "refit_engine_home_first");

static struct home *home_of(struct refit_engine *engine)
{
    return (struct home *)((uint8_t *)engine - offsetof(struct home, engine));
}

static void *reserve(void *at, size_t bytes, int protection)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0);
    return mmap(at, bytes, protection, flags, -1, 0);
}

struct refit_engine *refit_engine_home_create(struct refit_error *err)
{
    struct home *home = reserve(NULL, sizeof *home, PROT_READ | PROT_WRITE);
    if (home != MAP_FAILED)
        return &home->engine;
    refit_fail_alloc(err, "an engine", sizeof *home);
    return NULL;
}

void refit_engine_home_destroy(struct refit_engine *engine)
{
    munmap(home_of(engine), sizeof(struct home));
}

void *refit_engine_home_map(struct refit_engine *engine, int fd)
{
    bool beside = engine->home_used < HOME_PAGES;
    void *place = beside ? home_of(engine)->pages[HOME_PAGES - 1 - engine->home_used] : NULL;
    void *at = mmap(place, REFIT_CLAIM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | (beside ? MAP_FIXED : 0), fd, 0);
    if (at != MAP_FAILED && beside)
        engine->home_used++;
    return at;
}

/* A place here stays ours, or the range would one day be unmapped with what somebody else had mapped into the gap. */
void refit_engine_home_unmap(struct refit_engine *engine, void *at)
{
    uintptr_t from = (uintptr_t)home_of(engine), place = (uintptr_t)at;
    if (place < from || place >= from + sizeof(struct home))
        munmap(at, REFIT_CLAIM_BYTES);
    else
        (void)reserve(at, REFIT_CLAIM_BYTES, PROT_NONE); /* where that fails, the page stays until the engine goes */
}
