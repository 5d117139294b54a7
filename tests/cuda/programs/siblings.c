/* SPDX-License-Identifier: Apache-2.0
 *
 * siblings FILE - checks functions that do the same: other versions, other stream variants, the
 * same from a file. Each takes the same GPU memory, is charged to the byte, and is refused if it
 * does not fit. A version that is not hooked would be a way around the limit. FILE is a path for
 * the text of a module. Prints one JSON object: the number of functions by family.
 *
 * For a GPU with a limit, without a monitor.
 */
#include "graph_ledger.h"
#include "objects.h"

#include <sys/socket.h>
#include <sys/wait.h>

#define ROOM (8 * MIB)

static CUstream stream;
static CUfunction kernel;
static const char *file;

/* The functions of a family that the driver has. */
struct sibling {
    const char *name;
    void *function;
};

static int look_up(struct sibling *family, int count) {
    int found = 0;
    for (int i = 0; i < count; i++)
        found += (family[i].function = dlsym(cu.library, family[i].name)) != NULL;
    return found;
}
#define FAMILY(...)                                           \
    struct sibling family[] = {__VA_ARGS__};                  \
    enum { COUNT = (int)(sizeof family / sizeof family[0]) }; \
    int found = look_up(family, COUNT)
#define EACH(one)                                                   \
    for (struct sibling *one = family; one < family + COUNT; one++) \
        if (one->function)

/* Contexts: as many as there is room for, each of the same size. */
static CUresult create_context(const struct sibling *by, CUcontext *context) {
    if (strcmp(by->name, "cuCtxCreate_v3") == 0)
        return ((CUresult (*)(CUcontext *, void *, int, unsigned, CUdevice))by->function)(
            context, NULL, 0, 0, 0);
    if (strcmp(by->name, "cuCtxCreate_v4") == 0)
        return ((CUresult (*)(CUcontext *, void *, unsigned, CUdevice))by->function)(context, NULL,
                                                                                     0, 0);
    return ((CUresult (*)(CUcontext *, unsigned, CUdevice))by->function)(context, 0, 0);
}

static int contexts(void) {
    enum { MOST = 64 };
    CUcontext made[MOST], current;
    size_t price = 0;
    int most = 0;
    FAMILY({"cuCtxCreate_v2", NULL}, {"cuCtxCreate", NULL}, {"cuCtxCreate_v3", NULL},
           {"cuCtxCreate_v4", NULL});
    CHECK(cu.cuCtxGetCurrent(&current));
    EACH(by) {
        CUresult result;
        int count = 0;
        while (count < MOST && (result = create_context(by, &made[count])) == CUDA_SUCCESS) {
            count++;
            CHECK(cu.cuCtxSetCurrent(current));
            if (!price) price = truth();
            HOLDS(price > 0);
            TAKEN(price * (size_t)count);
        }
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, result);
        if (!most) most = count;
        HOLDS(count == most && count > 0);
        while (count > 0) CHECK(cu.cuCtxDestroy(made[--count]));
        CHECK(cu.cuCtxSetCurrent(current));
        TAKEN(0);
    }
    return found;
}

/* A wait for a context makes its pools shrink. */
static int waiting(void) {
    CUcontext current;
    CUdeviceptr address;
    FAMILY({"cuCtxSynchronize", NULL}, {"cuCtxSynchronize_v2", NULL});
    CHECK(cu.cuCtxGetCurrent(&current));
    EACH(by) {
        CHECK(pools.alloc(&address, 100 * MIB, stream));
        HELD_BY(pool_of_the_gpu());
        HOLDS(truth() >= 100 * MIB);
        CHECK(pools.free(address, stream));
        if (by == family)
            CHECK(((CUresult (*)(void))by->function)());
        else
            CHECK(((CUresult (*)(CUcontext))by->function)(current));
        TAKEN(0);
    }
    return found;
}

static const char *with_variable(size_t bytes) {
    static char text[256];
    snprintf(text, sizeof text,
             ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 "
             "table[%zu];\n",
             bytes);
    FILE *to = fopen(file, "w");
    HOLDS(to && fputs(text, to) >= 0 && fclose(to) == 0);
    return text;
}

static CUresult load(const struct sibling *by, CUmodule *module, size_t bytes) {
    const char *text = with_variable(bytes);
    if (strcmp(by->name, "cuModuleLoadDataEx") == 0)
        return ((CUresult (*)(CUmodule *, const void *, unsigned, void *, void *))by->function)(
            module, text, 0, NULL, NULL);
    if (strcmp(by->name, "cuModuleLoad") == 0) text = file;
    return ((CUresult (*)(CUmodule *, const char *))by->function)(module, text);
}

static int modules(void) {
    FAMILY({"cuModuleLoadData", NULL}, {"cuModuleLoadDataEx", NULL},
           {"cuModuleLoadFatBinary", NULL}, {"cuModuleLoad", NULL});
    EACH(by) {
        CUmodule first, second, none;
        CHECK(load(by, &first, 96 * MIB));
        TAKEN(96 * MIB);
        CHECK(load(by, &second, 32 * MIB));
        TAKEN(128 * MIB);
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, load(by, &none, ledger.shown));
        TAKEN(128 * MIB);
        CHECK(cu.cuModuleUnload(first));
        TAKEN(32 * MIB);
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, load(by, &none, ledger.shown - 30 * MIB));
        CHECK(load(by, &first, ledger.shown - 32 * MIB));
        HOLDS(free_shown() == 0);
        CHECK(cu.cuModuleUnload(first));
        CHECK(cu.cuModuleUnload(second));
        TAKEN(0);
    }
    return found;
}

/* A library is loaded into a context at its first use there. */
static int libraries(void) {
    if (!dlsym(cu.library, "cuLibraryLoadData")) return 0;
    FUNCTION(unload, cuLibraryUnload, (void *));
    FUNCTION(module_of, cuLibraryGetModule, (CUmodule *, void *));
    FUNCTION(variable_of, cuLibraryGetGlobal, (CUdeviceptr *, size_t *, void *, const char *));
    FAMILY({"cuLibraryLoadData", NULL}, {"cuLibraryLoadFromFile", NULL});
    EACH(by) {
        CUresult (*load_library)(void **, const char *, void *, void *, unsigned, void *, void *,
                                 unsigned);
        *(void **)&load_library = by->function;
        void *library;
        CUmodule module;
        CUdeviceptr address;
        size_t bytes;
        for (int way = 0; way < 4; way++) {
            int is_huge = way >= 2;
            const char *text = with_variable(is_huge ? ledger.shown + 2 * MIB : 96 * MIB);
            CHECK(load_library(&library, by == family ? text : file, NULL, NULL, 0, NULL, NULL, 0));
            TAKEN(0);
            CUresult result = way % 2 ? module_of(&module, library)
                                      : variable_of(&address, &bytes, library, "table");
            EXPECT(is_huge ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS, result);
            WITHIN_THE_LIMIT();
            if (!is_huge) TAKEN(96 * MIB);
            CHECK(unload(library));
            TAKEN(0);
        }
    }
    return found;
}

/* A function's code is loaded by its first launch or on request. */
static int code(void) {
    static const char text[] = "// any byte string is a module on the simulated GPU\n";
    FAMILY({"cuLaunchKernel", NULL}, {"cuFuncLoad", NULL});
    size_t most = 0;
    EACH(by) {
        CUmodule module;
        CHECK(cu.cuModuleLoadData(&module, text));
        size_t before = truth();
        for (int i = 0; i < 64; i++) {
            char name[32];
            CUfunction function;
            snprintf(name, sizeof name, "spin_%dus", i + 1);
            CHECK(cu.cuModuleGetFunction(&function, module, name));
            if (by == family)
                occupy(function, stream);
            else
                CHECK(((CUresult (*)(CUfunction))by->function)(function));
        }
        CHECK(cu.cuStreamSynchronize(stream));
        if (!most) most = truth() - before;
        HOLDS(most > 0 && truth() - before == most);
        /* only a monitor observes the code of a launch */
        HOLDS(by == family || shown() >= truth());
        CHECK(cu.cuModuleUnload(module));
        ledger_open();
    }
    return found;
}

/* Physical memory that only tiles of a sparse array keep. */
static int tiles(void) {
    FUNCTION(create, cuArray3DCreate_v2, (void **, const struct array *));
    FUNCTION(destroy, cuArrayDestroy, (void *));
    FAMILY({"cuMemMapArrayAsync", NULL}, {"cuMemMapArrayAsync_ptsz", NULL});
    EACH(by) {
        CUresult (*map)(struct map_info *, unsigned, CUstream);
        *(void **)&map = by->function;
        struct array wanted = {
            .width = 1024, .height = 1024, .format = 32, .channels = 1, .flags = 0x40};
        struct allocation memory = on_the_gpu;
        uint64_t handle;
        void *array;
        memory.flags[2] = 1; /* for tiles */
        CHECK(create(&array, &wanted));
        TAKEN(0);
        CHECK(vm.create(&handle, 4 * MIB, &memory, 0));
        struct map_info info = {.resource = array,
                                .part.level = {.extent = {128, 128, 1}},
                                .operation = 1,
                                .handle = handle,
                                .devices = 1};
        CHECK(map(&info, 1, NULL));
        CHECK(vm.release(handle));
        CHECK(cu.cuCtxSynchronize());
        TAKEN(4 * MIB);
        info.operation = 2;
        info.handle = 0;
        CHECK(map(&info, 1, NULL));
        CHECK(cu.cuCtxSynchronize());
        TAKEN(0);
        CHECK(destroy(array));
    }
    return found;
}

static void all_gone(CUgraph made, CUgraphExec executable) {
    CHECK(graph.ExecDestroy(executable));
    CHECK(graph.Destroy(made));
}

/* Graphs: created by any call that adds a node, then instantiated, uploaded and launched. */
static CUgraph with_allocation(const struct sibling *by, size_t bytes, CUdeviceptr *address) {
    CUgraph made = graph_made();
    NodeParams params = {.type = MEM_ALLOC, .alloc = allocation_of(bytes)};
    CUgraphNode node;
    if (strcmp(by->name, "cuGraphAddMemAllocNode") == 0) {
        *address = allocates(made, bytes);
        return made;
    }
    if (strcmp(by->name, "cuGraphAddNode") == 0)
        CHECK(graph.AddNode(&node, made, NULL, 0, &params));
    else
        CHECK(((CUresult (*)(CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t,
                             NodeParams *))by->function)(&node, made, NULL, NULL, 0, &params));
    *address = params.alloc.address;
    return made;
}

static int nodes(void) {
    FAMILY({"cuGraphAddMemAllocNode", NULL}, {"cuGraphAddNode", NULL}, {"cuGraphAddNode_v2", NULL},
           {"cuGraphAddNode_v3", NULL});
    EACH(by) {
        CUdeviceptr address;
        CUgraph made = with_allocation(by, ROOM, &address);
        CUgraphExec exec = executable_of(made);
        CHECK(graph.Launch(exec, stream));
        RESERVED_IS(ROOM);
        CHECK(cu.cuMemFree(address));
        CHECK(graph.ExecDestroy(exec));
        CHECK(graph.Destroy(made));
        trim();
        RESERVED_IS(0);
        made = with_allocation(by, free_shown() + 2 * MIB, &address);
        exec = executable_of(made);
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, graph.Launch(exec, stream));
        RESERVED_IS(0);
        CHECK(graph.ExecDestroy(exec));
        CHECK(graph.Destroy(made));
        /* Managed memory is refused. */
        if (by == family) continue;
        NodeParams params = {.type = MEM_ALLOC, .alloc = allocation_of(ROOM)};
        CUgraphNode node;
        params.alloc.alloc_type = MANAGED;
        made = graph_made();
        CUresult result;
        if (strcmp(by->name, "cuGraphAddNode") == 0)
            result = graph.AddNode(&node, made, NULL, 0, &params);
        else
            result =
                ((CUresult (*)(CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t,
                               NodeParams *))by->function)(&node, made, NULL, NULL, 0, &params);
        EXPECT(CUDA_ERROR_NOT_SUPPORTED, result);
        HOLDS(count_of(made) == 0);
        CHECK(graph.Destroy(made));
    }
    return found;
}

static CUresult instantiate(const struct sibling *by, CUgraphExec *exec, CUgraph made) {
    InstantiateParams with = {.flags = 0};
    CUgraphNode node;
    char words[64];
    if (strstr(by->name, "WithParams"))
        return ((CUresult (*)(CUgraphExec *, CUgraph, InstantiateParams *))by->function)(exec, made,
                                                                                         &with);
    if (strstr(by->name, "WithFlags"))
        return ((CUresult (*)(CUgraphExec *, CUgraph, unsigned long long))by->function)(exec, made,
                                                                                        0);
    return ((CUresult (*)(CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t))by->function)(
        exec, made, &node, words, sizeof words);
}

static int executables(void) {
    FAMILY({"cuGraphInstantiateWithFlags", NULL}, {"cuGraphInstantiate", NULL},
           {"cuGraphInstantiate_v2", NULL}, {"cuGraphInstantiateWithParams", NULL},
           {"cuGraphInstantiateWithParams_ptsz", NULL});
    EACH(by) {
        CUgraph fits = graph_made(), huge = graph_made();
        allocates_and_frees(fits, ROOM);
        allocates_and_frees(huge, free_shown() + 2 * MIB);
        CUgraphExec exec, other;
        CHECK(instantiate(by, &exec, fits));
        RESERVED_IS(0);
        CHECK(graph.Launch(exec, stream));
        RESERVED_IS(ROOM);
        CHECK(instantiate(by, &other, huge));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, graph.Launch(other, stream));
        WITHIN_THE_LIMIT();
        CHECK(cu.cuStreamSynchronize(stream));
        all_gone(fits, exec);
        all_gone(huge, other);
        trim();
        RESERVED_IS(0);
    }
    return found;
}

/* Uploaded and launched, by each variant. */
static int sendings(void) {
    FAMILY({"cuGraphUpload", NULL}, {"cuGraphUpload_ptsz", NULL}, {"cuGraphLaunch", NULL},
           {"cuGraphLaunch_ptsz", NULL});
    EACH(by) {
        CUresult (*send)(CUgraphExec, CUstream);
        *(void **)&send = by->function;
        CUgraph fits = graph_made(), huge = graph_made();
        allocates_and_frees(fits, ROOM);
        allocates_and_frees(huge, free_shown() + 2 * MIB);
        CUgraphExec exec = executable_of(fits), other = executable_of(huge);
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, send(other, NULL));
        RESERVED_IS(0);
        CHECK(send(exec, NULL));
        CHECK(graph.Launch(exec, stream));
        RESERVED_IS(ROOM);
        CHECK(cu.cuCtxSynchronize());
        all_gone(fits, exec);
        all_gone(huge, other);
        trim();
        RESERVED_IS(0);
    }
    return found;
}

/* Graphs with the same work, one with other memory. */
static CUgraph with_work(void) {
    KernelParams work = {.func = kernel, .grid = {1, 1, 1}, .block = {1, 1, 1}};
    CUgraph made = graph_made();
    CUgraphNode node;
    CHECK(graph.AddKernel(&node, made, NULL, 0, &work));
    return made;
}

static CUresult change(const struct sibling *by, CUgraphExec exec, CUgraphNode node, CUgraph to) {
    if (strcmp(by->name, "cuGraphExecChildGraphNodeSetParams") == 0)
        return ((CUresult (*)(CUgraphExec, CUgraphNode, CUgraph))by->function)(exec, node, to);
    NodeParams params = {.type = CHILD, .child = {to, 0}};
    return ((CUresult (*)(CUgraphExec, CUgraphNode, NodeParams *))by->function)(exec, node,
                                                                                &params);
}

static int parts(void) {
    FAMILY({"cuGraphExecChildGraphNodeSetParams", NULL}, {"cuGraphExecNodeSetParams", NULL});
    EACH(by) {
        CUgraph made = graph_made(), child = with_work(), same = with_work(), other = graph_made();
        CUgraphNode node;
        allocates_and_frees(made, ROOM);
        allocates_and_frees(other, 4 * ROOM);
        CHECK(graph.AddChild(&node, made, NULL, 0, child));
        CUgraphExec exec = executable_of(made);
        for (int round = 0; round < 2; round++) {
            CHECK(graph.Launch(exec, stream));
            RESERVED_IS(ROOM);
            CHECK(change(by, exec, node, same));
            HOLDS(change(by, exec, node, other) != CUDA_SUCCESS); /* other nodes */
            CHECK(graph.Launch(exec, stream));
            RESERVED_IS(ROOM);
            CHECK(cu.cuStreamSynchronize(stream));
            trim();
            RESERVED_IS(0);
        }
        CHECK(graph.ExecDestroy(exec));
        CHECK(graph.Destroy(made));
        CHECK(graph.Destroy(child));
        CHECK(graph.Destroy(same));
        CHECK(graph.Destroy(other));
    }
    return found;
}

static CUresult update(const struct sibling *by, CUgraphExec exec, CUgraph to) {
    CUgraphNode node;
    UpdateInfo info;
    int result;
    if (strcmp(by->name, "cuGraphExecUpdate") == 0)
        return ((CUresult (*)(CUgraphExec, CUgraph, CUgraphNode *, int *))by->function)(
            exec, to, &node, &result);
    return ((CUresult (*)(CUgraphExec, CUgraph, UpdateInfo *))by->function)(exec, to, &info);
}

static int updates(void) {
    FAMILY({"cuGraphExecUpdate_v2", NULL}, {"cuGraphExecUpdate", NULL});
    EACH(by) {
        CUgraph made = graph_made(), other = graph_made();
        allocates_and_frees(made, ROOM);
        allocates_and_frees(other, 4 * ROOM);
        CUgraphExec exec = executable_of(made);
        for (int round = 0; round < 2; round++) {
            CHECK(update(by, exec, made));
            EXPECT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, update(by, exec, other));
            CHECK(graph.Launch(exec, stream));
            RESERVED_IS(ROOM);
            CHECK(cu.cuStreamSynchronize(stream));
            trim();
            RESERVED_IS(0);
        }
        CHECK(graph.ExecDestroy(exec));
        CHECK(graph.Destroy(made));
        CHECK(graph.Destroy(other));
    }
    return found;
}

/* The GPU's current pool, by the GPU's number and by its location. */
static int chosen_pools(void) {
    FAMILY({"cuDeviceSetMemPool", NULL}, {"cuMemSetMemPool", NULL});
    EACH(by) {
        static CUdeviceptr address[4096];
        struct location place = {DEVICE, 0};
        Pool own = pool_made(), before, standard;
        CUresult (*get_at)(Pool *, struct location *, int) = NULL,
                                                      (*standard_at)(Pool *, struct location *,
                                                                     int) = NULL;
        *(void **)&get_at = dlsym(cu.library, "cuMemGetMemPool");
        *(void **)&standard_at = dlsym(cu.library, "cuMemGetDefaultMemPool");
        CHECK(pools.of_device(&before, 0));
        if (by == family)
            CHECK(pools.choose(0, own));
        else {
            Pool shown_there;
            CUresult (*set_at)(struct location *, int, Pool);
            *(void **)&set_at = by->function;
            CHECK(set_at(&place, PINNED, own));
            HOLDS(get_at && standard_at);
            CHECK(get_at(&shown_there, &place, PINNED));
            CHECK(standard_at(&standard, &place, PINNED));
            HOLDS(shown_there == own && standard == before);
            HOLDS(set_at(&place, MANAGED, own) != CUDA_SUCCESS);
            EXPECT(CUDA_ERROR_NOT_SUPPORTED, get_at(&shown_there, &place, MANAGED));
            EXPECT(CUDA_ERROR_NOT_SUPPORTED, standard_at(&shown_there, &place, MANAGED));
        }
        CHECK(pools.alloc(&address[0], ROOM, stream));
        HELD_BY(own);
        HOLDS(pool_has(before, RESERVED) == 0);
        CUresult result;
        int count = 1;
        while ((result = pools.alloc(&address[count], 64 * MIB, stream)) == CUDA_SUCCESS) count++;
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, result);
        HOLDS(count > 2);
        HELD_BY(own);
        WITHIN_THE_LIMIT();
        while (count > 0) CHECK(pools.free(address[--count], stream));
        CHECK(cu.cuStreamSynchronize(stream));
        TAKEN(0);
        CHECK(pools.destroy(own)); /* the GPU has its default pool again */
        CHECK(pools.alloc(&address[0], ROOM, stream));
        HELD_BY(before);
        CHECK(pools.free(address[0], stream));
        CHECK(cu.cuStreamSynchronize(stream));
        TAKEN(0);
    }
    return found;
}

/* The pools of each locality domain, default and current ones, under one limit. */
static int domains(void) {
    enum { DOMAINS = 149 };
    static CUdeviceptr address[4096];
    int there = 0;
    if (cu.cuDeviceGetAttribute(&there, DOMAINS, 0) != CUDA_SUCCESS || there < 2) return 0;
    FUNCTION(get_at, cuMemGetMemPool, (Pool *, struct location *, int));
    FUNCTION(standard_at, cuMemGetDefaultMemPool, (Pool *, struct location *, int));
    FUNCTION(set_at, cuMemSetMemPool, (struct location *, int, Pool));
    for (int number = 0; number < there; number++) {
        struct location place = {DEVICE_LOCALITY_DOMAIN, number << 8};
        struct pool_properties properties = {.kind = PINNED, .location = place};
        Pool own, pool;
        CHECK(pools.create(&own, &properties));
        for (int way = 0; way < 3; way++) {
            if (way == 1) CHECK(set_at(&place, PINNED, own));
            CHECK((way == 2 ? standard_at : get_at)(&pool, &place, PINNED));
            HOLDS((pool == own) == (way == 1));
            CUresult result;
            int count = 0;
            while ((result = pools.alloc_from(&address[count], 64 * MIB, pool, stream)) ==
                   CUDA_SUCCESS) {
                count++;
                HELD_BY(pool);
            }
            EXPECT(CUDA_ERROR_OUT_OF_MEMORY, result);
            HOLDS(count > 2);
            WITHIN_THE_LIMIT();
            while (count > 0) CHECK(pools.free(address[--count], stream));
            CHECK(cu.cuStreamSynchronize(stream));
            TAKEN(0);
        }
        CHECK(pools.destroy(own));
    }
    return there;
}

/* Memory of another process is charged to its maker, not to the importer. */
struct handle {
    char bytes[64];
};
static int line;

static void write_bytes(const void *bytes, size_t count) {
    HOLDS(write(line, bytes, count) == (ssize_t)count);
}
static void read_bytes(void *bytes, size_t count) {
    HOLDS(recv(line, bytes, count, MSG_WAITALL) == (ssize_t)count);
}

static int opened(void) {
    FUNCTION(close_handle, cuIpcCloseMemHandle, (CUdeviceptr));
    FAMILY({"cuIpcOpenMemHandle_v2", NULL}, {"cuIpcOpenMemHandle", NULL});
    EACH(by) {
        CUresult (*open_handle)(CUdeviceptr *, struct handle, unsigned);
        *(void **)&open_handle = by->function;
        struct handle handle;
        CUdeviceptr address;
        char word = 0;
        read_bytes(&handle, sizeof handle);
        ledger_open();
        CHECK(open_handle(&address, handle, 1));
        TAKEN(0);
        write_bytes("o", 1);
        read_bytes(&word, 1); /* freed by its maker */
        TAKEN(0);
        CHECK(cu.cuMemsetD8(address, 1, ROOM));
        CHECK(cu.cuCtxSynchronize());
        CHECK(close_handle(address));
        write_bytes("c", 1);
    }
    return found;
}

static void made_for_others(int times) {
    FUNCTION(get, cuIpcGetMemHandle, (struct handle *, CUdeviceptr));
    size_t kept = 0;
    for (int i = 0; i < times; i++) {
        struct handle handle;
        CUdeviceptr address;
        char word = 0;
        ledger_open();
        CHECK(cu.cuMemAlloc(&address, ROOM));
        CHECK(get(&handle, address));
        write_bytes(&handle, sizeof handle);
        read_bytes(&word, 1);
        TAKEN(ROOM);
        CHECK(cu.cuMemFree(address));
        TAKEN(ROOM); /* the importer has it */
        write_bytes("f", 1);
        read_bytes(&word, 1);
        HOLDS(truth() == 0);
        /* Without a monitor its maker is not informed of the end, whatever the function's
         * version. */
        if (i == 0) kept = shown();
        HOLDS(shown() == kept);
    }
}

int main(int argc, char **argv) {
    int lines[2], status, opening;
    if (argc != 2) return fprintf(stderr, "usage: siblings FILE\n"), 2;
    file = argv[1];
    HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, lines) == 0);
    pid_t child = fork();
    HOLDS(child >= 0);
    line = lines[child == 0];
    close(lines[child != 0]);
    if (child == 0) {
        char word;
        watchdog(120);
        read_bytes(&word, 1); /* contexts created one after another are measured exactly */
        driver_open();
        write_bytes("r", 1);
        opening = opened();
        read_bytes(&word, 1);
        return opening;
    }
    char word = 0;
    stream = graphs_begin(120, "spin_5us", &kernel);
    printf("{\"contexts\": %d, ", contexts());
    printf("\"waiting\": %d, ", waiting());
    printf("\"modules\": %d, ", modules());
    printf("\"libraries\": %d, ", libraries());
    printf("\"tiles\": %d, ", tiles());
    printf("\"nodes\": %d, ", nodes());
    printf("\"executables\": %d, ", executables());
    printf("\"sendings\": %d, ", sendings());
    printf("\"parts\": %d, ", parts());
    printf("\"updates\": %d, ", updates());
    printf("\"pools\": %d, ", chosen_pools());
    printf("\"domains\": %d, ", domains());
    printf("\"code\": %d, ", code());
    write_bytes("b", 1);
    read_bytes(&word, 1);
    made_for_others(2);
    write_bytes("e", 1);
    HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status));
    printf("\"openings\": %d}\n", WEXITSTATUS(status));
    return 0;
}
