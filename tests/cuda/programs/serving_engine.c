/* SPDX-License-Identifier: Apache-2.0
 *
 * serving_engine - allocates weights, then nine tenths of what cuMemGetInfo shows as free in one
 * block, then captures graphs for some batch sizes, then works in the rest: with linear memory, and
 * with a pool that keeps what it has. Memory shown as free was free.
 */
#include "pool.h"

typedef struct graph *CUgraph;
typedef struct executable *CUgraphExec;

enum { WEIGHTS = 6, STEPS = 200, SHAPES = 8, THREAD_LOCAL = 1 };

static struct {
    CUresult (*begin)(CUstream stream, int mode);
    CUresult (*end)(CUstream stream, CUgraph *graph);
    CUresult (*instantiate)(CUgraphExec *executable, CUgraph graph, uint64_t flags);
    CUresult (*launch)(CUgraphExec executable, CUstream stream);
    CUresult (*destroy)(CUgraph graph);
    CUresult (*end_of)(CUgraphExec executable);
} graphs;

static void graphs_open(void) {
    *(void **)&graphs.begin = driver_symbol("cuStreamBeginCapture_v2");
    *(void **)&graphs.end = driver_symbol("cuStreamEndCapture");
    *(void **)&graphs.instantiate = driver_symbol("cuGraphInstantiateWithFlags");
    *(void **)&graphs.launch = driver_symbol("cuGraphLaunch");
    *(void **)&graphs.destroy = driver_symbol("cuGraphDestroy");
    *(void **)&graphs.end_of = driver_symbol("cuGraphExecDestroy");
}

/* Captures a graph for each batch size, largest first, in existing memory. They take none
 * themselves. */
static void capture_all(CUgraphExec executables[SHAPES], CUdeviceptr cache, CUstream stream) {
    size_t before = shown();
    for (int shape = SHAPES; shape-- > 0;) {
        CUgraph graph;
        CHECK(graphs.begin(stream, THREAD_LOCAL));
        for (int layer = 0; layer <= shape; layer++)
            CHECK(cu.cuMemsetD8Async(cache + (size_t)layer * MIB, (unsigned char)layer, 4096,
                                     stream));
        CHECK(graphs.end(stream, &graph));
        CHECK(graphs.instantiate(&executables[shape], graph, 0));
        CHECK(graphs.destroy(graph));
        CHECK(graphs.launch(executables[shape], stream));
    }
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(shown() == before);
}

static void serve(int pooled, CUstream stream) {
    CUdeviceptr weights[WEIGHTS], cache, scratch;
    CUgraphExec executables[SHAPES];
    Pool pool = pool_of_the_gpu();
    size_t before = shown();
    for (int i = 0; i < WEIGHTS; i++)
        CHECK(pooled ? pools.alloc(&weights[i], 300 * MIB + 5, stream)
                     : cu.cuMemAlloc(&weights[i], 300 * MIB + 5));
    /* A profiling run, whose memory is freed. */
    CHECK(pools.alloc(&scratch, 700 * MIB, stream));
    CHECK(pools.free(scratch, stream));
    CHECK(cu.cuCtxSynchronize());
    CHECK(pools.trim(pool, 0));
    size_t block = free_shown() / 10 * 9;
    CHECK(pooled ? pools.alloc(&cache, block, stream) : cu.cuMemAlloc(&cache, block));
    HOLDS(shown() == truth() && truth() <= ledger.shown);
    capture_all(executables, cache, stream);
    for (int i = 0; i < STEPS; i++) {
        CHECK(graphs.launch(executables[i % SHAPES], stream));
        CHECK(pools.alloc(&scratch, (size_t)(1 + i % 40) * MIB, stream));
        CHECK(cu.cuMemsetD8Async(scratch, 1, MIB, stream));
        CHECK(pools.free(scratch, stream));
        HOLDS(shown() == truth() && truth() <= ledger.shown);
    }
    CHECK(cu.cuStreamSynchronize(stream));
    for (int i = 0; i < SHAPES; i++) CHECK(graphs.end_of(executables[i]));
    for (int i = 0; i < WEIGHTS; i++)
        CHECK(pooled ? pools.free(weights[i], stream) : cu.cuMemFree(weights[i]));
    CHECK(pooled ? pools.free(cache, stream) : cu.cuMemFree(cache));
    CHECK(cu.cuCtxSynchronize());
    CHECK(pools.trim(pool, 0));
    TAKEN(before);
}

int main(void) {
    CUstream stream = pools_begin(120);
    graphs_open();
    for (int round = 0; round < 3; round++) {
        serve(0, stream);
        serve(1, stream);
        keep_at_most(pool_of_the_gpu(), UINT64_MAX);
    }
    return 0;
}
