/* SPDX-License-Identifier: Apache-2.0
 *
 * meminfo - prints, as one JSON object per GPU and line, what the driver reports of its memory:
 * total_device (cuDeviceTotalMem), total and free (cuMemGetInfo). The two totals must agree.
 */
#include "driver.h"

int main(void) {
    int gpus;
    watchdog(60);
    driver_load();
    CHECK(cu.cuInit(0));
    CHECK(cu.cuDeviceGetCount(&gpus));
    for (int gpu = 0; gpu < gpus; gpu++) {
        CUdevice device;
        CUcontext context;
        char name[64];
        size_t total_device, total, available, only;
        CHECK(cu.cuDeviceGet(&device, gpu));
        CHECK(cu.cuDeviceGetName(name, sizeof name, device));
        CHECK(cu.cuDeviceTotalMem(&total_device, device));
        CHECK(cu.cuDevicePrimaryCtxRetain(&context, device));
        CHECK(cu.cuCtxSetCurrent(context));
        CHECK(cu.cuMemGetInfo(&available, &total));
        /* Either pointer may be NULL. */
        CHECK(cu.cuMemGetInfo(NULL, &only));
        HOLDS(only == total);
        HOLDS(available <= total);
        printf("{\"gpu\": %d, \"name\": \"%s\", \"total_device\": %zu, \"total\": %zu, \"free\": "
               "%zu}\n",
               gpu, name, total_device, total, available);
        HOLDS(total_device == total);
        CHECK(cu.cuDevicePrimaryCtxRelease(device));
    }
    return 0;
}
