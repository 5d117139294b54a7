/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_threads [THREADS [ROUNDS]] - threads capture, instantiate, launch and destroy graphs at the
 * same time, each in its own streams, with host functions and memory nodes in progress. Prints one
 * JSON object: launches.
 */
#include <pthread.h>

#include "graph.h"

static CUcontext context;
static int rounds = 50;

static void count(void *data) { __atomic_fetch_add((int *)data, 1, __ATOMIC_RELAXED); }

static void *work(void *data) {
    int called = 0, launches = 0, mode = THREAD_LOCAL;
    unsigned char host[1024];
    CHECK(cu.cuCtxSetCurrent(context));
    CHECK(graph.ExchangeMode(&mode));
    CUfunction kernel = driver_function("spin_5us");
    CUstream first = stream_new(CU_STREAM_NON_BLOCKING),
             second = stream_new(CU_STREAM_NON_BLOCKING);
    CUevent fork = event_new(), join = event_new();
    CUdeviceptr out;
    CHECK(cu.cuMemAlloc(&out, sizeof host));
    for (int round = 0; round < rounds; round++) {
        CUgraph made;
        CUgraphExec exec;
        CUdeviceptr inside;
        unsigned char value = (unsigned char)(round + (int)(intptr_t)data);
        CHECK(graph.BeginCapture(first, THREAD_LOCAL));
        CHECK(cu.cuEventRecord(fork, first));
        CHECK(cu.cuStreamWaitEvent(second, fork, 0));
        CHECK(graph.AllocAsync(&inside, sizeof host, first));
        CHECK(cu.cuMemsetD8Async(inside, value, sizeof host, first));
        for (int i = 0; i < 4; i++) launch(kernel, second);
        CHECK(cu.cuLaunchHostFunc(second, count, &called));
        CHECK(cu.cuEventRecord(join, second));
        CHECK(cu.cuStreamWaitEvent(first, join, 0));
        CHECK(graph.DtoDAsync(out, inside, sizeof host, first));
        CHECK(graph.FreeAsync(inside, first));
        CHECK(graph.EndCapture(first, &made));
        CHECK(graph.Instantiate(&exec, made, 0));
        for (int i = 0; i < 3; i++, launches++) CHECK(graph.Launch(exec, i % 2 ? second : first));
        CHECK(cu.cuStreamSynchronize(first));
        CHECK(cu.cuStreamSynchronize(second));
        CHECK(cu.cuMemcpyDtoHAsync(host, out, sizeof host, first));
        CHECK(cu.cuStreamSynchronize(first));
        HOLDS(host[0] == value && host[sizeof host - 1] == value);
        /* Some are destroyed during their last launch. */
        if (round % 3 == 0) {
            CHECK(graph.Launch(exec, first));
            launches++;
        }
        CHECK(graph.ExecDestroy(exec));
        CHECK(graph.Destroy(made));
        if (round % 10 == 9) CHECK(graph.MemTrim(0));
    }
    CHECK(cu.cuStreamSynchronize(first));
    HOLDS(__atomic_load_n(&called, __ATOMIC_RELAXED) == launches);
    CHECK(cu.cuMemFree(out));
    CHECK(cu.cuStreamDestroy(first));
    CHECK(cu.cuStreamDestroy(second));
    return (void *)(intptr_t)launches;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 4;
    long launches = 0;
    pthread_t all[64];
    uint64_t reserved;
    watchdog(60);
    if (argc > 2) rounds = atoi(argv[2]);
    if (threads < 1 || threads > 64) return 2;
    context = graph_open();
    for (int i = 0; i < threads; i++)
        HOLDS(pthread_create(&all[i], NULL, work, (void *)(intptr_t)i) == 0);
    for (int i = 0; i < threads; i++) {
        void *its;
        HOLDS(pthread_join(all[i], &its) == 0);
        launches += (long)(intptr_t)its;
    }
    CHECK(graph.MemTrim(0));
    CHECK(graph.MemGet(0, RESERVED_CURRENT, &reserved));
    HOLDS(reserved == 0);
    printf("{\"launches\": %ld}\n", launches);
    return 0;
}
