/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_repeated - what is allocated and freed again and again takes no more than once. Elsewhere
 * the greatest use was kept, and memory ran out. Wants a limit of 1 GiB.
 */
#include "pool.h"

int main(void) {
    CUstream stream = pools_begin(120);
    Pool pool = pool_of_the_gpu();
    CUdeviceptr address;
    for (int i = 0; i < 600; i++) {
        /* Sizes that differ, so that no piece fits the last one's place for sure. */
        CHECK(pools.alloc(&address, (size_t)(1 + i * 7 % 250) * MIB, stream));
        CHECK(pools.free(address, stream));
        if (i % 3 == 0) CHECK(cu.cuStreamSynchronize(stream));
        if (i % 10 == 0) HELD_BY(pool);
    }
    CHECK(cu.cuStreamSynchronize(stream));
    TAKEN(0);
    return 0;
}
