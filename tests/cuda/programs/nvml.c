/* SPDX-License-Identifier: Apache-2.0
 *
 * nvml [BYTES] - checks NVML: initialisation and shutdown, enumeration by every name of a GPU,
 * memory in both versions, processes in all three, each with two calls. Allocates BYTES (default 64
 * MiB), so that there is something to report. Prints one JSON object.
 *
 * For a driver without a shim: NVML reports the GPU's own memory.
 */
#include "driver.h"

#include <sys/wait.h>

typedef struct device *Device;
struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process_v1 {
    unsigned pid;
    unsigned long long memory;
};
struct process_v2 {
    unsigned pid;
    unsigned long long memory;
    unsigned instance, compute_instance;
};
struct place {
    char short_id[16];
    unsigned domain, bus, device, model, subsystem;
    char id[32];
};

enum {
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    VERSION_MISMATCH = 25,
};

static void *library;

static void *look_up(const char *name) {
    void *symbol = dlsym(library, name);
    if (!symbol) FAIL("NVML has no %s", name);
    return symbol;
}

#define FUNCTION(name, symbol, arguments) \
    int(*name) arguments;                 \
    *(void **)&name = look_up(#symbol)

static void start_and_end(void) {
    FUNCTION(init, nvmlInit_v2, (void));
    FUNCTION(init_old, nvmlInit, (void));
    FUNCTION(end, nvmlShutdown, (void));
    FUNCTION(count, nvmlDeviceGetCount_v2, (unsigned *));
    const char *(*text)(int);
    *(void **)&text = look_up("nvmlErrorString");
    unsigned gpus;
    EXPECT(UNINITIALIZED, count(&gpus));
    EXPECT(UNINITIALIZED, end());
    CHECK(init());
    CHECK(init_old());
    CHECK(end());
    CHECK(count(&gpus)); /* one use is left */
    CHECK(end());
    EXPECT(UNINITIALIZED, count(&gpus));
    HOLDS(strlen(text(UNINITIALIZED)) > 0 && strlen(text(12345)) > 0);
    CHECK(init());
}

static Device names(void) {
    FUNCTION(count, nvmlDeviceGetCount_v2, (unsigned *));
    FUNCTION(by_index, nvmlDeviceGetHandleByIndex_v2, (unsigned, Device *));
    FUNCTION(by_uuid, nvmlDeviceGetHandleByUUID, (const char *, Device *));
    FUNCTION(by_place, nvmlDeviceGetHandleByPciBusId_v2, (const char *, Device *));
    FUNCTION(by_serial, nvmlDeviceGetHandleBySerial, (const char *, Device *));
    FUNCTION(uuid_of, nvmlDeviceGetUUID, (Device, char *, unsigned));
    FUNCTION(serial_of, nvmlDeviceGetSerial, (Device, char *, unsigned));
    FUNCTION(name_of, nvmlDeviceGetName, (Device, char *, unsigned));
    FUNCTION(index_of, nvmlDeviceGetIndex, (Device, unsigned *));
    FUNCTION(place_of, nvmlDeviceGetPciInfo_v3, (Device, struct place *));
    unsigned gpus, index;
    Device device, again, first = NULL;
    char text[96];
    struct place place;
    CHECK(count(&gpus));
    for (unsigned i = 0; i < gpus; i++) {
        CHECK(by_index(i, &device));
        if (i == 0) first = device;
        CHECK(index_of(device, &index));
        HOLDS(index == i);
        CHECK(uuid_of(device, text, sizeof text));
        HOLDS(strlen(text) == 40 && !strncmp(text, "GPU-", 4));
        CHECK(by_uuid(text, &again));
        HOLDS(again == device);
        CHECK(serial_of(device, text, sizeof text));
        CHECK(by_serial(text, &again));
        HOLDS(again == device);
        CHECK(place_of(device, &place));
        CHECK(by_place(place.id, &again));
        HOLDS(again == device);
        CHECK(by_place(place.short_id, &again));
        HOLDS(again == device);
        CHECK(name_of(device, text, sizeof text));
        EXPECT(INSUFFICIENT_SIZE, name_of(device, text, 3));
    }
    EXPECT(INVALID_ARGUMENT, by_index(gpus, &device));
    EXPECT(NOT_FOUND, by_uuid("GPU-00000000-0000-0000-0000-000000000000", &device));
    EXPECT(INVALID_ARGUMENT, name_of((Device)0x1234, text, sizeof text));
    return first;
}

static unsigned long long memory(Device device) {
    FUNCTION(get, nvmlDeviceGetMemoryInfo, (Device, struct memory *));
    FUNCTION(get_v2, nvmlDeviceGetMemoryInfo_v2, (Device, struct memory_v2 *));
    struct memory first;
    struct memory_v2 second = {.version = 1};
    EXPECT(INVALID_ARGUMENT, get(device, NULL));
    CHECK(get(device, &first));
    EXPECT(VERSION_MISMATCH, get_v2(device, &second));
    second.version = 0x02000028;
    CHECK(get_v2(device, &second));
    HOLDS(first.total == first.used + first.free);
    HOLDS(second.total == first.total);
    HOLDS(second.total == second.reserved + second.used + second.free);
    HOLDS(second.reserved > 0 && first.used == second.reserved + second.used);
    return second.used;
}

static unsigned long long processes(Device device) {
    FUNCTION(get_v1, nvmlDeviceGetComputeRunningProcesses,
             (Device, unsigned *, struct process_v1 *));
    FUNCTION(get_v2, nvmlDeviceGetComputeRunningProcesses_v2,
             (Device, unsigned *, struct process_v2 *));
    FUNCTION(get_v3, nvmlDeviceGetComputeRunningProcesses_v3,
             (Device, unsigned *, struct process_v2 *));
    FUNCTION(graphics, nvmlDeviceGetGraphicsRunningProcesses_v3,
             (Device, unsigned *, struct process_v2 *));
    FUNCTION(name_of, nvmlSystemGetProcessName, (unsigned, char *, unsigned));
    struct process_v1 old[64];
    struct process_v2 list[64], newest[64];
    unsigned room = 0, found = 64;
    unsigned long long own = 0;
    char text[256];
    EXPECT(INSUFFICIENT_SIZE, get_v3(device, &room, NULL));
    HOLDS(room >= 1);
    CHECK(get_v3(device, &found, newest));
    HOLDS(found == room);
    CHECK(get_v2(device, &found, list));
    CHECK(get_v1(device, &found, old));
    HOLDS(found == room);
    for (unsigned i = 0; i < found; i++) {
        HOLDS(old[i].pid == list[i].pid && old[i].pid == newest[i].pid);
        HOLDS(old[i].memory == newest[i].memory);
        if (old[i].pid == (unsigned)getpid()) own = old[i].memory;
    }
    found = 64;
    CHECK(graphics(device, &found, list));
    HOLDS(found == 0);
    CHECK(name_of((unsigned)getpid(), text, sizeof text));
    HOLDS(strstr(text, "nvml") != NULL);
    return own;
}

/* Unlike the driver, NVML continues to work in a forked child. */
static void child(Device device) {
    pid_t pid = fork();
    int status;
    HOLDS(pid >= 0);
    if (pid == 0) {
        watchdog(30);
        memory(device);
        exit(0);
    }
    HOLDS(waitpid(pid, &status, 0) == pid && status == 0);
}

int main(int argc, char **argv) {
    size_t bytes = argc > 1 ? parse_bytes(argv[1]) : (size_t)64 << 20;
    CUdeviceptr address;
    watchdog(60);
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "no NVML: %s\n", dlerror());
        return 3;
    }
    start_and_end();
    Device device = names();
    driver_open();
    unsigned long long before = memory(device);
    CHECK(cu.cuMemAlloc(&address, bytes));
    unsigned long long after = memory(device), own = processes(device);
    child(device);
    CHECK(cu.cuMemFree(address));
    printf("{\"grown\": %llu, \"own\": %llu}\n", after - before, own);
    return 0;
}
