/* SPDX-License-Identifier: Apache-2.0
 *
 * graph.h - common code of the programs for captures and graphs: declarations of these functions,
 * beside those of driver.h.
 */
#ifndef CGPU_TEST_GRAPH_H
#define CGPU_TEST_GRAPH_H

#include "driver.h"

typedef struct graph *CUgraph;
typedef struct node *CUgraphNode;
typedef struct executable *CUgraphExec;
typedef struct object *CUuserObject;

enum {
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_LOSSY_QUERY = 402,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
};

enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };
enum { NONE = 0, ACTIVE = 1, INVALIDATED = 2 };
enum { KERNEL = 0, HOST_NODE = 3, CHILD = 4, MEM_ALLOC = 10, CONDITIONAL = 13 };
enum { UPDATED = 0, TOPOLOGY_CHANGED = 2, NODE_TYPE_CHANGED = 3, PARAMETERS_CHANGED = 5 };
enum { AUTO_FREE_ON_LAUNCH = 1 };
enum { USED_CURRENT = 0, USED_HIGH = 1, RESERVED_CURRENT = 2, RESERVED_HIGH = 3 };

#define CU_STREAM_LEGACY ((CUstream)1)

typedef struct {
    CUfunction func;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    void *kern;
    CUcontext context;
} KernelParams;

typedef struct {
    CUdeviceptr dst;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
} FillParams;

typedef struct {
    void (*function)(void *);
    void *data;
} HostParams;

typedef struct {
    size_t x, y, z, lod;
    int type;
    const void *host;
    CUdeviceptr device;
    void *array, *reserved;
    size_t pitch, height;
} Corner;

typedef struct {
    Corner src, dst;
    size_t width, height, depth;
} CopyParams;

typedef struct {
    int alloc_type, handle_types;
    struct {
        int type, id;
    } location;
    void *security;
    size_t max_size;
    unsigned char reserved[56];
    const void *access;
    size_t access_count, bytes;
    CUdeviceptr address;
} AllocParams;

typedef struct {
    CUgraph graph;
    int moves;
} ChildParams;

typedef struct {
    uint64_t handle;
    int kind;
    unsigned size;
    CUgraph *graphs;
    CUcontext context;
} ConditionalParams;

typedef struct {
    int type, reserved[3];
    union {
        KernelParams kernel;
        FillParams fill;
        HostParams host;
        AllocParams alloc;
        ChildParams child;
        ConditionalParams conditional;
        long long all[29];
    };
    long long reserved2;
} NodeParams;

typedef struct {
    int result;
    CUgraphNode node, from;
} UpdateInfo;

typedef struct {
    uint64_t flags;
    CUstream upload;
    CUgraphNode error;
    int result;
} InstantiateParams;

typedef struct {
    unsigned char from_port, to_port, type, reserved[5];
} EdgeData;

typedef union {
    char all[64];
    int cooperative, priority;
} Attribute;

/* field, exported symbol, arguments */
#define GRAPH_FUNCTIONS(X)                                                                        \
    X(BeginCapture, cuStreamBeginCapture_v2, (CUstream stream, int mode))                         \
    X(BeginCaptureToGraph, cuStreamBeginCaptureToGraph,                                           \
      (CUstream stream, CUgraph graph, const CUgraphNode *after, const void *data, size_t count,  \
       int mode))                                                                                 \
    X(EndCapture, cuStreamEndCapture, (CUstream stream, CUgraph * graph))                         \
    X(BeginCapturePtsz, cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode))                \
    X(EndCapturePtsz, cuStreamEndCapture_ptsz, (CUstream stream, CUgraph * graph))                \
    X(LaunchKernelPtsz, cuLaunchKernel_ptsz,                                                      \
      (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,      \
       unsigned bz, unsigned shared, CUstream stream, void **params, void **extra))               \
    X(LaunchPtsz, cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream))                        \
    X(IsCapturing, cuStreamIsCapturing, (CUstream stream, int *status))                           \
    X(CaptureInfo, cuStreamGetCaptureInfo_v2,                                                     \
      (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **after,     \
       size_t *count))                                                                            \
    X(UpdateDependencies, cuStreamUpdateCaptureDependencies,                                      \
      (CUstream stream, CUgraphNode * nodes, size_t count, unsigned flags))                       \
    X(ExchangeMode, cuThreadExchangeStreamCaptureMode, (int *mode))                               \
    X(RecordExternal, cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags))   \
    X(AllocAsync, cuMemAllocAsync, (CUdeviceptr * address, size_t bytes, CUstream stream))        \
    X(FreeAsync, cuMemFreeAsync, (CUdeviceptr address, CUstream stream))                          \
    X(DtoDAsync, cuMemcpyDtoDAsync_v2,                                                            \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                          \
    X(Create, cuGraphCreate, (CUgraph * graph, unsigned flags))                                   \
    X(Destroy, cuGraphDestroy, (CUgraph graph))                                                   \
    X(Clone, cuGraphClone, (CUgraph * clone, CUgraph graph))                                      \
    X(FindInClone, cuGraphNodeFindInClone,                                                        \
      (CUgraphNode * node, CUgraphNode original, CUgraph clone))                                  \
    X(AddKernel, cuGraphAddKernelNode_v2,                                                         \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count,                 \
       const KernelParams *params))                                                               \
    X(AddFill, cuGraphAddMemsetNode,                                                              \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count,                 \
       const FillParams *params, CUcontext context))                                              \
    X(AddCopy, cuGraphAddMemcpyNode,                                                              \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count,                 \
       const CopyParams *params, CUcontext context))                                              \
    X(AddHost, cuGraphAddHostNode,                                                                \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count,                 \
       const HostParams *params))                                                                 \
    X(AddEmpty, cuGraphAddEmptyNode,                                                              \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count))                \
    X(AddChild, cuGraphAddChildGraphNode,                                                         \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraph child)) \
    X(AddAlloc, cuGraphAddMemAllocNode,                                                           \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count,                 \
       AllocParams *params))                                                                      \
    X(AddFree, cuGraphAddMemFreeNode,                                                             \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count,                 \
       CUdeviceptr address))                                                                      \
    X(AddRecord, cuGraphAddEventRecordNode,                                                       \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count, CUevent event)) \
    X(AddWait, cuGraphAddEventWaitNode,                                                           \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count, CUevent event)) \
    X(AddNode, cuGraphAddNode,                                                                    \
      (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count,                 \
       NodeParams *params))                                                                       \
    X(ConditionalHandle, cuGraphConditionalHandleCreate,                                          \
      (uint64_t *handle, CUgraph graph, CUcontext context, unsigned value, unsigned flags))       \
    X(DestroyNode, cuGraphDestroyNode, (CUgraphNode node))                                        \
    X(KernelGet, cuGraphKernelNodeGetParams_v2, (CUgraphNode node, KernelParams * params))        \
    X(KernelSet, cuGraphKernelNodeSetParams_v2, (CUgraphNode node, const KernelParams *params))   \
    X(HostGet, cuGraphHostNodeGetParams, (CUgraphNode node, HostParams * params))                 \
    X(FillGet, cuGraphMemsetNodeGetParams, (CUgraphNode node, FillParams * params))               \
    X(CopyGet, cuGraphMemcpyNodeGetParams, (CUgraphNode node, CopyParams * params))               \
    X(GetType, cuGraphNodeGetType, (CUgraphNode node, int *type))                                 \
    X(GetNodes, cuGraphGetNodes, (CUgraph graph, CUgraphNode * nodes, size_t *count))             \
    X(GetRoots, cuGraphGetRootNodes, (CUgraph graph, CUgraphNode * nodes, size_t *count))         \
    X(GetEdges, cuGraphGetEdges,                                                                  \
      (CUgraph graph, CUgraphNode * from, CUgraphNode * to, size_t *count))                       \
    X(GetDependencies, cuGraphNodeGetDependencies,                                                \
      (CUgraphNode node, CUgraphNode * nodes, size_t *count))                                     \
    X(GetDependents, cuGraphNodeGetDependentNodes,                                                \
      (CUgraphNode node, CUgraphNode * nodes, size_t *count))                                     \
    X(AddDependencies, cuGraphAddDependencies,                                                    \
      (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count))              \
    X(RemoveDependencies, cuGraphRemoveDependencies,                                              \
      (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count))              \
    X(ChildGraph, cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph * graph))             \
    X(Dot, cuGraphDebugDotPrint, (CUgraph graph, const char *path, unsigned flags))               \
    X(Instantiate, cuGraphInstantiateWithFlags,                                                   \
      (CUgraphExec * exec, CUgraph graph, unsigned long long flags))                              \
    X(InstantiateWith, cuGraphInstantiateWithParams,                                              \
      (CUgraphExec * exec, CUgraph graph, InstantiateParams * params))                            \
    X(GetFlags, cuGraphExecGetFlags, (CUgraphExec exec, uint64_t *flags))                         \
    X(GetEdges2, cuGraphGetEdges_v2,                                                              \
      (CUgraph graph, CUgraphNode * from, CUgraphNode * to, EdgeData * data, size_t *count))      \
    X(AddDependencies2, cuGraphAddDependencies_v2,                                                \
      (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const EdgeData *data,       \
       size_t count))                                                                             \
    X(GetAttribute, cuGraphKernelNodeGetAttribute,                                                \
      (CUgraphNode node, unsigned attribute, Attribute *value))                                   \
    X(SetAttribute, cuGraphKernelNodeSetAttribute,                                                \
      (CUgraphNode node, unsigned attribute, const Attribute *value))                             \
    X(ExecEventSet, cuGraphExecEventRecordNodeSetEvent,                                           \
      (CUgraphExec exec, CUgraphNode node, CUevent event))                                        \
    X(ExecDestroy, cuGraphExecDestroy, (CUgraphExec exec))                                        \
    X(ExecKernelSet, cuGraphExecKernelNodeSetParams_v2,                                           \
      (CUgraphExec exec, CUgraphNode node, const KernelParams *params))                           \
    X(ExecHostSet, cuGraphExecHostNodeSetParams,                                                  \
      (CUgraphExec exec, CUgraphNode node, const HostParams *params))                             \
    X(ExecUpdate, cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, UpdateInfo * info))     \
    X(SetEnabled, cuGraphNodeSetEnabled, (CUgraphExec exec, CUgraphNode node, unsigned enabled))  \
    X(GetEnabled, cuGraphNodeGetEnabled, (CUgraphExec exec, CUgraphNode node, unsigned *enabled)) \
    X(Upload, cuGraphUpload, (CUgraphExec exec, CUstream stream))                                 \
    X(Launch, cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                 \
    X(MemTrim, cuDeviceGraphMemTrim, (CUdevice device))                                           \
    X(MemGet, cuDeviceGetGraphMemAttribute, (CUdevice device, int attribute, uint64_t *value))    \
    X(MemSet, cuDeviceSetGraphMemAttribute, (CUdevice device, int attribute, uint64_t *value))    \
    X(ObjectCreate, cuUserObjectCreate,                                                           \
      (CUuserObject * object, void *data, void (*destroy)(void *), unsigned count,                \
       unsigned flags))                                                                           \
    X(ObjectRelease, cuUserObjectRelease, (CUuserObject object, unsigned count))                  \
    X(RetainObject, cuGraphRetainUserObject,                                                      \
      (CUgraph graph, CUuserObject object, unsigned count, unsigned flags))

#define GRAPH_FIELD(field, symbol, arguments) CUresult(*field) arguments;
static struct {
    GRAPH_FUNCTIONS(GRAPH_FIELD)
} graph;
#undef GRAPH_FIELD

/* Opens the driver as driver_open does, and looks up the functions of graphs. */
static inline CUcontext graph_open(void) {
    CUcontext context = driver_open();
#define GRAPH_LOOKUP(field, symbol, arguments) *(void **)&graph.field = driver_symbol(#symbol);
    GRAPH_FUNCTIONS(GRAPH_LOOKUP)
#undef GRAPH_LOOKUP
    return context;
}

static inline CUstream stream_new(unsigned flags) {
    CUstream stream;
    CHECK(cu.cuStreamCreate(&stream, flags));
    return stream;
}

static inline CUevent event_new(void) {
    CUevent event;
    CHECK(cu.cuEventCreate(&event, 0));
    return event;
}

static inline int status_of(CUstream stream) {
    int status = -1;
    CHECK(graph.IsCapturing(stream, &status));
    return status;
}

static inline size_t count_of(CUgraph of) {
    size_t count = 0;
    CHECK(graph.GetNodes(of, NULL, &count));
    return count;
}

static inline void launch(CUfunction kernel, CUstream stream) {
    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
}

#endif
