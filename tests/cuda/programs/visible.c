/* SPDX-License-Identifier: Apache-2.0
 *
 * visible [BYTES] - prints for every visible GPU, in its order, the memory by the driver and NVML
 * before and after BYTES (K, M, G; default 16M) are allocated on it. One JSON object per GPU and
 * line: device, uuid, total and free (before). Exits 1 unless both libraries agree to the byte for
 * each GPU, and an allocation changes no other GPU. NATIVE lists the UUIDs of GPUs without a limit
 * (or is "all"): for these NVML reports the whole GPU, which other processes may use.
 */
#include "driver.h"

typedef struct device *nvmlDevice;
typedef struct {
    unsigned long long total, free, used;
} nvmlMemory;

static struct {
    int (*init)(void);
    int (*by_uuid)(const char *uuid, nvmlDevice *device);
    int (*memory)(nvmlDevice device, nvmlMemory *memory);
} nvml;

static CUresult (*get_uuid)(unsigned char *uuid, CUdevice device);

enum { MOST = 16 };

static struct gpu {
    CUcontext context;
    char uuid[64];
    size_t total, free;
} gpus[MOST];

static void nvml_open(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) FAIL("%s", dlerror());
    *(void **)&nvml.init = dlsym(library, "nvmlInit_v2");
    *(void **)&nvml.by_uuid = dlsym(library, "nvmlDeviceGetHandleByUUID");
    *(void **)&nvml.memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
    HOLDS(nvml.init && nvml.by_uuid && nvml.memory);
    EXPECT(0, nvml.init());
}

static void name(CUdevice device, char *text) {
    unsigned char bytes[16];
    CHECK(get_uuid(bytes, device));
    text += sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *text++ = '-';
        text += sprintf(text, "%02x", bytes[i]);
    }
}

static int is_limited(const struct gpu *gpu) {
    const char *native = getenv("NATIVE");
    return !native || (strcmp(native, "all") && !strstr(native, gpu->uuid));
}

/* Queries both libraries, which must agree. */
static void look(struct gpu *gpu, CUdevice device) {
    size_t total_device;
    nvmlDevice handle;
    nvmlMemory memory;
    CHECK(cu.cuCtxSetCurrent(gpu->context));
    CHECK(cu.cuMemGetInfo(&gpu->free, &gpu->total));
    CHECK(cu.cuDeviceTotalMem(&total_device, device));
    HOLDS(total_device == gpu->total);
    if (nvml.by_uuid(gpu->uuid, &handle) != 0) {
        /* A MIG instance: the UUID's bytes do not show it, NVML's name does. */
        char name[64];
        snprintf(name, sizeof name, "MIG-%s", gpu->uuid + 4);
        EXPECT(0, nvml.by_uuid(name, &handle));
    }
    EXPECT(0, nvml.memory(handle, &memory));
    if (is_limited(gpu)) HOLDS(memory.total == gpu->total && memory.free == gpu->free);
}

int main(int argc, char **argv) {
    size_t bytes = parse_bytes(argc > 1 ? argv[1] : "16M");
    int count;
    watchdog(60);
    driver_load();
    CHECK(cu.cuInit(0));
    *(void **)&get_uuid = driver_symbol("cuDeviceGetUuid_v2");
    nvml_open();
    CHECK(cu.cuDeviceGetCount(&count));
    HOLDS(count <= MOST);
    for (int i = 0; i < count; i++) {
        CUdevice device;
        CHECK(cu.cuDeviceGet(&device, i));
        name(device, gpus[i].uuid);
        CHECK(cu.cuDevicePrimaryCtxRetain(&gpus[i].context, device));
    }
    for (int i = 0; i < count; i++) {
        struct gpu before[MOST];
        CUdevice current;
        CUdeviceptr address;
        for (int j = 0; j < count; j++) look(&gpus[j], j);
        memcpy(before, gpus, sizeof before);
        CHECK(cu.cuCtxSetCurrent(gpus[i].context));
        CHECK(cu.cuCtxGetDevice(&current));
        HOLDS(current == i);
        CHECK(cu.cuMemAlloc(&address, bytes));
        for (int j = 0; j < count; j++) {
            look(&gpus[j], j);
            if (j != i && is_limited(&gpus[j])) HOLDS(gpus[j].free == before[j].free);
        }
        if (is_limited(&gpus[i])) HOLDS(gpus[i].free + bytes <= before[i].free);
        CHECK(cu.cuCtxSetCurrent(gpus[i].context));
        CHECK(cu.cuMemFree(address));
        printf("{\"device\": %d, \"uuid\": \"%s\", \"total\": %zu, \"free\": %zu}\n", i,
               before[i].uuid, before[i].total, before[i].free);
    }
    return 0;
}
