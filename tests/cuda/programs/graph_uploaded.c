/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_uploaded - checks that an upload does what a first launch would have to do: it reserves the
 * graph's memory. A graph for which there is no room, or that is larger than the GPU, fails there
 * with out of memory, whatever call uploads it.
 */
#include "graph_ledger.h"

#define BYTES (6 * MIB + 1)
#define ROOM (8 * MIB)

/* Two concurrent allocations: the first has room, but both do not. */
static CUgraph two(size_t bytes) {
    CUgraph made = graph_made();
    CUgraphNode node[4];
    AllocParams one = allocation_of(bytes), other = allocation_of(bytes);
    CHECK(graph.AddAlloc(&node[0], made, NULL, 0, &one));
    CHECK(graph.AddAlloc(&node[1], made, &node[0], 1, &other));
    CHECK(graph.AddFree(&node[2], made, &node[1], 1, one.address));
    CHECK(graph.AddFree(&node[3], made, &node[2], 1, other.address));
    return made;
}

int main(void) {
    CUfunction kernel;
    CUstream stream = graphs_begin(120, "spin_5us", &kernel);
    InstantiateParams with = {.flags = 2 /* upload */, .upload = stream};
    CUgraph made = two(BYTES);
    CUgraphExec exec = executable_of(made), none = NULL;
    RESERVED_IS(0);
    CHECK(graph.Upload(exec, stream));
    RESERVED_IS(2 * ROOM);
    for (int i = 0; i < 3; i++) {
        CHECK(graph.Launch(exec, stream));
        CHECK(graph.Upload(exec, stream));
        RESERVED_IS(2 * ROOM);
    }
    CHECK(cu.cuStreamSynchronize(stream));
    trim();
    RESERVED_IS(0);
    CHECK(graph.Launch(exec, stream));
    RESERVED_IS(2 * ROOM);
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(graph.ExecDestroy(exec));
    CHECK(graph.InstantiateWith(&exec, made, &with));
    RESERVED_IS(2 * ROOM);
    CHECK(graph.ExecDestroy(exec));
    trim();
    RESERVED_IS(0);

    size_t free, total;
    CHECK(cu.cuMemGetInfo(&free, &total));
    /* Larger than the GPU, and two halves that each fit. */
    size_t sizes[] = {total + 2 * MIB, total / 8 * 5 / (2 * MIB) * (2 * MIB)};
    for (int i = 0; i < 2; i++) {
        CUgraph large = two(sizes[i]);
        for (int round = 0; round < 2; round++) {
            EXPECT(CUDA_ERROR_OUT_OF_MEMORY, graph.InstantiateWith(&none, large, &with));
            HOLDS(none == NULL && with.result == 1);
            exec = executable_of(large);
            EXPECT(CUDA_ERROR_OUT_OF_MEMORY, graph.Upload(exec, stream));
            EXPECT(CUDA_ERROR_OUT_OF_MEMORY, graph.Launch(exec, stream));
            CHECK(graph.ExecDestroy(exec));
            WITHIN_THE_LIMIT();
        }
        trim();
        RESERVED_IS(0);
        CHECK(graph.Destroy(large));
    }
    return 0;
}
