/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_destroyed - checks a pool that is destroyed while memory of it is in use: that can be used
 * and freed, and is charged until the driver has it back.
 */
#include "pool.h"

int main(void) {
    CUdeviceptr one, two;
    CUstream stream = pools_begin(60);
    CUfunction spin = kernel_ready("spin_300ms", stream);
    Pool pool, common = pool_of_the_gpu(), now;
    unsigned char byte;
    size_t used = shown();

    EXPECT(CUDA_ERROR_INVALID_VALUE, pools.destroy(common));
    for (int i = 0; i < 300; i++) CHECK(pools.destroy(pool_made()));
    TAKEN(used);

    /* Empty: released at once, even with a threshold. */
    pool = pool_made();
    keep_at_most(pool, UINT64_MAX);
    CHECK(pools.alloc_from(&one, 100 * MIB, pool, stream));
    CHECK(pools.free(one, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(truth() >= used + 100 * MIB);
    CHECK(pools.destroy(pool));
    TAKEN(used);

    /* In use. */
    pool = pool_made();
    keep_at_most(pool, UINT64_MAX);
    CHECK(pools.choose(0, pool));
    CHECK(pools.alloc(&one, 100 * MIB, stream));
    CHECK(pools.alloc(&two, 200 * MIB, stream));
    CHECK(pools.destroy(pool));
    CHECK(pools.of_device(&now, 0));
    HOLDS(now == common);
    HOLDS(pools.destroy(pool) != CUDA_SUCCESS);
    HOLDS(pools.alloc_from(&one, MIB, pool, stream) != CUDA_SUCCESS);
    HOLDS(shown() == truth() && truth() >= used + 300 * MIB);
    CHECK(cu.cuMemsetD8(one, 7, 100 * MIB));
    CHECK(cu.cuMemcpyDtoH(&byte, one + 100 * MIB - 1, 1));
    CHECK(pools.free(two, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(shown() == truth() && truth() >= used + 100 * MIB && truth() < used + 300 * MIB);

    /* Freed in a stream that has not got there. */
    occupy(spin, stream);
    CHECK(pools.free(one, stream));
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(stream));
    HOLDS(shown() == truth() && truth() >= used + 100 * MIB);
    CHECK(cu.cuStreamSynchronize(stream));
    TAKEN(used);

    /* Other pools take its place. */
    CHECK(pools.alloc(&one, MIB, stream));
    TAKEN(used + pool_has(common, RESERVED));
    CHECK(pools.free(one, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    TAKEN(used);
    return 0;
}
