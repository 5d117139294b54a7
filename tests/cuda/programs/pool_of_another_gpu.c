/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_of_another_gpu - checks that a stream allocates from the pool of its own GPU, whatever GPU
 * is current, and that this GPU is charged. In other tools the current one was. Needs two GPUs.
 */
#include "pool.h"

int main(void) {
    CUcontext context[2];
    CUstream stream[2];
    CUdeviceptr address;
    Pool pool[2];
    size_t used[2], sum;
    watchdog(60);
    context[0] = driver_open();
    pools_open();
    CHECK(cu.cuDevicePrimaryCtxRetain(&context[1], 1));
    for (int gpu = 0; gpu < 2; gpu++) {
        CHECK(cu.cuCtxSetCurrent(context[gpu]));
        CHECK(cu.cuStreamCreate(&stream[gpu], CU_STREAM_NON_BLOCKING));
        CHECK(pools.of_device(&pool[gpu], gpu));
    }
    for (int current = 0; current < 2; current++) {
        for (int gpu = 0; gpu < 2; gpu++) {
            for (int seen = 0; seen < 2; seen++) {
                CHECK(cu.cuCtxSetCurrent(context[seen]));
                ledger_open();
                CHECK(cu.cuCtxSetCurrent(context[current]));
                for (int named = 0; named < 2; named++) {
                    CHECK(named ? pools.alloc_from(&address, 100 * MIB, pool[gpu], stream[gpu])
                                : pools.alloc(&address, 100 * MIB, stream[gpu]));
                    sum = pool_has(pool[gpu], RESERVED);
                    HOLDS(sum >= 100 * MIB);
                    CHECK(cu.cuCtxSetCurrent(context[seen]));
                    TAKEN(seen == gpu ? sum : 0);
                    CHECK(cu.cuCtxSetCurrent(context[current]));
                    CHECK(pools.free(address, stream[gpu]));
                    CHECK(cu.cuStreamSynchronize(stream[gpu]));
                    CHECK(cu.cuCtxSetCurrent(context[seen]));
                    TAKEN(0);
                    CHECK(cu.cuCtxSetCurrent(context[current]));
                }
            }
        }
    }
    /* Pools belong to no context: their memory stays when a context is destroyed. */
    CHECK(cu.cuCtxSetCurrent(context[1]));
    CHECK(pools.alloc(&address, 100 * MIB, stream[1]));
    CHECK(cu.cuStreamSynchronize(stream[1]));
    used[1] = pool_has(pool[1], RESERVED);
    CHECK(cu.cuDevicePrimaryCtxReset(1));
    CHECK(cu.cuDevicePrimaryCtxRetain(&context[1], 1));
    CHECK(cu.cuCtxSetCurrent(context[1]));
    HOLDS(pool_has(pool[1], RESERVED) == used[1]);
    TAKEN(used[1]);
    CHECK(cu.cuMemFree(address));
    CHECK(cu.cuCtxSynchronize());
    TAKEN(0);
    return 0;
}
