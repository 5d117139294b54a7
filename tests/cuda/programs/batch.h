/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.h - the driver's structures and functions for copies with attributes and in batches.
 */
#ifndef CGPU_TEST_BATCH_H
#define CGPU_TEST_BATCH_H

#include "driver.h"

enum { IN_STREAM_ORDER = 1, DURING_CALL = 2, ANY_TIME = 3 };
enum { PREFER_OVERLAP = 1 };
enum { POINTER = 1, ARRAY = 2 };

struct location {
    int kind, id;
};

struct attributes {
    int access;
    struct location from, to;
    unsigned flags;
};

struct operand {
    int kind;
    union {
        struct {
            CUdeviceptr address;
            size_t row_length, layer_height;
            struct location hint;
        } pointer;
        struct {
            void *array;
            size_t x, y, z;
        } array;
    };
};

struct operation {
    struct operand from, to;
    size_t width, height, depth;
    int access;
    unsigned flags;
};

typedef CUresult (*Batch)(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                          struct attributes *, size_t *starts, size_t attributes, CUstream);
typedef CUresult (*BatchIndexed)(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                 struct attributes *, size_t *starts, size_t attributes,
                                 size_t *failed, CUstream);
typedef CUresult (*Boxes)(size_t count, struct operation *, unsigned long long flags, CUstream);
typedef CUresult (*BoxesIndexed)(size_t count, struct operation *, size_t *failed,
                                 unsigned long long flags, CUstream);
typedef CUresult (*WithAttributes)(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                   struct attributes *, CUstream);
typedef CUresult (*BoxWithAttributes)(struct operation *, unsigned long long flags, CUstream);

#endif
