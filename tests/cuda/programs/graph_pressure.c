/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_pressure [THREADS [ROUNDS [pools]]] - threads create, launch, trim and destroy graphs and
 * allocate linear memory, at a limit that is too small for all. The driver never takes more than
 * allowed, and in the end nothing. With pools beside them, which may briefly grow too far, only the
 * end is checked. Prints one JSON object: launches, refusals.
 */
#include "graph_ledger.h"

#include <pthread.h>

static CUcontext context;
static int rounds = 60, with_pools;
static long launches, refusals;

static int taken(CUresult answer) {
    HOLDS(answer == CUDA_SUCCESS || answer == CUDA_ERROR_OUT_OF_MEMORY);
    __atomic_fetch_add(answer ? &refusals : &launches, 1, __ATOMIC_RELAXED);
    if (!with_pools) WITHIN_THE_LIMIT();
    return answer == CUDA_SUCCESS;
}

static void *work(void *data) {
    unsigned random = (unsigned)(intptr_t)data * 2654435761u + 1;
    int mode = THREAD_LOCAL;
    CHECK(cu.cuCtxSetCurrent(context));
    CHECK(graph.ExchangeMode(&mode));
    CUfunction kernel = driver_function("spin_20us");
    CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
    for (int round = 0; round < rounds; round++) {
        CUgraphExec exec[2];
        CUdeviceptr linear, pooled, inside;
        CUgraph made;
        random = random * 1664525u + 1013904223u;
        size_t bytes = (size_t)(random >> 24) * MIB + 1;
        exec[0] = executable(bytes, kernel);
        CHECK(graph.BeginCapture(stream, THREAD_LOCAL));
        CHECK(pools.alloc(&inside, bytes / 2 + 1, stream));
        occupy(kernel, stream);
        CHECK(graph.EndCapture(stream, &made));
        CHECK(graph.Instantiate(&exec[1], made, AUTO_FREE_ON_LAUNCH));
        for (int i = 0; i < 4; i++) taken(graph.Launch(exec[0], stream));
        int has_linear = round % 2 && taken(cu.cuMemAlloc(&linear, bytes));
        int has_pooled = with_pools && round % 3 == 0 && taken(pools.alloc(&pooled, bytes, stream));
        int lives = 0;
        for (int i = 0; i < 4; i++) {
            lives |= taken(graph.Launch(exec[1], stream));
            taken(graph.Launch(exec[0], stream));
        }
        if (round % 4 == 0) trim();
        if (has_linear) CHECK(cu.cuMemFree(linear));
        if (has_pooled) CHECK(pools.free(pooled, stream));
        CHECK(graph.ExecDestroy(exec[0]));
        CHECK(graph.ExecDestroy(exec[1]));
        CHECK(graph.Destroy(made));
        if (lives) CHECK(round % 2 ? pools.free(inside, stream) : cu.cuMemFree(inside));
    }
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(cu.cuStreamDestroy(stream));
    return NULL;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 3;
    CUfunction kernel;
    pthread_t all[16];
    if (argc > 2) rounds = atoi(argv[2]);
    with_pools = argc > 3;
    if (threads < 1 || threads > 16) return 2;
    graphs_begin(120, "spin_20us", &kernel);
    CHECK(cu.cuCtxGetCurrent(&context));
    for (int i = 0; i < threads; i++)
        HOLDS(pthread_create(&all[i], NULL, work, (void *)(intptr_t)i) == 0);
    for (int i = 0; i < threads; i++) HOLDS(pthread_join(all[i], NULL) == 0);
    CHECK(cu.cuCtxSynchronize());
    trim();
    CHECK(pools.trim(pool_of_the_gpu(), 0));
    RESERVED_IS(0);
    printf("{\"launches\": %ld, \"refusals\": %ld}\n", launches, refusals);
    return 0;
}
