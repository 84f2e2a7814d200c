/* SPDX-License-Identifier: Apache-2.0
 *
 * A window: one range of addresses that shows one slot after another, read-only. For code that has addresses baked in.
 *
 * Not thread-safe; nobody reads through it while it is made to show another slot.
 */
#ifndef REFIT_MEMORY_WINDOW_H
#define REFIT_MEMORY_WINDOW_H

#include "memory/arena.h"

struct refit_window;

/* Addresses for slots of the kind and size of this one; it shows nothing yet. *out is new. */
REFIT_MUST_CHECK enum refit_status refit_window_create(const struct refit_arena *slot, struct refit_window **out,
                                                       struct refit_error *err);
/* Shows a slot from refit_slot_map() or refit_cuda_slot_open(), whose memory stays for as long as it is shown. After an error it shows nothing. */
REFIT_MUST_CHECK enum refit_status refit_window_show(struct refit_window *window, const struct refit_arena *slot,
                                                     struct refit_error *err);
/* Constant, whatever is shown. Of a slot on a GPU: an address there. */
const void *refit_window_at(const struct refit_window *window, uint64_t offset);
void refit_window_destroy(struct refit_window *window); /* NULL is fine */

#endif
