/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_threads - checks that threads that share a GPU's pool, and create and destroy pools of their
 * own, leave nothing charged. Prints one JSON object: granted, refusals. Needs a limit of 1 GiB.
 */
#include "pool.h"

#include <pthread.h>

enum { THREADS = 6, ROUNDS = 300, LIVE = 8 };

static CUcontext context;
static unsigned granted, refusals;

static void *work(void *seed) {
    CUdeviceptr address[LIVE] = {0};
    CUstream stream;
    Pool own = NULL;
    uint64_t state = (uint64_t)(uintptr_t)seed * 2 + 1;
    CHECK(cu.cuCtxSetCurrent(context));
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < ROUNDS; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        CUdeviceptr *one = &address[state % LIVE];
        size_t bytes = (size_t)(state >> 16) % (80 * MIB) + 1;
        if (*one) {
            CHECK(pools.free(*one, stream));
            *one = 0;
        } else {
            CUresult result = own && state >> 8 & 1 ? pools.alloc_from(one, bytes, own, stream)
                                                    : pools.alloc(one, bytes, stream);
            if (result != CUDA_SUCCESS) {
                EXPECT(CUDA_ERROR_OUT_OF_MEMORY, result);
                *one = 0;
            }
            __atomic_add_fetch(result ? &refusals : &granted, 1, __ATOMIC_RELAXED);
        }
        if (state >> 40 & 1) continue;
        if (i % 7 == 0) CHECK(cu.cuStreamSynchronize(stream));
        if (i % 11 == 0) free_shown();
        if (i % 13 == 0 && !own) {
            own = pool_made();
            keep_at_most(own, UINT64_MAX);
        } else if (i % 13 == 1 && own) {
            CHECK(pools.destroy(own));
            own = NULL;
        }
    }
    for (int i = 0; i < LIVE; i++)
        if (address[i]) CHECK(pools.free(address[i], stream));
    if (own) CHECK(pools.destroy(own));
    CHECK(cu.cuStreamSynchronize(stream));
    return NULL;
}

int main(void) {
    pthread_t thread[THREADS];
    watchdog(120);
    context = driver_open();
    pools_open();
    for (int round = 0; round < 3; round++) {
        ledger_open();
        for (uintptr_t i = 0; i < THREADS; i++)
            HOLDS(pthread_create(&thread[i], NULL, work, (void *)(i + 10 * (uintptr_t)round + 1)) ==
                  0);
        for (int i = 0; i < THREADS; i++) HOLDS(pthread_join(thread[i], NULL) == 0);
        CHECK(cu.cuCtxSynchronize());
        TAKEN(0);
    }
    printf("{\"granted\": %u, \"refusals\": %u}\n", granted, refusals);
    return 0;
}
