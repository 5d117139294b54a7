/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_captured - an allocation in a stream that is being captured is a graph's memory: refused while that is not accounted. The
 * capture and everything outside go on.
 */
#include "pool.h"

int main(void) {
    CUstream stream = pools_begin(60), other;
    CUdeviceptr address, outside;
    void *graph;
    FUNCTION(begin, cuStreamBeginCapture_v2, (CUstream stream, int mode));
    FUNCTION(end, cuStreamEndCapture, (CUstream stream, void **graph));
    CHECK(cu.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CUfunction kernel = kernel_ready("spin_20us", stream);
    CHECK(cu.cuMemAlloc(&address, 2 * MIB));
    size_t used = shown();
    CHECK(begin(stream, 1 /* forbidden to this thread only */));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, pools.alloc(&outside, MIB, stream));
    occupy(kernel, stream);
    CHECK(pools.alloc(&outside, MIB, other));
    TAKEN(used + pool_has(pool_of_the_card(), RESERVED));
    CHECK(pools.free(outside, other));
    CHECK(end(stream, &graph));
    CHECK(cu.cuStreamSynchronize(other));
    CHECK(pools.alloc(&outside, MIB, stream));
    CHECK(pools.free(outside, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    TAKEN(used);
    CHECK(cu.cuMemFree(address));
    return 0;
}
