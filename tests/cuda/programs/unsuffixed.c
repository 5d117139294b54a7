/* SPDX-License-Identifier: Apache-2.0
 *
 * unsuffixed - checks the functions from before CUDA 3.2, without a suffix and with 32-bit sizes:
 * they take memory of the same GPU. Fills it with 64 MiB at a time until the driver refuses, frees
 * everything, and prints one JSON object: total (clamped to 32 bits), granted, the error, and the
 * free memory by cuMemGetInfo_v2 before and after.
 */
#include "driver.h"

int main(void) {
    enum { MOST = 2048 };
    static unsigned address[MOST];
    const unsigned chunk = 64u << 20;
    CUresult (*alloc)(unsigned *, unsigned), (*release)(unsigned), (*info)(unsigned *, unsigned *);
    CUresult (*device_total)(unsigned *, CUdevice);
    unsigned total, available, whole;
    size_t before, after, taken;
    int count = 0;
    CUresult result = CUDA_SUCCESS;
    watchdog(60);
    driver_open();
    *(void **)&alloc = driver_symbol("cuMemAlloc");
    *(void **)&release = driver_symbol("cuMemFree");
    *(void **)&info = driver_symbol("cuMemGetInfo");
    *(void **)&device_total = driver_symbol("cuDeviceTotalMem");
    CHECK(info(&available, &total));
    CHECK(device_total(&whole, 0));
    HOLDS(whole == total && available <= total);
    CHECK(cu.cuMemGetInfo(&before, NULL));
    while (count < MOST && (result = alloc(&address[count], chunk)) == CUDA_SUCCESS) count++;
    CHECK(cu.cuMemGetInfo(&taken, NULL));
    HOLDS(before - taken >= (size_t)count * chunk);
    for (int i = 0; i < count; i++) CHECK(release(address[i]));
    CHECK(cu.cuMemGetInfo(&after, NULL));
    printf("{\"total\": %u, \"granted\": %zu, \"error\": %d, \"free_before\": %zu, \"free_after\": "
           "%zu}\n",
           total, (size_t)count * chunk, result, before, after);
    return 0;
}
