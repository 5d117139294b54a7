/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_captured - checks that an allocation in a capturing stream is a graph's: it takes nothing of
 * the GPU or a pool before the graph is launched, and other work continues. In an invalidated
 * capture the driver's error is returned, even without room (it was out of memory once).
 */
#include "graph_ledger.h"

int main(void) {
    CUfunction kernel;
    CUstream stream = graphs_begin(60, "spin_20us", &kernel),
             other = stream_new(CU_STREAM_NON_BLOCKING);
    CUdeviceptr address, inside, outside;
    CUgraph made;
    CHECK(cu.cuMemAlloc(&address, 2 * MIB));
    size_t used = shown();
    CHECK(graph.BeginCapture(stream, THREAD_LOCAL));
    CHECK(pools.alloc(&inside, 500 * MIB, stream));
    TAKEN(used);
    occupy(kernel, stream);
    CHECK(pools.alloc(&outside, MIB, other));
    TAKEN(used + pool_has(pool_of_the_gpu(), RESERVED));
    CHECK(pools.free(inside, stream));
    CHECK(pools.free(outside, other));
    CHECK(graph.EndCapture(stream, &made));
    CHECK(cu.cuStreamSynchronize(other));
    CHECK(pools.alloc(&outside, MIB, stream));
    CHECK(pools.free(outside, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    TAKEN(used);
    CUgraphExec exec = executable_of(made);
    CHECK(graph.Launch(exec, stream));
    RESERVED_BESIDE(500 * MIB, used);
    CHECK(graph.BeginCapture(stream, RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuStreamSynchronize(stream));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
           pools.alloc(&inside, free_shown() + 1024 * MIB, stream));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, graph.EndCapture(stream, &made));
    RESERVED_BESIDE(500 * MIB, used);
    CHECK(cu.cuMemFree(address));
    return 0;
}
