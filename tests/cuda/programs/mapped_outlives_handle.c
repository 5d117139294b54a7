/* SPDX-License-Identifier: Apache-2.0
 *
 * mapped_outlives_handle [BYTES] - checks that physical memory stays charged if its handle is
 * released while it is mapped (once 150 GiB were allocated so under a limit of 40 GiB). Maps pieces
 * of the given size (32M) and releases each handle until there is no memory. Memory is returned
 * only with the last mapping or handle, in any order. Prints the maximum that was allocated.
 */
#include "ledger.h"

enum { MOST = 1 << 14 };

static size_t fill(size_t piece) {
    CUdeviceptr at[MOST];
    uint64_t handle, again;
    size_t count = 0, most;
    CUresult result;

    for (; count < MOST; count++) {
        result = vm.create(&handle, piece, &on_the_gpu, 0);
        if (result != CUDA_SUCCESS) break;
        at[count] = reserve(piece);
        CHECK(vm.map(at[count], piece, 0, handle, 0));
        CHECK(vm.release(handle));
        if (count % 16 == 0) TAKEN((count + 1) * piece);
    }
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, result);
    most = truth();
    TAKEN(count * piece);
    HOLDS(free_shown() < piece);
    HOLDS(count > 1);

    /* Half of them stay alive by a handle that is retained by an inner address. */
    for (size_t i = 0; i < count; i++) {
        if (i % 2) {
            CHECK(vm.retain(&again, (void *)(uintptr_t)(at[i] + piece / 2)));
            CHECK(vm.unmap(at[i], piece));
            CHECK(vm.map(at[i], piece, 0, again, 0));
            CHECK(vm.release(again));
            if (i % 16 == 1) TAKEN((count - (i + 1) / 2) * piece);
        } else {
            CHECK(vm.unmap(at[i], piece));
        }
    }
    TAKEN(count / 2 * piece);
    for (size_t i = 0; i < count; i++) {
        if (i % 2) CHECK(vm.unmap(at[i], piece));
        CHECK(vm.unreserve(at[i], piece));
    }
    TAKEN(0);
    return most;
}

int main(int argc, char **argv) {
    size_t piece = argc > 1 ? parse_bytes(argv[1]) : 32 * MIB, most;
    watchdog(100);
    driver_open();
    ledger_open();
    most = fill(piece);
    HOLDS(fill(piece) == most);
    printf("{\"most\": %zu, \"limit\": %zu}\n", most, ledger.shown);
    return 0;
}
