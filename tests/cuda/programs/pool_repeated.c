/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_repeated - checks that repeated allocations and frees take no more than one. In other tools
 * the maximum use was kept and memory ran out. Needs a limit of 1 GiB.
 */
#include "pool.h"

int main(void) {
    CUstream stream = pools_begin(120);
    Pool pool = pool_of_the_gpu();
    CUdeviceptr address;
    for (int i = 0; i < 600; i++) {
        /* Sizes differ, so that pieces do not simply fit the place of the former one. */
        CHECK(pools.alloc(&address, (size_t)(1 + i * 7 % 250) * MIB, stream));
        CHECK(pools.free(address, stream));
        if (i % 3 == 0) CHECK(cu.cuStreamSynchronize(stream));
        if (i % 10 == 0) HELD_BY(pool);
    }
    CHECK(cu.cuStreamSynchronize(stream));
    TAKEN(0);
    return 0;
}
