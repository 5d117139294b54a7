/* SPDX-License-Identifier: Apache-2.0
 *
 * launch_loop KERNEL (--count N | --seconds S) [--sync-every K] [--gap-us G] [--streams N]
 *     [--gpus N] - launches one kernel repeatedly.
 *
 *     --sync-every K  waits for the GPU after every K launches; 0 (default): only at the end
 *     --gap-us G      sleeps on the host after each such wait
 *     --streams N     uses N created streams instead of the default one
 *     --gpus N        launches it each time on N GPUs, in their default streams
 *
 * Prints one JSON object: kernel, launches, issued (seconds until the last launch returned),
 * seconds (until the last kernel is done), rate per second.
 */
#include "driver.h"

#define MAX_STREAMS 64
#define MAX_GPUS 16

static struct {
    CUcontext context;
    CUfunction function;
} gpu[MAX_GPUS];
static int gpus = 1;

static void synchronize(void) {
    for (int i = 0; i < gpus; i++) {
        CHECK(cu.cuCtxSetCurrent(gpu[i].context));
        CHECK(cu.cuCtxSynchronize());
    }
}

static int usage(void) {
    fprintf(stderr, "usage: launch_loop KERNEL (--count N | --seconds S) [--sync-every K] "
                    "[--gap-us G] [--streams N] [--gpus N]\n");
    return 2;
}

int main(int argc, char **argv) {
    if (argc < 4 || argc % 2 != 0) return usage();
    const char *kernel = argv[1];
    uint64_t count = 0, sync_every = 0;
    double seconds = 0, gap = 0;
    int streams = 0;
    for (int i = 2; i < argc; i += 2) {
        if (!strcmp(argv[i], "--count"))
            count = strtoull(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--seconds"))
            seconds = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--sync-every"))
            sync_every = strtoull(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--gap-us"))
            gap = atof(argv[i + 1]) * 1e-6;
        else if (!strcmp(argv[i], "--streams"))
            streams = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--gpus"))
            gpus = atoi(argv[i + 1]);
        else
            return usage();
    }
    if ((count == 0) == (seconds == 0) || streams < 0 || streams > MAX_STREAMS) return usage();
    if (gpus < 1 || gpus > MAX_GPUS || (gpus > 1 && streams > 0)) return usage();
    watchdog(120 + (unsigned)seconds);
    gpu[0].context = driver_open();
    gpu[0].function = driver_function(kernel);
    for (int i = 1; i < gpus; i++) {
        CHECK(cu.cuDevicePrimaryCtxRetain(&gpu[i].context, i));
        CHECK(cu.cuCtxSetCurrent(gpu[i].context));
        gpu[i].function = driver_function(kernel);
    }
    CHECK(cu.cuCtxSetCurrent(gpu[0].context));
    CUstream stream[MAX_STREAMS] = {NULL};
    for (int i = 0; i < streams; i++) CHECK(cu.cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));

    double start = seconds_now();
    uint64_t launches = 0;
    while (count ? launches < count : seconds_now() - start < seconds) {
        CUstream target = streams ? stream[launches % (uint64_t)streams] : NULL;
        for (int i = 0; i < gpus; i++) {
            if (gpus > 1) CHECK(cu.cuCtxSetCurrent(gpu[i].context));
            CHECK(cu.cuLaunchKernel(gpu[i].function, 1, 1, 1, 32, 1, 1, 0, target, NULL, NULL));
        }
        launches++;
        if (sync_every && launches % sync_every == 0) {
            synchronize();
            if (gap > 0) sleep_seconds(gap);
        }
    }
    double issued = seconds_now() - start;
    synchronize();
    double elapsed = seconds_now() - start;
    printf("{\"kernel\": \"%s\", \"launches\": %" PRIu64
           ", \"issued\": %.6f, \"seconds\": %.6f, \"rate\": %.1f}\n",
           kernel, launches, issued, elapsed, (double)launches / elapsed);
    return 0;
}
