/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.h - memory pools, and checks that the ledger has what they hold.
 */
#ifndef CGPU_TEST_POOL_H
#define CGPU_TEST_POOL_H

#include "ledger.h"

typedef struct pool *Pool;

enum { THRESHOLD = 4, RESERVED = 5, USED = 7 };

static struct {
    CUresult (*alloc)(CUdeviceptr *address, size_t bytes, CUstream stream);
    CUresult (*alloc_from)(CUdeviceptr *address, size_t bytes, Pool pool, CUstream stream);
    CUresult (*free)(CUdeviceptr address, CUstream stream);
    CUresult (*create)(Pool *pool, const struct pool_properties *properties);
    CUresult (*destroy)(Pool pool);
    CUresult (*trim)(Pool pool, size_t keep);
    CUresult (*get)(Pool pool, int attribute, void *value);
    CUresult (*set)(Pool pool, int attribute, void *value);
    CUresult (*of_device)(Pool *pool, CUdevice device);
    CUresult (*default_of_device)(Pool *pool, CUdevice device);
    CUresult (*choose)(CUdevice device, Pool pool);
} pools;

static inline void pools_open(void) {
    *(void **)&pools.alloc = driver_symbol("cuMemAllocAsync");
    *(void **)&pools.alloc_from = driver_symbol("cuMemAllocFromPoolAsync");
    *(void **)&pools.free = driver_symbol("cuMemFreeAsync");
    *(void **)&pools.create = driver_symbol("cuMemPoolCreate");
    *(void **)&pools.destroy = driver_symbol("cuMemPoolDestroy");
    *(void **)&pools.trim = driver_symbol("cuMemPoolTrimTo");
    *(void **)&pools.get = driver_symbol("cuMemPoolGetAttribute");
    *(void **)&pools.set = driver_symbol("cuMemPoolSetAttribute");
    *(void **)&pools.of_device = driver_symbol("cuDeviceGetMemPool");
    *(void **)&pools.default_of_device = driver_symbol("cuDeviceGetDefaultMemPool");
    *(void **)&pools.choose = driver_symbol("cuDeviceSetMemPool");
}

static inline Pool pool_of_the_gpu(void) {
    Pool pool;
    CHECK(pools.of_device(&pool, 0));
    return pool;
}

static inline Pool pool_made(void) {
    struct pool_properties properties = {.kind = PINNED, .location = {DEVICE, 0}};
    Pool pool;
    CHECK(pools.create(&pool, &properties));
    return pool;
}

static inline size_t pool_has(Pool pool, int attribute) {
    uint64_t value;
    CHECK(pools.get(pool, attribute, &value));
    return (size_t)value;
}

static inline void keep_at_most(Pool pool, uint64_t bytes) {
    CHECK(pools.set(pool, THRESHOLD, &bytes));
}

/* Requires that what is taken is what the pool holds, as shown and by the driver. */
#define HELD_BY(pool) TAKEN(pool_has(pool, RESERVED))

/* Keeps the stream busy for a while. */
static inline void occupy(CUfunction spin, CUstream stream) {
    CHECK(cu.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

/* Begins to count and creates a stream. */
static inline CUstream pools_begin(unsigned seconds) {
    CUstream stream;
    watchdog(seconds);
    driver_open();
    pools_open();
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ledger_open();
    return stream;
}

/* Returns a kernel that has run, so that its code is not counted. */
static inline CUfunction kernel_ready(const char *name, CUstream stream) {
    CUfunction kernel = driver_function(name);
    occupy(kernel, stream);
    CHECK(cu.cuStreamSynchronize(stream));
    ledger_open();
    return kernel;
}

#endif
