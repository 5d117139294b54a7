/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_of_another_gpu - checks that a graph allocates on the GPU that its node names, whatever
 * context is current.
 */
#include "graph_ledger.h"

static size_t reserved_on(CUdevice gpu) {
    uint64_t value;
    CHECK(graph.MemGet(gpu, RESERVED_CURRENT, &value));
    return (size_t)value;
}

int main(void) {
    CUfunction kernel;
    CUcontext first, second;
    CUdevice gpu;
    size_t before[2], after[2], total;
    CUstream stream = graphs_begin(60, "spin_5us", &kernel);
    CHECK(cu.cuCtxGetCurrent(&first));
    CHECK(cu.cuDeviceGet(&gpu, 1));
    CHECK(cu.cuDevicePrimaryCtxRetain(&second, gpu));
    CHECK(cu.cuCtxSetCurrent(second));
    CHECK(cu.cuMemGetInfo(&before[1], &total));
    CHECK(cu.cuCtxSetCurrent(first));
    CHECK(cu.cuMemGetInfo(&before[0], &total));

    CUgraph made = graph_made();
    CUgraphNode node;
    AllocParams params = allocation_of(20 * MIB);
    params.location.id = 1;
    CHECK(graph.AddAlloc(&node, made, NULL, 0, &params));
    allocates_and_frees(made, 10 * MIB);
    CUgraphExec exec = executable_of(made);
    CHECK(graph.Launch(exec, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(reserved_on(0) == 10 * MIB && reserved_on(1) == 20 * MIB);
    CHECK(cu.cuMemGetInfo(&after[0], &total));
    CHECK(cu.cuCtxSetCurrent(second));
    CHECK(cu.cuMemGetInfo(&after[1], &total));
    HOLDS(before[0] - after[0] == 10 * MIB && before[1] - after[1] == 20 * MIB);
    CHECK(cu.cuMemFree(params.address));
    CHECK(graph.MemTrim(0));
    CHECK(graph.MemTrim(1));
    CHECK(cu.cuMemGetInfo(&after[1], &total));
    HOLDS(before[1] == after[1]);
    return 0;
}
