/* SPDX-License-Identifier: Apache-2.0
 *
 * churn SEED [MAX] - allocates and frees at random, at most 64 live allocations of up to MAX bytes
 * (K, M, G; 256M), until standard input ends; then frees everything. Prints {"ready": PID} once it
 * works. Refusals with out of memory are expected; any other error makes it exit with 1. Prints one
 * JSON object: operations, refusals.
 */
#include "driver.h"

#include <poll.h>

static uint64_t state;

/* xorshift64*: the same sequence for the same seed. */
static uint64_t draw(void) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * UINT64_C(2685821657736338717);
}

int main(int argc, char **argv) {
    CUdeviceptr address[64] = {0};
    uint64_t operations = 0, refusals = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: churn SEED [MAX]\n");
        return 2;
    }
    state = strtoull(argv[1], NULL, 10) * 2 + 1;
    size_t most = argc > 2 ? parse_bytes(argv[2]) : (size_t)256 << 20;
    watchdog(300);
    driver_open();
    printf("{\"ready\": %d}\n", (int)getpid());
    fflush(stdout);
    for (struct pollfd input = {STDIN_FILENO, POLLIN, 0}; poll(&input, 1, 0) == 0; operations++) {
        CUdeviceptr *one = &address[draw() % 64];
        if (*one) {
            CHECK(cu.cuMemFree(*one));
            *one = 0;
            continue;
        }
        CUresult result = cu.cuMemAlloc(one, (size_t)(draw() % most) + 1);
        if (result == CUDA_SUCCESS) continue;
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, result);
        *one = 0;
        refusals++;
    }
    for (int i = 0; i < 64; i++) {
        if (address[i]) CHECK(cu.cuMemFree(address[i]));
    }
    printf("{\"operations\": %" PRIu64 ", \"refusals\": %" PRIu64 "}\n", operations, refusals);
    return 0;
}
