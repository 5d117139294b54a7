/* SPDX-License-Identifier: Apache-2.0
 *
 * race [--procs P] [--rounds R] [--fit K] - P processes compete for memory that only K of them can
 * have.
 *
 * Every process has its own context. The first one finds, alone, the size of an allocation of which
 * exactly K fit. In each round all allocate at once: exactly K must succeed, the others must get
 * OUT_OF_MEMORY, and when all have freed, no less memory must be free than before. So never more
 * than the GPU's size is granted, and no allocation that fits is refused. Defaults: 8 processes,
 * 1000 rounds, K = P / 2. Prints one JSON object.
 *
 * The processes are forked before the driver is opened, which does not survive a fork.
 */
#include "driver.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

struct arena {
    pthread_barrier_t barrier;
    size_t bytes;
    unsigned granted; /* of this round */
    unsigned wrong;   /* rounds in which a number other than K was granted */
    unsigned unfreed; /* rounds after which less memory was free than before */
};

static void wait_for_all(struct arena *arena) { pthread_barrier_wait(&arena->barrier); }

/* Finds a size of which `fit` allocations fit and `fit` + 1 do not, by filling the GPU. */
static size_t chunk_for(unsigned fit) {
    const size_t block = (size_t)2 << 20;
    size_t bytes = 0;
    for (;;) {
        CUdeviceptr address[64];
        unsigned granted = 0;
        if (bytes == 0) {
            size_t available;
            CHECK(cu.cuMemGetInfo(&available, NULL));
            bytes = available / fit / block * block;
            HOLDS(bytes > 0);
        }
        while (granted <= fit && cu.cuMemAlloc(&address[granted], bytes) == CUDA_SUCCESS) granted++;
        for (unsigned i = 0; i < granted; i++) CHECK(cu.cuMemFree(address[i]));
        if (granted == fit) return bytes;
        /* Too few: rounding. Too many: memory of former processes was released meanwhile. */
        bytes = granted < fit ? bytes - block : 0;
    }
}

static int run(struct arena *arena, int self, unsigned rounds, unsigned fit) {
    driver_open();
    wait_for_all(arena); /* every process has its context */
    if (self == 0) arena->bytes = chunk_for(fit);
    wait_for_all(arena);
    size_t before = 0, after = 0;
    if (self == 0) CHECK(cu.cuMemGetInfo(&before, NULL));
    for (unsigned round = 0; round < rounds; round++) {
        CUdeviceptr address = 0;
        wait_for_all(arena);
        CUresult result = cu.cuMemAlloc(&address, arena->bytes);
        if (result == CUDA_SUCCESS)
            __atomic_fetch_add(&arena->granted, 1, __ATOMIC_SEQ_CST);
        else
            EXPECT(CUDA_ERROR_OUT_OF_MEMORY, result);
        wait_for_all(arena);
        if (self == 0) {
            if (arena->granted != fit) arena->wrong++;
            arena->granted = 0;
        }
        if (result == CUDA_SUCCESS) CHECK(cu.cuMemFree(address));
        wait_for_all(arena);
        if (self == 0) {
            CHECK(cu.cuMemGetInfo(&after, NULL));
            if (after < before) arena->unfreed++;
        }
    }
    wait_for_all(arena); /* no process leaves early, because its context would free memory */
    return 0;
}

int main(int argc, char **argv) {
    unsigned procs = 8, rounds = 1000, fit = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        unsigned value = (unsigned)atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--procs")) procs = value;
        if (!strcmp(argv[i], "--rounds")) rounds = value;
        if (!strcmp(argv[i], "--fit")) fit = value;
    }
    if (fit == 0) fit = procs / 2;
    if (argc % 2 == 0 || procs == 0 || procs > 64 || rounds == 0 || fit == 0 || fit >= 64) {
        fprintf(stderr, "usage: race [--procs P] [--rounds R] [--fit K]\n");
        return 2;
    }
    watchdog(120 + rounds / 10);
    struct arena *arena =
        mmap(NULL, sizeof *arena, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    HOLDS(arena != MAP_FAILED);
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&arena->barrier, &attributes, procs);

    pid_t child[64];
    for (unsigned i = 0; i < procs; i++) {
        child[i] = fork();
        HOLDS(child[i] >= 0);
        if (child[i] == 0) {
            watchdog(120 + rounds / 10); /* alarms are not inherited */
            exit(run(arena, (int)i, rounds, fit));
        }
    }
    int failed = 0;
    for (unsigned left = procs; left > 0; left--) {
        int status;
        HOLDS(wait(&status) > 0);
        if (status == 0) continue;
        /* The others would block at the barrier. */
        failed = 1;
        for (unsigned i = 0; i < procs; i++) kill(child[i], SIGKILL);
    }
    printf("{\"procs\": %u, \"rounds\": %u, \"fit\": %u, \"bytes\": %zu, \"wrong\": %u, "
           "\"unfreed\": %u}\n",
           procs, rounds, fit, arena->bytes, arena->wrong, arena->unfreed);
    return failed || arena->wrong || arena->unfreed;
}
