/* SPDX-License-Identifier: Apache-2.0
 *
 * A safetensors checkpoint as a source: one file, or several with their index, seen as a layout of one rank whose
 * arena is made of file ranges.
 *
 * `path` is a .safetensors file, or a directory that holds model.safetensors or model.safetensors.index.json (another
 * single *.safetensors file is taken when there is just one). With both, model.safetensors is taken, as loaders do.
 * Index entries must be plain file names in the same directory (checked by name: where a symbolic link ends is not
 * looked at, since checkpoint caches are made of links). Headers are read and checked when opened: length, JSON,
 * offsets within the file and without holes or overlap, shape times dtype equal to the range, index and files naming
 * the same tensors in the same places, and file sizes, so that a file that was cut short is refused, by name,
 * before a byte moves. Bytes are read with pread later, never mapped.
 */
#ifndef REFIT_CHECKPOINT_CHECKPOINT_H
#define REFIT_CHECKPOINT_CHECKPOINT_H

#include "layouts/tally.h"
#include "memory/arena.h"

struct refit_checkpoint;

/* *out is new. REFIT_NOT_FOUND, REFIT_INVALID or REFIT_CORRUPT name the file and the tensor. */
REFIT_MUST_CHECK enum refit_status refit_checkpoint_open(const char *path, struct refit_checkpoint **out,
                                                         struct refit_error *err);
void refit_checkpoint_close(struct refit_checkpoint *checkpoint); /* NULL is fine */

struct refit_layout *refit_checkpoint_layout(const struct refit_checkpoint *checkpoint); /* borrowed */
struct refit_arena *refit_checkpoint_arena(const struct refit_checkpoint *checkpoint);   /* borrowed; kind file */

/* Reads every byte once. `threads` >= 1. The tally is by the checkpoint layout's tensor ids; new. */
REFIT_MUST_CHECK enum refit_status refit_checkpoint_digest(const struct refit_checkpoint *checkpoint, unsigned threads,
                                                           struct refit_tally **tally,
                                                           char model_hex[static REFIT_SHA256_HEX_MAX],
                                                           struct refit_error *err);

#endif
