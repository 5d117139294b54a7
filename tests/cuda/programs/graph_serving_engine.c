/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_serving_engine - starts like vLLM: weights; a profiling run that captures graphs to measure
 * them; a block of nine tenths of what cuMemGetInfo then shows as free, less that; the real
 * captures, largest batch first, all in one pool; replays in any order. The captures take what was
 * profiled, and memory shown as free was free. In other tools profiling was out of memory, because
 * the totals of the driver and of NVML and the memory of graphs were inconsistent.
 */
#include "graph_ledger.h"

enum { SIZES = 24, WEIGHTS = 4 };

/* Batch sizes, largest first: 8 * 24, 8 * 23, ... */
static size_t batch(int i) { return (size_t)(SIZES - i) * 8; }

/* Memory of a step: in nodes of the graph, or in a block that all graphs share. */
static void body(int nodes, size_t size, CUdeviceptr shared, CUfunction kernel, CUstream stream) {
    CUdeviceptr hidden = shared, logits = 0;
    if (nodes) {
        CHECK(pools.alloc(&hidden, size, stream));
        CHECK(pools.alloc(&logits, size / 4, stream));
    }
    CHECK(cu.cuMemsetD8Async(hidden, 1, 4096, stream));
    occupy(kernel, stream);
    if (nodes) {
        CHECK(pools.free(hidden, stream));
        CHECK(pools.free(logits, stream));
    }
}

static CUgraphExec captured(int nodes, size_t size, CUdeviceptr shared, CUfunction kernel,
                            CUstream stream) {
    CUgraph made;
    CUgraphExec exec;
    CHECK(graph.BeginCapture(stream, GLOBAL));
    body(nodes, size, shared, kernel, stream);
    CHECK(graph.EndCapture(stream, &made));
    CHECK(graph.Instantiate(&exec, made, AUTO_FREE_ON_LAUNCH));
    CHECK(graph.Destroy(made));
    return exec;
}

static void serve(int nodes, CUfunction kernel, CUstream stream) {
    CUgraphExec exec[SIZES];
    CUdeviceptr weights[WEIGHTS], cache, shared = 0;
    for (int i = 0; i < WEIGHTS; i++) CHECK(cu.cuMemAlloc(&weights[i], 200 * MIB));

    /* The profile: the memory of the two largest. */
    size_t before = free_shown();
    if (!nodes) CHECK(cu.cuMemAlloc(&shared, batch(0) * MIB));
    for (int i = 0; i < 2; i++) {
        exec[i] = captured(nodes, batch(i) * MIB, shared, kernel, stream);
        CHECK(graph.Launch(exec[i], stream));
        CHECK(cu.cuStreamSynchronize(stream));
    }
    size_t estimate = before - free_shown();
    HOLDS(nodes ? estimate >= batch(0) * MIB : estimate == batch(0) * MIB);
    for (int i = 0; i < 2; i++) CHECK(graph.ExecDestroy(exec[i]));
    trim();
    if (shared) CHECK(cu.cuMemFree(shared));
    HOLDS(free_shown() == before);

    size_t block = (free_shown() / 10 * 9 - estimate) / (2 * MIB) * (2 * MIB);
    CHECK(cu.cuMemAlloc(&cache, block));
    if (!nodes) CHECK(cu.cuMemAlloc(&shared, batch(0) * MIB));
    for (int i = 0; i < SIZES; i++) {
        exec[i] = captured(nodes, batch(i) * MIB, shared, kernel, stream);
        CHECK(graph.Launch(exec[i], stream));
        HOLDS(shown() == truth());
        WITHIN_THE_LIMIT();
    }
    for (int i = 0; i < 300; i++) {
        CHECK(graph.Launch(exec[i * 7 % SIZES], stream));
        WITHIN_THE_LIMIT();
    }
    CHECK(cu.cuStreamSynchronize(stream));
    for (int i = 0; i < SIZES; i++) CHECK(graph.ExecDestroy(exec[i]));
    for (int i = 0; i < WEIGHTS; i++) CHECK(cu.cuMemFree(weights[i]));
    CHECK(cu.cuMemFree(cache));
    if (shared) CHECK(cu.cuMemFree(shared));
    trim();
    TAKEN(0);
}

int main(void) {
    CUfunction kernel;
    CUstream stream = graphs_begin(120, "spin_20us", &kernel);
    for (int round = 0; round < 2; round++) {
        serve(0, kernel, stream);
        serve(1, kernel, stream);
    }
    return 0;
}
