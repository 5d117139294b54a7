/* SPDX-License-Identifier: Apache-2.0
 *
 * foreign_free - checks that a free of memory that is not in the ledger goes to the driver, whose
 * result is returned. In other tools the call returned -1 without calling the driver, and the
 * memory leaked.
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

    /* Linear memory freed in a stream exists until the stream gets there. */
    occupy(spin, stream);
    CHECK(cu.cuMemAlloc(&linear, 64 * MIB));
    CHECK(pools.free(linear, stream));
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(stream));
    TAKEN(used + 64 * MIB);
    CHECK(cu.cuStreamSynchronize(stream));
    TAKEN(used);
    HOLDS(cu.cuMemFree(linear) != CUDA_SUCCESS);
    HOLDS(pools.free(linear, stream) != CUDA_SUCCESS);

    /* Memory of a pool freed as if it were linear. */
    CHECK(pools.alloc(&pooled, 64 * MIB, stream));
    CHECK(cu.cuMemFree(pooled));
    HOLDS(cu.cuMemFree(pooled) != CUDA_SUCCESS);
    CHECK(cu.cuStreamSynchronize(stream));
    TAKEN(used);

    /* Allocated without the shim, freed with it. */
    CUresult (*own_alloc)(CUdeviceptr *address, size_t bytes);
    *(void **)&own_alloc = own_symbol("cuMemAlloc_v2");
    CHECK(own_alloc(&linear, 64 * MIB));
    HOLDS(truth() == used + 64 * MIB && (shown() == used || shown() == truth()));
    CHECK(cu.cuMemFree(linear));
    TAKEN(used);
    return 0;
}
