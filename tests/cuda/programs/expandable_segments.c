/* SPDX-License-Identifier: Apache-2.0
 *
 * expandable_segments - a caching allocator as in frameworks: addresses for the whole GPU are
 * reserved, pieces of 2 MiB are mapped as needed and unmapped when memory is short, and a failed
 * allocation is then tried again. In the end the memory shown as used is that of its own list.
 * Prints the maximum number of pieces. With "hold" it prints that with all pieces mapped, and
 * stays.
 */
#include "ledger.h"

static struct {
    CUdeviceptr base;
    size_t pieces, mapped;
    uint64_t *handle; /* 0: not mapped */
} segment;

static void open_segment(void) {
    segment.pieces = (free_shown() + 64 * MIB) / GRANULE;
    segment.base = reserve(segment.pieces * GRANULE);
    segment.handle = calloc(segment.pieces, sizeof *segment.handle);
    HOLDS(segment.handle);
}

static CUdeviceptr address_of(size_t piece) { return segment.base + piece * GRANULE; }

static CUresult map_piece(size_t piece) {
    uint64_t handle;
    CUresult result = vm.create(&handle, GRANULE, &on_the_gpu, 0);
    if (result != CUDA_SUCCESS) return result;
    CHECK(vm.map(address_of(piece), GRANULE, 0, handle, 0));
    let_in(address_of(piece), GRANULE);
    segment.handle[piece] = handle;
    segment.mapped++;
    return CUDA_SUCCESS;
}

/* Maps pieces from the start and returns how many. */
static size_t grow(CUresult *end) {
    size_t piece = 0;
    *end = CUDA_SUCCESS;
    for (; piece < segment.pieces && *end == CUDA_SUCCESS; piece++)
        if (!segment.handle[piece]) *end = map_piece(piece);
    return piece;
}

/* Unmaps a run of pieces at once and releases each. */
static void shrink(size_t first, size_t count) {
    CHECK(vm.unmap(address_of(first), count * GRANULE));
    for (size_t piece = first; piece < first + count; piece++) {
        CHECK(vm.release(segment.handle[piece]));
        segment.handle[piece] = 0;
        segment.mapped--;
    }
}

int main(int argc, char **argv) {
    CUresult end;
    CUdeviceptr plain;
    size_t most;
    watchdog(100);
    driver_open();
    ledger_open();
    open_segment();

    grow(&end);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, end);
    most = segment.mapped;
    TAKEN(most * GRANULE);
    HOLDS(most > 8 && most < segment.pieces);
    if (argc > 1 && strcmp(argv[1], "hold") == 0) {
        printf("{\"pieces\": %zu}\n", most);
        fflush(stdout);
        for (;;) pause();
    }
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemAlloc(&plain, 64 * MIB));
    CHECK(cu.cuMemsetD8(address_of(most / 2 - 1), 1, 2 * GRANULE)); /* across two pieces */
    CHECK(cu.cuCtxSynchronize());

    /* Releases the upper half in runs; then the failed allocation fits. */
    for (size_t piece = most / 2; piece < most; piece += 4)
        shrink(piece, most - piece < 4 ? most - piece : 4);
    TAKEN(most / 2 * GRANULE);
    CHECK(cu.cuMemAlloc(&plain, 64 * MIB < most / 4 * GRANULE ? 64 * MIB : GRANULE));
    CHECK(cu.cuMemFree(plain));
    TAKEN(most / 2 * GRANULE);
    grow(&end);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, end);
    HOLDS(segment.mapped == most);
    TAKEN(most * GRANULE);

    /* Holes, into which pieces are mapped in another order. */
    for (size_t piece = 0; piece < most; piece += 2) shrink(piece, 1);
    TAKEN(segment.mapped * GRANULE);
    for (size_t piece = most; piece-- > 0;)
        if (!segment.handle[piece]) CHECK(map_piece(piece));
    TAKEN(most * GRANULE);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, map_piece(most));

    shrink(0, most);
    TAKEN(0);
    CHECK(vm.unreserve(segment.base, segment.pieces * GRANULE));
    printf("{\"pieces\": %zu}\n", most);
    return 0;
}
