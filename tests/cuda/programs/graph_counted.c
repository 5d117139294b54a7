/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_counted - checks that memory of graphs is charged as it is reserved, whatever call adds it
 * to the graph and whatever call frees it. In other tools it was not charged, and freeing it
 * returned -1.
 */
#include "graph_ledger.h"

#define BYTES (6 * MIB + 1)
#define ROOM (8 * MIB)

static CUstream stream;
static CUfunction kernel;

/* Launches, frees by a call or lets the graph free, launches again, and destroys everything. */
static void launched(CUgraph made, CUdeviceptr freed_by_call, size_t room) {
    CUgraphExec exec = executable_of(made);
    RESERVED_IS(0);
    for (int i = 0; i < 4; i++) {
        CHECK(graph.Launch(exec, stream));
        RESERVED_IS(room);
        if (freed_by_call)
            CHECK(i % 2 ? cu.cuMemFree(freed_by_call) : pools.free(freed_by_call, stream));
        RESERVED_IS(room);
    }
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(graph.ExecDestroy(exec));
    CHECK(graph.Destroy(made));
    RESERVED_IS(room);
    trim();
    RESERVED_IS(0);
}

static void by_calls(void) {
    CUgraph made = graph_made();
    CUdeviceptr address = allocates(made, BYTES);
    launched(made, address, ROOM);

    made = graph_made();
    allocates_and_frees(made, BYTES);
    launched(made, 0, ROOM);

    made = graph_made();
    CUgraphNode node;
    NodeParams params = {.type = MEM_ALLOC, .alloc = allocation_of(BYTES)};
    CHECK(graph.AddNode(&node, made, NULL, 0, &params));
    launched(made, params.alloc.address, ROOM);

    FUNCTION(add_v2, cuGraphAddNode_v2,
             (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, const void *data,
              size_t count, NodeParams *params));
    made = graph_made();
    for (int i = 0; i < 3; i++) {
        params.alloc = allocation_of(BYTES);
        CHECK(add_v2(&node, made, NULL, NULL, 0, &params));
        CHECK(graph.AddFree(&node, made, &node, 1, params.alloc.address));
    }
    launched(made, 0, 3 * ROOM);
}

static void by_captures(void) {
    CUgraph made;
    CUdeviceptr address;
    FUNCTION(alloc_ptsz, cuMemAllocAsync_ptsz,
             (CUdeviceptr * address, size_t bytes, CUstream stream));
    for (int way = 0; way < 4; way++) {
        CHECK(graph.BeginCapture(stream, THREAD_LOCAL));
        switch (way) {
        case 0: CHECK(pools.alloc(&address, BYTES, stream)); break;
        case 1: CHECK(pools.alloc_from(&address, BYTES, pool_of_the_gpu(), stream)); break;
        case 2: CHECK(alloc_ptsz(&address, BYTES, stream)); break;
        default:
            CHECK(pools.alloc(&address, BYTES, stream));
            CHECK(pools.free(address, stream));
            address = 0;
        }
        occupy(kernel, stream);
        CHECK(graph.EndCapture(stream, &made));
        TAKEN(0);
        launched(made, address, ROOM);
    }
    /* Into an existing graph. */
    made = graph_made();
    allocates_and_frees(made, BYTES);
    CHECK(graph.BeginCaptureToGraph(stream, made, NULL, NULL, 0, THREAD_LOCAL));
    CHECK(pools.alloc(&address, BYTES, stream));
    CHECK(graph.EndCapture(stream, &made));
    launched(made, address, 2 * ROOM);
    /* A captured launch becomes part of another graph. */
    CUgraph part = graph_made();
    allocates_and_frees(part, BYTES);
    CUgraphExec exec = executable_of(part);
    CHECK(graph.BeginCapture(stream, THREAD_LOCAL));
    CHECK(graph.Launch(exec, stream));
    CHECK(graph.EndCapture(stream, &made));
    RESERVED_IS(0);
    CHECK(graph.ExecDestroy(exec));
    launched(made, 0, ROOM);
    CHECK(graph.Destroy(part));
}

/* Nested graphs. A child that allocates can only be moved into its parent. */
static void in_parts(void) {
    CUgraph made = graph_made(), child = graph_made(), grandchild = graph_made(), clone;
    CUgraphNode node;
    allocates_and_frees(made, BYTES);
    allocates_and_frees(child, BYTES);
    allocates_and_frees(grandchild, 3 * ROOM);
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, graph.AddChild(&node, made, NULL, 0, child));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, graph.Clone(&clone, child));
    NodeParams params = {.type = CHILD, .child = {grandchild, 1}};
    CHECK(graph.AddNode(&node, child, NULL, 0, &params));
    params.child.graph = child;
    CHECK(graph.AddNode(&node, made, NULL, 0, &params));
    launched(made, 0, 5 * ROOM);

    uint64_t condition;
    made = graph_made();
    CHECK(graph.ConditionalHandle(&condition, made, NULL, 1, 1 /* the same at each launch */));
    params = (NodeParams){.type = CONDITIONAL, .conditional = {.handle = condition, .size = 2}};
    CHECK(graph.AddNode(&node, made, NULL, 0, &params));
    allocates_and_frees(params.conditional.graphs[0], BYTES);
    launched(made, 0, ROOM);
}

/* Uploaded, launched in several streams, updated, freed by another graph, freed by its own next
 * launch. */
static void in_every_order(void) {
    CUgraph made = graph_made(), freeing = graph_made();
    CUgraphExec exec;
    CUgraphNode node;
    CUdeviceptr address = allocates(made, BYTES);
    InstantiateParams with = {.flags = 2 /* upload */, .upload = stream};
    UpdateInfo info;
    CHECK(graph.AddFree(&node, freeing, NULL, 0, address));
    CHECK(graph.InstantiateWith(&exec, made, &with));
    CHECK(graph.Upload(exec, stream));
    CUgraphExec frees = executable_of(freeing);
    CUstream other = stream_new(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 4; i++) {
        CHECK(graph.Launch(exec, i < 2 ? stream : other));
        EXPECT(CUDA_ERROR_INVALID_VALUE, graph.Launch(exec, stream));
        CHECK(graph.Launch(frees, i < 2 ? stream : other));
        RESERVED_IS(ROOM);
        CHECK(cu.cuCtxSynchronize());
        CHECK(graph.ExecUpdate(exec, made, &info));
    }
    CHECK(graph.ExecDestroy(exec));
    CHECK(graph.Instantiate(&exec, made, AUTO_FREE_ON_LAUNCH));
    for (int i = 0; i < 4; i++) CHECK(graph.Launch(exec, i < 2 ? NULL : stream));
    RESERVED_IS(ROOM);
    /* The memory outlives all graphs. */
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(graph.ExecDestroy(exec));
    CHECK(graph.ExecDestroy(frees));
    CHECK(graph.Destroy(freeing));
    CHECK(graph.Destroy(made));
    trim();
    RESERVED_IS(ROOM);
    CHECK(cu.cuMemFree(address));
    trim();
    RESERVED_IS(0);
    CHECK(cu.cuStreamDestroy(other));
}

/* The driver's own figures, and unknown attributes. */
static void figures(void) {
    uint64_t value, zero = 0;
    CHECK(graph.MemGet(0, RESERVED_HIGH, &value));
    HOLDS(value == 5 * ROOM);
    CHECK(graph.MemSet(0, RESERVED_HIGH, &zero));
    CHECK(graph.MemGet(0, RESERVED_HIGH, &value));
    HOLDS(value == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.MemGet(0, 77, &value));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, graph.MemGet(77, RESERVED_HIGH, &value));
}

int main(void) {
    stream = graphs_begin(120, "spin_5us", &kernel);
    by_calls();
    by_captures();
    in_parts();
    in_every_order();
    figures();
    return 0;
}
