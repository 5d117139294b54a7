/* SPDX-License-Identifier: Apache-2.0
 *
 * nvml_uses - checks that NVML's use count is the program's own beside the driver: NVML is not
 * initialised before the program's first nvmlInit nor after its last nvmlShutdown, whatever else in
 * the process uses it. Prints "ok".
 */
#include "driver.h"

typedef struct device *Device;
struct memory {
    unsigned long long total, free, used;
};

enum { UNINITIALIZED = 1 };

static void *library;

static void *look_up(const char *name) {
    void *symbol = dlsym(library, name);
    if (!symbol) FAIL("NVML has no %s", name);
    return symbol;
}

#define FUNCTION(name, symbol, arguments) \
    int(*name) arguments;                 \
    *(void **)&name = look_up(#symbol)

int main(void) {
    Device device = NULL;
    CUdeviceptr address;
    struct memory memory;
    unsigned count;
    char text[96];
    watchdog(60);
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "no NVML: %s\n", dlerror());
        return 3;
    }
    FUNCTION(init, nvmlInit_v2, (void));
    FUNCTION(init_old, nvmlInit, (void));
    FUNCTION(init_flags, nvmlInitWithFlags, (unsigned));
    FUNCTION(end, nvmlShutdown, (void));
    FUNCTION(count_of, nvmlDeviceGetCount_v2, (unsigned *));
    FUNCTION(by_index, nvmlDeviceGetHandleByIndex_v2, (unsigned, Device *));
    FUNCTION(by_uuid, nvmlDeviceGetHandleByUUID, (const char *, Device *));
    FUNCTION(version, nvmlSystemGetDriverVersion, (char *, unsigned));
    FUNCTION(memory_of, nvmlDeviceGetMemoryInfo, (Device, struct memory *));
    driver_open();
    CHECK(cu.cuMemAlloc(&address, (size_t)64 << 20));

    for (int round = 0; round < 2; round++) {
        /* The first round has no handle yet; the second one has that of the first. */
        EXPECT(UNINITIALIZED, count_of(&count));
        EXPECT(UNINITIALIZED, by_index(0, &device));
        EXPECT(UNINITIALIZED, by_uuid("GPU-0", &device));
        EXPECT(UNINITIALIZED, version(text, sizeof text));
        EXPECT(UNINITIALIZED, memory_of(device, &memory));
        EXPECT(UNINITIALIZED, end());
        CHECK(round == 0 ? init() : init_flags(0));
        CHECK(count_of(&count));
        CHECK(by_index(0, &device));
        CHECK(version(text, sizeof text));
        CHECK(init_old());
        CHECK(end());
        CHECK(memory_of(device, &memory)); /* one use is left */
        HOLDS(memory.used >= (unsigned long long)64 << 20);
        CHECK(end());
    }
    EXPECT(UNINITIALIZED, end());
    EXPECT(UNINITIALIZED, count_of(&count));
    CHECK(cu.cuMemFree(address));
    puts("ok");
    return 0;
}
