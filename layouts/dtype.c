/* SPDX-License-Identifier: Apache-2.0 */
#include "layouts/dtype.h"

#include <stddef.h>
#include <string.h>

static const struct {
    const char *name;
    uint8_t bits;
    uint8_t unit_elements;
} types[REFIT_DTYPE_COUNT] = {
    [REFIT_DTYPE_BOOL] = {"BOOL", 8, 1},
    [REFIT_DTYPE_F4] = {"F4", 4, 2},
    [REFIT_DTYPE_F6_E2M3] = {"F6_E2M3", 6, 4},
    [REFIT_DTYPE_F6_E3M2] = {"F6_E3M2", 6, 4},
    [REFIT_DTYPE_U8] = {"U8", 8, 1},
    [REFIT_DTYPE_I8] = {"I8", 8, 1},
    [REFIT_DTYPE_F8_E5M2] = {"F8_E5M2", 8, 1},
    [REFIT_DTYPE_F8_E4M3] = {"F8_E4M3", 8, 1},
    [REFIT_DTYPE_F8_E8M0] = {"F8_E8M0", 8, 1},
    [REFIT_DTYPE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8, 1},
    [REFIT_DTYPE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8, 1},
    [REFIT_DTYPE_I16] = {"I16", 16, 1},
    [REFIT_DTYPE_U16] = {"U16", 16, 1},
    [REFIT_DTYPE_F16] = {"F16", 16, 1},
    [REFIT_DTYPE_BF16] = {"BF16", 16, 1},
    [REFIT_DTYPE_I32] = {"I32", 32, 1},
    [REFIT_DTYPE_U32] = {"U32", 32, 1},
    [REFIT_DTYPE_F32] = {"F32", 32, 1},
    [REFIT_DTYPE_C64] = {"C64", 64, 1},
    [REFIT_DTYPE_F64] = {"F64", 64, 1},
    [REFIT_DTYPE_I64] = {"I64", 64, 1},
    [REFIT_DTYPE_U64] = {"U64", 64, 1},
};

static bool known(enum refit_dtype dtype)
{
    return (unsigned)dtype < REFIT_DTYPE_COUNT;
}

const char *refit_dtype_name(enum refit_dtype dtype)
{
    return known(dtype) ? types[dtype].name : "unknown";
}

bool refit_dtype_parse(const char *name, enum refit_dtype *dtype)
{
    for (unsigned i = 0; i < REFIT_DTYPE_COUNT; i++) {
        if (strcmp(types[i].name, name) == 0) {
            *dtype = (enum refit_dtype)i;
            return true;
        }
    }
    return false;
}

uint32_t refit_dtype_bits(enum refit_dtype dtype)
{
    return known(dtype) ? types[dtype].bits : 0;
}

uint32_t refit_dtype_unit_elements(enum refit_dtype dtype)
{
    return known(dtype) ? types[dtype].unit_elements : 0;
}

uint32_t refit_dtype_unit_bytes(enum refit_dtype dtype)
{
    return known(dtype) ? types[dtype].bits * (uint32_t)types[dtype].unit_elements / 8 : 0;
}
