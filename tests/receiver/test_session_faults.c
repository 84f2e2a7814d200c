/* SPDX-License-Identifier: Apache-2.0
 *
 * Each fallible call of a refit is made to fail once: allocations, threads, descriptors, reads (the linker wraps them,
 * see CMakeLists.txt). Whatever happens, what is served is whole, and the next refit succeeds.
 */
#include "world.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "tests/support/safetensors_writer.h"

static atomic_long countdown; /* the call that reaches 0 fails; below: none */
static atomic_int failed;
static _Thread_local bool exempt; /* the test's own calls */

static bool fails_now(void)
{
    if (exempt || atomic_load(&countdown) <= 0 || atomic_fetch_sub(&countdown, 1) != 1)
        return false;
    atomic_store(&failed, 1);
    return true;
}

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes)
{
    return fails_now() ? NULL : __real_malloc(bytes);
}

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails_now() ? NULL : __real_calloc(count, bytes);
}

void *__real_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes)
{
    return fails_now() ? NULL : __real_realloc(old, bytes);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    return fails_now() ? EAGAIN : __real_pthread_create(thread, attr, run, arg);
}

ssize_t __real_pread(int fd, void *data, size_t len, off_t offset);
ssize_t __wrap_pread(int fd, void *data, size_t len, off_t offset);
ssize_t __wrap_pread(int fd, void *data, size_t len, off_t offset)
{
    if (!fails_now())
        return __real_pread(fd, data, len, offset);
    errno = EIO;
    return -1;
}

ssize_t __real_preadv(int fd, const struct iovec *iov, int count, off_t offset);
ssize_t __wrap_preadv(int fd, const struct iovec *iov, int count, off_t offset);
ssize_t __wrap_preadv(int fd, const struct iovec *iov, int count, off_t offset)
{
    if (!fails_now())
        return __real_preadv(fd, iov, count, offset);
    errno = EIO;
    return -1;
}

int __real_eventfd(unsigned initial, int flags);
int __wrap_eventfd(unsigned initial, int flags);
int __wrap_eventfd(unsigned initial, int flags)
{
    if (!fails_now())
        return __real_eventfd(initial, flags);
    errno = EMFILE;
    return -1;
}

/* --- the test --------------------------------------------------------------------------------------------------- */

static struct world world;

static int set_up(void **state)
{
    exempt = true;
    world_init(&world, 64);
    world_start(&world);
    for (uint64_t seed = 0; seed < 2; seed++) {
        char path[256];
        struct safetensors_writer writer;
        snprintf(path, sizeof path, "%s/%llu.safetensors", world.root, (unsigned long long)seed);
        safetensors_begin(&writer, seed);
        safetensors_add(&writer, "w", REFIT_DTYPE_F32, 2, (const int64_t[]){64, 256});
        safetensors_add(&writer, "b", REFIT_DTYPE_F32, 1, (const int64_t[]){300});
        safetensors_add(&writer, "e", REFIT_DTYPE_BF16, 2, (const int64_t[]){130, 32});
        assert_true(safetensors_write(&writer, path));
    }
    return 0;
}

static int tear_down(void **state)
{
    atomic_store(&countdown, 0);
    exempt = true;
    world_close(&world);
    return 0;
}

/* One refit from a checkpoint whose nth fallible call fails. False: it has fewer. */
static bool refit_with_fault(uint64_t version, long nth)
{
    struct refit_request request = {.version = version, .commit = REFIT_COMMIT_AUTO, .deadline_ms = 10000};
    struct refit_ticket ticket;
    struct refit_error err = {.status = REFIT_OK};
    snprintf(request.checkpoint, sizeof request.checkpoint, "%llu.safetensors", (unsigned long long)version % 2);
    atomic_store(&failed, 0);
    atomic_store(&countdown, nth);
    exempt = false;
    enum refit_status status = refit_receiver_begin(world.receiver, &request, &ticket, &err);
    exempt = true;
    enum refit_phase end = REFIT_PHASE_ABORTED;
    if (status == REFIT_OK) {
        struct refit_session_snapshot snapshot;
        struct refit_deadline deadline = refit_deadline_in_ms(WORLD_WAIT_MS);
        do {
            assert_int_equal(refit_receiver_session(world.receiver, ticket.id, &snapshot, NULL), REFIT_OK);
            assert_false(refit_deadline_passed(deadline));
            sched_yield();
        } while (snapshot.phase != REFIT_PHASE_COMMITTED && snapshot.phase != REFIT_PHASE_ABORTED);
        end = snapshot.phase;
        err = snapshot.error;
    }
    atomic_store(&countdown, 0);
    if (end == REFIT_PHASE_COMMITTED) {
        world.served_version = version;
        world.served_seed = version % 2;
    } else
        assert_true(err.status != REFIT_OK && err.text[0] != '\0');
    world_assert_served(&world);
    return atomic_load(&failed);
}

static void each_fallible_call_may_fail(void **state)
{
    uint64_t version = 1;
    long nth = 1;
    for (; refit_with_fault(version, nth); version++)
        nth++;
    assert_true(nth > 50);
    assert_int_equal(world.served_version, version); /* the last one met no fault */
    assert_false(refit_with_fault(version + 1, 0));
    assert_int_equal(world.served_version, version + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_fallible_call_may_fail, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
