/* SPDX-License-Identifier: Apache-2.0
 *
 * The pin protocol as threads over one page, so that the thread sanitizer sees both sides: readers that check every
 * word of what they pinned, one writer that fills, shows, flips, hides and fills again. Seeded; REFIT_SEED repeats a
 * run.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/io.h"
#include "engine/claim.h"

#define READERS 3
#define WORDS 512
#define SEARCH_MS 2000 /* as many flips as the machine makes in that time */

struct model {
    struct refit_claim claim;
    uint64_t slot[REFIT_SLOTS_MAX][WORDS]; /* plain memory: a race here is what is looked for */
    uint32_t slots;
    atomic_bool stop;
    atomic_ulong torn, wrong, pins, stale;
    _Atomic uint64_t published;
    uint64_t seed;
};

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t run_seed(void)
{
    const char *given = getenv("REFIT_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : 0;
    if (!given)
        refit_io_random(&seed, sizeof seed);
    print_message("REFIT_SEED=%#llx\n", (unsigned long long)seed);
    return seed;
}

static void check_words(struct model *m, uint32_t slot, uint64_t version)
{
    uint64_t first = m->slot[slot][0];
    for (size_t i = 1; i < WORDS; i++) {
        if (m->slot[slot][i] != first)
            atomic_fetch_add(&m->torn, 1);
    }
    if (first != version)
        atomic_fetch_add(&m->wrong, 1);
}

static void read_latest(struct model *m, bool twice)
{
    uint32_t slot = refit_claim_acquire_latest(&m->claim);
    if (slot == REFIT_SLOT_NONE)
        return;
    uint64_t version = refit_claim_shown(&m->claim, slot);
    for (int i = 0; i <= twice; i++)
        check_words(m, slot, version);
    refit_claim_release(&m->claim, slot);
    atomic_fetch_add(&m->pins, 1);
}

static void read_version(struct model *m, uint64_t version)
{
    uint32_t slot = 0;
    if (refit_claim_acquire_version(&m->claim, version, &slot) != REFIT_OK) {
        atomic_fetch_add(&m->stale, 1);
        return;
    }
    check_words(m, slot, version);
    refit_claim_release(&m->claim, slot);
    atomic_fetch_add(&m->pins, 1);
}

static void *reader(void *argument)
{
    struct model *m = argument;
    uint64_t random = m->seed ^ (uint64_t)pthread_self();
    while (!atomic_load(&m->stop)) {
        uint64_t choice = next_random(&random) % 16;
        uint64_t now = atomic_load_explicit(&m->published, memory_order_relaxed);
        if (choice < 15)
            read_latest(m, choice % 2 == 1);
        else if (now > 3)
            read_version(m, now - next_random(&random) % 3);
    }
    return NULL;
}

static bool idle(const struct model *m, uint32_t slot, uint32_t gate)
{
    return gate != slot && refit_claim_pins(&m->claim, slot) == 0;
}

/* Hides and takes the slot if nobody reads it; shows it again otherwise. */
static bool reclaim(struct model *m, uint32_t slot, uint32_t gate)
{
    if (!idle(m, slot, gate))
        return false;
    uint64_t shown = refit_claim_shown(&m->claim, slot);
    refit_claim_hide(&m->claim, slot);
    if (idle(m, slot, gate))
        return true;
    refit_claim_unhide(&m->claim, slot, shown);
    return false;
}

static uint32_t take_slot(struct model *m, uint32_t gate)
{
    for (uint32_t slot = 0;; slot = (slot + 1) % m->slots) {
        if (slot != gate && reclaim(m, slot, gate))
            return slot;
        if (slot + 1 == m->slots)
            sched_yield();
    }
}

static void write_versions(struct model *m)
{
    struct refit_deadline end = refit_deadline_in_ms(SEARCH_MS);
    uint32_t gate = REFIT_SLOT_NONE;
    uint64_t random = m->seed;
    for (uint64_t version = 1; !refit_deadline_passed(end); version++) {
        struct refit_version named = {.version = version};
        uint32_t slot = take_slot(m, gate);
        for (size_t i = 0; i < WORDS; i++)
            m->slot[slot][i] = version;
        refit_claim_stage(&m->claim, slot, &named);
        refit_claim_show(&m->claim, slot, &named);
        refit_claim_flip(&m->claim, gate, slot);
        gate = slot;
        atomic_store_explicit(&m->published, version, memory_order_relaxed);
        if (next_random(&random) % 4 == 0)
            refit_claim_harvest(&m->claim, gate);
        if (next_random(&random) % 2 == 0)
            sched_yield();
    }
}

static void search_torn_reads(uint32_t slots)
{
    static struct model m;
    pthread_t threads[READERS];
    memset(&m, 0, sizeof m);
    m.slots = slots;
    m.seed = run_seed();
    refit_claim_init(&m.claim, slots);
    for (int i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, reader, &m), 0);
    write_versions(&m);
    atomic_store(&m.stop, true);
    for (int i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    print_message("%llu versions, %lu pins, %lu stale\n", (unsigned long long)m.published, m.pins, m.stale);
    assert_int_equal(m.torn, 0);
    assert_int_equal(m.wrong, 0);
    for (uint32_t slot = 0; slot < slots; slot++)
        assert_true(refit_claim_gate_slot(&m.claim) == slot || refit_claim_pins(&m.claim, slot) == 0);
}

static void readers_never_see_a_slot_change_under_a_pin_with_two_slots(void **state)
{
    search_torn_reads(2);
}

static void readers_never_see_a_slot_change_under_a_pin_with_four_slots(void **state)
{
    search_torn_reads(4);
}

static void flip_counts_the_pins_it_finds(void **state)
{
    static struct refit_claim claim;
    refit_claim_init(&claim, 2);
    assert_int_equal(refit_claim_acquire_latest(&claim), REFIT_SLOT_NONE);
    refit_claim_show(&claim, 0, &(struct refit_version){.version = 1});
    refit_claim_flip(&claim, REFIT_SLOT_NONE, 0);
    assert_int_equal(refit_claim_acquire_latest(&claim), 0);
    assert_int_equal(refit_claim_acquire_latest(&claim), 0);
    refit_claim_release(&claim, 0);
    refit_claim_flip(&claim, 0, 1);
    assert_int_equal(refit_claim_gate_slot(&claim), 1);
    assert_int_equal(refit_claim_pins(&claim, 0), 1);
    refit_claim_release(&claim, 0);
    assert_int_equal(refit_claim_pins(&claim, 0), 0);
}

static void harvest_empties_a_full_gate_and_keeps_its_pins(void **state)
{
    static struct refit_claim claim;
    refit_claim_init(&claim, 2);
    refit_claim_flip(&claim, REFIT_SLOT_NONE, 1);
    assert_false(refit_claim_harvest_due(&claim));
    atomic_fetch_add(&claim.gate, (1u << 30) + 5);
    assert_true(refit_claim_harvest_due(&claim));
    refit_claim_harvest(&claim, 1);
    assert_false(refit_claim_harvest_due(&claim));
    assert_int_equal(refit_claim_gate_slot(&claim), 1);
    refit_claim_flip(&claim, 1, 0);
    assert_int_equal(refit_claim_pins(&claim, 1), (1u << 30) + 5);
}

static void hidden_and_unknown_versions_are_stale(void **state)
{
    static struct refit_claim claim;
    uint32_t slot = 9;
    refit_claim_init(&claim, 3);
    assert_int_equal(refit_claim_acquire_version(&claim, 0, &slot), REFIT_STALE);
    refit_claim_show(&claim, 2, &(struct refit_version){.version = UINT64_MAX, .label = "step-7"});
    assert_int_equal(refit_claim_acquire_version(&claim, UINT64_MAX, &slot), REFIT_OK);
    assert_int_equal(slot, 2);
    refit_claim_hide(&claim, 2);
    assert_int_equal(refit_claim_acquire_version(&claim, UINT64_MAX, &slot), REFIT_STALE);
    assert_int_equal(refit_claim_pins(&claim, 2), 1);
}

static void a_staged_version_is_for_the_hook_only(void **state)
{
    static struct refit_claim claim;
    uint32_t slot;
    refit_claim_init(&claim, 2);
    refit_claim_stage(&claim, 1, &(struct refit_version){.version = 4});
    assert_int_equal(refit_claim_acquire_version(&claim, 4, &slot), REFIT_STALE);
    assert_int_equal(refit_claim_acquire_staged(&claim, 4, 1), REFIT_OK);
    assert_int_equal(refit_claim_pins(&claim, 1), 1);
    refit_claim_unstage(&claim, 1);
    assert_int_equal(refit_claim_acquire_staged(&claim, 4, 1), REFIT_STALE);
    refit_claim_release(&claim, 1);
    assert_int_equal(refit_claim_pins(&claim, 1), 0);
}

/* ---- the order of accesses: the page faults, and in that moment the other side acts ---- */

static struct refit_claim *guarded, *behind; /* two mappings of one page */
static void *first_access;
static bool hide_at_access;

static void on_access(int number, siginfo_t *info, void *context)
{
    first_access = info->si_addr;
    if (hide_at_access)
        refit_claim_hide(behind, 0);
    if (mprotect(guarded, sizeof *guarded, PROT_READ | PROT_WRITE) != 0)
        abort();
}

static void guard(int protection)
{
    struct sigaction action = {.sa_sigaction = on_access, .sa_flags = SA_SIGINFO};
    int fd = refit_io_memfd("claim");
    assert_int_equal(ftruncate(fd, sizeof(struct refit_claim)), 0);
    behind = mmap(NULL, sizeof *behind, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    guarded = mmap(NULL, sizeof *guarded, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    assert_ptr_not_equal(behind, MAP_FAILED);
    assert_ptr_not_equal(guarded, MAP_FAILED);
    refit_claim_init(behind, 2);
    refit_claim_show(behind, 0, &(struct refit_version){.version = 7});
    first_access = NULL;
    hide_at_access = protection == PROT_READ;
    assert_int_equal(sigaction(SIGSEGV, &action, NULL), 0);
    assert_int_equal(mprotect(guarded, sizeof *guarded, protection), 0);
}

static void unguard(void)
{
    signal(SIGSEGV, SIG_DFL);
    munmap(behind, sizeof *behind);
    munmap(guarded, sizeof *guarded);
}

/* Looked at first, the slot could be hidden, found idle and filled before the pin counts. */
static void a_pin_counts_before_the_version_is_looked_at_again(void **state)
{
    uint32_t slot = 9;
    guard(PROT_READ);
    assert_int_equal(refit_claim_acquire_version(guarded, 7, &slot), REFIT_STALE);
    assert_ptr_equal(first_access, &guarded->slot[0].entered);
    assert_int_equal(refit_claim_pins(behind, 0), 0);
    unguard();
}

/* Read second, `done` could count a refusal that `entered` has not, in place of a pin that is held. */
static void pins_are_counted_from_done_to_entered(void **state)
{
    guard(PROT_NONE);
    assert_int_equal(refit_claim_pins(guarded, 0), 0);
    assert_ptr_equal(first_access, &guarded->slot[0].done);
    unguard();
}

static void a_flip_that_was_cut_off_is_noticed(void **state)
{
    static struct refit_claim claim;
    refit_claim_init(&claim, 2);
    assert_int_equal(refit_claim_interrupted(&claim), REFIT_SLOT_NONE);
    refit_claim_flip(&claim, REFIT_SLOT_NONE, 0);
    refit_claim_flip(&claim, 0, 1);
    assert_int_equal(refit_claim_interrupted(&claim), REFIT_SLOT_NONE);
    atomic_store(&claim.flipping, 2);
    assert_int_equal(refit_claim_interrupted(&claim), 1);
    atomic_store(&claim.flipping, 4000);
    assert_int_equal(refit_claim_interrupted(&claim), REFIT_SLOT_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flip_counts_the_pins_it_finds),
        cmocka_unit_test(harvest_empties_a_full_gate_and_keeps_its_pins),
        cmocka_unit_test(hidden_and_unknown_versions_are_stale),
        cmocka_unit_test(a_staged_version_is_for_the_hook_only),
        cmocka_unit_test(a_pin_counts_before_the_version_is_looked_at_again),
        cmocka_unit_test(pins_are_counted_from_done_to_entered),
        cmocka_unit_test(a_flip_that_was_cut_off_is_noticed),
        cmocka_unit_test(readers_never_see_a_slot_change_under_a_pin_with_two_slots),
        cmocka_unit_test(readers_never_see_a_slot_change_under_a_pin_with_four_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
