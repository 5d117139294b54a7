/* SPDX-License-Identifier: Apache-2.0
 *
 * ranges - checks that the descriptor of an address range (a dma-buf for other devices) keeps the
 * memory behind it, whatever its maker releases: linear memory that is freed, physical memory that
 * is unmapped and released, memory of a pool that is trimmed. The ledger never has less than the
 * driver, and does not learn that the descriptor is closed. Prints what stays charged then.
 */
#include "pool.h"

#include <fcntl.h>

#define PIECE (16 * MIB)

enum { DMA_BUF = 1, THROUGH_THE_BUS = 1, DMA_BUF_SUPPORTED = 124 };

static CUresult (*range_handle)(void *handle, CUdeviceptr address, size_t size, int kind,
                                unsigned long long flags);

static int keep(CUdeviceptr address, size_t size) {
    int descriptor = -1;
    CHECK(range_handle(&descriptor, address, size, DMA_BUF, 0));
    HOLDS(fcntl(descriptor, F_GETFD) != -1);
    return descriptor;
}

/* Requires that the driver has this much, and the ledger no less. */
static void holds(size_t bytes) {
    size_t has = truth(), says = shown();
    if (has != bytes || says < has)
        FAIL("expected %zu, the driver has %zu, the ledger %zu", bytes, has, says);
}

static void refusals(void) {
    CUdeviceptr address, empty = reserve(GRANULE);
    void *host;
    int descriptor = -1;
    CHECK(cu.cuMemAlloc(&address, PIECE));
    CHECK(cu.cuMemHostAlloc(&host, 4096, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, range_handle(NULL, address, PIECE, DMA_BUF, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, range_handle(&descriptor, address, 0, DMA_BUF, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, range_handle(&descriptor, address + 512, 4096, DMA_BUF, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, range_handle(&descriptor, address, 512, DMA_BUF, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, range_handle(&descriptor, address + 4096, PIECE, DMA_BUF, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, range_handle(&descriptor, address, PIECE, 0, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, range_handle(&descriptor, address, PIECE, 2, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, range_handle(&descriptor, address, PIECE, DMA_BUF, 2));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED,
           range_handle(&descriptor, address, PIECE, DMA_BUF, THROUGH_THE_BUS));
    EXPECT(CUDA_ERROR_INVALID_VALUE, range_handle(&descriptor, empty, GRANULE, DMA_BUF, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           range_handle(&descriptor, (CUdeviceptr)(uintptr_t)host & ~4095ul, 4096, DMA_BUF, 0));
    HOLDS(descriptor == -1);
    CHECK(cu.cuMemFreeHost(host));
    CHECK(cu.cuMemFree(address));
    CHECK(vm.unreserve(empty, GRANULE));
    TAKEN(0); /* a refused call kept nothing */
}

static void linear(void) {
    CUdeviceptr address;
    CHECK(cu.cuMemAlloc(&address, PIECE));
    int descriptor = keep(address + GRANULE, 4096), copy = dup(descriptor);
    holds(PIECE);
    CHECK(cu.cuMemFree(address));
    holds(PIECE);
    HOLDS(close(descriptor) == 0);
    holds(PIECE); /* a copy of the descriptor changes nothing */
    HOLDS(close(copy) == 0);
    holds(0);
    /* Closed first: an ordinary allocation. */
    CHECK(cu.cuMemAlloc(&address, PIECE));
    HOLDS(close(keep(address, PIECE)) == 0);
    holds(PIECE);
    CHECK(cu.cuMemFree(address));
    holds(0);
}

/* In a context that is destroyed. */
static void with_its_context(void) {
    CUcontext context;
    CUdeviceptr address;
    CHECK(cu.cuCtxCreate(&context, 0, 0));
    CHECK(cu.cuMemAlloc(&address, PIECE));
    int descriptor = keep(address, PIECE);
    CHECK(cu.cuCtxDestroy(context));
    holds(PIECE);
    HOLDS(close(descriptor) == 0);
    holds(0);
}

static void physical(void) {
    CUdeviceptr range = reserve(2 * PIECE);
    uint64_t handle[2];
    for (int which = 0; which < 2; which++) {
        CHECK(vm.create(&handle[which], PIECE, &on_the_gpu, 0));
        CHECK(vm.map(range + (size_t)which * PIECE, PIECE, 0, handle[which], 0));
    }
    let_in(range, 2 * PIECE);
    /* Released while mapped, then unmapped while kept. Another descriptor has only the second
     * one. */
    CHECK(vm.release(handle[0]));
    CHECK(vm.release(handle[1]));
    int both = keep(range, 2 * PIECE), second = keep(range + PIECE + GRANULE, GRANULE);
    holds(2 * PIECE);
    CHECK(vm.unmap(range, 2 * PIECE));
    holds(2 * PIECE);
    HOLDS(close(both) == 0);
    holds(PIECE);
    HOLDS(close(second) == 0);
    holds(0);
    CHECK(vm.unreserve(range, 2 * PIECE));
}

static void pooled(void) {
    Pool pool = pool_made();
    CUdeviceptr address;
    CHECK(pools.alloc_from(&address, 2 * PIECE, pool, NULL));
    CHECK(cu.cuCtxSynchronize());
    size_t reserved = pool_has(pool, RESERVED);
    int descriptor = keep(address, PIECE);
    CHECK(pools.free(address, NULL));
    CHECK(cu.cuCtxSynchronize());
    CHECK(pools.trim(pool, 0));
    holds(reserved);
    CHECK(pools.destroy(pool));
    holds(reserved);
    HOLDS(close(descriptor) == 0);
    holds(0);
}

int main(int count, char **arguments) {
    int supported = 0;
    watchdog(100);
    watched_by(count, arguments);
    driver_open();
    pools_open();
    ledger_open();
    *(void **)&range_handle = driver_symbol("cuMemGetHandleForAddressRange");
    CHECK(cu.cuDeviceGetAttribute(&supported, DMA_BUF_SUPPORTED, 0));
    HOLDS(supported == 1);
    refusals();
    linear();
    with_its_context();
    physical();
    pooled();
    COMES_TRUE(shown() == 0 || !is_watched);
    printf("{\"kept\": %zu}\n", shown());
    return 0;
}
