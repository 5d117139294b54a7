/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_small - checks pools when less than a chunk of the driver is left of the limit: allocations
 * succeed or are refused, and none takes the container beyond its limit. Prints one JSON object:
 * granted, refusals. Needs a limit of some hundred MiB.
 */
#include "pool.h"

int main(void) {
    CUstream stream = pools_begin(60);
    CUdeviceptr linear[2], address;
    Pool pool = pool_of_the_gpu();
    unsigned granted = 0, refusals = 0;
    for (size_t left = 2 * MIB; left < 70 * MIB; left += 4 * MIB) {
        size_t block = (free_shown() - left) / GRANULE * GRANULE;
        CHECK(cu.cuMemAlloc(&linear[0], block));
        for (size_t bytes = MIB / 2; bytes <= 40 * MIB; bytes *= 2) {
            CUresult result = pools.alloc(&address, bytes, stream);
            HOLDS(truth() <= ledger.shown);
            TAKEN(block + pool_has(pool, RESERVED));
            if (result == CUDA_SUCCESS) {
                granted++;
                CHECK(pools.free(address, stream));
            } else {
                EXPECT(CUDA_ERROR_OUT_OF_MEMORY, result);
                refusals++;
                /* Nothing of it blocks others. */
                CHECK(cu.cuMemAlloc(&linear[1], GRANULE));
                CHECK(cu.cuMemFree(linear[1]));
            }
            CHECK(cu.cuStreamSynchronize(stream));
            TAKEN(block);
        }
        CHECK(cu.cuMemFree(linear[0]));
        TAKEN(0);
    }
    printf("{\"granted\": %u, \"refusals\": %u}\n", granted, refusals);
    return 0;
}
