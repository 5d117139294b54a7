/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_captured - an allocation in a stream that is being captured is a graph's memory: it takes
 * nothing of the GPU or of a pool before the graph is launched. Everything outside goes on. In a
 * capture that was broken the driver says so, however little room there is: it was out of memory
 * instead.
 */
#include "graph_books.h"

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
