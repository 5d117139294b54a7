/* SPDX-License-Identifier: Apache-2.0
 *
 * exported - checks that exported memory stays charged to its maker, even when it has released it
 * and others hold it: exporting, importing and releasing must not give free memory. In one process,
 * and between two. Prints what stayed charged.
 */
#include "ledger.h"
#include "descriptors.h"

#include <sys/wait.h>

#define PIECE (64 * MIB)

static CUresult (*export_handle)(void *descriptor, uint64_t handle, int kind, uint64_t flags);
static CUresult (*import_handle)(uint64_t *handle, void *descriptor, int kind);

static const struct allocation shareable = {
    .kind = PINNED, .handle_types = DESCRIPTOR, .location = {DEVICE, 0}};

static void look_up(void) {
    *(void **)&export_handle = driver_symbol("cuMemExportToShareableHandle");
    *(void **)&import_handle = driver_symbol("cuMemImportFromShareableHandle");
}

static int export(uint64_t handle) {
    int descriptor = -1;
    CHECK(export_handle(&descriptor, handle, DESCRIPTOR, 0));
    return descriptor;
}

static uint64_t import(int descriptor) {
    uint64_t handle;
    CHECK(import_handle(&handle, (void *)(intptr_t)descriptor, DESCRIPTOR));
    return handle;
}

static void send_byte(int line, char word) { HOLDS(write(line, &word, 1) == 1); }

static void expect_byte(int line, char word) {
    char heard = 0;
    HOLDS(read(line, &heard, 1) == 1 && heard == word);
}

/* The importer, which is charged nothing for what it receives. */
static int importer(int line) {
    CUdeviceptr range;
    uint64_t handle;
    expect_byte(line, 'G'); /* contexts created one after another are measured exactly */
    driver_open();
    look_up();
    send_byte(line, 'R');
    int descriptor = receive_descriptor(line);
    ledger_open();
    handle = import(descriptor);
    range = reserve(PIECE);
    CHECK(vm.map(range, PIECE, 0, handle, 0));
    let_in(range, PIECE);
    CHECK(vm.release(handle));
    HOLDS(close(descriptor) == 0);
    TAKEN(0);
    send_byte(line, 'H');
    expect_byte(line, 'L'); /* the maker has released it */
    TAKEN(0);
    CHECK(cu.cuMemsetD8(range, 1, PIECE));
    CHECK(cu.cuCtxSynchronize());
    CHECK(vm.unmap(range, PIECE));
    CHECK(vm.unreserve(range, PIECE));
    send_byte(line, 'U');
    expect_byte(line, 'E');
    return 0;
}

static void between_two(int line) {
    uint64_t handle;
    int descriptor;
    CHECK(vm.create(&handle, PIECE, &shareable, 0));
    descriptor = export(handle);
    TAKEN(PIECE);
    send_descriptor(line, descriptor);
    HOLDS(close(descriptor) == 0);
    expect_byte(line, 'H');
    TAKEN(PIECE);
    CHECK(vm.release(handle));
    TAKEN(PIECE);
    send_byte(line, 'L');
    expect_byte(line, 'U');
    HOLDS(truth() == 0);
    HOLDS(shown() == 0 || shown() == PIECE); /* the end of an import is not reported to the maker */
    send_byte(line, 'E');
}

/* Holds at most `count` pieces only by imported handles. Returns how many. */
static size_t alone(size_t count) {
    uint64_t held[4096];
    size_t had = 0, kept = shown(), none = truth();
    for (; had < count; had++) {
        uint64_t handle;
        CUresult result = vm.create(&handle, PIECE, &shareable, 0);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) break;
        CHECK(result);
        int descriptor = export(handle);
        held[had] = import(descriptor);
        HOLDS(close(descriptor) == 0);
        CHECK(vm.release(handle));
        HOLDS(truth() - none == (had + 1) * PIECE);
        HOLDS(count == 4096 || shown() - kept == (had + 1) * PIECE);
    }
    for (size_t i = 0; i < had; i++) CHECK(vm.release(held[i]));
    HOLDS(truth() == none);
    return had;
}

int main(void) {
    int line[2], status;
    watchdog(100);
    HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, line) == 0);
    pid_t child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        watchdog(100);
        return importer(line[1]);
    }
    driver_open();
    look_up();
    send_byte(line[0], 'G');
    expect_byte(line[0], 'R'); /* the importer has its context */
    ledger_open();
    between_two(line[0]);
    ledger.shown = free_shown();
    HOLDS(alone(3) == 3);
    size_t kept = shown();
    HOLDS(waitpid(child, &status, 0) == child && status == 0);
    HOLDS(close(line[0]) == 0 && close(line[1]) == 0);
    /* the importer's context is released */
    while (free_in_truth() <= ledger.had) sleep_seconds(0.01);
    /* As much as there is and not more, over all rounds together with a monitor. */
    ledger.had = free_in_truth();
    size_t most = alone(4096), again = alone(4096);
    HOLDS(kept ? again == 0 : again == most);
    printf("{\"kept\": %zu, \"most\": %zu, \"limit\": %zu}\n", kept, most * PIECE, ledger.shown);
    return 0;
}
