/* SPDX-License-Identifier: Apache-2.0
 *
 * graphs - checks graphs built node by node: dependencies, copies, updates, memory, and the time of
 * launches. Prints one JSON object: milliseconds of ten kernels of 1 ms in sequence and in
 * parallel, and bytes that stay reserved.
 */
#include "graph.h"

static CUcontext context;
static CUstream stream;
static CUfunction kernel;
static int calls, order[64];

static void note(void *data) { order[calls++ % 64] = (int)(intptr_t)data; }

static KernelParams shape(CUfunction function) {
    KernelParams params = {.func = function, .grid = {1, 1, 1}, .block = {32, 1, 1}};
    return params;
}

static CUgraphNode add_kernel(CUgraph of, const CUgraphNode *after, size_t count,
                              CUfunction function) {
    KernelParams params = shape(function);
    CUgraphNode node;
    CHECK(graph.AddKernel(&node, of, after, count, &params));
    return node;
}

static CUgraphNode add_note(CUgraph of, const CUgraphNode *after, size_t count, int what) {
    HostParams params = {note, (void *)(intptr_t)what};
    CUgraphNode node;
    CHECK(graph.AddHost(&node, of, after, count, &params));
    return node;
}

static CUgraph graph_new(void) {
    CUgraph made;
    CHECK(graph.Create(&made, 0));
    return made;
}

static CUgraphExec instantiated(CUgraph of, unsigned long long flags) {
    CUgraphExec exec;
    CHECK(graph.Instantiate(&exec, of, flags));
    return exec;
}

static void run(CUgraphExec exec) {
    CHECK(graph.Launch(exec, stream));
    CHECK(cu.cuStreamSynchronize(stream));
}

static void topology(void) {
    CUgraph diamond = graph_new(), clone;
    CUgraphNode top = add_kernel(diamond, NULL, 0, kernel), sides[2], bottom, list[8], found;
    size_t count = 0;
    int type;
    sides[0] = add_kernel(diamond, &top, 1, kernel);
    sides[1] = add_note(diamond, &top, 1, 5);
    bottom = add_kernel(diamond, sides, 2, kernel);
    HOLDS(count_of(diamond) == 4);
    CHECK(graph.GetRoots(diamond, NULL, &count));
    HOLDS(count == 1);
    CHECK(graph.GetRoots(diamond, list, &count));
    HOLDS(list[0] == top);
    CHECK(graph.GetEdges(diamond, NULL, NULL, &count));
    HOLDS(count == 4);
    count = 8;
    CHECK(graph.GetDependencies(bottom, list, &count));
    HOLDS(count == 2 && list[0] == sides[0] && list[1] == sides[1] && list[2] == NULL);
    CHECK(graph.GetDependents(top, NULL, &count));
    HOLDS(count == 2);
    CHECK(graph.GetType(sides[1], &type));
    HOLDS(type == HOST_NODE);
    /* Each edge once, between nodes of the graph. */
    CHECK(graph.AddDependencies(diamond, &sides[0], &sides[1], 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.AddDependencies(diamond, &sides[0], &sides[1], 1));
    CHECK(graph.RemoveDependencies(diamond, &sides[0], &sides[1], 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.RemoveDependencies(diamond, &sides[0], &sides[1], 1));
    /* A cycle cannot be instantiated. */
    CUgraphExec exec;
    CHECK(graph.AddDependencies(diamond, &bottom, &top, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.Instantiate(&exec, diamond, 0));
    CHECK(graph.RemoveDependencies(diamond, &bottom, &top, 1));
    /* A clone is another graph with the same nodes. */
    CHECK(graph.Clone(&clone, diamond));
    CHECK(graph.FindInClone(&found, bottom, clone));
    HOLDS(found != bottom);
    CHECK(graph.DestroyNode(top));
    HOLDS(count_of(diamond) == 3 && count_of(clone) == 4);
    CHECK(graph.GetRoots(diamond, NULL, &count));
    HOLDS(count == 2);
    CHECK(graph.Destroy(diamond));
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.GetType(bottom, &type));
    CHECK(graph.Dot(clone, "/dev/null", 1));
    CHECK(graph.Destroy(clone));
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.Destroy(clone));
}

static void parameters(void) {
    static const char image[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
                                ".visible .entry two(.param .u64 a, .param .u32 b)\n{\nret;\n}\n";
    CUmodule module;
    CUfunction two;
    CUgraph made = graph_new();
    CUgraphNode node;
    KernelParams reported, params;
    uint64_t a = 77;
    uint32_t b = 5;
    void *values[] = {&a, &b};
    CHECK(cu.cuModuleLoadData(&module, image));
    CHECK(cu.cuModuleGetFunction(&two, module, "two"));
    params = shape(two);
    params.params = values;
    CHECK(graph.AddKernel(&node, made, NULL, 0, &params));
    /* Values are read when the node is created. */
    a = b = 0;
    CHECK(graph.KernelGet(node, &reported));
    HOLDS(reported.func == two && reported.block[0] == 32 && *(uint64_t *)reported.params[0] == 77);
    HOLDS(*(uint32_t *)reported.params[1] == 5);
    params.block[0] = 2048;
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.KernelSet(node, &params));
    params.block[0] = 64;
    CHECK(graph.KernelSet(node, &params));
    CHECK(graph.KernelGet(node, &reported));
    HOLDS(reported.block[0] == 64 && *(uint64_t *)reported.params[0] == 0);
    CHECK(graph.Destroy(made));
    CHECK(cu.cuModuleUnload(module));
}

/* Children are copies that run in place of their node. */
static void children(void) {
    CUgraph child = graph_new(), parent = graph_new(), inside;
    CUgraphNode one = add_note(child, NULL, 0, 2), before, node;
    CUgraphExec exec;
    add_note(child, &one, 1, 3);
    before = add_note(parent, NULL, 0, 1);
    CHECK(graph.AddChild(&node, parent, &before, 1, child));
    add_note(parent, &node, 1, 4);
    CHECK(graph.Destroy(child));
    CHECK(graph.ChildGraph(node, &inside));
    HOLDS(count_of(inside) == 2);
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.Destroy(inside));
    exec = instantiated(parent, 0);
    CHECK(graph.Destroy(parent));
    calls = 0;
    run(exec);
    HOLDS(calls == 4);
    for (int i = 0; i < 4; i++) HOLDS(order[i] == i + 1);
    CHECK(graph.ExecDestroy(exec));
}

/* The value at the launch decides. */
static void conditions(void) {
    for (unsigned value = 0; value < 3; value++) {
        CUgraph made = graph_new();
        CUgraphNode node;
        NodeParams params = {.type = CONDITIONAL};
        uint64_t handle;
        CHECK(graph.ConditionalHandle(&handle, made, context, value, 1));
        params.conditional = (ConditionalParams){handle, 2, 2, NULL, context};
        CHECK(graph.AddNode(&node, made, NULL, 0, &params));
        CUgraph *bodies = params.conditional.graphs;
        add_note(bodies[0], NULL, 0, 10);
        add_note(bodies[1], NULL, 0, 11);
        CUgraphExec exec = instantiated(made, 0);
        calls = 0;
        run(exec);
        HOLDS(calls == (value < 2) && (value == 2 || order[0] == (int)(10 + value)));
        CHECK(graph.ExecDestroy(exec));
        CHECK(graph.Destroy(made));
    }
    CUgraph made = graph_new();
    CUgraphExec exec;
    uint64_t handle;
    CHECK(graph.ConditionalHandle(&handle, made, context, 1, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.Instantiate(&exec, made, 0));
    CHECK(graph.Destroy(made));
}

static void update_to(CUgraphExec exec, CUgraph other, int result) {
    UpdateInfo info;
    CUresult answer = result == UPDATED ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    EXPECT(answer, graph.ExecUpdate(exec, other, &info));
    HOLDS(info.result == result);
    CHECK(graph.Destroy(other));
}

static void updates(CUdeviceptr memory) {
    CUgraph first = graph_new(), other;
    CUgraphNode one = add_note(first, NULL, 0, 1), two, node;
    FillParams fill = {memory, 0, 9, 1, 64, 1};
    unsigned char host[64];
    unsigned enabled;
    CHECK(graph.AddFill(&two, first, &one, 1, &fill, context));
    CUgraphExec exec = instantiated(first, 0);
    /* The same shape. */
    other = graph_new();
    node = add_note(other, NULL, 0, 21);
    fill.value = 8;
    CHECK(graph.AddFill(&node, other, &node, 1, &fill, context));
    update_to(exec, other, UPDATED);
    calls = 0;
    run(exec);
    CHECK(cu.cuMemcpyDtoH(host, memory, 64));
    HOLDS(calls == 1 && order[0] == 21 && host[63] == 8);
    /* Another node, edge or kind, and changes that a fill does not allow. */
    other = graph_new();
    add_note(other, NULL, 0, 1);
    update_to(exec, other, TOPOLOGY_CHANGED);
    other = graph_new();
    add_note(other, NULL, 0, 1);
    CHECK(graph.AddFill(&node, other, NULL, 0, &fill, context));
    update_to(exec, other, TOPOLOGY_CHANGED);
    other = graph_new();
    node = add_note(other, NULL, 0, 1);
    add_note(other, &node, 1, 2);
    update_to(exec, other, NODE_TYPE_CHANGED);
    other = graph_new();
    node = add_note(other, NULL, 0, 1);
    fill.element = 2;
    fill.width = 32;
    CHECK(graph.AddFill(&node, other, &node, 1, &fill, context));
    update_to(exec, other, PARAMETERS_CHANGED);
    /* A refused update changes nothing. Single nodes can be set and disabled. */
    HostParams call = {note, (void *)33};
    CHECK(graph.ExecHostSet(exec, one, &call));
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.SetEnabled(exec, one, 0));
    CHECK(graph.SetEnabled(exec, two, 0));
    CHECK(graph.GetEnabled(exec, two, &enabled));
    HOLDS(enabled == 0);
    CHECK(cu.cuMemsetD8(memory, 1, 64));
    calls = 0;
    run(exec);
    CHECK(cu.cuMemcpyDtoH(host, memory, 64));
    HOLDS(calls == 1 && order[0] == 33 && host[0] == 1);
    CHECK(graph.SetEnabled(exec, two, 1));
    run(exec);
    CHECK(cu.cuMemcpyDtoH(host, memory, 64));
    HOLDS(host[0] == 8);
    CHECK(graph.ExecDestroy(exec));
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.Launch(exec, stream));
    CHECK(graph.Destroy(first));
}

static uint64_t attribute(int which) {
    uint64_t value = 0;
    CHECK(graph.MemGet(0, which, &value));
    return value;
}

/* Nodes have addresses; launches have memory. */
static uint64_t memory_nodes(void) {
    const size_t bytes = 4 << 20;
    CUgraph made = graph_new(), freeing = graph_new(), clone;
    CUgraphNode alloc, fill_node, node;
    CUgraphExec exec, other, frees;
    AllocParams params = {.alloc_type = 1, .location = {1, 0}, .bytes = bytes};
    size_t free_before, free_after, total;
    unsigned char *host = malloc(bytes);
    uint64_t zero = 0;
    CHECK(graph.MemTrim(0));
    CHECK(cu.cuMemGetInfo(&free_before, &total));
    CHECK(graph.AddAlloc(&alloc, made, NULL, 0, &params));
    HOLDS(params.address != 0);
    FillParams fill = {params.address, 0, 6, 1, bytes, 1};
    CHECK(graph.AddFill(&fill_node, made, &alloc, 1, &fill, context));
    /* A graph with memory nodes cannot be changed or cloned, and has one executable. */
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, graph.Clone(&clone, made));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, graph.DestroyNode(fill_node));
    exec = instantiated(made, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.Instantiate(&other, made, 0));
    HOLDS(attribute(USED_CURRENT) == 0 && attribute(RESERVED_CURRENT) == 0);
    CHECK(cu.cuMemGetInfo(&free_after, &total));
    HOLDS(free_after == free_before);
    run(exec);
    HOLDS(attribute(USED_CURRENT) == bytes && attribute(RESERVED_CURRENT) == bytes);
    CHECK(cu.cuMemGetInfo(&free_after, &total));
    HOLDS(free_after == free_before - bytes);
    CHECK(cu.cuMemcpyDtoH(host, params.address, bytes));
    HOLDS(host[0] == 6 && host[bytes - 1] == 6);
    /* Not twice without a free in between. */
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.Launch(exec, stream));
    CHECK(cu.cuMemFree(params.address));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree(params.address));
    HOLDS(attribute(USED_CURRENT) == 0 && attribute(RESERVED_CURRENT) == bytes);
    run(exec);
    CHECK(graph.FreeAsync(params.address, stream));
    CHECK(graph.Launch(exec, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(attribute(RESERVED_CURRENT) == bytes);
    /* Another graph frees it. */
    CHECK(graph.AddFree(&node, freeing, NULL, 0, params.address));
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.AddFree(&node, freeing, NULL, 0, params.address));
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.AddFree(&node, made, &fill_node, 1, params.address));
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.AddFree(&node, freeing, NULL, 0, 4096));
    frees = instantiated(freeing, 0);
    run(frees);
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.Launch(frees, stream));
    HOLDS(attribute(USED_CURRENT) == 0);
    CHECK(graph.ExecDestroy(frees));
    CHECK(graph.Destroy(freeing));
    CHECK(graph.ExecDestroy(exec));
    /* A launch that frees what the one before left. */
    exec = instantiated(made, AUTO_FREE_ON_LAUNCH);
    for (int i = 0; i < 5; i++) CHECK(graph.Launch(exec, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(attribute(USED_CURRENT) == bytes && attribute(RESERVED_CURRENT) == bytes);
    CHECK(graph.ExecDestroy(exec));
    CHECK(graph.Destroy(made));
    /* The memory outlives the graph. */
    CHECK(cu.cuMemcpyDtoH(host, params.address, bytes));
    HOLDS(host[7] == 6);
    CHECK(cu.cuMemFree(params.address));
    /* A graph that frees its allocations keeps its reservation, and its bytes are correct. */
    CUdeviceptr out;
    made = graph_new();
    CHECK(cu.cuMemAlloc(&out, bytes));
    CHECK(graph.AddAlloc(&alloc, made, NULL, 0, &params));
    fill.dst = params.address;
    fill.value = 3;
    CHECK(graph.AddFill(&fill_node, made, &alloc, 1, &fill, context));
    CopyParams copy = {.width = bytes, .height = 1, .depth = 1};
    copy.src = (Corner){.type = 2, .device = params.address};
    copy.dst = (Corner){.type = 2, .device = out};
    CHECK(graph.AddCopy(&node, made, &fill_node, 1, &copy, context));
    CHECK(graph.AddFree(&node, made, &node, 1, params.address));
    exec = instantiated(made, 0);
    for (int i = 0; i < 20; i++) CHECK(graph.Launch(exec, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree(params.address));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(cu.cuMemcpyDtoH(host, out, bytes));
    HOLDS(host[0] == 3 && host[bytes - 1] == 3);
    uint64_t reserved = attribute(RESERVED_CURRENT);
    HOLDS(attribute(USED_CURRENT) == 0 && reserved <= 2 * bytes);
    CHECK(graph.MemSet(0, RESERVED_HIGH, &zero));
    CHECK(graph.ExecDestroy(exec));
    CHECK(graph.Destroy(made));
    CHECK(cu.cuMemFree(out));
    /* Only a trim returns memory to the GPU. */
    CHECK(graph.MemTrim(0));
    HOLDS(attribute(RESERVED_CURRENT) == 0);
    CHECK(cu.cuMemGetInfo(&free_after, &total));
    HOLDS(free_after == free_before);
    free(host);
    return reserved;
}

/* Milliseconds of a launch, by events before and after it. */
static double measured(CUgraphExec exec, int launches) {
    CUevent begin = event_new(), end = event_new();
    float ms;
    run(exec);
    CHECK(cu.cuEventRecord(begin, stream));
    for (int i = 0; i < launches; i++) CHECK(graph.Launch(exec, stream));
    CHECK(cu.cuEventRecord(end, stream));
    CHECK(cu.cuEventSynchronize(end));
    CHECK(cu.cuEventElapsedTime(&ms, begin, end));
    CHECK(cu.cuEventDestroy(begin));
    CHECK(cu.cuEventDestroy(end));
    return ms;
}

/* Events are recorded and waited for, and words written, at each launch. */
static void marks(void) {
    CUgraph recording = graph_new(), waiting = graph_new(), writing;
    CUgraphNode node, record;
    CUevent begin = event_new(), end = event_new(), later = event_new();
    CUstream other = stream_new(CU_STREAM_NON_BLOCKING);
    float ms;
    uint32_t *word;
    CHECK(graph.AddRecord(&node, recording, NULL, 0, begin));
    node = add_kernel(recording, &node, 1, kernel);
    CHECK(graph.AddRecord(&record, recording, &node, 1, end));
    CUgraphExec records = instantiated(recording, 0);
    CHECK(graph.Launch(records, stream));
    CHECK(graph.AddWait(&node, waiting, NULL, 0, end));
    add_note(waiting, &node, 1, 1);
    CUgraphExec waits = instantiated(waiting, 0);
    calls = 0;
    CHECK(graph.Launch(waits, other));
    CHECK(cu.cuStreamSynchronize(other));
    HOLDS(calls == 1);
    CHECK(cu.cuEventElapsedTime(&ms, begin, end));
    HOLDS(ms >= 0.99f);
    CHECK(graph.ExecEventSet(records, record, later));
    run(records);
    CHECK(cu.cuEventElapsedTime(&ms, begin, later));
    HOLDS(ms >= 0.99f);
    CHECK(cu.cuMemHostAlloc((void **)&word, 4096, 0));
    *word = 0;
    CHECK(graph.BeginCapture(stream, GLOBAL));
    CHECK(cu.cuStreamWriteValue32(stream, (CUdeviceptr)(uintptr_t)word, 5, 0));
    CHECK(cu.cuStreamWaitValue32(stream, (CUdeviceptr)(uintptr_t)word, 5, 0));
    CHECK(graph.EndCapture(stream, &writing));
    CUgraphExec writes = instantiated(writing, 0);
    HOLDS(*word == 0);
    run(writes);
    HOLDS(__atomic_load_n(word, __ATOMIC_ACQUIRE) == 5);
    CHECK(graph.ExecDestroy(writes));
    CHECK(graph.ExecDestroy(waits));
    CHECK(graph.ExecDestroy(records));
    CHECK(graph.Destroy(writing));
    CHECK(graph.Destroy(waiting));
    CHECK(graph.Destroy(recording));
    CHECK(cu.cuMemFreeHost(word));
    CHECK(cu.cuEventDestroy(begin));
    CHECK(cu.cuEventDestroy(end));
    CHECK(cu.cuEventDestroy(later));
    CHECK(cu.cuStreamDestroy(other));
}

/* Queries of edges require their data, attributes are kept, and flags of instantiation are
 * reported. */
static void details(void) {
    CUgraph made = graph_new();
    CUgraphNode first = add_kernel(made, NULL, 0, kernel),
                second = add_kernel(made, NULL, 0, kernel), from, to;
    EdgeData data = {1, 0, 1, {0}}, reported;
    size_t count = 1;
    Attribute value = {.priority = -3}, got;
    CHECK(graph.AddDependencies2(made, &first, &second, &data, 1));
    EXPECT(CUDA_ERROR_LOSSY_QUERY, graph.GetEdges(made, &from, &to, &count));
    CHECK(graph.GetEdges2(made, &from, &to, &reported, &count));
    HOLDS(from == first && to == second && reported.from_port == 1 && reported.type == 1);
    CHECK(graph.SetAttribute(first, 8, &value));
    CHECK(graph.GetAttribute(first, 8, &got));
    HOLDS(got.priority == -3);
    InstantiateParams params = {.flags = 4};
    CUgraphExec exec;
    uint64_t flags;
    CHECK(graph.InstantiateWith(&exec, made, &params));
    CHECK(graph.GetFlags(exec, &flags));
    HOLDS(params.result == 0 && flags == 4);
    /* A kernel of another length, from the next launch on. */
    KernelParams quick = shape(driver_function("spin_10us"));
    CHECK(graph.ExecKernelSet(exec, first, &quick));
    quick.grid[1] = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.ExecKernelSet(exec, first, &quick));
    run(exec);
    CHECK(graph.ExecDestroy(exec));
    /* Host functions cannot be in a graph for device launch. */
    CUgraphNode host = add_note(made, &second, 1, 1);
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, graph.InstantiateWith(&exec, made, &params));
    HOLDS(params.result == 3 && params.error == host);
    CHECK(graph.Destroy(made));
}

static int destroyed;
static void destroy(void *data) { destroyed += (int)(intptr_t)data; }

static void objects(void) {
    CUuserObject object;
    CUgraph made = graph_new(), clone;
    CHECK(graph.ObjectCreate(&object, (void *)1, destroy, 1, 1));
    CHECK(graph.RetainObject(made, object, 1, 0));
    CHECK(graph.ObjectRelease(object, 1));
    add_kernel(made, NULL, 0, kernel);
    CHECK(graph.Clone(&clone, made));
    CUgraphExec exec = instantiated(made, 0);
    CHECK(graph.Destroy(made));
    CHECK(graph.Destroy(clone));
    HOLDS(destroyed == 0);
    run(exec);
    CHECK(graph.ExecDestroy(exec));
    HOLDS(destroyed == 1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, graph.ObjectRelease(object, 1));
}

/* Returns the resident pages of the process. */
static long resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    HOLDS(file && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return pages;
}

/* Creating and destroying leaves nothing behind. */
static void nothing_stays(void) {
    long before = 0;
    for (int round = 0; round < 2000; round++) {
        if (round == 200) before = resident();
        CUgraph made = graph_new(), clone, parent = graph_new();
        CUgraphNode node = add_note(made, NULL, 0, 1);
        AllocParams params = {.alloc_type = 1, .location = {1, 0}, .bytes = 1 << 20};
        for (int i = 0; i < 20; i++) node = add_kernel(made, &node, 1, kernel);
        CHECK(graph.Clone(&clone, made));
        CHECK(graph.AddChild(&node, parent, NULL, 0, made));
        CHECK(graph.AddAlloc(&node, made, &(CUgraphNode){0}, 0, &params));
        CUgraphExec exec = instantiated(made, 0), other = instantiated(parent, 0);
        CHECK(graph.Destroy(parent));
        CHECK(graph.ExecDestroy(exec));
        CHECK(graph.Destroy(made));
        CHECK(graph.ExecDestroy(other));
        CHECK(graph.Destroy(clone));
        CHECK(graph.BeginCapture(stream, GLOBAL));
        launch(kernel, stream);
        CHECK(graph.EndCapture(stream, &made));
        CHECK(graph.Destroy(made));
    }
    HOLDS(resident() - before < 1024);
}

int main(void) {
    CUdeviceptr memory;
    watchdog(60);
    context = graph_open();
    stream = stream_new(CU_STREAM_NON_BLOCKING);
    kernel = driver_function("spin_1ms");
    CHECK(cu.cuMemAlloc(&memory, 4096));
    topology();
    parameters();
    children();
    conditions();
    updates(memory);
    uint64_t reserved = memory_nodes();
    marks();
    details();
    objects();
    nothing_stays();

    /* Ten kernels in sequence take the sum; in parallel, with room for all, as long as one. */
    CUgraph row = graph_new(), beside = graph_new();
    CUgraphNode last = add_kernel(row, NULL, 0, kernel);
    for (int i = 1; i < 10; i++) last = add_kernel(row, &last, 1, kernel);
    for (int i = 0; i < 10; i++) add_kernel(beside, NULL, 0, kernel);
    CUgraphExec in_row = instantiated(row, 0), at_once = instantiated(beside, 0);
    CHECK(graph.Upload(in_row, stream));
    double row_ms = measured(in_row, 1), beside_ms = measured(at_once, 1),
           four_ms = measured(in_row, 4);
    /* Pending work runs although its graph was destroyed. */
    CHECK(graph.Launch(in_row, stream));
    CHECK(graph.ExecDestroy(in_row));
    CHECK(graph.ExecDestroy(at_once));
    CHECK(graph.Destroy(row));
    CHECK(graph.Destroy(beside));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(cu.cuMemFree(memory));
    CHECK(cu.cuStreamDestroy(stream));
    printf("{\"row_ms\": %.4f, \"beside_ms\": %.4f, \"four_ms\": %.4f, \"reserved\": %" PRIu64
           "}\n",
           row_ms, beside_ms, four_ms, reserved);
    return 0;
}
