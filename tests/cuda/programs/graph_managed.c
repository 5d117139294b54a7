/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_managed - checks that a graph cannot allocate managed memory, which has no limit.
 */
#include "graph_ledger.h"

int main(void) {
    CUfunction kernel;
    graphs_begin(60, "spin_5us", &kernel);
    CUgraph made = graph_made();
    CUgraphNode node;
    AllocParams params = allocation_of(MIB);
    params.alloc_type = MANAGED;
    NodeParams any = {.type = MEM_ALLOC, .alloc = params};
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, graph.AddAlloc(&node, made, NULL, 0, &params));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, graph.AddNode(&node, made, NULL, 0, &any));
    HOLDS(count_of(made) == 0);
    TAKEN(0);
    return 0;
}
