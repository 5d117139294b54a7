/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_out_of_memory - checks that a graph that can take more than there is fails with out of
 * memory at its launch without any effect, and runs when there is room. Unused memory of graphs is
 * available to others.
 */
#include "graph_ledger.h"

int main(void) {
    CUfunction kernel;
    CUstream stream = graphs_begin(120, "spin_20us", &kernel);
    size_t most = free_shown() / (2 * MIB) * (2 * MIB);
    CUgraphExec large = executable(most, kernel),
                half = executable(most / 2 / (2 * MIB) * (2 * MIB), kernel),
                huge = executable(most + 2 * MIB, kernel);
    CUdeviceptr linear, other;
    InstantiateParams with = {.flags = 2 /* upload */, .upload = stream};
    CUgraph made = graph_made();
    CUgraphExec exec;
    allocates(made, most + 2 * MIB);

    for (int round = 0; round < 3; round++) {
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, graph.Launch(huge, stream));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, graph.Upload(huge, stream));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, graph.InstantiateWith(&exec, made, &with));
        HOLDS(with.result == 1);
        RESERVED_IS(0);

        CHECK(cu.cuMemAlloc(&linear, 2 * MIB));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, graph.Launch(large, stream));
        RESERVED_BESIDE(0, 2 * MIB);
        CHECK(cu.cuMemFree(linear));
        /* A program frees what it can spare and tries again. */
        CHECK(graph.Launch(large, stream));
        RESERVED_IS(most);
        CHECK(graph.Launch(large, stream));
        CHECK(cu.cuStreamSynchronize(stream));

        /* Linear memory, a pool and another graph each take what the graph does not use. */
        CHECK(cu.cuMemAlloc(&linear, 2 * MIB));
        RESERVED_BESIDE(0, 2 * MIB);
        CHECK(cu.cuMemFree(linear));
        CHECK(graph.Launch(large, stream));
        CHECK(cu.cuStreamSynchronize(stream));
        CHECK(pools.alloc(&other, MIB, stream));
        RESERVED_BESIDE(0, pool_has(pool_of_the_gpu(), RESERVED));
        /* And a graph takes what a pool does not use. */
        CHECK(pools.free(other, stream));
        CHECK(graph.Launch(large, stream));
        CHECK(graph.Launch(half, stream));
        WITHIN_THE_LIMIT();
        CHECK(cu.cuStreamSynchronize(stream));
        trim();
        RESERVED_IS(0);
    }
    return 0;
}
