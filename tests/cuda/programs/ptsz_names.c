/* SPDX-License-Identifier: Apache-2.0
 *
 * ptsz_names [limited] - checks the names for per-thread default streams. Each must be found by
 * dlsym of the suffixed name and by cuGetProcAddress with the per-thread flag, as the same
 * function, and work as the plain one. Memory taken by either route is charged, and refused at the
 * end of memory. (In other tools these names reached the real driver.) Prints one JSON object: the
 * number of names, the GPU's bytes as shown, and the maximum that each way has taken at once.
 * `limited`: also checks what a limit refuses before the GPU has taken it.
 */
#include "graph_ledger.h"

typedef CUresult (*GetProcAddress)(const char *name, void **function, int version, uint64_t flags,
                                   int *status);
typedef CUresult (*GetProcAddressFirst)(const char *name, void **function, int version,
                                        uint64_t flags);

/* field, base name, suffixed symbol, version that introduced it, arguments */
#define PTSZ_FUNCTIONS(X)                                                                          \
    X(launch, cuLaunchKernel, cuLaunchKernel_ptsz, 7000,                                           \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
       void **, void **))                                                                          \
    X(htod, cuMemcpyHtoD, cuMemcpyHtoD_v2_ptds, 7000, (CUdeviceptr, const void *, size_t))         \
    X(dtoh, cuMemcpyDtoH, cuMemcpyDtoH_v2_ptds, 7000, (void *, CUdeviceptr, size_t))               \
    X(htod_async, cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2_ptsz, 7000,                              \
      (CUdeviceptr, const void *, size_t, CUstream))                                               \
    X(fill, cuMemsetD8, cuMemsetD8_v2_ptds, 7000, (CUdeviceptr, unsigned char, size_t))            \
    X(synchronise, cuStreamSynchronize, cuStreamSynchronize_ptsz, 7000, (CUstream))                \
    X(record, cuEventRecord, cuEventRecord_ptsz, 7000, (CUevent, CUstream))                        \
    X(cooperative, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz, 9000,                \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
       void **))                                                                                   \
    X(host_function, cuLaunchHostFunc, cuLaunchHostFunc_ptsz, 10000,                               \
      (CUstream, void (*)(void *), void *))                                                        \
    X(alloc, cuMemAllocAsync, cuMemAllocAsync_ptsz, 11020, (CUdeviceptr *, size_t, CUstream))      \
    X(alloc_from, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz, 11020,                    \
      (CUdeviceptr *, size_t, Pool, CUstream))                                                     \
    X(release, cuMemFreeAsync, cuMemFreeAsync_ptsz, 11020, (CUdeviceptr, CUstream))                \
    X(begin_first, cuStreamBeginCapture, cuStreamBeginCapture_ptsz, 10000, (CUstream))             \
    X(begin, cuStreamBeginCapture, cuStreamBeginCapture_v2_ptsz, 10010, (CUstream, int))           \
    X(begin_to, cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz, 12030,              \
      (CUstream, CUgraph, const CUgraphNode *, const void *, size_t, int))                         \
    X(end, cuStreamEndCapture, cuStreamEndCapture_ptsz, 10000, (CUstream, CUgraph *))              \
    X(instantiate, cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz, 12000,         \
      (CUgraphExec *, CUgraph, InstantiateParams *))                                               \
    X(upload, cuGraphUpload, cuGraphUpload_ptsz, 11010, (CUgraphExec, CUstream))                   \
    X(launch_graph, cuGraphLaunch, cuGraphLaunch_ptsz, 10000, (CUgraphExec, CUstream))

struct route {
#define PTSZ_FIELD(field, base, symbol, version, arguments) CUresult(*field) arguments;
    PTSZ_FUNCTIONS(PTSZ_FIELD)
#undef PTSZ_FIELD
};
#define PTSZ_ONE(field, base, symbol, version, arguments) +1
enum { NAMES = PTSZ_FUNCTIONS(PTSZ_ONE) };
#undef PTSZ_ONE

static const char *const symbols[] = {
#define PTSZ_SYMBOL(field, base, symbol, version, arguments) #symbol,
    PTSZ_FUNCTIONS(PTSZ_SYMBOL)
#undef PTSZ_SYMBOL
};

#define PIECE (64 * MIB)
enum { MOST = 4096, WAYS = 3 };
static CUdeviceptr address[MOST];
static CUgraphExec exec[MOST];
static size_t granted[WAYS];

/* Looks up all functions by both routes. */
static void look_up(struct route *by_symbol, struct route *by_address) {
    GetProcAddress get = NULL;
    GetProcAddressFirst get_first = NULL;
    void *function, **fields = (void **)by_symbol, **others = (void **)by_address;
    for (int i = 0; i < NAMES; i++) fields[i] = driver_symbol(symbols[i]);
    *(void **)&get = driver_symbol("cuGetProcAddress_v2");
    *(void **)&get_first = driver_symbol("cuGetProcAddress");
    int i = 0, status;
#define PTSZ_LOOK_UP(field, base, symbol, version, arguments)                                     \
    status = -1;                                                                                  \
    CHECK(                                                                                        \
        get(#base, &others[i], version, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status)); \
    if (status != 0) FAIL(#base ": status %d", status);                                           \
    CHECK(get_first(#base, &function, version, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM));   \
    if (others[i] != fields[i] || function != fields[i]) FAIL(#base " is not " #symbol);          \
    i++;
    PTSZ_FUNCTIONS(PTSZ_LOOK_UP)
#undef PTSZ_LOOK_UP
}

static void works(const struct route *by, CUfunction kernel) {
    CUdeviceptr place;
    CUevent event;
    unsigned char bytes[4096], back[4096];
    memset(bytes, 0x5a, sizeof bytes);
    memset(back, 0, sizeof back);
    CHECK(by->alloc(&place, sizeof bytes, NULL));
    CHECK(by->synchronise(NULL));
    CHECK(by->fill(place, 0, sizeof bytes));
    CHECK(by->htod(place, bytes, sizeof bytes / 2));
    CHECK(by->htod_async(place + sizeof bytes / 2, bytes, sizeof bytes / 2, NULL));
    CHECK(by->launch(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CHECK(by->cooperative(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL));
    CHECK(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(by->record(event, NULL));
    CHECK(by->synchronise(NULL));
    CHECK(cu.cuEventDestroy(event));
    CHECK(by->dtoh(back, place, sizeof back));
    HOLDS(memcmp(bytes, back, sizeof back) == 0);
    CHECK(by->release(place, NULL));
    CHECK(by->synchronise(NULL));
    TAKEN(0);
}

/* The charge of pools is right at each step. */
static void in_stream_order(const struct route *by) {
    Pool own = pool_made();
    CUdeviceptr place, other;
    CHECK(by->alloc(&place, 100 * MIB + 1, NULL));
    HOLDS(truth() >= 100 * MIB);
    HELD_BY(pool_of_the_gpu());
    CHECK(by->alloc_from(&other, 50 * MIB, own, NULL));
    TAKEN(pool_has(pool_of_the_gpu(), RESERVED) + pool_has(own, RESERVED));
    CHECK(by->release(place, NULL));
    CHECK(by->release(other, NULL));
    CHECK(by->synchronise(NULL));
    TAKEN(0);
    CHECK(pools.destroy(own));
}

/* Captures a graph by each call that begins a capture; for a launch or an upload. */
static CUgraph captured(const struct route *by, int beginning, CUstream stream, size_t bytes) {
    CUgraph made = NULL;
    CUdeviceptr place;
    if (beginning == 0) CHECK(by->begin(stream, THREAD_LOCAL));
    if (beginning == 1) CHECK(by->begin_first(stream));
    if (beginning == 2) CHECK(by->begin_to(stream, graph_made(), NULL, NULL, 0, THREAD_LOCAL));
    CHECK(by->alloc(&place, bytes, stream));
    CHECK(by->release(place, stream));
    CHECK(by->end(stream, &made));
    TAKEN(0);
    return made;
}

static void in_graphs(const struct route *by, CUstream stream) {
    for (int beginning = 0; beginning < 3; beginning++) {
        CUgraph made = captured(by, beginning, stream, 6 * MIB);
        for (int way = 0; way < 3; way++) {
            InstantiateParams with = {.flags = way == 0 ? 2 /* upload */ : 0, .upload = stream};
            CUgraphExec one;
            CHECK(by->instantiate(&one, made, &with));
            if (way == 1) CHECK(by->upload(one, stream));
            CHECK(by->launch_graph(one, stream));
            CHECK(by->synchronise(stream));
            RESERVED_IS(6 * MIB);
            CHECK(graph.ExecDestroy(one));
            trim();
            RESERVED_IS(0);
        }
        CHECK(graph.Destroy(made));
    }
}

/* Allocates until there is no more, by each way; never more is taken than there was. */
static void to_the_end(const struct route *by, CUstream stream) {
    Pool own = pool_made();
    for (int way = 0; way < WAYS; way++) {
        CUresult result = CUDA_SUCCESS;
        int count = 0;
        for (; count < MOST && result == CUDA_SUCCESS; count += result == CUDA_SUCCESS) {
            InstantiateParams with = {.flags = 0};
            if (way == 0) result = by->alloc(&address[count], PIECE, NULL);
            if (way == 1) result = by->alloc_from(&address[count], PIECE, own, NULL);
            if (way < 2) continue;
            /* Memory that outlives its graph, so that the next graph cannot reuse it. */
            CUgraph made = graph_made();
            address[count] = allocates(made, PIECE);
            result = by->instantiate(&exec[count], made, &with);
            CHECK(graph.Destroy(made));
            if (result == CUDA_SUCCESS) {
                result = by->launch_graph(exec[count], stream);
                if (result != CUDA_SUCCESS) CHECK(graph.ExecDestroy(exec[count]));
            }
        }
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, result);
        HOLDS(count > 0);
        WITHIN_THE_LIMIT();
        HOLDS(shown() == truth());
        granted[way] = (size_t)count * PIECE;
        HOLDS(granted[way] <= truth());
        while (count-- > 0) {
            if (way == 2) CHECK(graph.ExecDestroy(exec[count]));
            if (way == 2)
                CHECK(cu.cuMemFree(address[count]));
            else
                CHECK(by->release(address[count], NULL));
        }
        CHECK(by->synchronise(NULL));
        CHECK(by->synchronise(stream));
        trim();
        TAKEN(0);
    }
    CHECK(pools.destroy(own));
}

/* An uploaded graph takes its memory then, and shares it with others. One that is too large is
 * refused as a whole. */
static void ahead(const struct route *by, CUstream stream) {
    InstantiateParams with = {.flags = 2 /* upload */, .upload = stream}, later = {.flags = 0};
    CUgraph made = graph_made();
    CUgraphExec one;
    allocates(made, free_shown() + 2 * MIB);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, by->instantiate(&one, made, &with));
    HOLDS(with.result == 1);
    RESERVED_IS(0);
    CHECK(by->instantiate(&one, made, &later));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, by->upload(one, stream));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, by->launch_graph(one, stream));
    RESERVED_IS(0);
    CHECK(graph.ExecDestroy(one));
    CHECK(graph.Destroy(made));
}

int main(int count, char **arguments) {
    int is_limited = count > 1 && strcmp(arguments[1], "limited") == 0;
    struct route routes[2];
    CUfunction kernel;
    size_t total;
    CUstream stream = graphs_begin(120, "spin_50us", &kernel);
    look_up(&routes[0], &routes[1]);
    /* The first cooperative launch takes memory. */
    CHECK(routes[0].cooperative(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL));
    CHECK(cu.cuCtxSynchronize());
    ledger_open();
    for (int i = 0; i < 2; i++) {
        works(&routes[i], kernel);
        in_stream_order(&routes[i]);
        in_graphs(&routes[i], stream);
        to_the_end(&routes[i], stream);
        if (is_limited) ahead(&routes[i], stream);
    }
    CHECK(cu.cuMemGetInfo(NULL, &total));
    printf("{\"names\": %d, \"total\": %zu, \"granted\": [%zu, %zu, %zu]}\n", NAMES, total,
           granted[0], granted[1], granted[2]);
    return 0;
}
