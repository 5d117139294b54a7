/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_never_synchronised - checks a program that relies on stream order and never waits for the
 * GPU: the memory shown stays true and within the limit. Prints one JSON object: allocations,
 * refusals. Needs a limit of 2 GiB.
 */
#include "pool.h"

enum { STREAMS = 3, LIVE = 24 };

int main(void) {
    CUstream stream[STREAMS];
    CUdeviceptr address[LIVE] = {0};
    unsigned allocations = 0, refusals = 0;
    uint64_t state = 88172645463325252u;
    stream[0] = pools_begin(120);
    for (int i = 1; i < STREAMS; i++) CHECK(cu.cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    CUfunction kernel = kernel_ready("spin_100us", stream[0]);
    Pool pool = pool_of_the_gpu();
    size_t before = shown(); /* modules and streams */
    for (int i = 0; i < 3000; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        CUdeviceptr *one = &address[state % LIVE];
        CUstream where = stream[state / LIVE % STREAMS];
        if (*one) {
            CHECK(pools.free(*one, where));
            *one = 0;
        } else {
            CUresult result = pools.alloc(one, (size_t)(state >> 20) % (120 * MIB) + 1, where);
            if (result != CUDA_SUCCESS) {
                EXPECT(CUDA_ERROR_OUT_OF_MEMORY, result);
                *one = 0;
                refusals++;
            }
            allocations++;
        }
        occupy(kernel, where);
        if (i % 20 == 0) TAKEN(before + pool_has(pool, RESERVED));
        HOLDS(truth() <= ledger.shown);
    }
    HOLDS(allocations > 20 * refusals);
    printf("{\"allocations\": %u, \"refusals\": %u}\n", allocations, refusals);
    return 0;
}
