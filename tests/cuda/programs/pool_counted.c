/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_counted - checks that memory held by pools is charged, whatever call allocated from them,
 * and that frees succeed. In other tools pool allocations were not charged and cuMemFreeAsync
 * returned -1, which ended programs.
 */
#include "pool.h"

static const size_t sizes[] = {1, 513, MIB - 1, MIB, 32 * MIB, 33 * MIB, 100 * MIB + 1, 257 * MIB};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void all_sizes(Pool pool, int by_name, CUstream stream) {
    CUdeviceptr address[SIZES];
    for (int i = 0; i < SIZES; i++) {
        CHECK(by_name ? pools.alloc_from(&address[i], sizes[i], pool, stream)
                      : pools.alloc(&address[i], sizes[i], stream));
        HOLDS(pool_has(pool, USED) >= sizes[i]);
        HELD_BY(pool);
    }
    for (int i = 0; i < SIZES; i++) {
        /* Either way of freeing. */
        CHECK(i % 3 == 2 ? cu.cuMemFree(address[i]) : pools.free(address[i], stream));
        HELD_BY(pool);
    }
    HOLDS(pool_has(pool, USED) == 0);
    CHECK(cu.cuStreamSynchronize(stream));
    TAKEN(0);
}

int main(void) {
    CUstream stream = pools_begin(120);
    int supported;
    CHECK(cu.cuDeviceGetAttribute(&supported, 115 /* MEMORY_POOLS_SUPPORTED */, 0));
    HOLDS(supported);
    CHECK(cu.cuDeviceGetAttribute(&supported, 119 /* MEMPOOL_SUPPORTED_HANDLE_TYPES */, 0));
    HOLDS(supported);

    Pool pool = pool_of_the_gpu();
    all_sizes(pool, 0, stream);
    all_sizes(pool, 1, stream);
    all_sizes(pool, 0, NULL);

    struct pool_properties properties = {
        .kind = PINNED, .location = {DEVICE, 0}, .max_size = 64 * MIB};
    Pool small, large = pool_made();
    CHECK(pools.create(&small, &properties));
    all_sizes(large, 1, stream);
    CHECK(pools.choose(0, large));
    all_sizes(large, 0, stream);

    CUdeviceptr address, other;
    CHECK(pools.alloc_from(&address, 40 * MIB, small, stream));
    HELD_BY(small);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY,
           pools.alloc_from(&other, 40 * MIB, small, stream)); /* its own limit */
    HELD_BY(small);
    CHECK(pools.free(address, stream));
    CHECK(cu.cuCtxSynchronize());
    TAKEN(0);

    EXPECT(CUDA_ERROR_INVALID_VALUE, pools.alloc(&address, 0, stream));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, pools.alloc(&address, (size_t)1 << 45, stream));
    properties.kind = MANAGED;
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, pools.create(&small, &properties));
    TAKEN(0);
    return 0;
}
