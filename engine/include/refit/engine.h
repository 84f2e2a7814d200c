/* SPDX-License-Identifier: Apache-2.0
 *
 * librefit-engine: what an inference engine links to read weights that change while it serves.
 *
 * One process is one rank of a replica. It attaches to `refitd` over a Unix socket, declares the layout it serves,
 * and from then on asks for a *pin* at each step (or for each request): the pin names one version, whose bytes stay as they are
 * until it is released. Acquire and release are two atomic additions; they never block and never fail because of
 * a swap, and a swap never waits inside them.
 *
 *     struct refit_pin pin;
 *     if (refit_engine_acquire(engine, REFIT_LATEST, &pin) == REFIT_OK) {
 *         const float *w = refit_engine_buffer(engine, &pin, id);
 *         ...one step...
 *         refit_engine_release(engine, &pin);
 *     }
 *
 * Several ranks: only the leader (rank 0) acquires REFIT_LATEST. It tells the others `pin.version`, they acquire that
 * version, and the leader releases after they have acquired. Then no step ever reads two versions. A sequence that must end on
 * the version it began with holds its pin from first to last token; with three or more slots, newer versions are
 * installed beside it.
 *
 * Where the bytes are depends on how refitd swaps (--swap):
 *   pointer    each version has addresses of its own: ask for buffers or table with each pin. Swaps wait for nobody.
 *   copy       the version that is served always has the same addresses, from attach to detach: the table that
 *              refit_engine_table() gives is one and the same, also between pins, for code that has addresses baked in.
 *              A swap moves bytes under them: it begins when before_swap has returned on every rank, waits for pins, and
 *              is over when after_swap is called; acquire is REFIT_BUSY meanwhile. Only what is served can be acquired.
 *   remap      as copy, and no byte moves: other memory appears at the same addresses.
 *   in-place   as copy; before_swap is called before the first byte of a refit, and nothing is served until it is
 *              committed. A refit that fails leaves nothing to serve: acquire is REFIT_CORRUPT until another one succeeds.
 * In every mode the buffers in a prepare hook are elsewhere, and valid during the hook only.
 *
 * Threads: acquire, release and the buffer functions may be called from any thread. Callbacks run on a thread of the library,
 * one at a time; they must not call refit_engine_detach. If `refitd` goes away, the versions already mapped
 * stay readable, and the library reconnects and hands the slots back to the new `refitd`. With `refitd --receive
 * in-engine` further threads of the library bring bytes into the slot that is being filled, by NCCL, on streams of the
 * least priority; the caller's current CUDA context and device stay what they are, and refit_engine_detach ends them first.
 */
#ifndef REFIT_ENGINE_H
#define REFIT_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include <refit/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define REFIT_LATEST 0 /* versions are 1 or more */

struct refit_engine;

struct refit_version {
    uint64_t version;
    char label[64];  /* may be empty */
    char digest[65]; /* the model's digest, 64 hex digits */
};

struct refit_pin {
    uint64_t version;
    uint32_t slot;
};

/* Called when a version's bytes are verified and not yet served: map-derived tensors are computed here, into memory of the engine's
 * own. `pin` gives access to the buffers during the call only. Return 0, or another value to refuse the version: the refit
 * then aborts everywhere and `reason` (at most 256 bytes with its NUL) tells why. May take long; the refit's
 * deadline bounds it. */
typedef int (*refit_prepare_fn)(void *context, struct refit_engine *engine, const struct refit_version *version,
                                const struct refit_pin *pin, char *reason);

/* Around a swap, on every rank. `before` may still refuse (non-zero); `after` is told what is served now, also after
 * a rollback. `kv` is the refit's word for KV and prefix caches: "flush", "keep" or "namespace". */
typedef int (*refit_before_swap_fn)(void *context, const struct refit_version *version, const char *kv);
typedef void (*refit_after_swap_fn)(void *context, const struct refit_version *version, const char *kv);

/* Where slots are: refitd decides (--memory). `cuda` is a GPU's memory, and what the buffer functions return are addresses
 * on that GPU (CUdeviceptr), for kernels and copies of the context that is current: its primary one. */
enum refit_memory_kind {
    REFIT_MEMORY_HOST, REFIT_MEMORY_CUDA, REFIT_MEMORY_ANY /* of a config: this engine asks refit_engine_memory() */
};

struct refit_engine_config {
    const char *socket_path;  /* of refitd: "/run/refit/refitd.sock" */
    uint32_t rank, ranks;     /* of this process in the replica; rank 0 leads */
    const char *label;        /* who holds a pin, in messages; NULL: the program's name */
    const char *layout;       /* the replica's layout document, all ranks (docs/layouts.md); copied */
    size_t layout_len;
    refit_prepare_fn prepare;         /* each may be NULL */
    refit_before_swap_fn before_swap;
    refit_after_swap_fn after_swap;
    void *context;
    int stable_addresses; /* not 0: the engine has addresses baked in. Attach is REFIT_MISMATCH where refitd swaps by pointer */
    enum refit_memory_kind memory;    /* what this engine can read; another one is REFIT_MISMATCH. 0: host */
};

/* Connect, declare, map all slots read-only. Retries until refitd is there or the time is over. *out is new.
 * REFIT_MISMATCH: another rank declared another layout, or the slots are too small; REFIT_TIMEOUT. */
REFIT_API enum refit_status refit_engine_attach(const struct refit_engine_config *config, int64_t timeout_ms,
                                                struct refit_engine **out, struct refit_error *err);
/* Gives up this rank. All pins must be released; memory is unmapped. NULL is fine. */
REFIT_API void refit_engine_detach(struct refit_engine *engine);

/* Waits until a version is served (REFIT_OK) or the time is over (REFIT_TIMEOUT). */
REFIT_API enum refit_status refit_engine_wait(struct refit_engine *engine, int64_t timeout_ms, struct refit_error *err);

/* Pin the version served now (REFIT_LATEST, leader only) or a given one. REFIT_NOT_FOUND: nothing is served yet;
 * REFIT_BUSY: a swap that before_swap announced is under way (not in mode pointer); REFIT_CORRUPT: a swap that failed left no
 * whole version (modes copy and in-place), refit again;
 * REFIT_STALE: that version is not here (any more); REFIT_INVALID: REFIT_LATEST on another rank than 0. No loop, no
 * lock, no system call. */
REFIT_API enum refit_status refit_engine_acquire(struct refit_engine *engine, uint64_t version, struct refit_pin *pin);
/* Ends the pin: its bytes may change from now on. Exactly once per acquire. For work that goes on after the call (a
 * kernel launched on a device) release when that work has ended, not when it was launched. */
REFIT_API void refit_engine_release(struct refit_engine *engine, const struct refit_pin *pin);
/* The same for slots on a GPU: the pin ends when the work that is queued on `stream` so far has ended. `stream` is a CUstream (or
 * cudaStream_t) of the device's primary context, NULL for the default one. Returns at once; on an error the pin is still
 * held, and is the caller's to release when the work has ended. Not while the stream is captured into a graph: after the graph
 * was launched. The pin ends within a millisecond of the work; a device error leaves it held until the process ends, and
 * detach waits for pending ones up to 10 s. REFIT_UNSUPPORTED: slots are in host memory. */
REFIT_API enum refit_status refit_engine_release_on_stream(struct refit_engine *engine, const struct refit_pin *pin,
                                                           void *stream, struct refit_error *err);

/* Buffers are numbered in layout order on this rank; REFIT_NO_BUFFER when there is none of that name. */
#define REFIT_NO_BUFFER UINT32_MAX
REFIT_API uint32_t refit_engine_buffer_id(const struct refit_engine *engine, const char *name);
REFIT_API uint32_t refit_engine_buffer_count(const struct refit_engine *engine);
REFIT_API size_t refit_engine_buffer_bytes(const struct refit_engine *engine, uint32_t id);
/* Read-only; valid while the pin is held; aligned to 256 bytes. Of a GPU's memory: the address there. */
REFIT_API const void *refit_engine_buffer(const struct refit_engine *engine, const struct refit_pin *pin, uint32_t id);
/* The table behind it: refit_engine_buffer_count pointers of the pinned slot. It stays valid until detach. */
REFIT_API const void *const *refit_engine_table(const struct refit_engine *engine, const struct refit_pin *pin);
/* What the buffers are in, on this rank; the same until detach. */
struct refit_memory_info {
    enum refit_memory_kind kind;
    int device;           /* of cuda: its number in this process (CUDA_VISIBLE_DEVICES renumbers); else -1 */
    uint8_t uuid[16];     /* of that device */
    uint64_t granularity; /* of its allocations; 0 on the host */
    uint64_t slot_bytes;  /* of one slot */
};
REFIT_API void refit_engine_memory(const struct refit_engine *engine, struct refit_memory_info *out);
/* Of one pin's buffers. What is served is always of the kind above; with `--staging host` a prepare hook of an engine with cuda
 * slots is shown the new version in host memory. */
REFIT_API enum refit_memory_kind refit_engine_pin_memory(const struct refit_engine *engine, const struct refit_pin *pin);
/* Label and digest of a pinned version. */
REFIT_API void refit_engine_version(const struct refit_engine *engine, const struct refit_pin *pin,
                                    struct refit_version *out);

#ifdef __cplusplus
}
#endif
#endif
