/* SPDX-License-Identifier: Apache-2.0
 *
 * costs [ROUNDS] - measures what cgpu's design relies on, on the present driver. Prints one JSON
 * object (microseconds, bytes): medians of ROUNDS (1 to 7, the default).
 *
 *     launch_host_us          host time of one cuLaunchKernel of an empty kernel
 *     event_record_host_us    host time of one cuEventRecord, timing enabled
 *     event_record_gpu_us     GPU time that one record adds between two kernels
 *     memory_write_host_us    host time of one cuStreamWriteValue32; -1: not supported
 *     memory_write_gpu_us     GPU time that one write adds between two kernels
 *     memory_write_visible_us from the end of the work before it until the host sees the value
 *     switch_us               added to a launch and its wait by another context in between
 *     context_bytes           free memory that one more context takes
 *     kernel_us               one launch of a 60 us kernel, by events
 */
#include "spin.h"

#define COUNT 2000
#define ROUNDS 7

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[count / 2];
}

enum between { NOTHING, RECORD, WRITE };

struct cost {
    double host_us; /* of the operation in between, per call */
    double gpu_us;  /* of the whole sequence, per kernel */
};

/* Runs COUNT/10 short kernels with an operation after each. */
static struct cost row(const struct spin *spin, CUstream stream, enum between what,
                       CUdeviceptr word) {
    enum { LENGTH = COUNT / 10 };
    CUevent start, end, middle;
    float ms;
    double host = 0;
    CHECK(cu.cuEventCreate(&start, 0));
    CHECK(cu.cuEventCreate(&end, 0));
    CHECK(cu.cuEventCreate(&middle, 0));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(cu.cuEventRecord(start, stream));
    for (int i = 0; i < LENGTH; i++) {
        CHECK(spin_launch(spin, spin->iterations, stream));
        double before = seconds_now();
        if (what == RECORD) CHECK(cu.cuEventRecord(middle, stream));
        if (what == WRITE) CHECK(cu.cuStreamWriteValue32(stream, word, (uint32_t)i, 0));
        host += seconds_now() - before;
    }
    CHECK(cu.cuEventRecord(end, stream));
    CHECK(cu.cuEventSynchronize(end));
    CHECK(cu.cuEventElapsedTime(&ms, start, end));
    CHECK(cu.cuEventDestroy(start));
    CHECK(cu.cuEventDestroy(end));
    CHECK(cu.cuEventDestroy(middle));
    return (struct cost){host * 1e6 / LENGTH, (double)ms * 1e3 / LENGTH};
}

static double launch_host(const struct spin *spin, CUstream stream) {
    CHECK(cu.cuStreamSynchronize(stream));
    double start = seconds_now();
    for (int i = 0; i < COUNT / 10; i++) CHECK(spin_launch(spin, 0, stream));
    double us = (seconds_now() - start) * 1e6 / (COUNT / 10);
    CHECK(cu.cuStreamSynchronize(stream));
    return us;
}

static double write_visible(const struct spin *spin, CUstream stream, CUdeviceptr word,
                            volatile uint32_t *host) {
    CUevent done;
    double values[101];
    CHECK(cu.cuEventCreate(&done, 0));
    for (int i = 0; i < 101; i++) {
        *host = 0;
        CHECK(spin_launch(spin, spin->iterations, stream));
        CHECK(cu.cuEventRecord(done, stream));
        CHECK(cu.cuStreamWriteValue32(stream, word, 1, 0));
        CUresult result;
        while ((result = cu.cuEventQuery(done)) == CUDA_ERROR_NOT_READY) {}
        CHECK(result);
        double seen = seconds_now();
        while (*host == 0) {}
        values[i] = (seconds_now() - seen) * 1e6;
        CHECK(cu.cuStreamSynchronize(stream));
    }
    CHECK(cu.cuEventDestroy(done));
    return median(values, 101);
}

/* Launches and waits, alternately in two contexts or in one. */
static double ping_pong(CUcontext *context, struct spin *spin, CUstream *stream, int other) {
    double start = seconds_now();
    for (int i = 0; i < COUNT / 4; i++) {
        int which = other ? i % 2 : 0;
        CHECK(cu.cuCtxSetCurrent(context[which]));
        CHECK(spin_launch(&spin[which], spin[which].iterations, stream[which]));
        CHECK(cu.cuStreamSynchronize(stream[which]));
    }
    return (seconds_now() - start) * 1e6 / (COUNT / 4);
}

int main(int argc, char **argv) {
    CUdevice device;
    CUcontext context[2];
    CUstream stream[2];
    struct spin spin[2];
    size_t before, after, total;
    void *host;
    CUdeviceptr word;
    double values[3][ROUNDS];
    int rounds = argc > 1 ? atoi(argv[1]) : ROUNDS;
    if (rounds < 1 || rounds > ROUNDS) {
        fprintf(stderr, "usage: costs [ROUNDS]\n");
        return 2;
    }
    watchdog(300);
    context[0] = driver_open();
    CHECK(cu.cuCtxGetDevice(&device));
    CHECK(cu.cuStreamCreate(&stream[0], CU_STREAM_NON_BLOCKING));
    spin[0] = spin_open(60, 0, stream[0]);
    double kernel_us = (double)spin_measure(&spin[0], spin[0].iterations, stream[0]) * 1e3;

    CHECK(cu.cuMemHostAlloc(&host, 4096, 2 /* mapped */));
    CHECK(cu.cuMemHostGetDevicePointer(&word, host, 0));
    int writes = cu.cuStreamWriteValue32(stream[0], word, 7, 0) == CUDA_SUCCESS;
    CHECK(cu.cuStreamSynchronize(stream[0]));

    struct spin brief = spin[0];
    brief.iterations = brief.iterations / 12 + 1; /* about 5 us */
    double launch_us[ROUNDS], record_host[ROUNDS], record_gpu[ROUNDS], write_host[ROUNDS],
        write_gpu[ROUNDS];
    for (int i = 0; i < rounds; i++) {
        launch_us[i] = launch_host(&brief, stream[0]);
        struct cost bare = row(&brief, stream[0], NOTHING, word);
        struct cost record = row(&brief, stream[0], RECORD, word);
        record_host[i] = record.host_us - bare.host_us;
        record_gpu[i] = record.gpu_us - bare.gpu_us;
        if (writes) {
            struct cost write = row(&brief, stream[0], WRITE, word);
            write_host[i] = write.host_us - bare.host_us;
            write_gpu[i] = write.gpu_us - bare.gpu_us;
        }
    }

    CHECK(cu.cuMemGetInfo(&before, &total));
    CHECK(cu.cuCtxCreate(&context[1], 0, device));
    CHECK(cu.cuStreamCreate(&stream[1], CU_STREAM_NON_BLOCKING));
    CHECK(cu.cuMemGetInfo(&after, &total));
    spin[1] = spin_open(60, spin[0].iterations, stream[1]);
    for (int i = 0; i < rounds; i++) {
        values[0][i] = ping_pong(context, spin, stream, 0);
        values[1][i] = ping_pong(context, spin, stream, 1);
        values[2][i] = values[1][i] - values[0][i];
    }
    CHECK(cu.cuCtxSetCurrent(context[0]));
    printf(
        "{\"launch_host_us\": %.3f, \"event_record_host_us\": %.3f, \"event_record_gpu_us\": %.3f, "
        "\"memory_write_host_us\": %.3f, \"memory_write_gpu_us\": %.3f, "
        "\"memory_write_visible_us\": %.3f, "
        "\"switch_us\": %.3f, \"context_bytes\": %zu, \"kernel_us\": %.3f, \"iterations_60us\": "
        "%" PRIu32 "}\n",
        median(launch_us, rounds), median(record_host, rounds), median(record_gpu, rounds),
        writes ? median(write_host, rounds) : -1.0, writes ? median(write_gpu, rounds) : -1.0,
        writes ? write_visible(&spin[0], stream[0], word, host) : -1.0, median(values[2], rounds),
        before - after, kernel_us, spin[0].iterations);
    return 0;
}
