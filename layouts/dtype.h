/* SPDX-License-Identifier: Apache-2.0
 *
 * Element types, named as safetensors names them.
 *
 * Boxes and strides are counted in *units*: the smallest whole number of bytes of a dtype. For most dtypes a unit
 * is one element. 4-bit types pack two elements in a unit of 1 byte, 6-bit types four elements in 3 bytes; the
 * last dimension of their tensors must be a multiple of that, and so must every cut of it.
 */
#ifndef REFIT_LAYOUTS_DTYPE_H
#define REFIT_LAYOUTS_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

enum refit_dtype {
    REFIT_DTYPE_BOOL, REFIT_DTYPE_F4, REFIT_DTYPE_F6_E2M3, REFIT_DTYPE_F6_E3M2, REFIT_DTYPE_U8, REFIT_DTYPE_I8,
    REFIT_DTYPE_F8_E5M2, REFIT_DTYPE_F8_E4M3, REFIT_DTYPE_F8_E8M0, REFIT_DTYPE_F8_E4M3FNUZ, REFIT_DTYPE_F8_E5M2FNUZ,
    REFIT_DTYPE_I16, REFIT_DTYPE_U16, REFIT_DTYPE_F16, REFIT_DTYPE_BF16, REFIT_DTYPE_I32, REFIT_DTYPE_U32,
    REFIT_DTYPE_F32, REFIT_DTYPE_C64, REFIT_DTYPE_F64, REFIT_DTYPE_I64, REFIT_DTYPE_U64,
    REFIT_DTYPE_COUNT
};

const char *refit_dtype_name(enum refit_dtype dtype);                     /* "BF16"; never NULL */
bool refit_dtype_parse(const char *name, enum refit_dtype *dtype);        /* false: unknown */
uint32_t refit_dtype_bits(enum refit_dtype dtype);                        /* of one element */
uint32_t refit_dtype_unit_elements(enum refit_dtype dtype);               /* elements in a unit: 1, 2 or 4 */
uint32_t refit_dtype_unit_bytes(enum refit_dtype dtype);

#endif
