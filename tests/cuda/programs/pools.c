/* SPDX-License-Identifier: Apache-2.0
 *
 * pools - checks stream-ordered memory: pools grow in chunks and return them when the host waits,
 * down to a threshold; memory freed in one stream is reused where the order allows; and an
 * allocation that finds no memory takes what pools do not use. Prints only one JSON object.
 *
 * For a driver without a shim.
 */
#include "records.h"

enum { DEVICE = 1, HOST = 2, PINNED = 1, MANAGED = 2 };
enum {
    FOLLOW_EVENTS = 1,
    OPPORTUNISTIC,
    INTERNAL,
    THRESHOLD,
    RESERVED,
    RESERVED_HIGH,
    USED,
    USED_HIGH
};

#define POOLS(name, symbol, arguments) static CUresult(*name) arguments;
POOLS(allocate, cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))
POOLS(allocate_from, cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, void *, CUstream))
POOLS(release, cuMemFreeAsync, (CUdeviceptr, CUstream))
POOLS(create, cuMemPoolCreate, (void **, const struct pool_properties *))
POOLS(destroy, cuMemPoolDestroy, (void *))
POOLS(get, cuMemPoolGetAttribute, (void *, int, void *))
POOLS(set, cuMemPoolSetAttribute, (void *, int, void *))
POOLS(trim, cuMemPoolTrimTo, (void *, size_t))
POOLS(default_pool, cuDeviceGetDefaultMemPool, (void **, CUdevice))
POOLS(get_pool, cuDeviceGetMemPool, (void **, CUdevice))
POOLS(set_pool, cuDeviceSetMemPool, (CUdevice, void *))
#undef POOLS

static CUfunction spin;

static uint64_t attribute(void *pool, int which) {
    uint64_t value = ~0ull;
    CHECK(get(pool, which, &value));
    return value;
}

static void set_number(void *pool, int which, uint64_t value) { CHECK(set(pool, which, &value)); }

static void set_switch(void *pool, int which, int value) { CHECK(set(pool, which, &value)); }

static size_t free_bytes(void) {
    size_t available;
    CHECK(cu.cuMemGetInfo(&available, NULL));
    return available;
}

static void chunks(CUstream stream) {
    CUdeviceptr first, second;
    void *pool;
    size_t before = free_bytes();

    CHECK(default_pool(&pool, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, allocate(&first, 0, stream));
    CHECK(allocate(&first, MIB, stream));
    HOLDS(attribute(pool, USED) == MIB && attribute(pool, RESERVED) > MIB);
    HOLDS(before - free_bytes() == attribute(pool, RESERVED));
    CHECK(allocate(&second, 100 * MIB + 1, stream));
    HOLDS(attribute(pool, USED) >= 101 * MIB && before - free_bytes() == attribute(pool, RESERVED));
    uint64_t high = attribute(pool, RESERVED_HIGH), used_high = attribute(pool, USED_HIGH);
    HOLDS(high == attribute(pool, RESERVED));
    CHECK(release(second, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    /* a free chunk is returned, one in use stays whole */
    HOLDS(attribute(pool, RESERVED) < 100 * MIB);
    HOLDS(attribute(pool, RESERVED) > MIB);
    HOLDS(attribute(pool, RESERVED_HIGH) == high && attribute(pool, USED_HIGH) == used_high);
    uint64_t one = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, set(pool, USED_HIGH, &one));
    set_number(pool, USED_HIGH, 0);
    set_number(pool, RESERVED_HIGH, 0);
    HOLDS(attribute(pool, USED_HIGH) == MIB &&
          attribute(pool, RESERVED_HIGH) == attribute(pool, RESERVED));

    set_number(pool, THRESHOLD, ~0ull);
    CHECK(release(first, stream));
    CHECK(cu.cuCtxSynchronize());
    HOLDS(attribute(pool, USED) == 0 && attribute(pool, RESERVED) > 0);
    CHECK(trim(pool, 1000 * MIB));
    HOLDS(attribute(pool, RESERVED) > 0);
    CHECK(trim(pool, 0));
    HOLDS(attribute(pool, RESERVED) == 0 && free_bytes() == before);
    set_number(pool, THRESHOLD, 0);
}

static void reuse(CUstream one, CUstream other) {
    struct pool_properties properties = {
        .kind = PINNED, .location = {DEVICE, 0}, .max_size = 64 * MIB};
    CUdeviceptr first, second;
    CUevent event;
    void *pool;

    CHECK(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(create(&pool, &properties));
    for (int which = FOLLOW_EVENTS; which <= INTERNAL; which++) set_switch(pool, which, 0);
    CHECK(allocate_from(&first, 64 * MIB, pool, one));
    CHECK(cu.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, one, NULL, NULL));
    CHECK(release(first, one));
    CHECK(allocate_from(&second, 64 * MIB, pool, one)); /* the same stream gets it at once */
    HOLDS(second == first);
    CHECK(release(second, one));
    CHECK(cu.cuEventRecord(event, one));
    CHECK(cu.cuStreamWaitEvent(other, event, 0));
    set_switch(pool, FOLLOW_EVENTS, 1);
    CHECK(allocate_from(&second, 64 * MIB, pool, other)); /* ordered after the free by an event */
    HOLDS(second == first);
    HOLDS(cu.cuStreamQuery(one) == CUDA_ERROR_NOT_READY);
    CHECK(release(second, other));
    CHECK(cu.cuCtxSynchronize());

    CHECK(allocate_from(&first, 64 * MIB, pool, one));
    CHECK(cu.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, one, NULL, NULL));
    CHECK(release(first, one));
    set_switch(pool, INTERNAL, 1);
    CHECK(allocate_from(&second, 64 * MIB, pool, other)); /* the other stream is made to wait */
    HOLDS(second == first);
    HOLDS(cu.cuStreamQuery(other) == CUDA_ERROR_NOT_READY);
    CHECK(cu.cuStreamSynchronize(other));
    CHECK(cu.cuStreamQuery(one));
    CHECK(destroy(pool)); /* destroyed with its last allocation */
    EXPECT(CUDA_ERROR_INVALID_HANDLE, allocate_from(&first, MIB, pool, one));
    CHECK(release(second, other));
    CHECK(cu.cuEventDestroy(event));
}

static void shortage(CUstream stream) {
    CUdeviceptr pooled, linear;
    void *pool;
    size_t before = free_bytes();

    CHECK(default_pool(&pool, 0));
    set_number(pool, THRESHOLD, ~0ull);
    CHECK(allocate(&pooled, before / 2, stream));
    CHECK(release(pooled, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(free_bytes() < before / 2 + 2 * MIB);    /* kept */
    CHECK(cu.cuMemAlloc(&linear, before / 4 * 3)); /* takes what the pool does not use */
    HOLDS(attribute(pool, RESERVED) == 0);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, allocate(&pooled, before / 2, stream));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, allocate(&pooled, (size_t)-1, stream));
    CHECK(cu.cuMemFree(linear));
    HOLDS(free_bytes() == before);
    set_number(pool, THRESHOLD, 0);
}

static void properties(CUstream stream) {
    struct pool_properties wanted = {.kind = MANAGED, .location = {DEVICE, 0}};
    CUdeviceptr address;
    void *pool, *standard, *current;

    EXPECT(CUDA_ERROR_NOT_SUPPORTED, create(&pool, &wanted));
    wanted.kind = 77;
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&pool, &wanted));
    wanted.kind = PINNED;
    wanted.location.kind = HOST;
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, create(&pool, &wanted));
    wanted.location.kind = DEVICE;
    wanted.location.id = 9;
    EXPECT(CUDA_ERROR_INVALID_DEVICE, create(&pool, &wanted));
    wanted.location.id = 0;
    CHECK(create(&pool, &wanted));
    CHECK(default_pool(&standard, 0));
    CHECK(set_pool(0, pool));
    CHECK(get_pool(&current, 0));
    HOLDS(current == pool);
    CHECK(allocate(&address, MIB, stream));
    HOLDS(attribute(pool, USED) == MIB && attribute(standard, USED) == 0);
    CHECK(destroy(pool));
    CHECK(get_pool(&current, 0));
    HOLDS(current == standard);
    CHECK(release(address, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, release(address, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, destroy(standard));
}

int main(void) {
    CUstream one, other;
    watchdog(60);
    driver_open();
#define LOOKUP(name, symbol) *(void **)&name = driver_symbol(#symbol)
    LOOKUP(allocate, cuMemAllocAsync);
    LOOKUP(allocate_from, cuMemAllocFromPoolAsync);
    LOOKUP(release, cuMemFreeAsync);
    LOOKUP(create, cuMemPoolCreate);
    LOOKUP(destroy, cuMemPoolDestroy);
    LOOKUP(get, cuMemPoolGetAttribute);
    LOOKUP(set, cuMemPoolSetAttribute);
    LOOKUP(trim, cuMemPoolTrimTo);
    LOOKUP(default_pool, cuDeviceGetDefaultMemPool);
    LOOKUP(get_pool, cuDeviceGetMemPool);
    LOOKUP(set_pool, cuDeviceSetMemPool);
    CHECK(cu.cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    CHECK(cu.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    /* A kernel's first launch takes memory too. */
    spin = driver_function("spin_400ms");
    CHECK(cu.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, one, NULL, NULL));
    CHECK(cu.cuCtxSynchronize());
    size_t before = free_bytes();
    chunks(one);
    reuse(one, other);
    CHECK(cu.cuCtxSynchronize());
    shortage(one);
    properties(one);
    CHECK(cu.cuCtxSynchronize());
    HOLDS(free_bytes() == before);
    printf("{\"pools\": true}\n");
    return 0;
}
