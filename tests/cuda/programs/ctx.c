/* SPDX-License-Identifier: Apache-2.0
 *
 * ctx - checks contexts: the stack of the thread, reference counts of the primary context, and
 * their memory. Prints one JSON object: the bytes that a second context takes and returns.
 */
#include "driver.h"

#include <pthread.h>

/* A new thread has no current context. */
static void *elsewhere(void *unused) {
    CUcontext current = (CUcontext)1;
    CUdeviceptr address;
    (void)unused;
    CHECK(cu.cuCtxGetCurrent(&current));
    HOLDS(current == NULL);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cu.cuMemAlloc(&address, 4096));
    return NULL;
}

int main(void) {
    CUcontext primary, again, first, second, current;
    CUdevice device;
    CUdeviceptr address;
    unsigned flags;
    int active;
    size_t before, during, after;
    watchdog(60);
    driver_load();
    CHECK(cu.cuInit(0));
    CHECK(cu.cuDeviceGet(&device, 0));

    /* Without a context. */
    CHECK(cu.cuCtxGetCurrent(&current));
    HOLDS(current == NULL);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cu.cuMemAlloc(&address, 4096));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cu.cuCtxPopCurrent(&current));

    /* The primary context is unique and lives as long as its references. */
    CHECK(cu.cuDevicePrimaryCtxGetState(device, &flags, &active));
    HOLDS(!active);
    CHECK(cu.cuDevicePrimaryCtxRetain(&primary, device));
    CHECK(cu.cuDevicePrimaryCtxRetain(&again, device));
    HOLDS(primary == again);
    CHECK(cu.cuDevicePrimaryCtxRelease(device));
    CHECK(cu.cuDevicePrimaryCtxGetState(device, &flags, &active));
    HOLDS(active);
    CHECK(cu.cuCtxSetCurrent(primary));
    CHECK(cu.cuCtxGetCurrent(&current));
    HOLDS(current == primary);
    CHECK(cu.cuMemAlloc(&address, 4096));
    CHECK(cu.cuMemFree(address));

    /* cuCtxCreate pushes; push and pop keep their order. */
    CHECK(cu.cuMemGetInfo(&before, NULL));
    CHECK(cu.cuCtxCreate(&first, 0, device));
    CHECK(cu.cuMemGetInfo(&during, NULL));
    HOLDS(during < before);
    CHECK(cu.cuCtxCreate(&second, 0, device));
    CHECK(cu.cuCtxPopCurrent(&current));
    HOLDS(current == second);
    CHECK(cu.cuCtxPopCurrent(&current));
    HOLDS(current == first);
    CHECK(cu.cuCtxGetCurrent(&current));
    HOLDS(current == primary);
    CHECK(cu.cuCtxPushCurrent(second));
    CHECK(cu.cuCtxDestroy(second)); /* current here, so it is popped as well */
    CHECK(cu.cuCtxGetCurrent(&current));
    HOLDS(current == primary);
    CHECK(cu.cuCtxDestroy(first));
    CHECK(cu.cuMemGetInfo(&after, NULL));
    HOLDS(after == before);

    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, elsewhere, NULL) == 0);
    HOLDS(pthread_join(thread, NULL) == 0);

    /* The per-thread default stream differs between contexts. */
    for (int round = 0; round < 3; round++) {
        CHECK(cu.cuCtxCreate(&first, 0, device));
        CHECK(cu.cuMemAlloc(&address, 4096));
        CHECK(cu.cuMemsetD8Async(address, 1, 4096, (CUstream)2));
        CHECK(cu.cuStreamSynchronize((CUstream)2));
        CHECK(cu.cuCtxDestroy(first));
    }

    /* An attached context lives until it has been detached as often. */
    CUresult (*attach)(CUcontext *, unsigned), (*detach)(CUcontext);
    *(void **)&attach = driver_symbol("cuCtxAttach");
    *(void **)&detach = driver_symbol("cuCtxDetach");
    CHECK(cu.cuCtxCreate(&first, 0, device));
    CHECK(attach(&second, 0));
    HOLDS(second == first);
    size_t held;
    CHECK(cu.cuMemAlloc(&address, (size_t)64 << 20));
    CHECK(cu.cuMemGetInfo(&held, NULL));
    if (detach(first) != CUDA_SUCCESS)
        CHECK(detach(first)); /* a refused detach does not count */
    CHECK(cu.cuMemGetInfo(&after, NULL));
    HOLDS(after == held);
    CHECK(cu.cuMemAlloc(&address, 4096));
    CHECK(detach(first));
    CHECK(cu.cuMemGetInfo(&after, NULL));
    HOLDS(after == before);

    /* A context frees what it owns. */
    CHECK(cu.cuCtxCreate(&first, 0, device));
    CHECK(cu.cuMemAlloc(&address, (size_t)64 << 20));
    CHECK(cu.cuCtxDestroy(first));
    CHECK(cu.cuMemGetInfo(&after, NULL));
    HOLDS(after == before);

    CHECK(cu.cuDevicePrimaryCtxRelease(device));
    CHECK(cu.cuDevicePrimaryCtxGetState(device, &flags, &active));
    HOLDS(!active);
    printf("{\"context_bytes\": %zu}\n", before - during);
    return 0;
}
