/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint_memory - checks that a checkpointed process returns its memory, and is restored only
 * if all of it fits, even if other processes took memory meanwhile. A process that is killed while
 * it is checkpointed leaves nothing. One process works, another one checkpoints it, and itself.
 * After each step the ledger agrees with the driver.
 */
#include "ledger.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define LINEAR (400 * MIB)
#define PIECE (64 * MIB)

enum { LOCKED = 1, CHECKPOINTED = 2 };

static struct {
    CUresult (*lock)(int pid, void *args);
    CUresult (*checkpoint)(int pid, void *args);
    CUresult (*restore)(int pid, void *args);
    CUresult (*unlock)(int pid, void *args);
    CUresult (*state)(int pid, int *state);
} on;

static void find(void) {
    *(void **)&on.lock = driver_symbol("cuCheckpointProcessLock");
    *(void **)&on.checkpoint = driver_symbol("cuCheckpointProcessCheckpoint");
    *(void **)&on.restore = driver_symbol("cuCheckpointProcessRestore");
    *(void **)&on.unlock = driver_symbol("cuCheckpointProcessUnlock");
    *(void **)&on.state = driver_symbol("cuCheckpointProcessGetState");
}

static void expect_byte(int from, char what) {
    char byte = 0;
    HOLDS(read(from, &byte, 1) == 1);
    if (byte != what) FAIL("heard %c, not %c", byte, what);
}

static void send_byte(int to, char what) { HOLDS(write(to, &what, 1) == 1); }

/* Performs commands: holds linear memory and a mapped piece, frees and allocates the piece,
 * allocates all there is and frees that. */
static int worker(int line) {
    CUdeviceptr linear, range = 0, brief, filled[1024];
    uint64_t handle;
    size_t count = 0;
    char word;
    while (read(line, &word, 1) == 1) {
        switch (word) {
        case 'O':
            driver_open();
            ledger_open();
            break;
        case 'L': CHECK(cu.cuMemAlloc(&linear, LINEAR)); break;
        case 'P':
            CHECK(vm.create(&handle, PIECE, &on_the_gpu, 0));
            range = reserve(PIECE);
            CHECK(vm.map(range, PIECE, 0, handle, 0));
            CHECK(vm.release(handle));
            let_in(range, PIECE);
            CHECK(cu.cuMemsetD32(range, 77, 1));
            CHECK(cu.cuCtxSynchronize());
            break;
        case 'U': {
            unsigned back = 0;
            CHECK(cu.cuMemcpyDtoH(&back, range, sizeof back));
            HOLDS(back == 77);
            CHECK(vm.unmap(range, PIECE));
            CHECK(vm.unreserve(range, PIECE));
            break;
        }
        case 'B': /* blocks in the call while it is locked */
            send_byte(line, 'b');
            CHECK(cu.cuMemAlloc(&brief, 10 * MIB));
            CHECK(cu.cuMemFree(brief));
            break;
        case 'F':
            while (cu.cuMemAlloc(&filled[count], PIECE) == CUDA_SUCCESS) count++;
            HOLDS(count > 0);
            break;
        case 'E':
            while (count > 0) CHECK(cu.cuMemFree(filled[--count]));
            break;
        default: return 0;
        }
        send_byte(line, word);
    }
    return 1;
}

static pid_t start(int *line) {
    int pair[2];
    HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t other = fork();
    HOLDS(other >= 0);
    if (other == 0) {
        watchdog(60);
        close(pair[0]);
        _exit(worker(pair[1]));
    }
    close(pair[1]);
    *line = pair[0];
    return other;
}

static void have_done(int line, char word) {
    send_byte(line, word);
    expect_byte(line, word);
}

static int state_of(int pid) {
    int state = -1;
    CHECK(on.state(pid, &state));
    return state;
}

/* Returns what all processes have together; the ledger must agree. */
static size_t agreed(void) {
    size_t has = truth();
    TAKEN(has);
    return has;
}

static void send_away(int pid) {
    CHECK(on.lock(pid, NULL));
    CHECK(on.checkpoint(pid, NULL));
    HOLDS(state_of(pid) == CHECKPOINTED);
}

static void fetch_back(int pid) {
    CHECK(on.restore(pid, NULL));
    HOLDS(state_of(pid) == LOCKED);
    CHECK(on.unlock(pid, NULL));
}

static void another(int other, int line) {
    CUdeviceptr greedy;
    have_done(line, 'O');
    have_done(line, 'L');
    have_done(line, 'P');
    size_t has = agreed();
    HOLDS(has >= LINEAR + PIECE);
    HOLDS(on.restore(other, NULL) !=
          /* the process is not checkpointed: a refused call must not reduce its charge */
          CUDA_SUCCESS);
    TAKEN(has);
    HOLDS(on.checkpoint(other, NULL) != CUDA_SUCCESS);
    TAKEN(has);
    CHECK(on.lock(other, NULL));
    TAKEN(has);
    CHECK(on.checkpoint(other, NULL));
    TAKEN(0);

    /* The returned memory is free for others. If they take slightly too much, the restore does
     * not fit. */
    size_t room = (free_shown() - has) / GRANULE * GRANULE + 2 * GRANULE;
    CHECK(cu.cuMemAlloc(&greedy, room));
    for (int i = 0; i < 3; i++) {
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, on.restore(other, NULL));
        HOLDS(state_of(other) == CHECKPOINTED);
        TAKEN(room);
    }
    CHECK(cu.cuMemFree(greedy));
    TAKEN(0);
    fetch_back(other);
    TAKEN(has);

    /* The process continues as before. */
    have_done(line, 'U');
    TAKEN(has - PIECE);
    have_done(line, 'P');
    TAKEN(has);
    for (int i = 0; i < 3; i++) {
        send_away(other);
        TAKEN(0);
        fetch_back(other);
        TAKEN(has);
    }

    /* A call blocks meanwhile. Its allocation may be charged already. */
    CHECK(on.lock(other, NULL));
    send_byte(line, 'B');
    expect_byte(line, 'b');
    usleep(20000);
    HOLDS(truth() == has && (shown() == has || shown() == has + 10 * MIB));
    CHECK(on.checkpoint(other, NULL));
    TAKEN(0);
    fetch_back(other);
    expect_byte(line, 'B');
    TAKEN(has);
}

/* A checkpointed process is killed: nothing of it is restored, and its slot is reused. */
static void death(int other, int line) {
    send_away(other);
    TAKEN(0);
    HOLDS(kill(other, SIGKILL) == 0 && waitpid(other, NULL, 0) == other);
    close(line);
    for (int looks = 0; looks < 20; looks++) {
        TAKEN(0);
        usleep(50000);
    }
    HOLDS(on.restore(other, NULL) != CUDA_SUCCESS);
    TAKEN(0);
}

/* The process checkpoints itself. Another one takes the memory before the restore. */
static void own_checkpoint(int other, int line) {
    CUdeviceptr memory;
    int me = getpid();
    have_done(line, 'O');
    CHECK(cu.cuMemAlloc(&memory, PIECE));
    size_t has = agreed();
    HOLDS(on.restore(me, NULL) != CUDA_SUCCESS);
    TAKEN(has);
    send_away(me);
    have_done(line, 'F');
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, on.restore(me, NULL));
    HOLDS(state_of(me) == CHECKPOINTED);
    have_done(line, 'E');
    fetch_back(me);
    TAKEN(has);
    CHECK(cu.cuMemFree(memory));
    TAKEN(has - PIECE);
    send_byte(line, 'X');
    HOLDS(waitpid(other, NULL, 0) == other);
}

int main(void) {
    int lines[2];
    watchdog(60);
    pid_t others[2] = {start(&lines[0]), start(&lines[1])};
    driver_open();
    find();
    ledger_open();
    another(others[0], lines[0]);
    death(others[0], lines[0]);
    own_checkpoint(others[1], lines[1]);
    printf("{\"away\": true}\n");
    return 0;
}
