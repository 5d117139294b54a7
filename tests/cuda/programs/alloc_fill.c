/* SPDX-License-Identifier: Apache-2.0
 *
 * alloc_fill CHUNK [ROUNDS] - fills the GPU with chunks until the driver refuses, frees everything,
 * and repeats that.
 *
 * CHUNK takes K, M, G. Each round must end with OUT_OF_MEMORY and grant as much as the first one.
 * After the last round an allocation must succeed. Prints one JSON object: granted bytes, chunks,
 * the error, and total and free by the driver before, when full, and afterwards.
 */
#include "driver.h"

struct fill {
    size_t chunks;
    CUresult error;
};

/* Allocates at most `room` chunks of `bytes` into `chunk`, until the first refusal. */
static struct fill fill_gpu(CUdeviceptr *chunk, size_t room, size_t bytes) {
    struct fill fill = {0, CUDA_SUCCESS};
    while (fill.chunks < room) {
        fill.error = cu.cuMemAlloc(&chunk[fill.chunks], bytes);
        if (fill.error != CUDA_SUCCESS) break;
        fill.chunks++;
    }
    return fill;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: alloc_fill CHUNK [ROUNDS]\n");
        return 2;
    }
    size_t bytes = parse_bytes(argv[1]);
    int rounds = argc > 2 ? atoi(argv[2]) : 2;
    watchdog(120);
    driver_open();

    size_t free_before, free_full, free_after, total;
    CHECK(cu.cuMemGetInfo(&free_before, &total));
    size_t room = total / bytes + 2;
    CUdeviceptr *chunk = calloc(room, sizeof *chunk);
    HOLDS(chunk != NULL);

    struct fill first = {0, CUDA_SUCCESS};
    for (int round = 0; round < rounds; round++) {
        struct fill fill = fill_gpu(chunk, room, bytes);
        HOLDS(fill.error == CUDA_ERROR_OUT_OF_MEMORY);
        CHECK(cu.cuMemGetInfo(&free_full, NULL));
        HOLDS(free_full < bytes);
        for (size_t i = 0; i < fill.chunks; i++) CHECK(cu.cuMemFree(chunk[i]));
        if (round == 0) first = fill;
        HOLDS(fill.chunks == first.chunks);
    }
    if (first.chunks > 0) {
        CHECK(cu.cuMemAlloc(&chunk[0], bytes));
        CHECK(cu.cuMemFree(chunk[0]));
    }
    CHECK(cu.cuMemGetInfo(&free_after, NULL));
    printf("{\"granted\": %zu, \"chunks\": %zu, \"error\": %d, \"total\": %zu, \"free_before\": "
           "%zu, \"free_full\": %zu, "
           "\"free_after\": %zu}\n",
           first.chunks * bytes, first.chunks, first.error, total, free_before, free_full,
           free_after);
    return 0;
}
