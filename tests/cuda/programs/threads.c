/* SPDX-License-Identifier: Apache-2.0
 *
 * threads [THREADS [ROUNDS]] - threads that share a context do everything at once: allocate, fill,
 * copy, launch, record, wait, free, each in its own streams and its own default stream. Checks
 * every byte, and that all memory is free at the end. Threads start and end, so that what a thread
 * leaves behind would show. Prints one JSON object.
 */
#include "driver.h"

#include <pthread.h>

#define BYTES ((size_t)256 << 10)

static CUcontext context;
static CUfunction kernel;
static unsigned rounds = 20;

static void *work(void *number) {
    unsigned char *back = malloc(BYTES), seed = (unsigned char)(uintptr_t)number;
    HOLDS(back != NULL);
    CHECK(cu.cuCtxSetCurrent(context));
    for (unsigned round = 0; round < rounds; round++) {
        CUdeviceptr first, second;
        CUstream stream;
        CUevent event;
        CUstream own = (CUstream)2; /* this thread's default stream */
        unsigned char value = (unsigned char)(seed + round);
        CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        CHECK(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        CHECK(cu.cuMemAlloc(&first, BYTES));
        CHECK(cu.cuMemAlloc(&second, BYTES));
        CHECK(cu.cuMemsetD8Async(first, value, BYTES, stream));
        CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
        CHECK(cu.cuEventRecord(event, stream));
        CHECK(cu.cuStreamWaitEvent(own, event, 0));
        CHECK(cu.cuMemcpyDtoHAsync(back, first, BYTES, own));
        CHECK(cu.cuStreamSynchronize(own));
        for (size_t i = 0; i < BYTES; i++) HOLDS(back[i] == value);
        CHECK(cu.cuEventDestroy(event));
        CHECK(cu.cuStreamDestroy(stream));
        CHECK(cu.cuMemFree(second));
        CHECK(cu.cuMemFree(first));
    }
    free(back);
    return NULL;
}

int main(int argc, char **argv) {
    unsigned threads = argc > 1 ? (unsigned)atoi(argv[1]) : 8;
    if (argc > 2) rounds = (unsigned)atoi(argv[2]);
    if (threads == 0 || threads > 256 || rounds == 0) {
        fprintf(stderr, "usage: threads [THREADS [ROUNDS]]\n");
        return 2;
    }
    pthread_t thread[256];
    size_t before, after;
    watchdog(120);
    context = driver_open();
    kernel = driver_function("spin_20us");
    /* The first launch loads code, which stays on the GPU. */
    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CHECK(cu.cuMemGetInfo(&before, NULL));
    for (int generation = 0; generation < 4; generation++) {
        for (unsigned i = 0; i < threads; i++)
            HOLDS(pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)i) == 0);
        for (unsigned i = 0; i < threads; i++) HOLDS(pthread_join(thread[i], NULL) == 0);
    }
    CHECK(cu.cuCtxSynchronize());
    CHECK(cu.cuMemGetInfo(&after, NULL));
    HOLDS(after >= before); /* more, once the memory of a former process is released */
    printf("{\"threads\": %u, \"rounds\": %u}\n", 4 * threads, rounds);
    return 0;
}
