/* SPDX-License-Identifier: Apache-2.0
 *
 * external - checks memory and semaphores of another interface: charges, lifetimes, ownership of
 * descriptors, and their order in streams and graphs, in one process and between two.
 */
#include "descriptors.h"
#include "foreign.h"
#include "graph.h"
#include "records.h"

#include <signal.h>
#include <sys/wait.h>

static size_t available(void) {
    size_t available, total;
    CHECK(cu.cuMemGetInfo(&available, &total));
    return available;
}

static int descriptor_of(uint64_t memory) {
    int fd;
    CHECK(foreign.descriptor(memory, &fd));
    return fd;
}

static int semaphore_descriptor_of(uint64_t semaphore) {
    int fd;
    CHECK(foreign.semaphore_descriptor(semaphore, &fd));
    return fd;
}

/* A refused descriptor stays the program's. */
static void refusals(uint64_t memory, uint64_t binary) {
    int fd = descriptor_of(memory), sign = semaphore_descriptor_of(binary),
        null = open("/dev/null", O_RDWR);
    CUexternalMemory got;
    CUexternalSemaphore semaphore;
    MemoryDesc from = {.type = OPAQUE_FD, .handle.fd = fd, .size = 64 * MIB};
    EXPECT(CUDA_ERROR_INVALID_VALUE, ext.import(&got, &from)); /* more than the memory has */
    from.size = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, ext.import(&got, &from));
    from.size = 4 * MIB;
    from.flags = 2;
    EXPECT(CUDA_ERROR_INVALID_VALUE, ext.import(&got, &from));
    from.flags = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, ext.import(NULL, &from));
    EXPECT(CUDA_ERROR_INVALID_VALUE, ext.import(&got, NULL));
    from.type = 2; /* of another operating system */
    EXPECT(CUDA_ERROR_INVALID_VALUE, ext.import(&got, &from));
    from.type = OPAQUE_FD;
    from.handle.fd = 9999;
    EXPECT(CUDA_ERROR_OPERATING_SYSTEM, ext.import(&got, &from));
    from.handle.fd = null;
    EXPECT(CUDA_ERROR_INVALID_HANDLE, ext.import(&got, &from));
    from.handle.fd = sign;
    EXPECT(CUDA_ERROR_INVALID_HANDLE, ext.import(&got, &from));
    SemaphoreDesc to = {.type = TIMELINE_FD, .handle.fd = sign};
    EXPECT(CUDA_ERROR_INVALID_HANDLE,
           ext.import_semaphore(&semaphore, &to)); /* the semaphore is a binary one */
    to.type = OPAQUE_FD;
    to.flags = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, ext.import_semaphore(&semaphore, &to));
    to.flags = 0;
    to.handle.fd = fd;
    EXPECT(CUDA_ERROR_INVALID_HANDLE, ext.import_semaphore(&semaphore, &to));
    to.type = 4;
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, ext.import_semaphore(&semaphore, &to));
    to.type = 77;
    EXPECT(CUDA_ERROR_INVALID_VALUE, ext.import_semaphore(&semaphore, &to));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, ext.destroy((CUexternalMemory)77));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, ext.destroy_semaphore((CUexternalSemaphore)77));
    HOLDS(is_open(fd) && is_open(sign) && is_open(null));
    close(fd), close(sign), close(null);
}

/* Memory is charged once, to its maker. Both sides see it, and it lasts until both have released
 * it. */
static void memory(void) {
    CUresult (*range)(CUdeviceptr *, size_t *, CUdeviceptr), (*attribute)(void *, int, CUdeviceptr);
    *(void **)&range = driver_symbol("cuMemGetAddressRange_v2");
    *(void **)&attribute = driver_symbol("cuPointerGetAttribute");
    size_t before = available(), bytes;
    uint64_t made, binary;
    CHECK(foreign.allocate(0, 5 * MIB, &made));
    HOLDS(before - available() == 6 * MIB);
    CHECK(foreign.semaphore(0, &binary));
    refusals(made, binary);
    CHECK(foreign.destroy(binary));

    int fd = descriptor_of(made), theirs = dup(fd);
    CUexternalMemory memory = import_memory(fd, 5 * MIB);
    HOLDS(before - available() == 6 * MIB);
    unsigned char *seen = mmap(NULL, 6 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, theirs, 0);
    HOLDS(seen != MAP_FAILED);
    close(theirs);

    BufferDesc wrong = {.offset = 4 * MIB, .size = MIB + 1};
    CUdeviceptr address, base;
    EXPECT(CUDA_ERROR_INVALID_VALUE, ext.buffer(&address, memory, &wrong));
    wrong = (BufferDesc){.size = MIB, .flags = 1};
    EXPECT(CUDA_ERROR_INVALID_VALUE, ext.buffer(&address, memory, &wrong));
    wrong = (BufferDesc){.size = 0};
    EXPECT(CUDA_ERROR_INVALID_VALUE, ext.buffer(&address, memory, &wrong));
    EXPECT(CUDA_ERROR_INVALID_HANDLE,
           ext.buffer(&address, (CUexternalMemory)77, &(BufferDesc){.size = 1}));

    CUdeviceptr all = buffer_of(memory, 0, 5 * MIB), part = buffer_of(memory, 3 * MIB + 4096, 4096);
    unsigned char back[16];
    int kind = 0;
    CUcontext context, current;
    seen[3 * MIB + 4096 + 7] = 42;
    CHECK(cu.cuMemcpyDtoH(back, part, 16));
    HOLDS(back[7] == 42);
    CHECK(cu.cuMemsetD8(all + 3 * MIB + 4096, 9, 7));
    CHECK(cu.cuCtxSynchronize());
    CHECK(cu.cuMemcpyDtoH(back, part, 16));
    HOLDS(back[0] == 9 && back[6] == 9 && back[7] == 42 && seen[3 * MIB + 4096] == 9);
    CHECK(range(&base, &bytes, part + 100));
    HOLDS(base == part && bytes == 4096);
    CHECK(attribute(&kind, 2 /* memory type */, part));
    HOLDS(kind == 2 /* device */);
    CHECK(attribute(&context, 1 /* context */, part));
    CHECK(cu.cuCtxGetCurrent(&current));
    HOLDS(context == current);

    /* A mipmapped array in the same memory: 1 MiB and its halves, with rows where the layout has
     * them. */
    CUresult (*level_of)(void **, void *, unsigned), (*end)(void *), (*copy)(const CopyParams *);
    *(void **)&level_of = driver_symbol("cuMipmappedArrayGetLevel");
    *(void **)&end = driver_symbol("cuMipmappedArrayDestroy");
    *(void **)&copy = driver_symbol("cuMemcpy3D_v2");
    MipmapDesc pyramid = {.offset = 2 * MIB,
                          .array = {.width = 512, .height = 512, .format = 0x20, .channels = 1},
                          .levels = 3};
    void *chain, *level;
    unsigned row[64];
    CHECK(ext.chain(&chain, memory, &pyramid));
    pyramid.levels = 11;
    EXPECT(CUDA_ERROR_INVALID_VALUE, ext.chain(&level, memory, &pyramid));
    pyramid.levels = 3, pyramid.offset = 4 * MIB;
    EXPECT(CUDA_ERROR_INVALID_VALUE, ext.chain(&level, memory, &pyramid));
    CHECK(level_of(&level, chain, 0));
    for (unsigned i = 0; i < 64; i++) row[i] = i * i;
    CopyParams put = {.src = {.type = 1, .host = row, .pitch = sizeof row, .height = 1},
                      .dst = {.type = 3, .array = level},
                      .width = sizeof row,
                      .height = 1,
                      .depth = 1};
    CHECK(copy(&put));
    HOLDS(memcmp(seen + 2 * MIB, row, sizeof row) == 0);

    /* Neither the end of the import nor of the maker takes the memory from its users. */
    CHECK(ext.destroy(memory));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, ext.destroy(memory));
    CHECK(foreign.free(made));
    CHECK(cu.cuMemFree(all));
    CHECK(end(chain));
    munmap(seen, 6 * MIB);
    HOLDS(before - available() == 6 * MIB);
    CHECK(cu.cuMemcpyDtoH(back, part, 16));
    HOLDS(back[0] == 9);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree(part + 1));
    CHECK(cu.cuMemFree(part));
    HOLDS(before == available());

    /* A destroyed context leaves nothing behind. */
    CHECK(cu.cuCtxCreate(&context, 0, 0));
    CHECK(foreign.allocate(0, 2 * MIB, &made));
    memory = import_memory(descriptor_of(made), 2 * MIB);
    buffer_of(memory, 0, 2 * MIB);
    CHECK(foreign.free(made));
    CHECK(cu.cuCtxDestroy(context));
    CHECK(cu.cuCtxSetCurrent(current));
    HOLDS(before == available());
}

static void signal_in(CUstream stream, CUexternalSemaphore semaphore, uint64_t value) {
    CHECK(ext.signal(&semaphore, &(SemaphoreParams){.value = value}, 1, stream));
}

static void wait_in(CUstream stream, CUexternalSemaphore semaphore, uint64_t value) {
    CHECK(ext.wait(&semaphore, &(SemaphoreParams){.value = value}, 1, stream));
}

static uint64_t value_of(uint64_t semaphore) {
    uint64_t value;
    CHECK(foreign.value(semaphore, &value));
    return value;
}

static void semaphores(CUfunction kernel) {
    CUstream one, two;
    uint64_t binary, counting;
    CHECK(cu.cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    CHECK(cu.cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
    CHECK(foreign.semaphore(0, &binary));
    CHECK(foreign.semaphore(1, &counting));
    CUexternalSemaphore sign = import_semaphore(semaphore_descriptor_of(binary), OPAQUE_FD);
    CUexternalSemaphore count = import_semaphore(semaphore_descriptor_of(counting), TIMELINE_FD);
    CUexternalSemaphore both[2] = {count, sign};
    SemaphoreParams params[2] = {{.value = 3}, {.value = 0}};

    params[1].flags = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, ext.signal(both, params, 2, one));
    params[1].flags = 0;
    EXPECT(CUDA_ERROR_INVALID_HANDLE,
           ext.wait((CUexternalSemaphore[]){(void *)77}, params, 1, one));
    EXPECT(CUDA_ERROR_INVALID_VALUE, ext.wait(NULL, params, 1, one));

    /* One signal releases one wait: first the other interface's, then a stream's after its
     * kernel. */
    wait_in(one, sign, 0);
    wait_in(one, sign, 0);
    usleep(3000);
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(one));
    CHECK(foreign.signal(binary, 0));
    usleep(3000);
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(one));
    HOLDS(value_of(binary) == 0);
    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, two, NULL, NULL));
    signal_in(two, sign, 0);
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(one));
    CHECK(cu.cuStreamSynchronize(one));
    CHECK(cu.cuStreamQuery(two));
    signal_in(two, sign, 0);
    CHECK(cu.cuStreamSynchronize(two));
    HOLDS(value_of(binary) == 1);
    wait_in(one, sign, 0);
    CHECK(cu.cuStreamSynchronize(one));
    HOLDS(value_of(binary) == 0);

    /* A value releases all waits for at most that value. */
    wait_in(one, count, 2);
    wait_in(two, count, 4);
    CHECK(foreign.signal(counting, 1));
    usleep(3000);
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(one));
    CHECK(foreign.signal(counting, 3));
    CHECK(cu.cuStreamSynchronize(one));
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(two));
    signal_in(one, count, 10);
    CHECK(cu.cuStreamSynchronize(two));
    HOLDS(value_of(counting) == 10);
    wait_in(one, count, 7);
    CHECK(cu.cuStreamSynchronize(one));

    /* Waits for several; the legacy stream waits, and what follows in it. */
    CHECK(foreign.signal(counting, 0));
    CHECK(ext.wait(both, params, 2, NULL));
    CHECK(foreign.signal(binary, 0));
    usleep(3000);
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(NULL));
    CHECK(ext.signal(both, params, 2, one));
    CHECK(cu.cuCtxSynchronize());
    HOLDS(value_of(counting) == 3 && value_of(binary) == 1);

    /* A context is destroyed with a wait that never ends. */
    CUcontext context, current;
    CUstream stuck;
    CHECK(cu.cuCtxGetCurrent(&current));
    CHECK(cu.cuCtxCreate(&context, 0, 0));
    CHECK(cu.cuStreamCreate(&stuck, CU_STREAM_NON_BLOCKING));
    wait_in(stuck, count, 1000);
    CHECK(cu.cuCtxDestroy(context));
    CHECK(cu.cuCtxSetCurrent(current));
    CHECK(foreign.signal(counting, 2000));

    CHECK(ext.destroy_semaphore(sign));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, ext.destroy_semaphore(sign));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, ext.signal(&sign, params, 1, one));
    CHECK(ext.destroy_semaphore(count));
    CHECK(foreign.destroy(binary));
    CHECK(foreign.destroy(counting));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, foreign.signal(counting, 1));
    CHECK(cu.cuStreamDestroy(one));
    CHECK(cu.cuStreamDestroy(two));
}

typedef struct {
    CUexternalSemaphore *semaphores;
    const SemaphoreParams *params;
    unsigned count;
} SemaphoresParams;

static void graphs(CUfunction kernel) {
    FUNCTION(create, cuGraphCreate, (CUgraph *, unsigned));
    FUNCTION(add_signal, cuGraphAddExternalSemaphoresSignalNode,
             (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const SemaphoresParams *));
    FUNCTION(add_wait, cuGraphAddExternalSemaphoresWaitNode,
             (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const SemaphoresParams *));
    FUNCTION(get_signal, cuGraphExternalSemaphoresSignalNodeGetParams,
             (CUgraphNode, SemaphoresParams *));
    FUNCTION(set_wait, cuGraphExternalSemaphoresWaitNodeSetParams,
             (CUgraphNode, const SemaphoresParams *));
    FUNCTION(get_wait, cuGraphExternalSemaphoresWaitNodeGetParams,
             (CUgraphNode, SemaphoresParams *));
    FUNCTION(exec_signal, cuGraphExecExternalSemaphoresSignalNodeSetParams,
             (CUgraphExec, CUgraphNode, const SemaphoresParams *));
    FUNCTION(exec_wait, cuGraphExecExternalSemaphoresWaitNodeSetParams,
             (CUgraphExec, CUgraphNode, const SemaphoresParams *));
    FUNCTION(add_any, cuGraphAddNode_v2,
             (CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, NodeParams *));
    FUNCTION(instantiate, cuGraphInstantiateWithFlags,
             (CUgraphExec *, CUgraph, unsigned long long));
    FUNCTION(launch, cuGraphLaunch, (CUgraphExec, CUstream));
    FUNCTION(destroy, cuGraphDestroy, (CUgraph));
    FUNCTION(destroy_exec, cuGraphExecDestroy, (CUgraphExec));
    FUNCTION(begin, cuStreamBeginCapture_v2, (CUstream, int));
    FUNCTION(end, cuStreamEndCapture, (CUstream, CUgraph *));
    FUNCTION(kind_of, cuGraphNodeGetType, (CUgraphNode, int *));
    FUNCTION(nodes_of, cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *));
    CUstream stream;
    CUgraph graph;
    CUgraphNode waits, signals, last, nodes[8];
    CUgraphExec ready;
    size_t count = 8;
    int kind;
    uint64_t go, done;
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(foreign.semaphore(0, &go));
    CHECK(foreign.semaphore(1, &done));
    CUexternalSemaphore sign = import_semaphore(semaphore_descriptor_of(go), OPAQUE_FD);
    CUexternalSemaphore done_semaphore =
        import_semaphore(semaphore_descriptor_of(done), TIMELINE_FD);
    SemaphoreParams nothing = {0}, five = {.value = 5}, six = {.value = 6},
                    pair[2] = {{.value = 1}, {.value = 2}};
    SemaphoresParams wanted = {&sign, &nothing, 1}, reported;

    /* Waits for the signal, then signals five, then six by a generic node. */
    CHECK(create(&graph, 0));
    CHECK(add_wait(&waits, graph, NULL, 0, &wanted));
    wanted = (SemaphoresParams){&done_semaphore, &five, 1};
    CHECK(add_signal(&signals, graph, &waits, 1, &wanted));
    CHECK(get_signal(signals, &reported));
    HOLDS(reported.count == 1 && reported.semaphores[0] == done_semaphore &&
          reported.params[0].value == 5);
    EXPECT(CUDA_ERROR_INVALID_VALUE, get_signal(waits, &reported));
    EXPECT(CUDA_ERROR_INVALID_HANDLE,
           add_signal(&last, graph, NULL, 0,
                      &(SemaphoresParams){&(CUexternalSemaphore){(void *)77}, &five, 1}));
    NodeParams any = {.type = 8 /* signal */};
    memcpy(any.all, &(SemaphoresParams){&done_semaphore, &six, 1}, sizeof(SemaphoresParams));
    CHECK(add_any(&last, graph, &signals, NULL, 1, &any));
    CHECK(kind_of(last, &kind));
    HOLDS(kind == 8);
    CHECK(kind_of(waits, &kind));
    HOLDS(kind == 9);
    CHECK(instantiate(&ready, graph, 0));
    CHECK(launch(ready, stream));
    usleep(3000);
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(stream));
    HOLDS(value_of(done) == 0);
    CHECK(foreign.signal(go, 0));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(value_of(done) == 6);

    /* Other values, as many; the source graph keeps its own. */
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           exec_signal(ready, last,
                       &(SemaphoresParams){(CUexternalSemaphore[]){done_semaphore, done_semaphore},
                                           pair, 2}));
    CHECK(exec_signal(ready, last, &(SemaphoresParams){&done_semaphore, &pair[1], 1}));
    CHECK(exec_wait(ready, waits, &(SemaphoresParams){&done_semaphore, &six, 1}));
    CHECK(launch(ready, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(value_of(done) == 2);
    CHECK(set_wait(waits, &(SemaphoresParams){&done_semaphore, pair, 1}));
    CHECK(get_wait(waits, &reported));
    HOLDS(reported.semaphores[0] == done_semaphore && reported.params[0].value == 1);
    CHECK(destroy_exec(ready));
    CHECK(destroy(graph));

    /* Captured. */
    CHECK(begin(stream, THREAD_LOCAL));
    wait_in(stream, done_semaphore, 2);
    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    signal_in(stream, done_semaphore, 20);
    CHECK(end(stream, &graph));
    CHECK(nodes_of(graph, nodes, &count));
    HOLDS(count == 3);
    HOLDS(value_of(done) == 2);
    CHECK(instantiate(&ready, graph, 0));
    CHECK(launch(ready, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(value_of(done) == 20);

    /* A launch with a destroyed semaphore. */
    CHECK(ext.destroy_semaphore(done_semaphore));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, launch(ready, stream));
    CHECK(destroy_exec(ready));
    CHECK(destroy(graph));
    CHECK(ext.destroy_semaphore(sign));
    CHECK(foreign.destroy(go));
    CHECK(foreign.destroy(done));
    CHECK(cu.cuStreamDestroy(stream));
}

/* The other process creates the objects, waits, and is killed. */
static int maker(int line) {
    uint64_t memory, go, done;
    watchdog(60);
    driver_load();
    CHECK(cu.cuInit(0));
    foreign_open();
    CHECK(foreign.allocate(0, 32 * MIB, &memory));
    CHECK(foreign.semaphore(0, &go));
    CHECK(foreign.semaphore(1, &done));
    int fds[3] = {descriptor_of(memory), semaphore_descriptor_of(go),
                  semaphore_descriptor_of(done)};
    unsigned char *seen = mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    HOLDS(seen != MAP_FAILED);
    for (int i = 0; i < 3; i++) {
        send_descriptor(line, fds[i]);
        close(fds[i]);
    }
    char byte;
    HOLDS(read(line, &byte, 1) == 1);
    seen[5] = 55;
    CHECK(foreign.signal(go, 0));
    while (value_of(done) < 4) usleep(200);
    HOLDS(seen[6] == 66);
    HOLDS(write(line, "d", 1) == 1);
    pause();
    return 1;
}

static void two_processes(int line, pid_t other) {
    size_t before = available(), has;
    CUstream stream;
    unsigned char *five, six;
    char byte;
    int fds[3];
    CHECK(cu.cuMemHostAlloc((void **)&five, 1, 0)); /* a copy to pageable memory would block */
    for (int i = 0; i < 3; i++) fds[i] = receive_descriptor(line);
    has = available(); /* made and charged in another process */
    CUexternalMemory memory = import_memory(fds[0], 32 * MIB);
    CUexternalSemaphore go = import_semaphore(fds[1], OPAQUE_FD),
                        done = import_semaphore(fds[2], TIMELINE_FD);
    CUdeviceptr address = buffer_of(memory, 0, 32 * MIB);
    HOLDS(available() == has);
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    wait_in(stream, go, 0);
    CHECK(cu.cuMemcpyDtoHAsync(five, address + 5, 1, stream));
    CHECK(cu.cuMemsetD8Async(address + 6, 66, 1, stream));
    signal_in(stream, done, 4);
    usleep(2000);
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(stream));
    HOLDS(write(line, "g", 1) == 1);
    HOLDS(read(line, &byte, 1) == 1);
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(*five == 55);
    CHECK(cu.cuMemFreeHost(five));

    /* The maker is killed: its memory stays, and so does a signal that it does not receive. */
    HOLDS(kill(other, SIGKILL) == 0 && waitpid(other, NULL, 0) == other);
    usleep(200000);
    HOLDS(available() == has);
    CHECK(cu.cuMemcpyDtoH(&six, address + 6, 1));
    HOLDS(six == 66);
    signal_in(stream, done, 5);
    wait_in(stream, done, 5);
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(cu.cuMemFree(address));
    CHECK(ext.destroy(memory));
    CHECK(ext.destroy_semaphore(go));
    CHECK(ext.destroy_semaphore(done));
    HOLDS(available() >= before);
    CHECK(cu.cuStreamDestroy(stream));
}

int main(void) {
    int line[2];
    watchdog(60);
    HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, line) == 0);
    pid_t other = fork();
    HOLDS(other >= 0);
    if (other == 0) return maker(line[1]);
    close(line[1]);
    driver_open();
    foreign_open();
    external_find();
    CUfunction kernel = driver_function("spin_2ms");
    CHECK(
        /* its code is loaded now */
        cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CHECK(cu.cuCtxSynchronize());
    two_processes(line[0], other);
    memory();
    semaphores(kernel);
    graphs(kernel);
    printf("{\"external\": 1}\n");
    return 0;
}
