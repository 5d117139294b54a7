/* SPDX-License-Identifier: Apache-2.0
 *
 * numa_node N [limited] - requests memory of the host's NUMA node N, which is a GPU's memory, by a
 * handle, a pool and a graph. Without a limit all of it comes from the GPU. With "limited" each
 * request is refused, and memory of the host's own node is not.
 *
 * Output: one JSON object.
 *   {"taken": bytes of the GPU that the handle took, "host": whether memory of node 0 was granted}
 */
#include "graph_ledger.h"

enum { NUMA_CONFIG = 130, NUMA_ID = 131 };

int main(int argc, char **argv) {
    int limited = argc > 2 && strcmp(argv[2], "limited") == 0;
    CUresult expected = limited ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    CUfunction kernel;
    int value;
    HOLDS(argc > 1);
    struct location node = {HOST_NUMA, atoi(argv[1])};
    graphs_begin(60, "spin_5us", &kernel);
    FUNCTION(attribute, cuDeviceGetAttribute, (int *value, int which, CUdevice device));
    CHECK(attribute(&value, NUMA_CONFIG, 0));
    HOLDS(value == 1);
    CHECK(attribute(&value, NUMA_ID, 0));
    HOLDS(value == node.id);

    struct allocation wanted = {.kind = PINNED, .location = node};
    uint64_t handle;
    EXPECT(expected, vm.create(&handle, 64 * GRANULE, &wanted, 0));
    size_t taken = truth();
    if (!limited) CHECK(vm.release(handle));
    TAKEN(0);

    struct pool_properties properties = {.kind = PINNED, .location = node};
    Pool pool;
    EXPECT(expected, pools.create(&pool, &properties));
    if (!limited) CHECK(pools.destroy(pool));

    CUgraph made = graph_made();
    CUgraphNode added;
    AllocParams params = allocation_of(MIB);
    params.location.type = node.kind, params.location.id = node.id;
    NodeParams any = {.type = MEM_ALLOC, .alloc = params};
    EXPECT(expected, graph.AddAlloc(&added, made, NULL, 0, &params));
    EXPECT(expected, graph.AddNode(&added, made, NULL, 0, &any));
    if (limited) HOLDS(count_of(made) == 0);
    TAKEN(0);

    /* The host's own memory. */
    wanted.location = (struct location){HOST_NUMA_CURRENT, -1};
    CHECK(vm.create(&handle, GRANULE, &wanted, 0));
    CHECK(vm.release(handle));
    wanted.location = (struct location){HOST_NUMA, 0};
    CUresult host = vm.create(&handle, GRANULE, &wanted, 0);
    if (host == CUDA_SUCCESS) CHECK(vm.release(handle));
    TAKEN(0);
    printf("{\"taken\": %zu, \"host\": %s}\n", taken, host == CUDA_SUCCESS ? "true" : "false");
    return 0;
}
