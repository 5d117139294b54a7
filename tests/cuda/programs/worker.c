/* SPDX-License-Identifier: Apache-2.0
 *
 * worker [KERNEL_US [ITERATIONS]] - one process of a tenant, controlled by commands on standard
 * input, with one JSON object per answer.
 *
 *     info            the GPU as this process sees it, and whether managed memory is refused
 *     fill            allocates until the driver refuses: first 64 MiB at a time, then 2 MiB
 *     free            frees everything
 *     run SECONDS     launches kernels without a pause, two batches ahead of the GPU; prints how
 *                     many completed in that time, and the seconds until the last of them did
 *     serve SECONDS   serves requests of REQUEST kernels with a wait and REST_US of idle time after
 *                     each; prints how many
 *     quit
 *
 * Kernels take KERNEL_US (60) microseconds. ITERATIONS is the result of another worker's
 * calibration (see spin.h).
 */
#include "spin.h"

#define BATCH 32
#define BLOCKS 65536
#define REQUEST 64
#define REST_US 20000

static CUdeviceptr block[BLOCKS];
static size_t blocks;

static void info(const struct spin *spin) {
    size_t free_bytes, total_bytes, device_total;
    CUdevice device;
    char name[128] = "";
    int version = 0;
    CUdeviceptr managed;
    CHECK(cu.cuCtxGetDevice(&device));
    CHECK(cu.cuDeviceGetName(name, sizeof name, device));
    CHECK(cu.cuDeviceTotalMem(&device_total, device));
    CHECK(cu.cuMemGetInfo(&free_bytes, &total_bytes));
    CHECK(cu.cuDriverGetVersion(&version));
    CUresult result = cu.cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL);
    if (result == CUDA_SUCCESS) CHECK(cu.cuMemFree(managed));
    printf("{\"pid\": %d, \"gpu\": \"%s\", \"driver\": %d, \"device_total\": %zu, \"total\": %zu, "
           "\"free\": %zu, "
           "\"managed\": %d, \"iterations\": %" PRIu32 "}\n",
           (int)getpid(), name, version, device_total, total_bytes, free_bytes, result,
           spin->iterations);
}

static void fill(void) {
    static const size_t sizes[] = {(size_t)64 << 20, (size_t)2 << 20};
    size_t granted = 0;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < 2; i++) {
        while (blocks < BLOCKS &&
               (result = cu.cuMemAlloc(&block[blocks], sizes[i])) == CUDA_SUCCESS) {
            blocks++;
            granted += sizes[i];
        }
    }
    printf("{\"granted\": %zu, \"result\": %d}\n", granted, result);
}

static void give_back(void) {
    while (blocks) CHECK(cu.cuMemFree(block[--blocks]));
    printf("{\"freed\": true}\n");
}

static void run(const struct spin *spin, CUstream stream, double seconds) {
    CUevent event[2];
    uint64_t done = 0;
    double counted = 0;
    for (int i = 0; i < 2; i++)
        CHECK(cu.cuEventCreate(&event[i], CU_EVENT_DISABLE_TIMING | 1 /* blocking sync */));
    double start = seconds_now(), now = start;
    for (uint64_t batch = 0; now - start < seconds; batch++) {
        for (int i = 0; i < BATCH; i++) CHECK(spin_launch(spin, spin->iterations, stream));
        CHECK(cu.cuEventRecord(event[batch % 2], stream));
        if (batch > 0) {
            CHECK(cu.cuEventSynchronize(event[(batch - 1) % 2]));
            now = seconds_now();
            /* Work that completes later, as in a late turn, does not count. */
            if (now - start <= seconds) {
                done += BATCH;
                counted = now - start;
            }
        }
        now = seconds_now();
    }
    CHECK(cu.cuStreamSynchronize(stream));
    for (int i = 0; i < 2; i++) CHECK(cu.cuEventDestroy(event[i]));
    printf("{\"launches\": %" PRIu64 ", \"counted_seconds\": %.6f, \"seconds\": %.6f}\n", done,
           counted, now - start);
}

static void serve(const struct spin *spin, CUstream stream, double seconds) {
    uint64_t requests = 0;
    for (double start = seconds_now(); seconds_now() - start < seconds; requests++) {
        for (int i = 0; i < REQUEST; i++) CHECK(spin_launch(spin, spin->iterations, stream));
        CHECK(cu.cuStreamSynchronize(stream));
        usleep(REST_US);
    }
    printf("{\"requests\": %" PRIu64 "}\n", requests);
}

int main(int argc, char **argv) {
    unsigned us = argc > 1 ? (unsigned)atoi(argv[1]) : 60;
    uint32_t iterations = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    char line[128];
    CUstream stream;
    watchdog(600);
    driver_open();
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    struct spin spin = spin_open(us, iterations, stream);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("{\"ready\": true}\n");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "info"))
            info(&spin);
        else if (!strcmp(line, "fill"))
            fill();
        else if (!strcmp(line, "free"))
            give_back();
        else if (!strncmp(line, "run ", 4)) {
            watchdog(600 + (unsigned)atof(line + 4));
            run(&spin, stream, atof(line + 4));
        } else if (!strncmp(line, "serve ", 6)) {
            watchdog(600 + (unsigned)atof(line + 6));
            serve(&spin, stream, atof(line + 6));
        } else if (!strcmp(line, "quit"))
            return 0;
        else {
            fprintf(stderr, "worker: not a command: %s\n", line);
            return 2;
        }
    }
    return 0;
}
