/* SPDX-License-Identifier: Apache-2.0
 *
 * odd_arguments - makes calls with invalid arguments: unknown, freed, inner and null addresses;
 * null pointers for results; sizes of zero and beyond everything. Prints each result on a line, so
 * that two runs can be compared. Exits 1 unless the GPU's memory is the same at the end.
 */
#include "driver.h"

#define SAY(call) printf("%s: %d\n", #call, (int)(call))

int main(void) {
    CUdeviceptr address, again;
    size_t before, after, total, pitch;
    watchdog(60);
    driver_load();
    CHECK(cu.cuInit(0));
    SAY(cu.cuMemAlloc(&address, 1 << 20));
    SAY(cu.cuMemGetInfo(&before, &total));
    driver_open();
    CHECK(cu.cuMemAlloc(&address, 1 << 20));
    CHECK(cu.cuMemFree(address));
    CHECK(cu.cuMemGetInfo(&before, &total));

    SAY(cu.cuMemFree(0));
    SAY(cu.cuMemFree(1));
    SAY(cu.cuMemFree(address));
    SAY(cu.cuMemFree(~(CUdeviceptr)0));
    SAY(cu.cuMemFree((CUdeviceptr)(uintptr_t)&address));
    CHECK(cu.cuMemAlloc(&address, 4 << 20));
    SAY(cu.cuMemFree(address + 512));
    SAY(cu.cuMemFree(address + (2 << 20)));
    SAY(cu.cuMemFree(address));
    SAY(cu.cuMemFree(address));
    for (int i = 0; i < 100; i++) cu.cuMemFree(address);

    SAY(cu.cuMemAlloc(NULL, 1 << 20));
    SAY(cu.cuMemAlloc(&again, 0));
    SAY(cu.cuMemAlloc(&again, ~(size_t)0));
    SAY(cu.cuMemAlloc(&again, (size_t)1 << 62));
    SAY(cu.cuMemAllocPitch(NULL, &pitch, 1000, 1000, 4));
    SAY(cu.cuMemAllocPitch(&again, NULL, 1000, 1000, 4));
    SAY(cu.cuMemAllocPitch(&again, &pitch, 0, 1000, 4));
    SAY(cu.cuMemAllocPitch(&again, &pitch, 1000, 0, 4));
    SAY(cu.cuMemAllocPitch(&again, &pitch, 1000, 1000, 3));
    SAY(cu.cuMemGetInfo(NULL, NULL));
    SAY(cu.cuMemGetInfo(NULL, &total));
    SAY(cu.cuMemGetInfo(&after, NULL));
    SAY(cu.cuDeviceTotalMem(NULL, 0));
    SAY(cu.cuDeviceTotalMem(&total, 99));
    SAY(cu.cuDeviceTotalMem(&total, -1));
    SAY(cu.cuDevicePrimaryCtxRelease(99));
    SAY(cu.cuCtxDestroy(NULL));
    SAY(cu.cuCtxCreate(NULL, 0, 0));
    SAY(cu.cuCtxCreate(NULL, 0, 99));

    CHECK(cu.cuMemGetInfo(&after, NULL));
    HOLDS(after == before);
    return 0;
}
