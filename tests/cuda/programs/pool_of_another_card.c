/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_of_another_card - a stream's pool is that of the stream's card, whatever card is current; that card is charged. Elsewhere the
 * current one was. Wants two cards.
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
    for (int card = 0; card < 2; card++) {
        CHECK(cu.cuCtxSetCurrent(context[card]));
        CHECK(cu.cuStreamCreate(&stream[card], CU_STREAM_NON_BLOCKING));
        CHECK(pools.of_device(&pool[card], card));
    }
    for (int current = 0; current < 2; current++) {
        for (int card = 0; card < 2; card++) {
            for (int seen = 0; seen < 2; seen++) {
                CHECK(cu.cuCtxSetCurrent(context[seen]));
                books_open();
                CHECK(cu.cuCtxSetCurrent(context[current]));
                for (int named = 0; named < 2; named++) {
                    CHECK(named ? pools.alloc_from(&address, 100 * MIB, pool[card], stream[card])
                                : pools.alloc(&address, 100 * MIB, stream[card]));
                    sum = pool_has(pool[card], RESERVED);
                    HOLDS(sum >= 100 * MIB);
                    CHECK(cu.cuCtxSetCurrent(context[seen]));
                    TAKEN(seen == card ? sum : 0);
                    CHECK(cu.cuCtxSetCurrent(context[current]));
                    CHECK(pools.free(address, stream[card]));
                    CHECK(cu.cuStreamSynchronize(stream[card]));
                    CHECK(cu.cuCtxSetCurrent(context[seen]));
                    TAKEN(0);
                    CHECK(cu.cuCtxSetCurrent(context[current]));
                }
            }
        }
    }
    /* Pools are no context's: what they hold stays when it goes. */
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
