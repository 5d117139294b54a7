/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_out_of_memory - checks that a pool at the end of memory returns CUDA_ERROR_OUT_OF_MEMORY,
 * that nothing of a refused allocation stays, and that unused memory of pools is available to
 * others. In other tools the result was -1 and failed allocations stayed charged. Needs a limit of
 * 2 GiB.
 */
#include "pool.h"

enum { MOST = 4096 };
static CUdeviceptr address[MOST];

/* Allocates until memory is out and returns how many. */
static int fill(size_t bytes, CUstream stream) {
    CUresult result = CUDA_SUCCESS;
    int count = 0;
    while (count < MOST && (result = pools.alloc(&address[count], bytes, stream)) == CUDA_SUCCESS)
        count++;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, result);
    HELD_BY(pool_of_the_gpu());
    HOLDS(ledger.shown >= truth()); /* within the limit */
    return count;
}

static void empty(int count, CUstream stream) {
    while (count > 0) CHECK(pools.free(address[--count], stream));
}

int main(void) {
    CUstream stream = pools_begin(120);
    Pool pool = pool_of_the_gpu();
    for (int round = 0; round < 3; round++) {
        for (size_t bytes = 3 * MIB; bytes < 400 * MIB; bytes *= 5) {
            int count = fill(bytes, stream);
            /* All but less than a chunk and a piece. */
            HOLDS(pool_has(pool, RESERVED) + 40 * MIB + bytes > ledger.shown);
            for (int i = 0; i < 20; i++)
                EXPECT(CUDA_ERROR_OUT_OF_MEMORY, pools.alloc(&address[count], bytes, stream));
            HELD_BY(pool);
            empty(count, stream);
            HOLDS(fill(bytes, stream) == count); /* from what it still holds */
            empty(count, stream);
            CHECK(cu.cuStreamSynchronize(stream));
            TAKEN(0);
        }
    }

    /* Unused memory of a pool is available to other pools and to linear memory. */
    CUdeviceptr one, two;
    Pool other = pool_made();
    keep_at_most(pool, UINT64_MAX);
    keep_at_most(other, UINT64_MAX);
    size_t most = ledger.shown / 4 * 3 / GRANULE * GRANULE;
    for (int round = 0; round < 5; round++) {
        CHECK(pools.alloc(&one, most, stream));
        CHECK(pools.free(one, stream));
        CHECK(cu.cuStreamSynchronize(stream));
        HOLDS(pool_has(pool, RESERVED) >= most);
        HELD_BY(pool);
        CHECK(pools.alloc_from(&two, most, other, stream));
        TAKEN(pool_has(pool, RESERVED) + pool_has(other, RESERVED));
        CHECK(pools.free(two, stream));
        CHECK(cu.cuStreamSynchronize(stream));
        CHECK(cu.cuMemAlloc(&one, most));
        TAKEN(most + pool_has(pool, RESERVED) + pool_has(other, RESERVED));
        CHECK(cu.cuMemFree(one));
    }
    return 0;
}
