/* SPDX-License-Identifier: Apache-2.0
 *
 * steady KERNEL_US [ITERATIONS] - launches kernels without a pause and reports the completed ones
 * in each window of time. Controlled by commands on standard input, with one JSON object a line:
 *
 *     run SECONDS WINDOW SHAPES   launches for SECONDS, two batches ahead of the GPU, with the
 *                                 shapes 0 .. SHAPES - 1 in turn; prints from, to (CLOCK_MONOTONIC
 *                                 in s) and launches of each WINDOW, then done
 *     quit
 *
 * It begins with ready and iterations, which a second process takes as ITERATIONS instead of
 * calibrating beside the first one.
 *
 * Shapes differ in grid, block and shared memory, and take the same GPU time: at most one block a
 * multiprocessor, with at most one warp a scheduler, so that additional threads do not wait for
 * each other.
 */
#include "spin.h"

#define BATCH 32
#define EVENT_FLAGS (CU_EVENT_DISABLE_TIMING | 1 /* blocking sync */)
#define WARPS 4 /* of the largest block */
#define SHARED_STEP 512
#define SHARED_SIZES 96 /* up to 48 KiB, which every GPU grants without an opt-in */

static CUresult launch(const struct spin *spin, unsigned shape, CUstream stream) {
    uint32_t iterations = spin->iterations;
    CUdeviceptr sink = spin->sink;
    void *params[] = {&iterations, &sink};
    unsigned threads = 32 * (1 + shape % WARPS), blocks = 1 + shape / WARPS % spin->blocks;
    unsigned shared = SHARED_STEP * (shape / WARPS / spin->blocks);
    return cu.cuLaunchKernel(spin->function, blocks, 1, 1, threads, 1, 1, shared, stream, params,
                             NULL);
}

static void run(const struct spin *spin, CUstream stream, double seconds, double window,
                unsigned shapes) {
    CUevent event[2];
    unsigned shape = 0;
    uint64_t done = 0;
    for (int i = 0; i < 2; i++) CHECK(cu.cuEventCreate(&event[i], EVENT_FLAGS));
    double start = seconds_now(), from = start, now = start;
    for (uint64_t batch = 0; now - start < seconds; batch++) {
        for (int i = 0; i < BATCH; i++) {
            CHECK(launch(spin, shape, stream));
            shape = (shape + 1) % shapes;
        }
        CHECK(cu.cuEventRecord(event[batch % 2], stream));
        if (batch == 0) continue;
        CHECK(cu.cuEventSynchronize(event[(batch - 1) % 2]));
        now = seconds_now();
        done += BATCH;
        if (now - from >= window) {
            printf("{\"from\": %.6f, \"to\": %.6f, \"launches\": %" PRIu64 "}\n", from, now, done);
            from = now;
            done = 0;
        }
    }
    CHECK(cu.cuStreamSynchronize(stream));
    for (int i = 0; i < 2; i++) CHECK(cu.cuEventDestroy(event[i]));
    printf("{\"done\": true}\n");
}

int main(int argc, char **argv) {
    unsigned us = argc > 1 ? (unsigned)atoi(argv[1]) : 0, shapes;
    uint32_t iterations = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    double seconds, window;
    char name[32], line[128];
    CUdevice device;
    CUstream stream;
    int processors;
    if (us == 0) {
        fprintf(stderr, "usage: steady KERNEL_US [ITERATIONS]\n");
        return 2;
    }
    watchdog(600);
    driver_open();
    CHECK(cu.cuCtxGetDevice(&device));
    CHECK(cu.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    snprintf(name, sizeof name, "spin_%uus", us);
    struct spin spin = spin_named(name);
    spin.blocks = (unsigned)processors;
    spin.threads = 32 * WARPS;
    spin.iterations = iterations ? iterations : spin_iterations(&spin, us, stream);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("{\"ready\": true, \"iterations\": %" PRIu32 "}\n", spin.iterations);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "run %lf %lf %u", &seconds, &window, &shapes) == 3 && shapes > 0) {
            if (shapes > WARPS * spin.blocks * SHARED_SIZES) {
                FAIL("%u shapes are more than this GPU has", shapes);
            }
            watchdog(120 + (unsigned)seconds);
            run(&spin, stream, seconds, window, shapes);
            watchdog(600);
        } else if (!strcmp(line, "quit"))
            return 0;
        else {
            fprintf(stderr, "steady: not a command: %s\n", line);
            return 2;
        }
    }
    return 0;
}
