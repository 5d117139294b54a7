/* SPDX-License-Identifier: Apache-2.0
 *
 * clock SECONDS PARTS - observations of the GPU's event clock beside the host's clocks, for an
 * estimate of its rate.
 *
 * Takes PARTS + 1 groups of observations, SECONDS / PARTS apart, on an otherwise idle GPU, and
 * prints one JSON object a line:
 *
 *     group           0 .. PARTS
 *     raw             CLOCK_MONOTONIC_RAW in ns, before the event was recorded and after it was
 *                     seen to be complete
 *     monotonic       the same of CLOCK_MONOTONIC, read outside of the former
 *     gpu_ms          from the first event of all to this one, as cuEventElapsedTime gives it
 *
 * The GPU took the event's time between the two readings of a host clock, so the width of an
 * observation bounds its error. That estimate is not made here: the observations stay in a log, and
 * a better estimator can use them again.
 */
#include "driver.h"

#define OBSERVATIONS 200

static int64_t nanoseconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void observe(int group, CUevent first, CUstream stream) {
    CUevent event;
    CUresult result;
    float ms;
    CHECK(cu.cuEventCreate(&event, 0));
    CHECK(cu.cuStreamSynchronize(stream));
    int64_t monotonic = nanoseconds(CLOCK_MONOTONIC), raw = nanoseconds(CLOCK_MONOTONIC_RAW);
    CHECK(cu.cuEventRecord(event, stream));
    while ((result = cu.cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {}
    int64_t raw_after = nanoseconds(CLOCK_MONOTONIC_RAW);
    int64_t monotonic_after = nanoseconds(CLOCK_MONOTONIC);
    CHECK(result);
    CHECK(cu.cuEventElapsedTime(&ms, first, event));
    CHECK(cu.cuEventDestroy(event));
    printf("{\"group\": %d, \"raw\": [%" PRId64 ", %" PRId64 "], \"monotonic\": [%" PRId64
           ", %" PRId64 "], \"gpu_ms\": %.9g}\n",
           group, raw, raw_after, monotonic, monotonic_after, (double)ms);
}

int main(int argc, char **argv) {
    double seconds = argc == 3 ? atof(argv[1]) : 0;
    int parts = argc == 3 ? atoi(argv[2]) : 0;
    CUstream stream;
    CUevent first;
    if (seconds <= 0 || parts < 1) {
        fprintf(stderr, "usage: clock SECONDS PARTS\n");
        return 2;
    }
    watchdog(60 + (unsigned)seconds);
    driver_open();
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cu.cuEventCreate(&first, 0));
    CHECK(cu.cuEventRecord(first, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    double start = seconds_now();
    for (int group = 0; group <= parts; group++) {
        double wait = start + seconds * group / parts - seconds_now();
        if (wait > 0) sleep_seconds(wait);
        for (int i = 0; i < OBSERVATIONS; i++) observe(group, first, stream);
        fflush(stdout);
    }
    return 0;
}
