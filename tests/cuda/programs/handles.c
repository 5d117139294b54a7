/* SPDX-License-Identifier: Apache-2.0
 *
 * handles - checks handles and mappings of physical memory in the orders and with the errors of
 * real programs. After each step the memory shown as used is the driver's.
 */
#include "ledger.h"

enum { PIECES = 8 };

static void orders(void) {
    CUdeviceptr here = reserve(4 * GRANULE), there = reserve(4 * GRANULE);
    uint64_t handle, again, other;

    /* Never mapped. */
    CHECK(vm.create(&handle, 4 * GRANULE, &on_the_gpu, 0));
    TAKEN(4 * GRANULE);
    CHECK(vm.release(handle));
    TAKEN(0);

    /* Two mappings of the same memory count once. */
    CHECK(vm.create(&handle, 4 * GRANULE, &on_the_gpu, 0));
    CHECK(vm.map(here, 4 * GRANULE, 0, handle, 0));
    CHECK(vm.map(there, 2 * GRANULE, 0, handle, 0));
    TAKEN(4 * GRANULE);
    CHECK(vm.unmap(here, 4 * GRANULE));
    CHECK(vm.release(handle));
    TAKEN(4 * GRANULE); /* because half of it is still mapped */
    CHECK(vm.retain(&again, (void *)(uintptr_t)there));
    CHECK(vm.retain(&other, (void *)(uintptr_t)(there + 2 * GRANULE - 1)));
    CHECK(vm.unmap(there, 2 * GRANULE));
    CHECK(vm.release(again));
    TAKEN(4 * GRANULE);
    CHECK(vm.release(other));
    TAKEN(0);

    /* A call that fails changes nothing. */
    HOLDS(vm.release(other) != CUDA_SUCCESS);
    HOLDS(vm.unmap(here, GRANULE) != CUDA_SUCCESS);
    HOLDS(vm.retain(&again, (void *)(uintptr_t)here) != CUDA_SUCCESS);
    HOLDS(vm.create(&handle, GRANULE + 1, &on_the_gpu, 0) != CUDA_SUCCESS);
    HOLDS(vm.create(&handle, 0, &on_the_gpu, 0) != CUDA_SUCCESS);
    HOLDS(vm.create(&handle, GRANULE, &on_the_gpu, 1) != CUDA_SUCCESS);
    HOLDS(vm.create(&handle, GRANULE, NULL, 0) != CUDA_SUCCESS);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, vm.create(&handle, (size_t)1 << 45, &on_the_gpu, 0));
    TAKEN(0);
    CHECK(vm.create(&handle, 2 * GRANULE, &on_the_gpu, 0));
    HOLDS(vm.map(here, 4 * GRANULE, 0, handle, 0) != CUDA_SUCCESS);
    CHECK(vm.map(here, 2 * GRANULE, 0, handle, 0));
    HOLDS(vm.map(here + GRANULE, GRANULE, 0, handle, 0) != CUDA_SUCCESS);
    HOLDS(vm.unmap(here, GRANULE) != CUDA_SUCCESS);
    CHECK(vm.release(handle));
    TAKEN(2 * GRANULE);
    CHECK(vm.unmap(here, 2 * GRANULE));
    TAKEN(0);
    CHECK(vm.unreserve(here, 4 * GRANULE));
    CHECK(vm.unreserve(there, 4 * GRANULE));
}

/* One call unmaps several mappings, created by any call and in any order. */
static void ranges(void) {
    CUdeviceptr range = reserve(PIECES * GRANULE);
    uint64_t handle[PIECES];
    for (int i = PIECES - 1; i >= 0; i--) {
        CHECK(vm.create(&handle[i], GRANULE, &on_the_gpu, 0));
        CHECK(vm.map(range + (size_t)i * GRANULE, GRANULE, 0, handle[i], 0));
        if (i % 2) CHECK(vm.release(handle[i]));
    }
    TAKEN(PIECES * GRANULE);
    let_in(range, PIECES * GRANULE);
    CHECK(cu.cuMemsetD8(range, 0x5a, PIECES * GRANULE));
    CHECK(cu.cuCtxSynchronize());
    CHECK(vm.unmap(range + 2 * GRANULE, 4 * GRANULE));
    TAKEN((PIECES - 2) * GRANULE);
    CHECK(vm.unmap(range, 2 * GRANULE));
    CHECK(vm.unmap(range + 6 * GRANULE, 2 * GRANULE));
    TAKEN(PIECES / 2 * GRANULE);
    for (int i = 0; i < PIECES; i += 2) CHECK(vm.release(handle[i]));
    TAKEN(0);
    CHECK(vm.unreserve(range, PIECES * GRANULE));
}

/* It belongs to no context. */
static void contexts(void) {
    CUdeviceptr range = reserve(GRANULE), plain;
    CUcontext context;
    uint64_t handle;
    CHECK(cu.cuCtxCreate(&context, 0, 0));
    CHECK(cu.cuMemAlloc(&plain, 8 * MIB));
    CHECK(vm.create(&handle, GRANULE, &on_the_gpu, 0));
    CHECK(vm.map(range, GRANULE, 0, handle, 0));
    CHECK(vm.release(handle));
    CHECK(cu.cuCtxDestroy(context));
    TAKEN(GRANULE);
    CHECK(vm.unmap(range, GRANULE));
    TAKEN(0);
    CHECK(vm.unreserve(range, GRANULE));
}

int main(void) {
    int supported = 0;
    watchdog(60);
    driver_open();
    ledger_open();
    CHECK(cu.cuDeviceGetAttribute(&supported, 102, 0));
    HOLDS(supported == 1); /* virtual address management */
    for (int round = 0; round < 20; round++) {
        orders();
        ranges();
    }
    contexts();
    return 0;
}
