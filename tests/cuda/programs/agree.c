/* SPDX-License-Identifier: Apache-2.0
 *
 * agree [BYTES...] - allocates each amount in turn. After each it prints as one JSON object what
 * all functions report of memory: cuDeviceTotalMem, cuMemGetInfo, nvmlDeviceGetMemoryInfo in both
 * versions. Exits 1 unless all agree to the byte. cuMemGetInfo must also work with one null
 * pointer, and with two (as OptiX calls it).
 */
#include "driver.h"

typedef struct device *nvmlDevice;
typedef struct {
    unsigned long long total, free, used;
} nvmlMemory;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2;

static struct {
    int (*init)(void);
    int (*by_index)(unsigned index, nvmlDevice *device);
    int (*memory)(nvmlDevice device, nvmlMemory *memory);
    int (*memory_v2)(nvmlDevice device, nvmlMemory_v2 *memory);
} nvml;

static void nvml_open(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) FAIL("%s", dlerror());
    *(void **)&nvml.init = dlsym(library, "nvmlInit_v2");
    *(void **)&nvml.by_index = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&nvml.memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
    *(void **)&nvml.memory_v2 = dlsym(library, "nvmlDeviceGetMemoryInfo_v2");
    HOLDS(nvml.init && nvml.by_index && nvml.memory && nvml.memory_v2);
    EXPECT(0, nvml.init());
}

static void compare(void) {
    size_t device_total, total, available, alone;
    nvmlDevice device;
    nvmlMemory memory;
    nvmlMemory_v2 memory_v2 = {.version = 0x2000028};
    CHECK(cu.cuDeviceTotalMem(&device_total, 0));
    CHECK(cu.cuMemGetInfo(&available, &total));
    CHECK(cu.cuMemGetInfo(NULL, &alone));
    HOLDS(alone == total);
    CHECK(cu.cuMemGetInfo(&alone, NULL));
    HOLDS(alone == available);
    CHECK(cu.cuMemGetInfo(NULL, NULL));
    EXPECT(0, nvml.by_index(0, &device));
    EXPECT(0, nvml.memory(device, &memory));
    EXPECT(0, nvml.memory_v2(device, &memory_v2));
    printf("{\"device_total\": %zu, \"total\": %zu, \"free\": %zu, \"nvml_total\": %llu, "
           "\"nvml_free\": %llu, "
           "\"nvml_used\": %llu, \"nvml_v2_total\": %llu, \"nvml_v2_free\": %llu, "
           "\"nvml_v2_used\": %llu, "
           "\"nvml_v2_reserved\": %llu}\n",
           device_total, total, available, memory.total, memory.free, memory.used, memory_v2.total,
           memory_v2.free, memory_v2.used, memory_v2.reserved);
    HOLDS(device_total == total);
    HOLDS(memory.total == total && memory_v2.total == total);
    HOLDS(memory.free == available && memory_v2.free == available);
    HOLDS(memory.used == total - available);
    HOLDS(memory_v2.used + memory_v2.reserved == total - available);
}

int main(int argc, char **argv) {
    watchdog(60);
    driver_open();
    nvml_open();
    compare();
    for (int i = 1; i < argc; i++) {
        CUdeviceptr address;
        CHECK(cu.cuMemAlloc(&address, parse_bytes(argv[i])));
        compare();
    }
    return 0;
}
