/* SPDX-License-Identifier: Apache-2.0
 *
 * serving_engine - weights, then nine tenths of what cuMemGetInfo says is free in one block, then work in what is left: by linear
 * memory, and by a pool that keeps what it has. What was shown as free was free.
 */
#include "pool.h"

enum { WEIGHTS = 6, STEPS = 200 };

static void serve(int pooled, CUstream stream) {
    CUdeviceptr weights[WEIGHTS], cache, scratch;
    Pool pool = pool_of_the_card();
    size_t before = shown();
    for (int i = 0; i < WEIGHTS; i++)
        CHECK(pooled ? pools.alloc(&weights[i], 300 * MIB + 5, stream) : cu.cuMemAlloc(&weights[i], 300 * MIB + 5));
    /* A profiling run, whose memory is given back. */
    CHECK(pools.alloc(&scratch, 700 * MIB, stream));
    CHECK(pools.free(scratch, stream));
    CHECK(cu.cuCtxSynchronize());
    CHECK(pools.trim(pool, 0));
    size_t block = free_shown() / 10 * 9;
    CHECK(pooled ? pools.alloc(&cache, block, stream) : cu.cuMemAlloc(&cache, block));
    HOLDS(shown() == truth() && truth() <= books.shown);
    for (int i = 0; i < STEPS; i++) {
        CHECK(pools.alloc(&scratch, (size_t)(1 + i % 40) * MIB, stream));
        CHECK(cu.cuMemsetD8Async(scratch, 1, MIB, stream));
        CHECK(pools.free(scratch, stream));
        HOLDS(shown() == truth() && truth() <= books.shown);
    }
    for (int i = 0; i < WEIGHTS; i++) CHECK(pooled ? pools.free(weights[i], stream) : cu.cuMemFree(weights[i]));
    CHECK(pooled ? pools.free(cache, stream) : cu.cuMemFree(cache));
    CHECK(cu.cuCtxSynchronize());
    CHECK(pools.trim(pool, 0));
    TAKEN(before);
}

int main(void) {
    CUstream stream = pools_begin(120);
    for (int round = 0; round < 3; round++) {
        serve(0, stream);
        serve(1, stream);
        keep_at_most(pool_of_the_card(), UINT64_MAX);
    }
    return 0;
}
