/* SPDX-License-Identifier: Apache-2.0
 *
 * host_memory - checks that pinned host memory, by each call that allocates or pins it, is charged
 * to no GPU. It can be allocated when the GPU is full, mapped or not, and takes no GPU memory.
 */
#include "ledger.h"

#define PIECE (64 * MIB)

enum { MOST = 4096, MAPPED = 2, PLAIN = 0 };

static void comes_and_goes(void) {
    FUNCTION(host, cuMemAllocHost_v2, (void **, size_t));
    FUNCTION(pin, cuMemHostRegister_v2, (void *, size_t, unsigned));
    FUNCTION(unpin, cuMemHostUnregister, (void *));
    size_t shown_before = free_shown(), truth_before = free_in_truth();
    CUdeviceptr mapped;
    void *address, *other, *own = aligned_alloc(4096, PIECE);
    HOLDS(own);
    CHECK(host(&address, PIECE));
    CHECK(cu.cuMemHostAlloc(&other, PIECE, MAPPED));
    CHECK(cu.cuMemHostGetDevicePointer(&mapped, other, 0));
    CHECK(pin(own, PIECE, PLAIN));
    memset(own, 1, PIECE);
    HOLDS(free_shown() == shown_before && free_in_truth() == truth_before);
    CHECK(unpin(own));
    CHECK(cu.cuMemFreeHost(other));
    CHECK(cu.cuMemFreeHost(address));
    HOLDS(free_shown() == shown_before && free_in_truth() == truth_before);
    free(own);
}

int main(void) {
    static CUdeviceptr address[MOST];
    CUresult result;
    int count = 0;
    watchdog(60);
    driver_open();
    ledger_open();
    comes_and_goes();
    while (count < MOST && (result = cu.cuMemAlloc(&address[count], PIECE)) == CUDA_SUCCESS)
        count++;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, result);
    comes_and_goes();
    while (count > 0) CHECK(cu.cuMemFree(address[--count]));
    TAKEN(0);
    return 0;
}
