/* SPDX-License-Identifier: Apache-2.0
 *
 * captures - checks stream capture: calls on capturing streams, modes, forks and joins, and each
 * error from 900 to 908.
 */
#include <pthread.h>

#include "graph.h"

static CUfunction kernel;

/* Ends an invalidated capture. */
static void broken(CUstream stream) {
    CUgraph made = (CUgraph)1;
    HOLDS(status_of(stream) == INVALIDATED);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, graph.EndCapture(stream, &made));
    HOLDS(made == NULL && status_of(stream) == NONE);
}

/* Ends a valid capture. */
static CUgraph ended(CUstream stream, size_t nodes) {
    CUgraph made = NULL;
    CHECK(graph.EndCapture(stream, &made));
    HOLDS(made != NULL && count_of(made) == nodes && status_of(stream) == NONE);
    return made;
}

/* Captured work does not run; the graph made from it does. */
static void bytes(CUstream stream) {
    CUdeviceptr from, to, seen;
    unsigned char host[256];
    int status;
    uint64_t id;
    CUgraph made, again;
    CUgraphExec exec;
    const CUgraphNode *after;
    size_t count;
    CHECK(cu.cuMemAlloc(&from, 256));
    CHECK(cu.cuMemAlloc(&to, 256));
    CHECK(cu.cuMemsetD8(to, 1, 256));
    CHECK(cu.cuCtxSynchronize());
    HOLDS(status_of(stream) == NONE);
    CHECK(graph.BeginCapture(stream, GLOBAL));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, graph.BeginCapture(stream, GLOBAL));
    HOLDS(status_of(stream) == ACTIVE);
    CHECK(cu.cuMemsetD8Async(from, 7, 256, stream));
    CHECK(graph.DtoDAsync(to, from, 256, stream));
    launch(kernel, stream);
    CHECK(graph.CaptureInfo(stream, &status, &id, &again, &after, &count));
    HOLDS(status == ACTIVE && id != 0 && count == 1 && count_of(again) == 3);
    made = ended(stream, 3);
    HOLDS(made == again);
    CHECK(cu.cuMemcpyDtoH(host, to, 256));
    HOLDS(host[0] == 1 && host[255] == 1);
    CHECK(graph.Instantiate(&exec, made, 0));
    CHECK(graph.Destroy(made));
    CHECK(graph.Launch(exec, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(cu.cuMemcpyDtoH(host, to, 256));
    HOLDS(host[0] == 7 && host[255] == 7);
    CHECK(graph.ExecDestroy(exec));
    /* Stream-ordered allocations become nodes, too. */
    CHECK(graph.BeginCapture(stream, GLOBAL));
    CHECK(graph.AllocAsync(&seen, 4096, stream));
    CHECK(cu.cuMemsetD8Async(seen, 3, 4096, stream));
    CHECK(graph.FreeAsync(seen, stream));
    made = ended(stream, 3);
    CHECK(graph.Destroy(made));
    CHECK(cu.cuMemFree(from));
    CHECK(cu.cuMemFree(to));
}

/* Streams join a capture by events, and must be joined back. */
static void forks(CUstream first, CUstream second, CUevent fork, CUevent join) {
    CUgraph made;
    size_t edges = 0;
    CHECK(graph.BeginCapture(first, GLOBAL));
    launch(kernel, first);
    CHECK(cu.cuEventRecord(fork, first));
    CHECK(cu.cuStreamWaitEvent(second, fork, 0));
    HOLDS(status_of(second) == ACTIVE);
    launch(kernel, second);
    launch(kernel, first);
    CHECK(cu.cuEventRecord(join, second));
    CHECK(cu.cuStreamWaitEvent(first, join, 0));
    launch(kernel, first);
    /* 903: ended in another stream than it began in. */
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, graph.EndCapture(second, &made));
    made = ended(first, 4);
    HOLDS(status_of(second) == NONE);
    CHECK(graph.GetEdges(made, NULL, NULL, &edges));
    HOLDS(edges == 4);
    CHECK(graph.Destroy(made));
    /* 904: a stream was not joined back. */
    CHECK(graph.BeginCapture(first, GLOBAL));
    CHECK(cu.cuEventRecord(fork, first));
    CHECK(cu.cuStreamWaitEvent(second, fork, 0));
    launch(kernel, second);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, graph.EndCapture(first, &made));
    HOLDS(made == NULL && status_of(first) == NONE && status_of(second) == NONE);
    /* Unless the program removes the dependency. */
    CHECK(graph.BeginCapture(first, GLOBAL));
    CHECK(cu.cuEventRecord(fork, first));
    CHECK(cu.cuStreamWaitEvent(second, fork, 0));
    launch(kernel, second);
    CHECK(graph.UpdateDependencies(second, NULL, 0, 1));
    CHECK(graph.Destroy(ended(first, 1)));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, graph.UpdateDependencies(second, NULL, 0, 1));
}

static void errors(CUstream first, CUstream second, CUevent event, CUevent other) {
    CUgraph made;
    int status;
    float ms;
    CUdeviceptr memory;
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, graph.EndCapture(first, &made));
    /* 900: calls that cannot be captured, and streams in which no capture can begin. */
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, graph.BeginCapture(NULL, GLOBAL));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, graph.BeginCapture(CU_STREAM_LEGACY, RELAXED));
    CHECK(graph.BeginCapture(first, RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuStreamSynchronize(first));
    /* 901: already invalidated. */
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
           cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, first, NULL, NULL));
    broken(first);
    CHECK(graph.BeginCapture(first, RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuStreamQuery(first));
    broken(first);
    /* 902: two captures would be merged. */
    CHECK(graph.BeginCapture(first, RELAXED));
    CHECK(graph.BeginCapture(second, RELAXED));
    CHECK(cu.cuEventRecord(event, second));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_MERGE, cu.cuStreamWaitEvent(first, event, 0));
    broken(first);
    broken(second);
    /* 905: the event was not captured. */
    CHECK(cu.cuEventRecord(event, second));
    CHECK(graph.BeginCapture(first, RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cu.cuStreamWaitEvent(first, event, 0));
    broken(first);
    /* As an external event it becomes a node. */
    CHECK(graph.BeginCapture(first, RELAXED));
    CHECK(cu.cuStreamWaitEvent(first, event, 1));
    CHECK(graph.RecordExternal(event, first, 1));
    CHECK(graph.Destroy(ended(first, 2)));
    CHECK(cu.cuEventSynchronize(event));
    CHECK(cu.cuEventQuery(event));
    /* 907: the event belongs to a capture. */
    CHECK(graph.BeginCapture(first, RELAXED));
    launch(kernel, first);
    CHECK(cu.cuEventRecord(event, first));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, cu.cuEventQuery(event));
    broken(first);
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, cu.cuEventSynchronize(event));
    CHECK(cu.cuEventRecord(other, second));
    CHECK(cu.cuStreamSynchronize(second));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, cu.cuEventElapsedTime(&ms, other, event));
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, cu.cuStreamWaitEvent(second, event, 0));
    CHECK(cu.cuEventRecord(event, second));
    CHECK(cu.cuEventSynchronize(event));
    /* 906: the legacy stream during a capture of a blocking stream; a query invalidates nothing. */
    CUstream blocking = stream_new(0);
    CHECK(graph.BeginCapture(blocking, RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, graph.IsCapturing(NULL, &status));
    HOLDS(status_of(blocking) == ACTIVE);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
           cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    broken(blocking);
    CHECK(graph.BeginCapture(first, RELAXED));
    launch(kernel, NULL);
    CHECK(graph.Destroy(ended(first, 0)));
    CHECK(cu.cuMemAlloc(&memory, 4096));
    CHECK(graph.BeginCapture(blocking, RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cu.cuMemcpyDtoH(&status, memory, 4));
    broken(blocking);
    CHECK(cu.cuMemFree(memory));
    CHECK(cu.cuStreamDestroy(blocking));
}

/* Into an existing graph, after its nodes. */
static void into(CUstream stream) {
    CUgraph there, same;
    CUgraphNode root;
    size_t count = 0;
    CHECK(graph.Create(&there, 0));
    CHECK(graph.AddEmpty(&root, there, NULL, 0));
    CHECK(graph.BeginCaptureToGraph(stream, there, &root, NULL, 1, GLOBAL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.Destroy(there));
    launch(kernel, stream);
    CHECK(graph.EndCapture(stream, &same));
    HOLDS(same == there && count_of(there) == 2);
    CHECK(graph.GetDependents(root, NULL, &count));
    HOLDS(count == 1);
    CHECK(graph.Destroy(there));
}

/* The per-thread default stream can be captured, under both of its names. */
static void own(void) {
    CUgraph made;
    CUgraphExec exec;
    CHECK(graph.BeginCapturePtsz(NULL, GLOBAL));
    HOLDS(status_of((CUstream)2) == ACTIVE);
    CHECK(graph.LaunchKernelPtsz(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    launch(kernel, (CUstream)2);
    CHECK(graph.EndCapturePtsz(NULL, &made));
    HOLDS(count_of(made) == 2);
    CHECK(graph.Instantiate(&exec, made, 0));
    CHECK(graph.LaunchPtsz(exec, NULL));
    CHECK(cu.cuStreamSynchronize((CUstream)2));
    /* A captured launch becomes a child graph. */
    CUgraph outer;
    CHECK(graph.BeginCapture((CUstream)2, GLOBAL));
    CHECK(graph.Launch(exec, (CUstream)2));
    CHECK(graph.EndCapture((CUstream)2, &outer));
    HOLDS(count_of(outer) == 1);
    CHECK(graph.ExecDestroy(exec));
    CHECK(graph.Destroy(made));
    CHECK(graph.Instantiate(&exec, outer, 0));
    CHECK(graph.Launch(exec, NULL));
    CHECK(cu.cuCtxSynchronize());
    CHECK(graph.ExecDestroy(exec));
    CHECK(graph.Destroy(outer));
}

struct turn {
    CUcontext context;
    CUstream stream;
    int mode;
    CUresult end, unsafe;
};

static void *elsewhere(void *data) {
    struct turn *turn = data;
    CUgraph made;
    CUdeviceptr memory;
    CHECK(cu.cuCtxSetCurrent(turn->context));
    CHECK(graph.ExchangeMode(&turn->mode));
    turn->unsafe = cu.cuMemAlloc(&memory, 4096);
    if (turn->unsafe == CUDA_SUCCESS) CHECK(cu.cuMemFree(memory));
    turn->end = graph.EndCapture(turn->stream, &made);
    if (turn->end == CUDA_SUCCESS) CHECK(graph.Destroy(made));
    return NULL;
}

/* A capture of one mode. A thread in another mode makes an unsafe call, then ends the capture. */
static struct turn crossing(CUcontext context, CUstream stream, int mode, int other) {
    struct turn turn = {context, stream, other, 0, 0};
    pthread_t thread;
    CHECK(graph.BeginCapture(stream, mode));
    HOLDS(pthread_create(&thread, NULL, elsewhere, &turn) == 0);
    HOLDS(pthread_join(thread, NULL) == 0);
    return turn;
}

static void modes(CUcontext context, CUstream stream) {
    CUdeviceptr memory;
    CUgraph made;
    /* In the same thread. */
    for (int mode = GLOBAL; mode <= RELAXED; mode++) {
        CHECK(graph.BeginCapture(stream, mode));
        CUresult safe = mode == RELAXED ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        EXPECT(safe, cu.cuMemAlloc(&memory, 4096));
        if (mode == RELAXED) {
            CHECK(cu.cuMemFree(memory));
            CHECK(graph.Destroy(ended(stream, 0)));
        } else {
            broken(stream);
        }
        /* A thread in relaxed mode may make the call. */
        int relaxed = RELAXED;
        CHECK(graph.BeginCapture(stream, mode));
        CHECK(graph.ExchangeMode(&relaxed));
        HOLDS(relaxed == GLOBAL);
        CHECK(cu.cuMemAlloc(&memory, 4096));
        CHECK(cu.cuMemFree(memory));
        CHECK(graph.ExchangeMode(&relaxed));
        HOLDS(relaxed == RELAXED);
        CHECK(graph.Destroy(ended(stream, 0)));
    }
    int wrong = 3;
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.ExchangeMode(&wrong));
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.BeginCapture(stream, 3));
    /* In another thread, only a global capture is invalidated, by a call in global mode. 908:
     * only a relaxed capture can be ended there. */
    for (int mode = GLOBAL; mode <= RELAXED; mode++) {
        for (int other = GLOBAL; other <= RELAXED; other++) {
            int breaks = mode == GLOBAL && other == GLOBAL;
            struct turn turn = crossing(context, stream, mode, other);
            HOLDS(turn.unsafe == (breaks ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS));
            if (mode == RELAXED) {
                HOLDS(turn.end == CUDA_SUCCESS && status_of(stream) == NONE);
                continue;
            }
            HOLDS(turn.end == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
            if (breaks) {
                broken(stream);
            } else {
                CHECK(graph.EndCapture(stream, &made));
                CHECK(graph.Destroy(made));
            }
        }
    }
}

int main(void) {
    watchdog(60);
    CUcontext context = graph_open();
    kernel = driver_function("spin_100us");
    CUstream first = stream_new(CU_STREAM_NON_BLOCKING),
             second = stream_new(CU_STREAM_NON_BLOCKING);
    CUevent event = event_new(), other = event_new();
    bytes(first);
    forks(first, second, event, other);
    errors(first, second, event, other);
    into(first);
    own();
    modes(context, first);
    /* Destroying a context ends the captures of its streams. */
    CUcontext other_context;
    CUdeviceptr memory;
    CHECK(cu.cuCtxCreate(&other_context, 0, 0));
    CHECK(graph.BeginCapture(stream_new(0), GLOBAL));
    int relaxed = RELAXED;
    CHECK(graph.ExchangeMode(&relaxed));
    CHECK(cu.cuCtxDestroy(other_context));
    CHECK(graph.ExchangeMode(&relaxed));
    CHECK(cu.cuCtxSetCurrent(context));
    CHECK(cu.cuMemAlloc(&memory, 4096));
    CHECK(cu.cuMemFree(memory));
    /* Destroying a stream ends its capture. */
    CHECK(graph.BeginCapture(second, GLOBAL));
    CHECK(cu.cuStreamDestroy(second));
    CHECK(cu.cuEventDestroy(event));
    CHECK(cu.cuEventDestroy(other));
    CHECK(cu.cuStreamDestroy(first));
    CHECK(cu.cuCtxSynchronize());
    printf("{\"captures\": \"ok\"}\n");
    return 0;
}
