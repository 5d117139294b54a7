/* SPDX-License-Identifier: Apache-2.0
 *
 * mortal WAY - allocates GPU memory in one way and frees it by every call of that way, until
 * standard input ends; only a few times where exported memory stays charged. Tests kill it at any
 * point, or by CGPU_SIM_FAULT in a call. Prints {"ready": true} before the first round, and
 * {"rounds": N} at the end.
 *
 *     linear pools physical ranges arrays graphs foreign modules contexts
 *     bound    to a multicast object, a logical endpoint, a tile, which hold it without its handle
 *     export   a peer imports what this process exports, by IPC handles, descriptors and pools
 *     import   this process imports what a peer exports
 *
 * The peer is a child without injected faults; it ends with this process.
 */
#include "descriptors.h"
#include "foreign.h"
#include "graph_ledger.h"
#include "objects.h"

#include <poll.h>
#include <sys/prctl.h>
#include <signal.h>

#define SOME (16 * MIB)

static CUstream stream;

static void linear(void) {
    CUdeviceptr large, small, pitched;
    size_t pitch;
    CHECK(cu.cuMemAlloc(&large, SOME));
    CHECK(cu.cuMemAlloc(&small, 4096));
    CHECK(cu.cuMemAllocPitch(&pitched, &pitch, 5000, 1000, 4));
    CHECK(cu.cuMemFree(pitched));
    CHECK(cu.cuMemFree(small));
    CHECK(cu.cuMemFree(large));
}

static void pooled(void) {
    Pool pool = pool_made();
    CUdeviceptr first, second;
    keep_at_most(pool, 4 * SOME);
    CHECK(pools.alloc(&first, SOME, stream));
    CHECK(pools.alloc_from(&second, 3 * SOME, pool, stream));
    CHECK(pools.free(first, stream));
    CHECK(pools.free(second, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(pools.trim(pool_of_the_gpu(), 0));
    CHECK(pools.trim(pool, SOME));
    CHECK(pools.alloc_from(&second, SOME, pool, stream));
    CHECK(pools.destroy(pool)); /* its last allocation outlives it */
    CHECK(pools.free(second, stream));
    CHECK(cu.cuStreamSynchronize(stream));
}

static const struct allocation shareable = {
    .kind = PINNED, .handle_types = DESCRIPTOR, .location = {DEVICE, 0}};

static void physical(void) {
    FUNCTION(export_handle, cuMemExportToShareableHandle, (void *, uint64_t, int, uint64_t));
    FUNCTION(import_handle, cuMemImportFromShareableHandle, (uint64_t *, void *, int));
    CUdeviceptr range = reserve(SOME);
    uint64_t handle, again, imported;
    int descriptor = -1;
    CHECK(vm.create(&handle, SOME, &shareable, 0));
    CHECK(vm.map(range, SOME, 0, handle, 0));
    let_in(range, SOME);
    CHECK(vm.retain(&again, (void *)(uintptr_t)range));
    CHECK(export_handle(&descriptor, handle, DESCRIPTOR, 0));
    CHECK(vm.release(handle));
    CHECK(vm.release(again));
    CHECK(import_handle(&imported, (void *)(intptr_t)descriptor, DESCRIPTOR));
    CHECK(vm.unmap(range, SOME));
    HOLDS(close(descriptor) == 0);
    CHECK(vm.release(imported));
    CHECK(vm.unreserve(range, SOME));
}

/* Memory that in the end only a descriptor keeps. */
static void ranges(void) {
    FUNCTION(range_handle, cuMemGetHandleForAddressRange,
             (void *, CUdeviceptr, size_t, int, unsigned long long));
    CUdeviceptr range = reserve(SOME), address;
    uint64_t handle;
    int first, second;
    CHECK(cu.cuMemAlloc(&address, SOME));
    CHECK(range_handle(&first, address, SOME, 1, 0));
    CHECK(cu.cuMemFree(address));
    CHECK(vm.create(&handle, SOME, &on_the_gpu, 0));
    CHECK(vm.map(range, SOME, 0, handle, 0));
    CHECK(vm.release(handle));
    CHECK(range_handle(&second, range, SOME, 1, 0));
    CHECK(vm.unmap(range, SOME));
    HOLDS(close(first) == 0 && close(second) == 0);
    CHECK(vm.unreserve(range, SOME));
}

static void arrays(void) {
    FUNCTION(create, cuArray3DCreate_v2, (void **, const ArrayDesc *));
    FUNCTION(destroy, cuArrayDestroy, (void *));
    FUNCTION(create_chain, cuMipmappedArrayCreate, (void **, const ArrayDesc *, unsigned));
    FUNCTION(destroy_chain, cuMipmappedArrayDestroy, (void *));
    static size_t width; /* another width each time, because the size for a width is queried once */
    ArrayDesc wanted = {.width = 1024 + width++ % 512, .height = 512, .format = 32, .channels = 4};
    void *array, *chain;
    CHECK(create(&array, &wanted));
    CHECK(create_chain(&chain, &wanted, 4));
    CHECK(destroy(array));
    CHECK(destroy_chain(chain));
}

static void graphs(void) {
    CUgraph made = graph_made(), captured;
    CUgraphExec exec;
    CUdeviceptr address;
    allocates_and_frees(made, SOME);
    exec = executable_of(made);
    CHECK(graph.Upload(exec, stream));
    CHECK(graph.Launch(exec, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(graph.ExecDestroy(exec));
    CHECK(graph.Destroy(made));
    trim();
    CHECK(graph.BeginCapture(stream, RELAXED));
    CHECK(pools.alloc(&address, 2 * SOME, stream));
    CHECK(pools.free(address, stream));
    CHECK(graph.EndCapture(stream, &captured));
    exec = executable_of(captured);
    CHECK(graph.Launch(exec, stream));
    CHECK(graph.Launch(exec, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(reserved() >= 2 * SOME);
    CHECK(graph.ExecDestroy(exec));
    CHECK(graph.Destroy(captured));
    trim();
}

static void other_interfaces(void) {
    FUNCTION(destroy_chain, cuMipmappedArrayDestroy, (void *));
    MipmapDesc wanted = {.array = {.width = 256, .height = 256, .format = 32, .channels = 1},
                         .levels = 1};
    uint64_t memory;
    int descriptor;
    void *chain;
    CHECK(foreign.allocate(0, SOME, &memory));
    CHECK(foreign.descriptor(memory, &descriptor));
    CUexternalMemory imported = import_memory(descriptor, SOME);
    CHECK(foreign.free(memory));
    CUdeviceptr buffer = buffer_of(imported, 0, SOME);
    CHECK(ext.chain(&chain, imported, &wanted));
    CHECK(ext.destroy(imported));
    CHECK(cu.cuMemFree(buffer));
    CHECK(destroy_chain(chain));
}

static uint64_t handle_of(const struct allocation *wanted) {
    uint64_t handle;
    CHECK(vm.create(&handle, SOME, wanted, 0));
    return handle;
}

/* Released by an unbind, by the object's end, or by the array's. */
static void bound(void) {
    FUNCTION(team, cuMulticastCreate, (uint64_t *, const struct team *));
    FUNCTION(joins, cuMulticastAddDevice, (uint64_t, CUdevice));
    FUNCTION(bind, cuMulticastBindMem, (uint64_t, size_t, uint64_t, size_t, size_t, uint64_t));
    FUNCTION(unbind, cuMulticastUnbind, (uint64_t, CUdevice, size_t, size_t));
    FUNCTION(number, cuLogicalEndpointIdReserve, (unsigned *, unsigned));
    FUNCTION(endpoint, cuLogicalEndpointCreate, (unsigned, const struct endpoint *));
    FUNCTION(ready, cuLogicalEndpointQuery, (unsigned, unsigned, int *));
    FUNCTION(bind_to, cuLogicalEndpointBindMem,
             (unsigned, CUdevice, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t));
    FUNCTION(unbind_from, cuLogicalEndpointUnbind, (unsigned, CUdevice, uint64_t, uint64_t));
    FUNCTION(destroy, cuLogicalEndpointDestroy, (unsigned));
    FUNCTION(give_number, cuLogicalEndpointIdRelease, (unsigned, unsigned));
    FUNCTION(create_array, cuArray3DCreate_v2, (void **, const struct array *));
    FUNCTION(destroy_array, cuArrayDestroy, (void *));
    FUNCTION(tile, cuMemMapArrayAsync, (struct map_info *, unsigned, CUstream));
    const struct team members = {1, 2 * SOME, 0, 0};
    const struct endpoint unicast = {1, 0, 2 * SOME, 0, 0};
    const struct array sparse = {
        .width = 1024, .height = 1024, .format = 32, .channels = 1, .flags = 0x40};
    const struct allocation for_tiles = {
        .kind = PINNED, .location = {DEVICE, 0}, .flags = {[2] = 1}};
    uint64_t object, first, second;
    unsigned id;
    int is_ready;
    void *array;
    CHECK(team(&object, &members));
    CHECK(joins(object, 0));
    first = handle_of(&on_the_gpu), second = handle_of(&on_the_gpu);
    CHECK(bind(object, 0, first, 0, SOME, 0));
    CHECK(bind(object, SOME, second, 0, SOME, 0));
    CHECK(vm.release(first));
    CHECK(vm.release(second));
    CHECK(unbind(object, 0, 0, SOME));
    CHECK(vm.release(object));

    CHECK(number(&id, 1));
    CHECK(endpoint(id, &unicast));
    CHECK(ready(id, 1, &is_ready));
    first = handle_of(&on_the_gpu), second = handle_of(&on_the_gpu);
    CHECK(bind_to(id, 0, 0, first, 0, SOME, 0));
    CHECK(bind_to(id, 0, SOME, second, 0, SOME, 0));
    CHECK(vm.release(first));
    CHECK(vm.release(second));
    CHECK(unbind_from(id, 0, 0, SOME));
    CHECK(destroy(id));
    CHECK(give_number(id, 1));

    CHECK(create_array(&array, &sparse));
    first = handle_of(&for_tiles);
    struct map_info corner = {.resource = array,
                              .part.level = {.extent = {128, 128, 1}},
                              .operation = 1,
                              .handle = first,
                              .devices = 1};
    CHECK(tile(&corner, 1, stream));
    CHECK(vm.release(first));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(destroy_array(array));
}

static const char image[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global "
                            ".align 8 .b8 table[16777216];\n";

static void modules(void) {
    FUNCTION(global, cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *));
    FUNCTION(load, cuLibraryLoadData,
             (void **, const void *, void *, void *, unsigned, void *, void *, unsigned));
    FUNCTION(unload, cuLibraryUnload, (void *));
    FUNCTION(brought, cuLibraryGetModule, (void **, void *));
    FUNCTION(kernel, cuLibraryGetKernel, (void **, void *, const char *));
    FUNCTION(function_of, cuKernelGetFunction, (void **, void *));
    CUmodule module;
    CUfunction function;
    CUdeviceptr address;
    void *library, *found;
    size_t bytes;
    CHECK(cu.cuModuleLoadData(&module, image));
    CHECK(global(&address, &bytes, module, "table"));
    CHECK(cu.cuModuleGetFunction(&function, module, "spin_1us"));
    CHECK(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(cu.cuModuleUnload(module));
    CHECK(load(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(brought(&found, library));
    CHECK(kernel(&found, library, "spin_1us"));
    CHECK(function_of(&found, found));
    CHECK(unload(library));
}

struct resource {
    int kind;
    unsigned char all[140];
};

_Static_assert(sizeof(struct resource) == 144, "CUdevResource");

static void contexts(void) {
    FUNCTION(set_limit, cuCtxSetLimit, (int, size_t));
    FUNCTION(of_device, cuDeviceGetDevResource, (CUdevice, struct resource *, int));
    FUNCTION(split, cuDevSmResourceSplitByCount,
             (struct resource *, unsigned *, const struct resource *, struct resource *, unsigned,
              unsigned));
    FUNCTION(describe, cuDevResourceGenerateDesc, (void **, struct resource *, unsigned));
    FUNCTION(create_green, cuGreenCtxCreate, (void **, void *, CUdevice, unsigned));
    FUNCTION(destroy_green, cuGreenCtxDestroy, (void *));
    struct resource all, part;
    CUcontext context, primary;
    CUdeviceptr address;
    unsigned count = 1;
    void *description, *green;
    CHECK(cu.cuCtxCreate(&context, 0, 0));
    CHECK(cu.cuMemAlloc(&address, SOME));
    CHECK(set_limit(2, 64 * MIB)); /* the heap */
    CHECK(cu.cuCtxDestroy(context));
    CHECK(of_device(0, &all, 1));
    CHECK(split(&part, &count, &all, NULL, 0, 16));
    CHECK(describe(&description, &part, 1));
    CHECK(create_green(&green, description, 0, 1));
    CHECK(destroy_green(green));
    CHECK(cu.cuMemAlloc(&address, SOME));
    CHECK(cu.cuDevicePrimaryCtxReset(0));
    CHECK(cu.cuDevicePrimaryCtxRelease(0));
    CHECK(cu.cuDevicePrimaryCtxRetain(&primary, 0));
    CHECK(cu.cuCtxSetCurrent(primary));
}

/* Between two processes. */
struct handle {
    char bytes[64];
};

enum { LAZY = 1 };

static int line;

static void send_bytes(const void *bytes, size_t count) {
    HOLDS(send(line, bytes, count, 0) == (ssize_t)count);
}

/* A process whose peer has ended ends as well. */
static void receive_bytes(void *bytes, size_t count) {
    if (recv(line, bytes, count, MSG_WAITALL) != (ssize_t)count) _exit(0);
}

static void send_byte(char byte) { send_bytes(&byte, 1); }

static void expect_byte(char expected) {
    char received = 0;
    receive_bytes(&received, 1);
    HOLDS(received == expected);
}

static const struct pool_properties pooled_shareable = {
    .kind = PINNED, .handle_types = DESCRIPTOR, .location = {DEVICE, 0}};

/* Exports three pieces, and releases them before the importer does. */
static void exporter(void) {
    FUNCTION(get, cuIpcGetMemHandle, (struct handle *, CUdeviceptr));
    FUNCTION(export_handle, cuMemExportToShareableHandle, (void *, uint64_t, int, uint64_t));
    FUNCTION(pool_export, cuMemPoolExportToShareableHandle, (void *, void *, int, uint64_t));
    FUNCTION(pool_point, cuMemPoolExportPointer, (struct handle *, CUdeviceptr));
    struct handle by_bytes, by_pool;
    CUdeviceptr address, piece;
    uint64_t handle;
    int descriptor = -1, of_pool = -1;
    Pool pool;
    CHECK(cu.cuMemAlloc(&address, SOME));
    CHECK(get(&by_bytes, address));
    CHECK(vm.create(&handle, SOME, &shareable, 0));
    CHECK(export_handle(&descriptor, handle, DESCRIPTOR, 0));
    CHECK(pools.create(&pool, &pooled_shareable));
    CHECK(pools.alloc_from(&piece, SOME, pool, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(pool_export(&of_pool, pool, DESCRIPTOR, 0));
    CHECK(pool_point(&by_pool, piece));
    send_bytes(&by_bytes, sizeof by_bytes);
    send_bytes(&by_pool, sizeof by_pool);
    send_descriptor(line, descriptor);
    send_descriptor(line, of_pool);
    HOLDS(close(descriptor) == 0 && close(of_pool) == 0);
    expect_byte('H');
    CHECK(cu.cuMemFree(address));
    CHECK(vm.release(handle));
    CHECK(pools.free(piece, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(pools.destroy(pool));
    send_byte('C');
    expect_byte('D');
}

static void importer(void) {
    FUNCTION(open_handle, cuIpcOpenMemHandle_v2, (CUdeviceptr *, struct handle, unsigned));
    FUNCTION(close_handle, cuIpcCloseMemHandle, (CUdeviceptr));
    FUNCTION(import_handle, cuMemImportFromShareableHandle, (uint64_t *, void *, int));
    FUNCTION(pool_import, cuMemPoolImportFromShareableHandle, (void **, void *, int, uint64_t));
    FUNCTION(pool_point, cuMemPoolImportPointer, (CUdeviceptr *, void *, struct handle *));
    struct handle by_bytes, by_pool;
    CUdeviceptr address, piece, range = reserve(SOME);
    uint64_t handle;
    void *pool;
    receive_bytes(&by_bytes, sizeof by_bytes);
    receive_bytes(&by_pool, sizeof by_pool);
    int descriptor = receive_descriptor(line), of_pool = receive_descriptor(line);
    CHECK(open_handle(&address, by_bytes, LAZY));
    CHECK(import_handle(&handle, (void *)(intptr_t)descriptor, DESCRIPTOR));
    CHECK(vm.map(range, SOME, 0, handle, 0));
    CHECK(vm.release(handle));
    CHECK(pool_import(&pool, (void *)(intptr_t)of_pool, DESCRIPTOR, 0));
    CHECK(pool_point(&piece, pool, &by_pool));
    HOLDS(close(descriptor) == 0 && close(of_pool) == 0);
    send_byte('H');
    expect_byte('C');
    CHECK(close_handle(address));
    CHECK(vm.unmap(range, SOME));
    CHECK(vm.unreserve(range, SOME));
    CHECK(pools.free(piece, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(pools.destroy((Pool)pool));
    send_byte('D');
}

enum { FEW = 16 };

static const struct {
    const char *way;
    void (*round)(void), (*peer)(void);
    /* maximum number of rounds, if each leaves a charge until the process ends; 0: any number */
    uint64_t most;
} ways[] = {
    {"linear", linear, NULL, 0},
    {"pools", pooled, NULL, 0},
    {"arrays", arrays, NULL, 0},
    {"graphs", graphs, NULL, 0},
    {"modules", modules, NULL, 0},
    {"contexts", contexts, NULL, 0},
    {"physical", physical, NULL, FEW},
    {"ranges", ranges, NULL, FEW},
    {"foreign", other_interfaces, NULL, 0},
    {"export", exporter, importer, FEW},
    {"import", importer, exporter, FEW},
    {"bound", bound, NULL, 0},
};

static void begin(void) {
    graph_open();
    pools_open();
    ledger_open();
    external_find();
    foreign_open();
    stream = stream_new(CU_STREAM_NON_BLOCKING);
}

int main(int count, char **arguments) {
    void (*round)(void) = NULL, (*peer)(void) = NULL;
    uint64_t rounds = 0, most = 0;
    for (size_t which = 0; count > 1 && which < sizeof ways / sizeof *ways; which++) {
        if (strcmp(arguments[1], ways[which].way) != 0) continue;
        round = ways[which].round;
        peer = ways[which].peer;
        most = ways[which].most;
    }
    if (!round) {
        fprintf(stderr, "usage: mortal "
                        "linear|pools|physical|ranges|arrays|graphs|foreign|modules|contexts|bound|"
                        "export|import\n");
        return 2;
    }
    watchdog(280);
    if (peer) {
        int pair[2];
        HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        pid_t child = fork();
        HOLDS(child >= 0);
        line = pair[child == 0];
        HOLDS(close(pair[child != 0]) == 0);
        if (child == 0) {
            watchdog(280);
            signal(SIGPIPE, SIG_DFL);
            unsetenv("CGPU_SIM_FAULT"); /* the driver's first call reads it */
            begin();
            for (;;) peer();
        }
    }
    begin();
    printf("{\"ready\": true}\n");
    fflush(stdout);
    for (struct pollfd input = {STDIN_FILENO, POLLIN, 0}; poll(&input, 1, most ? 1 : 0) == 0;)
        if (!most || rounds < most) round(), rounds++;
    printf("{\"rounds\": %" PRIu64 "}\n", rounds);
    return 0;
}
