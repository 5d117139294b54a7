/* SPDX-License-Identifier: Apache-2.0
 *
 * collectives [ROUNDS [kill]] - two ranks on two GPUs work as a collectives library does at the end
 * of memory: host memory behind handles, buffers that the other rank maps by a descriptor, flags by
 * a legacy handle, and a multicast object of both with memory of each bound.
 *
 * The weights of a model leave exactly the room that a communicator takes; then the rest is filled.
 * What is refused does not fit, and what fits is not refused. With ROUNDS a monitor runs, and each
 * round begins with empty GPUs. With "kill" the second rank is killed with everything in use. After
 * each step the ledger agrees with the driver. Prints what stayed charged. Needs two GPUs with a
 * switch.
 */
#include "ledger.h"
#include "descriptors.h"

#include <signal.h>
#include <sys/wait.h>

#define BUFFER (4 * MIB)
#define BUFFERS 3
#define FLAGS (2 * MIB)
#define NVLS (16 * MIB)
#define COMMUNICATOR (BUFFERS * BUFFER + FLAGS + NVLS)
#define ON_THE_HOST (64 * MIB)
#define PIECE (32 * MIB)

enum { FIRST_WORD = 0x5eed0000 };

struct team {
    unsigned devices;
    size_t size;
    uint64_t handle_types, flags;
};

struct handle {
    char bytes[64];
};

static CUresult (*export_handle)(void *, uint64_t, int, uint64_t);
static CUresult (*import_handle)(uint64_t *, void *, int);
static CUresult (*flags_get)(struct handle *, CUdeviceptr);
static CUresult (*flags_open)(CUdeviceptr *, struct handle, unsigned);
static CUresult (*flags_close)(CUdeviceptr);
static CUresult (*team_create)(uint64_t *, const struct team *);
static CUresult (*team_add)(uint64_t, CUdevice);
static CUresult (*team_bind)(uint64_t, size_t, uint64_t, size_t, size_t, uint64_t);
static CUresult (*team_unbind)(uint64_t, CUdevice, size_t, size_t);

static CUcontext contexts[2];
static int rank, is_watched, line; /* to the other rank */

static void look_up(void) {
    *(void **)&export_handle = driver_symbol("cuMemExportToShareableHandle");
    *(void **)&import_handle = driver_symbol("cuMemImportFromShareableHandle");
    *(void **)&flags_get = driver_symbol("cuIpcGetMemHandle");
    *(void **)&flags_open = driver_symbol("cuIpcOpenMemHandle_v2");
    *(void **)&flags_close = driver_symbol("cuIpcCloseMemHandle");
    *(void **)&team_create = driver_symbol("cuMulticastCreate");
    *(void **)&team_add = driver_symbol("cuMulticastAddDevice");
    *(void **)&team_bind = driver_symbol("cuMulticastBindMem");
    *(void **)&team_unbind = driver_symbol("cuMulticastUnbind");
}

static void send_bytes(const void *bytes, size_t count) {
    HOLDS(write(line, bytes, count) == (ssize_t)count);
}

static void receive_bytes(void *bytes, size_t count) {
    HOLDS(recv(line, bytes, count, MSG_WAITALL) == (ssize_t)count);
}

/* Waits for the other rank. */
static void wait_for_all(char place) {
    char heard = 0;
    send_bytes(&place, 1);
    receive_bytes(&heard, 1);
    if (heard != place) FAIL("rank %d at %c, the other one at %c", rank, place, heard);
}

static int exported(uint64_t handle) {
    int descriptor = -1;
    CHECK(export_handle(&descriptor, handle, DESCRIPTOR, 0));
    return descriptor;
}

static uint64_t imported(void) {
    uint64_t handle;
    int descriptor = receive_descriptor(line);
    CHECK(import_handle(&handle, (void *)(intptr_t)descriptor, DESCRIPTOR));
    HOLDS(close(descriptor) == 0);
    return handle;
}

static CUdeviceptr mapped(uint64_t handle, size_t bytes) {
    struct access access = {{DEVICE, rank}, READ_WRITE};
    CUdeviceptr address = reserve(bytes);
    CHECK(vm.map(address, bytes, 0, handle, 0));
    CHECK(vm.set_access(address, bytes, &access, 1));
    return address;
}

static void unmapped(CUdeviceptr address, size_t bytes) {
    CHECK(vm.unmap(address, bytes));
    CHECK(vm.unreserve(address, bytes));
}

static CUresult physical(uint64_t *handle, size_t bytes) {
    struct allocation wanted = {
        .kind = PINNED, .handle_types = DESCRIPTOR, .location = {DEVICE, rank}};
    return vm.create(handle, bytes, &wanted, 0);
}

static void put(CUdeviceptr to, unsigned word) {
    CHECK(cu.cuMemsetD32(to, word, 1));
    CHECK(cu.cuCtxSynchronize());
}

static unsigned word_at(CUdeviceptr address) {
    unsigned word = 0;
    CHECK(cu.cuMemcpyDtoH(&word, address, sizeof word));
    return word;
}

/* Host memory is charged on no GPU. */
static struct {
    uint64_t handle;
    CUdeviceptr address;
} host;

static void host_open(void) {
    struct allocation wanted = {.kind = PINNED, .location = {HOST_NUMA, 0}};
    struct access access[] = {{{HOST_NUMA, 0}, READ_WRITE}, {{DEVICE, rank}, READ_WRITE}};
    CHECK(vm.create(&host.handle, ON_THE_HOST, &wanted, 0));
    host.address = reserve(ON_THE_HOST);
    CHECK(vm.map(host.address, ON_THE_HOST, 0, host.handle, 0));
    CHECK(vm.set_access(host.address, ON_THE_HOST, access, 2));
    CHECK(vm.release(host.handle));
    *(unsigned *)(uintptr_t)host.address = FIRST_WORD;
    HOLDS(word_at(host.address) == FIRST_WORD);
}

static void host_close(void) { unmapped(host.address, ON_THE_HOST); }

static struct {
    uint64_t buffers[BUFFERS], team, bound;
    CUdeviceptr own[BUFFERS], theirs[BUFFERS], flags, their_flags, nvls, window;
} communicator;

static void communicator_open(void) {
    struct team wanted = {2, NVLS, DESCRIPTOR, 0};
    struct handle handle;
    for (int i = 0; i < BUFFERS; i++) {
        CHECK(physical(&communicator.buffers[i], BUFFER));
        communicator.own[i] = mapped(communicator.buffers[i], BUFFER);
        int descriptor = exported(communicator.buffers[i]);
        send_descriptor(line, descriptor);
        HOLDS(close(descriptor) == 0);
        uint64_t theirs = imported();
        communicator.theirs[i] = reserve(BUFFER); /* which writes reach it depends on the GPUs */
        CHECK(vm.map(communicator.theirs[i], BUFFER, 0, theirs, 0));
        CHECK(vm.release(theirs));
    }
    CHECK(cu.cuMemAlloc(&communicator.flags, FLAGS));
    CHECK(flags_get(&handle, communicator.flags));
    send_bytes(&handle, sizeof handle);
    receive_bytes(&handle, sizeof handle);
    CHECK(cu.cuCtxSetCurrent(contexts[!rank]));
    CHECK(flags_open(&communicator.their_flags, handle, 1));
    CHECK(cu.cuCtxSetCurrent(contexts[rank]));
    if (rank == 0) {
        CHECK(team_create(&communicator.team, &wanted));
        int descriptor = exported(communicator.team);
        send_descriptor(line, descriptor);
        HOLDS(close(descriptor) == 0);
    } else {
        communicator.team = imported();
    }
    CHECK(team_add(communicator.team, rank));
    CHECK(physical(&communicator.bound, NVLS));
    communicator.nvls = mapped(communicator.bound, NVLS);
    CHECK(team_bind(communicator.team, 0, communicator.bound, 0, NVLS,
                    0)); /* blocks until the other GPU is added */
    communicator.window = mapped(communicator.team, NVLS);
    wait_for_all('c');
}

/* A write to the object reaches the other rank's memory. */
static void communicate(void) {
    for (int i = 0; i < BUFFERS; i++) put(communicator.own[i], FIRST_WORD + i);
    put(communicator.window + 4096 * rank, FIRST_WORD + 100 + rank);
    wait_for_all('w');
    for (int i = 0; i < BUFFERS; i++)
        HOLDS(word_at(communicator.own[i]) == (unsigned)(FIRST_WORD + i));
    for (int i = 0; i < 2; i++)
        HOLDS(word_at(communicator.nvls + 4096 * i) == (unsigned)(FIRST_WORD + 100 + i));
    wait_for_all('r');
}

static void communicator_close(int is_alone) {
    CHECK(team_unbind(communicator.team, rank, 0, NVLS));
    unmapped(communicator.window, NVLS);
    CHECK(vm.release(communicator.team));
    unmapped(communicator.nvls, NVLS);
    CHECK(vm.release(communicator.bound));
    CHECK(cu.cuCtxSetCurrent(contexts[!rank]));
    CHECK(flags_close(communicator.their_flags));
    CHECK(cu.cuCtxSetCurrent(contexts[rank]));
    for (int i = 0; i < BUFFERS; i++) unmapped(communicator.theirs[i], BUFFER);
    if (!is_alone) wait_for_all('u');
    CHECK(cu.cuMemFree(communicator.flags));
    for (int i = 0; i < BUFFERS; i++) {
        unmapped(communicator.own[i], BUFFER);
        CHECK(vm.release(communicator.buffers[i]));
    }
}

/* In the end the driver has this much and the ledger the same, or more without a monitor. On the
 * way the ledger never has less. */
static void wait_until_settled(size_t bytes, const char *when) {
    for (int looks = 0;; looks++) {
        CUdeviceptr none;
        /* A refused charge reclaims exited processes. A monitor only reads a ledger that is at
         * rest. */
        if (looks % 200 == 10)
            EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemAlloc(&none, (size_t)100 << 30));
        size_t has = truth(), says = shown();
        if ((long long)says < (long long)has && has == truth())
            FAIL("rank %d, %s: the ledger has %zu, the driver %zu", rank, when, says, has);
        if (has == bytes && (says == has || !is_watched)) return;
        if (looks == 3000)
            FAIL("rank %d, %s: the ledger has %zu, the driver %zu, not %zu", rank, when, says, has,
                 bytes);
        sleep_seconds(0.01);
    }
}

/* Allocates whatever fits, down to a granule. */
static size_t fill(CUdeviceptr *pieces, size_t piece, size_t leave) {
    size_t count = 0;
    while (free_shown() >= leave + piece) CHECK(cu.cuMemAlloc(&pieces[count++], piece));
    return count;
}

int main(int count, char **arguments) {
    static CUdeviceptr weights[4096], rest[4096];
    int lines[2], rounds = count > 1 ? atoi(arguments[1]) : 1, is_deadly = count > 2;
    is_watched = count > 1;
    watchdog(100);
    HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, lines) == 0);
    pid_t other = fork();
    HOLDS(other >= 0);
    watchdog(100);
    rank = other == 0;
    line = lines[rank];
    close(lines[!rank]);
    driver_load();
    CHECK(cu.cuInit(0));
    look_up();
    /* Contexts created one after another are measured exactly. */
    if (rank == 1) wait_for_all('0');
    for (CUdevice device = 0; device < 2; device++)
        CHECK(cu.cuDevicePrimaryCtxRetain(&contexts[device], device));
    CHECK(cu.cuCtxSetCurrent(contexts[rank]));
    ledger_open();
    if (rank == 0) wait_for_all('0');
    wait_for_all('1');
    size_t gone = 0, theirs = truth(); /* the other rank's context on this GPU */
    ledger_open();
    host_open();
    TAKEN(0);
    size_t had = fill(weights, PIECE, COMMUNICATOR);
    had += fill(weights + had, GRANULE, COMMUNICATOR);
    size_t weigh = truth();
    HOLDS(weigh > COMMUNICATOR);
    TAKEN(weigh);
    wait_for_all('b');
    for (int round = 0; round < rounds; round++) {
        uint64_t none, team;
        struct team wanted = {2, NVLS, 0, 0};
        communicator_open();
        TAKEN(weigh + COMMUNICATOR);
        communicate();
        size_t filled = fill(rest, GRANULE, 0);
        TAKEN(weigh + COMMUNICATOR + filled * GRANULE);

        /* Full: calls that need GPU memory are refused, and no others. */
        HOLDS(free_shown() < GRANULE);
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, physical(&none, GRANULE));
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemAlloc(&rest[filled], GRANULE));
        host_close();
        host_open();
        CHECK(team_create(&team, &wanted));
        CHECK(vm.release(team));
        int descriptor = exported(communicator.buffers[0]);
        uint64_t again;
        CHECK(import_handle(&again, (void *)(intptr_t)descriptor, DESCRIPTOR));
        HOLDS(close(descriptor) == 0);
        CHECK(vm.release(again));
        TAKEN(weigh + COMMUNICATOR + filled * GRANULE);
        communicate();
        while (filled > 0) CHECK(cu.cuMemFree(rest[--filled]));
        TAKEN(weigh + COMMUNICATOR);
        wait_for_all('f');

        if (is_deadly) {
            int status;
            if (rank == 1) kill(getpid(), SIGKILL);
            HOLDS(waitpid(other, &status, 0) == other && WIFSIGNALED(status));
            put(communicator.window, 1); /* to the remaining memory */
            HOLDS(word_at(communicator.nvls) == 1);
            communicator_close(1);
            gone = theirs;
            wait_until_settled(weigh - gone, "after the other one's death");
            break;
        }
        communicator_close(0);
        wait_for_all('d');
        wait_until_settled(weigh, "without a communicator");
        wait_for_all('n');
    }
    host_close();
    while (had > 0) CHECK(cu.cuMemFree(weights[--had]));
    HOLDS(truth() + gone == 0);
    /* What the living peer was seen to release is charged again from its death until the next
     * observation. */
    if (is_deadly) wait_until_settled(0 - gone, "in the end");
    size_t kept = shown() + gone;
    if (!is_deadly) wait_for_all('e');
    if (rank == 1) return 0;
    int status = 0;
    HOLDS(is_deadly || (waitpid(other, &status, 0) == other && status == 0));
    printf("{\"weights\": %zu, \"kept\": %zu}\n", weigh, kept);
    return 0;
}
