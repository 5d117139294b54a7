/* SPDX-License-Identifier: Apache-2.0
 *
 * handles_race [ROUNDS] - threads create, map, retain, unmap and release physical memory, so that
 * the driver gives a released handle or address to another thread before the release has returned.
 * In the end nothing is charged, and meanwhile never too little.
 */
#include "ledger.h"

#include <pthread.h>

enum { THREADS = 4, PIECES = 4 };

static unsigned rounds = 3000;

static void *work(void *of) {
    unsigned seed = (unsigned)(uintptr_t)of;
    CUdeviceptr range = reserve(PIECES * GRANULE);
    uint64_t handle, again;
    for (unsigned round = 0; round < rounds; round++) {
        size_t at = range + (size_t)(rand_r(&seed) % PIECES) * GRANULE;
        CUresult result = vm.create(&handle, GRANULE, &on_the_gpu, 0);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) continue; /* together with all the others */
        CHECK(result);
        switch (rand_r(&seed) % 4) {
        case 0: CHECK(vm.release(handle)); break;
        case 1:
            CHECK(vm.map(at, GRANULE, 0, handle, 0));
            CHECK(vm.release(handle));
            CHECK(vm.unmap(at, GRANULE));
            break;
        case 2:
            CHECK(vm.map(at, GRANULE, 0, handle, 0));
            CHECK(vm.release(handle));
            CHECK(vm.retain(&again, (void *)(uintptr_t)at));
            CHECK(vm.unmap(at, GRANULE));
            CHECK(vm.release(again));
            break;
        default:
            CHECK(vm.map(at, GRANULE, 0, handle, 0));
            CHECK(vm.retain(&again, (void *)(uintptr_t)(at + 17)));
            CHECK(vm.release(again));
            CHECK(vm.unmap(at, GRANULE));
            CHECK(vm.release(handle));
        }
    }
    CHECK(vm.unreserve(range, PIECES * GRANULE));
    return NULL;
}

static struct {
    CUcontext context;
    int stop;
} watched;

/* Each thread has one piece, or releases one while it allocates another. */
static void *watch(void *none) {
    CHECK(cu.cuCtxSetCurrent(watched.context));
    while (!__atomic_load_n(&watched.stop, __ATOMIC_ACQUIRE)) {
        size_t available = free_shown();
        HOLDS(available <= ledger.shown && ledger.shown - available <= 2 * THREADS * GRANULE);
    }
    return none;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS], watcher;
    if (argc > 1) rounds = (unsigned)strtoul(argv[1], NULL, 10);
    watchdog(100);
    driver_open();
    ledger_open();
    CHECK(cu.cuCtxGetCurrent(&watched.context));
    HOLDS(pthread_create(&watcher, NULL, watch, NULL) == 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        HOLDS(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
    for (int i = 0; i < THREADS; i++) HOLDS(pthread_join(threads[i], NULL) == 0);
    __atomic_store_n(&watched.stop, 1, __ATOMIC_RELEASE);
    HOLDS(pthread_join(watcher, NULL) == 0);
    TAKEN(0);
    return 0;
}
