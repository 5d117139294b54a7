/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_ledger.h - graphs that allocate, and checks that the ledger has what is reserved for them.
 */
#ifndef CGPU_TEST_GRAPH_LEDGER_H
#define CGPU_TEST_GRAPH_LEDGER_H

#include "graph.h"
#include "pool.h"

/* A node that allocates on the GPU, with its address. */
static inline AllocParams allocation_of(size_t bytes) {
    return (AllocParams){.alloc_type = PINNED, .location = {DEVICE, 0}, .bytes = bytes};
}

static inline CUgraph graph_made(void) {
    CUgraph made;
    CHECK(graph.Create(&made, 0));
    return made;
}

/* Adds an allocation that no node of the graph frees. */
static inline CUdeviceptr allocates(CUgraph of, size_t bytes) {
    AllocParams params = allocation_of(bytes);
    CUgraphNode node;
    CHECK(graph.AddAlloc(&node, of, NULL, 0, &params));
    return params.address;
}

/* Adds an allocation and a node that frees it. */
static inline CUdeviceptr allocates_and_frees(CUgraph of, size_t bytes) {
    AllocParams params = allocation_of(bytes);
    CUgraphNode node, freed;
    CHECK(graph.AddAlloc(&node, of, NULL, 0, &params));
    CHECK(graph.AddFree(&freed, of, &node, 1, params.address));
    return params.address;
}

static inline CUgraphExec executable_of(CUgraph of) {
    CUgraphExec exec;
    CHECK(graph.Instantiate(&exec, of, 0));
    return exec;
}

/* Creates a graph that allocates this much, works for a while and frees it. */
static inline CUgraphExec executable(size_t bytes, CUfunction kernel) {
    CUgraph made = graph_made();
    AllocParams params = allocation_of(bytes);
    CUgraphNode nodes[3];
    KernelParams work = {.func = kernel, .grid = {1, 1, 1}, .block = {1, 1, 1}};
    CHECK(graph.AddAlloc(&nodes[0], made, NULL, 0, &params));
    CHECK(graph.AddKernel(&nodes[1], made, &nodes[0], 1, &work));
    CHECK(graph.AddFree(&nodes[2], made, &nodes[1], 1, params.address));
    return executable_of(made);
}

static inline size_t reserved(void) {
    uint64_t value;
    CHECK(graph.MemGet(0, RESERVED_CURRENT, &value));
    return (size_t)value;
}

/* Requires that the ledger, the driver's free memory and its reservation for graphs agree,
 * besides this much of other kinds. */
#define RESERVED_BESIDE(bytes, others)       \
    do {                                     \
        size_t reserved_bytes = (bytes);     \
        HOLDS(reserved() == reserved_bytes); \
        TAKEN(reserved_bytes + (others));    \
    } while (0)
#define RESERVED_IS(bytes) RESERVED_BESIDE(bytes, 0)

/* Requires that the driver has taken no more than was free under the limit. */
#define WITHIN_THE_LIMIT() HOLDS(truth() <= ledger.shown)

static inline void trim(void) { CHECK(graph.MemTrim(0)); }

/* Begins to count, creates a stream, and runs a kernel so that its code is not counted. */
static inline CUstream graphs_begin(unsigned seconds, const char *kernel, CUfunction *function) {
    watchdog(seconds);
    graph_open();
    pools_open();
    CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
    *function = kernel_ready(kernel, stream);
    return stream;
}

#endif
