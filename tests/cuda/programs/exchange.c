/* SPDX-License-Identifier: Apache-2.0
 *
 * exchange - one piece of memory and three processes. A creates it and passes it to B and C by ipc,
 * descriptor or pool (the first argument). Then they release it in the order of the second
 * argument: properly (a b c), or by being killed (A B C). A fourth process observes: at every
 * instant the ledger has at least what the driver has, and in the end the same. An exporter by
 * descriptor may stay charged (the third argument: kept). Prints what stays charged.
 */
#include "ledger.h"
#include "descriptors.h"

#include <signal.h>
#include <sys/wait.h>

#define PIECE (64 * MIB)

struct handle {
    char bytes[64];
};

enum { LAZY = 1 };

static const struct allocation shareable = {
    .kind = PINNED, .handle_types = DESCRIPTOR, .location = {DEVICE, 0}};
static const struct pool_properties pooled = {
    .kind = PINNED, .handle_types = DESCRIPTOR, .location = {DEVICE, 0}};

static char way; /* i, d or p */
static int line; /* to the observer */

static void send_bytes(int to, const void *bytes, size_t count) {
    HOLDS(write(to, bytes, count) == (ssize_t)count);
}

static void receive_bytes(int from, void *bytes, size_t count) {
    HOLDS(recv(from, bytes, count, MSG_WAITALL) == (ssize_t)count);
}

static void expect_byte(int from, char word) {
    char heard = 0;
    receive_bytes(from, &heard, 1);
    if (heard != word) FAIL("heard %c, not %c", heard, word);
}

/* What a process has of the piece. */
static struct {
    CUdeviceptr address;
    uint64_t handle;
    void *pool;
} mine;

static void make(void) {
    FUNCTION(get, cuIpcGetMemHandle, (struct handle *, CUdeviceptr));
    FUNCTION(export_handle, cuMemExportToShareableHandle, (void *, uint64_t, int, uint64_t));
    FUNCTION(pool_create, cuMemPoolCreate, (void **, const struct pool_properties *));
    FUNCTION(pool_export, cuMemPoolExportToShareableHandle, (void *, void *, int, uint64_t));
    FUNCTION(pool_point, cuMemPoolExportPointer, (struct handle *, CUdeviceptr));
    FUNCTION(allocate_from, cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, void *, CUstream));
    struct handle handle = {{0}};
    int descriptor = -1;
    if (way == 'i') {
        CHECK(cu.cuMemAlloc(&mine.address, PIECE));
        CHECK(get(&handle, mine.address + 4096));
    } else if (way == 'd') {
        CHECK(vm.create(&mine.handle, PIECE, &shareable, 0));
        CHECK(export_handle(&descriptor, mine.handle, DESCRIPTOR, 0));
    } else {
        CHECK(pool_create(&mine.pool, &pooled));
        CHECK(allocate_from(&mine.address, PIECE, mine.pool, NULL));
        CHECK(cu.cuCtxSynchronize());
        CHECK(pool_export(&descriptor, mine.pool, DESCRIPTOR, 0));
        CHECK(pool_point(&handle, mine.address));
    }
    send_bytes(line, &handle, sizeof handle);
    if (way != 'i') {
        send_descriptor(line, descriptor);
        HOLDS(close(descriptor) == 0);
    }
}

static void hold(void) {
    FUNCTION(open, cuIpcOpenMemHandle_v2, (CUdeviceptr *, struct handle, unsigned));
    FUNCTION(import, cuMemImportFromShareableHandle, (uint64_t *, void *, int));
    FUNCTION(pool_import, cuMemPoolImportFromShareableHandle, (void **, void *, int, uint64_t));
    FUNCTION(pool_point, cuMemPoolImportPointer, (CUdeviceptr *, void *, struct handle *));
    struct handle handle;
    int descriptor = -1;
    receive_bytes(line, &handle, sizeof handle);
    if (way != 'i') descriptor = receive_descriptor(line);
    void *shared = (void *)(intptr_t)descriptor;
    if (way == 'i') {
        CHECK(open(&mine.address, handle, LAZY));
    } else if (way == 'd') {
        CHECK(import(&mine.handle, shared, DESCRIPTOR));
    } else {
        CHECK(pool_import(&mine.pool, shared, DESCRIPTOR, 0));
        CHECK(pool_point(&mine.address, mine.pool, &handle));
    }
    if (descriptor >= 0) HOLDS(close(descriptor) == 0);
}

static void let_go(int is_maker) {
    FUNCTION(close_handle, cuIpcCloseMemHandle, (CUdeviceptr));
    FUNCTION(pool_destroy, cuMemPoolDestroy, (void *));
    FUNCTION(free_async, cuMemFreeAsync, (CUdeviceptr, CUstream));
    if (way == 'i') {
        CHECK(is_maker ? cu.cuMemFree(mine.address) : close_handle(mine.address));
    } else if (way == 'd') {
        CHECK(vm.release(mine.handle));
    } else {
        CHECK(free_async(mine.address, NULL));
        CHECK(cu.cuCtxSynchronize());
        CHECK(pool_destroy(mine.pool));
    }
    CHECK(cu.cuCtxSynchronize());
}

/* Process A, B or C, which performs commands. */
static int actor(void) {
    for (;;) {
        char word;
        receive_bytes(line, &word, 1);
        switch (word) {
        case 'O':
            driver_open();
            ledger_open();
            break;
        case 'M': make(); break;
        case 'H': hold(); break;
        case 'L': let_go(0); break;
        case 'F': let_go(1); break;
        case 'S':
            free_shown();
            break; /* a later query notices that no process has the released memory open */
        default: return 0;
        }
        send_bytes(line, &word, 1);
    }
}

static int lines[3];
static pid_t actors[3];

static void send_byte(int which, char word) { send_bytes(lines[which], &word, 1); }

static void have_done(int which, char word) {
    send_byte(which, word);
    expect_byte(lines[which], word);
}

/* Requires that in the end the ledger has what the driver has, or `kept` more, and on the way
 * never less. Returns how much more. */
static long long agree(size_t kept) {
    for (int looks = 0;; looks++) {
        CUdeviceptr none;
        /* A refused charge reclaims exited processes. A monitor only reads a ledger that is at
         * rest. */
        if (looks % (looks < 200 ? 10 : 500) == 0)
            EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemAlloc(&none, (size_t)100 << 30));
        long long says = (long long)shown(), has = (long long)truth();
        if (says < has) FAIL("the ledger has %lld, the driver %lld", says, has);
        if (says == has || says == has + (long long)kept) return says - has;
        if (looks == 2000) FAIL("the ledger still has %lld, the driver %lld", says, has);
        sleep_seconds(0.01);
    }
}

int main(int count, char **arguments) {
    watchdog(100);
    if (count < 3) return 2;
    way = arguments[1][0];
    size_t kept = count > 3 && strcmp(arguments[3], "kept") == 0 ? PIECE : 0;
    for (int which = 0; which < 3; which++) {
        int pair[2];
        HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        actors[which] = fork();
        HOLDS(actors[which] >= 0);
        if (actors[which] == 0) {
            watchdog(100);
            close(pair[0]);
            line = pair[1];
            return actor();
        }
        close(pair[1]);
        lines[which] = pair[0];
    }
    driver_open();
    for (int which = 0; which < 3; which++) have_done(which, 'O');
    ledger_open();

    struct handle handle;
    int descriptor = -1;
    send_byte(0, 'M');
    receive_bytes(lines[0], &handle, sizeof handle);
    if (way != 'i') descriptor = receive_descriptor(lines[0]);
    expect_byte(lines[0], 'M');
    agree(0);
    size_t made = truth();
    HOLDS(made >= PIECE);
    for (int which = 1; which < 3; which++) {
        send_byte(which, 'H');
        send_bytes(lines[which], &handle, sizeof handle);
        if (way != 'i') send_descriptor(lines[which], descriptor);
        expect_byte(lines[which], 'H');
        agree(0);
        HOLDS(truth() == made); /* an import takes no memory */
    }
    if (descriptor >= 0) HOLDS(close(descriptor) == 0);

    for (const char *step = arguments[2]; *step; step++) {
        int which = (*step | 32) - 'a', status;
        HOLDS(which >= 0 && which < 3);
        if (*step >= 'a') {
            have_done(which, which == 0 ? 'F' : 'L');
        } else {
            HOLDS(kill(actors[which], SIGKILL) == 0);
            HOLDS(waitpid(actors[which], &status, 0) == actors[which]);
            actors[which] = 0;
        }
        if (actors[0]) have_done(0, 'S');
        agree(kept);
    }
    /* The memory is gone. What the ledger does not know must be what it was allowed to keep. */
    for (int which = 0; which < 3; which++) {
        int status;
        if (actors[which] == 0) continue;
        send_byte(which, 'E');
        HOLDS(waitpid(actors[which], &status, 0) == actors[which] && status == 0);
    }
    for (int looks = 0; truth() > 0 && (long long)truth() > 0; looks++) {
        if (looks == 1000) FAIL("the driver still has %zu", truth());
        sleep_seconds(0.01);
    }
    /* Not the two figures: the memory of exited contexts still drains. */
    printf("{\"charged\": %lld}\n", agree(kept));
    return 0;
}
