/* SPDX-License-Identifier: Apache-2.0
 *
 * foreign_free - what is freed without being on the books goes to the driver, whose answer it is.
 * Elsewhere the answer was -1, the driver was not asked, and the memory leaked.
 */
#include "pool.h"

int main(void) {
    CUresult (*own_free)(CUdeviceptr address);
    CUresult (*own_free_async)(CUdeviceptr address, CUstream stream);
    CUdeviceptr linear, pooled;
    CUstream stream = pools_begin(60);
    CUfunction spin = kernel_ready("spin_300ms", stream);
    *(void **)&own_free = own_symbol("cuMemFree_v2");
    *(void **)&own_free_async = own_symbol("cuMemFreeAsync");
    size_t used = shown();

    for (CUdeviceptr wild = 0x700000000000; wild < 0x700000000400; wild += 0x100) {
        EXPECT(own_free(wild), cu.cuMemFree(wild));
        EXPECT(own_free_async(wild, stream), pools.free(wild, stream));
    }
    CHECK(cu.cuMemFree(0));
    TAKEN(used);

    /* Linear memory freed in a stream is there until the stream comes to it. */
    occupy(spin, stream);
    CHECK(cu.cuMemAlloc(&linear, 64 * MIB));
    CHECK(pools.free(linear, stream));
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(stream));
    TAKEN(used + 64 * MIB);
    CHECK(cu.cuStreamSynchronize(stream));
    TAKEN(used);
    HOLDS(cu.cuMemFree(linear) != CUDA_SUCCESS);
    HOLDS(pools.free(linear, stream) != CUDA_SUCCESS);

    /* A pool's memory freed as if it were linear. */
    CHECK(pools.alloc(&pooled, 64 * MIB, stream));
    CHECK(cu.cuMemFree(pooled));
    HOLDS(cu.cuMemFree(pooled) != CUDA_SUCCESS);
    CHECK(cu.cuStreamSynchronize(stream));
    TAKEN(used);

    /* Made where nobody looks, freed where somebody does. */
    CUresult (*own_alloc)(CUdeviceptr *address, size_t bytes);
    *(void **)&own_alloc = own_symbol("cuMemAlloc_v2");
    CHECK(own_alloc(&linear, 64 * MIB));
    HOLDS(truth() == used + 64 * MIB && (shown() == used || shown() == truth()));
    CHECK(cu.cuMemFree(linear));
    TAKEN(used);
    return 0;
}
