/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_threshold - checks that memory kept by a pool is charged until it is trimmed, or until its
 * threshold and any synchronisation release it.
 */
#include "pool.h"

static void use(size_t bytes, CUstream stream) {
    CUdeviceptr address;
    CHECK(pools.alloc(&address, bytes, stream));
    CHECK(pools.free(address, stream));
}

int main(void) {
    CUstream stream = pools_begin(60);
    CUevent event;
    Pool pool = pool_of_the_gpu();
    CHECK(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    keep_at_most(pool, UINT64_MAX);
    use(256 * MIB, stream);
    use(512 * MIB, stream);
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(pool_has(pool, RESERVED) >= 512 * MIB);
    HELD_BY(pool);
    CHECK(pools.trim(pool, pool_has(pool, RESERVED)));
    HELD_BY(pool);
    CHECK(pools.trim(pool, 64 * MIB));
    HELD_BY(pool);
    CHECK(pools.trim(pool, 0));
    TAKEN(0);

    for (int way = 0; way < 4; way++) {
        keep_at_most(pool, UINT64_MAX);
        use(300 * MIB, stream);
        CHECK(cu.cuCtxSynchronize());
        HOLDS(truth() >= 300 * MIB);
        keep_at_most(pool, 0);
        HELD_BY(pool);
        CHECK(cu.cuEventRecord(event, stream));
        if (way == 0) CHECK(cu.cuEventSynchronize(event));
        if (way == 1) CHECK(cu.cuStreamSynchronize(stream));
        if (way == 2) CHECK(cu.cuCtxSynchronize());
        if (way == 3) CHECK(cu.cuStreamSynchronize(NULL));
        HELD_BY(pool);
        CHECK(pools.trim(pool, 0));
        TAKEN(0);
    }

    /* Half of it is in use. */
    CUdeviceptr address;
    keep_at_most(pool, UINT64_MAX);
    CHECK(pools.alloc(&address, 100 * MIB, stream));
    use(400 * MIB, stream);
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(pools.trim(pool, 0));
    HOLDS(pool_has(pool, RESERVED) >= 100 * MIB);
    HELD_BY(pool);
    CHECK(pools.free(address, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(pools.trim(pool, 0));
    TAKEN(0);
    return 0;
}
