/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint [watched] - a process is locked, checkpointed, restored and unlocked by another one
 * and by itself. Its calls block meanwhile, its memory leaves the GPU and returns with its bytes,
 * and a refused operation changes nothing.
 */
#include "records.h"

#include <pthread.h>
#include <signal.h>
#include <sys/select.h>
#include <sys/wait.h>

enum { RUNNING, LOCKED, CHECKPOINTED, ILLEGAL_STATE = 401 };

struct lock_args {
    unsigned timeout_ms, reserved0;
    uint64_t reserved1[7];
};
struct pair {
    unsigned char old[16], new[16];
};
struct restore_args {
    const struct pair *pairs;
    unsigned count, padding;
    void *custom;
    char reserved[40];
};
struct checkpoint_args {
    void *custom;
    char reserved[56];
};

static struct {
    CUresult (*lock)(int pid, struct lock_args *args);
    CUresult (*checkpoint)(int pid, void *args);
    CUresult (*restore)(int pid, struct restore_args *args);
    CUresult (*unlock)(int pid, void *args);
    CUresult (*state)(int pid, int *state);
    CUresult (*thread)(int pid, int *tid);
    CUresult (*complete)(void *handle);
} on;

static void find(void) {
    *(void **)&on.lock = driver_symbol("cuCheckpointProcessLock");
    *(void **)&on.checkpoint = driver_symbol("cuCheckpointProcessCheckpoint");
    *(void **)&on.restore = driver_symbol("cuCheckpointProcessRestore");
    *(void **)&on.unlock = driver_symbol("cuCheckpointProcessUnlock");
    *(void **)&on.state = driver_symbol("cuCheckpointProcessGetState");
    *(void **)&on.thread = driver_symbol("cuCheckpointProcessGetRestoreThreadId");
    *(void **)&on.complete = driver_symbol("cuCheckpointOperationComplete");
}

static size_t available(void) {
    size_t available, total;
    CHECK(cu.cuMemGetInfo(&available, &total));
    return available;
}

static int state_of(int pid) {
    int state = -1;
    CHECK(on.state(pid, &state));
    return state;
}

static void expect_byte(int from, char what) {
    char byte = 0;
    HOLDS(read(from, &byte, 1) == 1);
    HOLDS(byte == what);
}

static void send_byte(int to, char what) { HOLDS(write(to, &what, 1) == 1); }

/* Holds 600 MiB on the GPU, runs a kernel, and allocates more on request. */
static int checkpointed_process(int from, int to) {
    CUdeviceptr memory, more;
    unsigned char bytes[4];
    char byte;
    watchdog(60);
    driver_open();
    CUfunction kernel = driver_function("spin_20ms");
    CHECK(cu.cuMemAlloc(&memory, 600 * MIB));
    CHECK(cu.cuMemsetD32(memory + 300 * MIB, 0x01020304, 1));
    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    send_byte(to, 'r');
    while (read(from, &byte, 1) == 1 && byte != 'q') {
        if (byte == 'l') { /* a long call */
            CUfunction longer = driver_function("spin_300ms");
            CHECK(cu.cuLaunchKernel(longer, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
            send_byte(to, 'l');
            CHECK(cu.cuCtxSynchronize());
            send_byte(to, 'd');
            continue;
        }
        if (byte == 'i') { /* exportable memory */
            CUresult (*get)(char handle[64], CUdeviceptr address);
            char handle[64];
            *(void **)&get = driver_symbol("cuIpcGetMemHandle");
            CHECK(get(handle, memory));
            send_byte(to, 'i');
            continue;
        }
        send_byte(to, 'c');
        CHECK(cu.cuMemAlloc(&more, 10 * MIB)); /* blocks while the process is locked */
        CHECK(cu.cuMemFree(more));
        CHECK(cu.cuMemcpyDtoH(bytes, memory + 300 * MIB, 4));
        HOLDS(bytes[0] == 4 && bytes[3] == 1);
        send_byte(to, 'a');
    }
    return 0;
}

static int is_silent(int from) {
    fd_set set;
    struct timeval pause = {0, 50000};
    FD_ZERO(&set);
    FD_SET(from, &set);
    return select(from + 1, &set, NULL, NULL, &pause) == 0;
}

static void another(int other, int to, int from, size_t before) {
    int tid = 0;
    size_t has;
    CUdeviceptr greedy;
    struct restore_args restore = {0};
    /* A monitor's accounting is by GPU: a restore on other GPUs is refused before the driver is
     * called. */
    CUresult elsewhere = is_watched ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    struct lock_args soon = {.timeout_ms = 30}, wrong = {.reserved0 = 1};
    expect_byte(from, 'r');
    has = available();
    HOLDS(before - has >= 600 * MIB);
    HOLDS(state_of(other) == RUNNING);
    CHECK(on.thread(other, &tid));
    HOLDS(tid > 0 && kill(tid, 0) == 0);

    /* Operations in the wrong state and on unknown processes are refused. */
    EXPECT(ILLEGAL_STATE, on.checkpoint(other, NULL));
    EXPECT(ILLEGAL_STATE, on.restore(other, NULL));
    EXPECT(ILLEGAL_STATE, on.unlock(other, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, on.lock(other, &wrong));
    EXPECT(CUDA_ERROR_INVALID_VALUE, on.lock(1, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, on.state(-5, &tid));
    EXPECT(CUDA_ERROR_INVALID_VALUE, on.state(other, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, on.complete((void *)77));

    /* A running call delays the lock, which succeeds once the call returns. */
    send_byte(to, 'l');
    expect_byte(from, 'l');
    usleep(20000);
    EXPECT(CUDA_ERROR_NOT_READY, on.lock(other, &soon));
    HOLDS(state_of(other) == RUNNING);
    CHECK(on.lock(other, NULL));
    expect_byte(from, 'd');
    HOLDS(state_of(other) == LOCKED);
    EXPECT(ILLEGAL_STATE, on.lock(other, NULL));
    EXPECT(ILLEGAL_STATE, on.restore(other, NULL));
    send_byte(to, 'x');
    expect_byte(from, 'c');
    HOLDS(is_silent(from));
    COMES_TRUE(available() == has);

    /* Custom storage is not supported. The memory and pending work go, and the process is on no
     * GPU. */
    EXPECT(CUDA_ERROR_NOT_SUPPORTED,
           on.checkpoint(other, &(struct checkpoint_args){.custom = &tid}));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           on.checkpoint(other, &(struct checkpoint_args){.reserved = {1}}));
    CHECK(on.checkpoint(other, NULL));
    HOLDS(state_of(other) == CHECKPOINTED);
    COMES_TRUE(available() == before);
    EXPECT(ILLEGAL_STATE, on.checkpoint(other, NULL));
    EXPECT(ILLEGAL_STATE, on.unlock(other, NULL));
    EXPECT(ILLEGAL_STATE, on.lock(other, NULL));
    HOLDS(is_silent(from));

    /* Without room it stays checkpointed. Mappings that do not name all GPUs, or unknown ones,
     * are refused. */
    CHECK(cu.cuMemAlloc(&greedy, available() - 300 * MIB));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, on.restore(other, NULL));
    HOLDS(state_of(other) == CHECKPOINTED);
    CHECK(cu.cuMemFree(greedy));
    struct pair pairs[2] = {0};
    CUresult (*uuid)(void *, CUdevice);
    *(void **)&uuid = driver_symbol("cuDeviceGetUuid_v2");
    CHECK(uuid(pairs[0].old, 1));
    CHECK(uuid(pairs[0].new, 1));
    restore = (struct restore_args){.pairs = pairs, .count = 1};
    EXPECT(CUDA_ERROR_INVALID_VALUE, on.restore(other, &restore)); /* it was on the other GPU */
    CHECK(uuid(pairs[0].old, 0));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, on.restore(other, &restore)); /* migration is not simulated */
    memset(pairs[0].new, 7, 16);
    EXPECT(elsewhere, on.restore(other, &restore));
    restore.padding = 1;
    EXPECT(elsewhere, on.restore(other, &restore));
    restore.padding = 0;
    CHECK(uuid(pairs[0].new, 0));
    CHECK(on.restore(other, &restore));
    HOLDS(state_of(other) == LOCKED);
    COMES_TRUE(available() == has);
    HOLDS(is_silent(from));
    CHECK(on.unlock(other, NULL));
    HOLDS(state_of(other) == RUNNING);
    expect_byte(from, 'a');
    COMES_TRUE(available() == has);

    /* Exportable memory cannot be checkpointed; the process continues. */
    send_byte(to, 'i');
    expect_byte(from, 'i');
    CHECK(on.lock(other, NULL));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, on.checkpoint(other, NULL));
    HOLDS(state_of(other) == LOCKED && available() == has);
    CHECK(on.unlock(other, NULL));
    send_byte(to, 'x');
    expect_byte(from, 'c');
    expect_byte(from, 'a');
}

/* A checkpointed process is killed: it has nothing on the GPU to release. */
static void death(int other, int from, size_t before) {
    int state;
    expect_byte(from, 'r');
    CHECK(on.lock(other, NULL));
    CHECK(on.checkpoint(other, NULL));
    COMES_TRUE(available() == before);
    HOLDS(kill(other, SIGKILL) == 0 && waitpid(other, NULL, 0) == other);
    usleep(200000);
    COMES_TRUE(available() == before);
    EXPECT(CUDA_ERROR_INVALID_VALUE, on.state(other, &state));
}

static volatile int returned;

static void *caller(void *context) {
    CUdeviceptr memory;
    CHECK(cu.cuCtxSetCurrent(context));
    CHECK(cu.cuMemAlloc(&memory, MIB));
    CHECK(cu.cuMemFree(memory));
    returned = 1;
    return NULL;
}

/* A process locks itself: its other threads block. */
static void own_checkpoint(CUcontext context) {
    pthread_t thread;
    int me = getpid();
    CHECK(on.lock(me, NULL));
    HOLDS(pthread_create(&thread, NULL, caller, context) == 0);
    CHECK(on.checkpoint(me, NULL));
    usleep(20000);
    HOLDS(!returned && state_of(me) == CHECKPOINTED);
    CHECK(on.restore(me, NULL));
    HOLDS(!returned);
    CHECK(on.unlock(me, NULL));
    HOLDS(pthread_join(thread, NULL) == 0 && returned);
}

static pid_t start(int to[2], int from[2]) {
    HOLDS(pipe(to) == 0 && pipe(from) == 0);
    pid_t other = fork();
    HOLDS(other >= 0);
    if (other == 0) {
        char go;
        close(to[1]), close(from[0]);
        HOLDS(read(to[0], &go, 1) == 1);
        _exit(checkpointed_process(to[0], from[1]));
    }
    close(to[0]), close(from[1]);
    return other;
}

int main(int count, char **arguments) {
    int to[2][2], from[2][2], status, state;
    watchdog(100);
    watched_by(count, arguments);
    pid_t others[2] = {start(to[0], from[0]), 0};
    others[1] = start(to[1], from[1]);
    driver_load();
    find();
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           on.state(getpid(), &state)); /* the driver is not initialised yet */
    CUcontext context = driver_open();
    HOLDS(state_of(getpid()) == RUNNING);
    size_t before = available();
    send_byte(to[0][1], 'g');
    another(others[0], to[0][1], from[0][0], before);
    send_byte(to[0][1], 'q');
    HOLDS(waitpid(others[0], &status, 0) == others[0] && status == 0);
    usleep(200000);
    COMES_TRUE(available() == before);
    send_byte(to[1][1], 'g');
    death(others[1], from[1][0], before);
    own_checkpoint(context);
    COMES_TRUE(available() == before);
    printf("{\"checkpoints\": 3}\n");
    return 0;
}
