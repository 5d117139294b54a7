/* SPDX-License-Identifier: Apache-2.0
 *
 * driver_refuses [ROUNDS] - allocates physical memory and arrays on a driver that sometimes fails
 * with error 999 (CGPU_SIM_FAULT). A failed call must change nothing: the memory shown as used is
 * always that of the successful calls. Prints the number of failures.
 */
#include "ledger.h"

enum { PIECES = 16, FAILED = 999, FLOAT = 32 };

struct flat {
    size_t width, height;
    int format;
    unsigned channels;
};

static struct {
    uint64_t handle;
    size_t held; /* handles */
    int mapped;
    void *array;
} pieces[PIECES];

static unsigned failed;

static int done(CUresult result) {
    if (result == FAILED) {
        failed++;
        return 0;
    }
    CHECK(result);
    return 1;
}

int main(int argc, char **argv) {
    unsigned rounds = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 3000, seed = 5;
    static const struct flat form = {512, 512, FLOAT, 2}; /* exactly 2 MiB */
    watchdog(100);
    driver_open();
    FUNCTION(make, cuArrayCreate_v2, (void **, const struct flat *));
    FUNCTION(destroy, cuArrayDestroy, (void *));
    ledger_open();
    CUdeviceptr range = reserve(PIECES * GRANULE);
    for (unsigned round = 0; round < rounds; round++) {
        size_t i = (size_t)rand_r(&seed) % PIECES, taken = 0;
        CUdeviceptr at = range + i * GRANULE;
        uint64_t again;
        switch (rand_r(&seed) % 6) {
        case 0:
            if (!pieces[i].held && !pieces[i].mapped)
                pieces[i].held =
                    (size_t)done(vm.create(&pieces[i].handle, GRANULE, &on_the_gpu, 0));
            break;
        case 1:
            if (pieces[i].held && !pieces[i].mapped)
                pieces[i].mapped = done(vm.map(at, GRANULE, 0, pieces[i].handle, 0));
            break;
        case 2:
            if (pieces[i].mapped && done(vm.retain(&again, (void *)(uintptr_t)at))) {
                pieces[i].handle = again;
                pieces[i].held++;
            }
            break;
        case 3:
            if (pieces[i].held && done(vm.release(pieces[i].handle))) pieces[i].held--;
            break;
        case 4:
            if (pieces[i].mapped) pieces[i].mapped = !done(vm.unmap(at, GRANULE));
            break;
        default:
            if (!pieces[i].array) {
                if (!done(make(&pieces[i].array, &form))) pieces[i].array = NULL;
            } else if (done(destroy(pieces[i].array))) {
                pieces[i].array = NULL;
            }
        }
        for (i = 0; i < PIECES; i++)
            taken += (pieces[i].held || pieces[i].mapped) + (pieces[i].array != NULL);
        TAKEN(taken * GRANULE);
    }
    printf("{\"failed\": %u}\n", failed);
    return 0;
}
