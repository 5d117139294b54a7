/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_private_pools - captures as PyTorch makes them. The allocator caches blocks of linear
 * memory, keeps a pool for each graph, allocates during captures (in relaxed mode), and at the end
 * of memory frees its cache and tries again. Then the same with stream-ordered allocations, which
 * become nodes. Prints one JSON object: retries, refusals.
 */
#include "graph_ledger.h"

enum { BLOCKS = 256, GRAPHS = 6, REPLAYS = 40, EAGER = 0 /* pool outside captures */ };

/* Blocks are linear memory. An unused block is cached for its pool. */
static struct block {
    CUdeviceptr address;
    size_t size;
    int pool, used;
} blocks[BLOCKS];
static int retries, refusals;

static CUresult device_alloc(CUdeviceptr *address, size_t size) {
    int mode = RELAXED;
    CHECK(graph.ExchangeMode(&mode));
    CUresult answer = cu.cuMemAlloc(address, size);
    CHECK(graph.ExchangeMode(&mode));
    return answer;
}

/* Frees what no graph may use any more. */
static void empty_cache(void) {
    int mode = RELAXED;
    CHECK(graph.ExchangeMode(&mode));
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].address && !blocks[i].used && blocks[i].pool == EAGER) {
            CHECK(cu.cuMemFree(blocks[i].address));
            blocks[i].address = 0;
        }
    CHECK(graph.ExchangeMode(&mode));
}

static struct block *allocate(size_t size, int pool) {
    struct block *empty = NULL;
    for (int i = 0; i < BLOCKS; i++) {
        struct block *at = &blocks[i];
        if (at->address && !at->used && at->pool == pool && at->size == size) {
            at->used = 1;
            return at;
        }
        if (!at->address) empty = at;
    }
    HOLDS(empty != NULL);
    CUresult answer = device_alloc(&empty->address, size);
    if (answer == CUDA_ERROR_OUT_OF_MEMORY) {
        empty_cache();
        retries++;
        answer = device_alloc(&empty->address, size);
    }
    WITHIN_THE_LIMIT();
    if (answer == CUDA_ERROR_OUT_OF_MEMORY) {
        refusals++;
        empty->address = 0;
        return NULL;
    }
    CHECK(answer);
    *empty = (struct block){empty->address, size, pool, 1};
    return empty;
}

static void release_pool(int pool) {
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].address && blocks[i].pool == pool) {
            CHECK(cu.cuMemFree(blocks[i].address));
            blocks[i].address = 0;
        }
}

/* A step of a model, with layers that each need memory. Returns whether there was enough. */
static int step(size_t size, int layers, int pool, CUfunction kernel, CUstream stream) {
    struct block *held[16];
    int done = 0;
    for (; done < layers; done++) {
        held[done] = allocate(size, pool);
        if (!held[done]) break;
        CHECK(cu.cuMemsetD8Async(held[done]->address, 1, 4096, stream));
        occupy(kernel, stream);
    }
    for (int i = 0; i < done; i++) held[i]->used = 0;
    return done == layers;
}

/* Captures over the cached memory of eager steps, which must be released; each graph has its
 * pool. */
static void linear(CUfunction kernel, CUstream stream) {
    CUgraph made[GRAPHS];
    CUgraphExec exec[GRAPHS];
    size_t size = free_shown() / (GRAPHS + 1) / 4 / (2 * MIB) * (2 * MIB);
    /* Nearly everything is cached when the first capture begins. */
    for (int i = 0; step(size + (size_t)(i % 3) * 2 * MIB, 8, EAGER, kernel, stream) && i < 12; i++)
        continue;
    for (int i = 0; i < GRAPHS; i++) {
        CHECK(graph.BeginCapture(stream, i % 2 ? THREAD_LOCAL : GLOBAL));
        HOLDS(step(size, 4, i + 1, kernel, stream));
        CHECK(graph.EndCapture(stream, &made[i]));
        exec[i] = executable_of(made[i]);
        for (int replay = 0; replay < REPLAYS; replay++) {
            CHECK(graph.Launch(exec[(i * replay) % (i + 1)], stream));
            if (replay % 8 == 0) step(size, 2, EAGER, kernel, stream);
        }
        CHECK(cu.cuStreamSynchronize(stream));
        HOLDS(shown() == truth());
    }
    HOLDS(retries > 0);
    /* There is no room for another one. The failed capture is ended, and the rest continues. */
    empty_cache();
    CHECK(graph.BeginCapture(stream, GLOBAL));
    HOLDS(!step(size, 9, GRAPHS + 1, kernel, stream));
    CUgraph failed;
    CHECK(graph.EndCapture(stream, &failed));
    CHECK(graph.Destroy(failed));
    release_pool(GRAPHS + 1);
    for (int i = 0; i < GRAPHS; i++) {
        CHECK(graph.Launch(exec[i], stream));
        CHECK(cu.cuStreamSynchronize(stream));
        CHECK(graph.ExecDestroy(exec[i]));
        CHECK(graph.Destroy(made[i]));
        release_pool(i + 1);
    }
    empty_cache();
    TAKEN(0);
}

/* The stream-ordered allocator: an allocation during capture is a node, which takes its memory
 * at the first replay. */
static void in_stream_order(CUfunction kernel, CUstream stream) {
    CUgraph made[GRAPHS];
    CUgraphExec exec[GRAPHS];
    CUdeviceptr memory[4], ballast;
    size_t size = free_shown() / 6 / (2 * MIB) * (2 * MIB);
    for (int i = 0; i < GRAPHS; i++) {
        CHECK(graph.BeginCapture(stream, GLOBAL));
        for (int layer = 0; layer < 4; layer++) {
            CHECK(pools.alloc(&memory[layer], size, stream));
            CHECK(cu.cuMemsetD8Async(memory[layer], 1, 4096, stream));
            occupy(kernel, stream);
        }
        for (int layer = 0; layer < 4; layer++) CHECK(pools.free(memory[layer], stream));
        CHECK(graph.EndCapture(stream, &made[i]));
        CHECK(graph.Instantiate(&exec[i], made[i], AUTO_FREE_ON_LAUNCH));
    }
    TAKEN(0);
    for (int replay = 0; replay < REPLAYS; replay++) {
        CHECK(graph.Launch(exec[replay / 4 % GRAPHS], stream));
        WITHIN_THE_LIMIT();
        HOLDS(shown() == truth());
    }
    /* With memory taken meanwhile, the replay is out of memory until some is freed. */
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(cu.cuMemAlloc(&ballast, 3 * size));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, graph.Launch(exec[0], stream));
    refusals++;
    TAKEN(3 * size);
    CHECK(cu.cuMemFree(ballast));
    CHECK(graph.Launch(exec[0], stream));
    CHECK(cu.cuStreamSynchronize(stream));
    for (int i = 0; i < GRAPHS; i++) {
        CHECK(graph.ExecDestroy(exec[i]));
        CHECK(graph.Destroy(made[i]));
    }
    trim();
    TAKEN(0);
}

int main(void) {
    CUfunction kernel;
    CUstream stream = graphs_begin(120, "spin_20us", &kernel);
    for (int round = 0; round < 2; round++) {
        linear(kernel, stream);
        in_stream_order(kernel, stream);
    }
    printf("{\"retries\": %d, \"refusals\": %d}\n", retries, refusals);
    return 0;
}
