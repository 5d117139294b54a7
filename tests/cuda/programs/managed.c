/* SPDX-License-Identifier: Apache-2.0
 *
 * managed [granted|refused] - asks for managed memory and prints, as one JSON object, the answer and the three attributes that
 * announce it. With an argument, exits 1 unless the answer is that one; refused means NOT_SUPPORTED and all attributes 0.
 */
#include "driver.h"

int main(int argc, char **argv) {
    int managed, concurrent, direct, unified;
    CUdeviceptr address = 0;
    watchdog(60);
    driver_open();
    CHECK(cu.cuDeviceGetAttribute(&managed, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0));
    CHECK(cu.cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0));
    CHECK(cu.cuDeviceGetAttribute(&direct, CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 0));
    CHECK(cu.cuDeviceGetAttribute(&unified, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0));
    CUresult result = cu.cuMemAllocManaged(&address, 1 << 20, CU_MEM_ATTACH_GLOBAL);
    printf("{\"result\": %d, \"managed_memory\": %d, \"concurrent_managed_access\": %d, \"direct_managed_mem_access\": %d, "
           "\"unified_addressing\": %d}\n",
           result, managed, concurrent, direct, unified);
    if (argc > 1 && !strcmp(argv[1], "granted")) {
        HOLDS(result == CUDA_SUCCESS && managed == 1);
        memset((void *)(uintptr_t)address, 7, 1 << 20); /* managed: the host reaches it too */
    }
    if (argc > 1 && !strcmp(argv[1], "refused")) {
        HOLDS(result == CUDA_ERROR_NOT_SUPPORTED);
        HOLDS(managed == 0 && concurrent == 0 && direct == 0);
        HOLDS(unified == 1);
    }
    if (result == CUDA_SUCCESS) CHECK(cu.cuMemFree(address));
    return 0;
}
