/* SPDX-License-Identifier: Apache-2.0
 *
 * accounting [FOLDER] - checks what NVML reports of processes beyond their lists: details,
 * accounting of running and of ended processes, and, in the control group of FOLDER, its limits.
 * Without FOLDER there is no back end for limits. For a driver without a shim, 13.4 or newer; as
 * root, or refused.
 */
#include "driver.h"

#include <sys/wait.h>

#define MIB ((size_t)1 << 20)

typedef struct device *Device;
struct detail {
    unsigned pid;
    unsigned long long memory;
    unsigned instance, compute_instance;
    unsigned long long protected_memory;
};
struct details {
    unsigned version, mode, count;
    struct detail *all;
};
struct stats {
    unsigned gpu, memory;
    unsigned long long highest, time, begun;
    unsigned running, reserved[5];
};
struct stats_v2 {
    unsigned pid, running, gpu, memory;
    unsigned long long highest;
    unsigned samples;
    unsigned long long sum_gpu, sum_memory, time, begun;
};
struct limits {
    const char *group;
    unsigned long long soft, hard, used;
};
struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

enum {
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    OPERATING_SYSTEM = 17,
    VERSION_MISMATCH = 25
};
enum { COMPUTE, GRAPHICS, MPS, ALL, DETAILS_V1 = 0x1000018 };

static void *library;
static Device device;

static void *look_up(const char *name) {
    void *symbol = dlsym(library, name);
    if (!symbol) FAIL("NVML has no %s", name);
    return symbol;
}

#define FUNCTION(name, symbol, arguments) \
    int(*name) arguments;                 \
    *(void **)&name = look_up(#symbol)

/* Computes on the GPU for 100 ms of a longer time, and holds 64 MiB for a while. */
static pid_t worker(int go, int done) {
    pid_t pid = fork();
    HOLDS(pid >= 0);
    if (pid != 0) return pid;
    char byte;
    CUdeviceptr memory;
    watchdog(60);
    HOLDS(read(go, &byte, 1) == 1);
    driver_open();
    CUfunction kernel = driver_function("spin_100ms");
    CHECK(cu.cuMemAlloc(&memory, 64 * MIB));
    CHECK(cu.cuMemFree(memory));
    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CHECK(cu.cuCtxSynchronize());
    HOLDS(write(done, "d", 1) == 1);
    HOLDS(read(go, &byte, 1) == 1);
    _exit(0);
}

static void details(pid_t other) {
    FUNCTION(get, nvmlDeviceGetRunningProcessDetailList, (Device, struct details *));
    struct detail all[16];
    struct details list = {.version = DETAILS_V1, .mode = COMPUTE};
    EXPECT(INSUFFICIENT_SIZE, get(device, &list));
    HOLDS(list.count == 2);
    list.all = all;
    list.count = 16, list.mode = ALL;
    CHECK(get(device, &list));
    HOLDS(list.count == 2);
    unsigned seen = 0;
    for (unsigned i = 0; i < 2; i++) {
        HOLDS(all[i].memory >= 256 * MIB && all[i].instance == ~0U && all[i].protected_memory == 0);
        seen += all[i].pid == (unsigned)other || all[i].pid == (unsigned)getpid();
    }
    HOLDS(seen == 2);
    list.mode = GRAPHICS, list.count = 0;
    CHECK(get(device, &list)); /* no instances, although the list has room */
    list.mode = 4;
    EXPECT(INVALID_ARGUMENT, get(device, &list));
    list.mode = COMPUTE, list.version++;
    EXPECT(VERSION_MISMATCH, get(device, &list));
    EXPECT(INVALID_ARGUMENT, get(device, NULL));
}

static void limits(const char *folder) {
    FUNCTION(set, nvmlDeviceSetMemoryLimits_v1, (Device, struct limits *));
    FUNCTION(get, nvmlDeviceGetMemoryLimits_v1, (Device, struct limits *));
    FUNCTION(info, nvmlDeviceGetMemoryInfo, (Device, struct memory *));
    FUNCTION(info_v2, nvmlDeviceGetMemoryInfo_v2, (Device, struct memory_v2 *));
    struct limits wanted = {folder, 1 << 30, 2ULL << 30, 0}, reported = {folder, 7, 7, 7};
    struct memory whole, first;
    struct memory_v2 second = {.version = 0x02000028};
    if (!folder) {
        wanted.group = reported.group = "/proc";
        EXPECT(NOT_SUPPORTED, get(device, &reported));
        EXPECT(NOT_SUPPORTED, set(device, &wanted));
        return;
    }
    int none = get(device, &reported);
    HOLDS(none == 0 || none == NOT_SUPPORTED); /* the kernel's controller, or the driver's own */
    if (none == 0) HOLDS(reported.soft == 0 && reported.hard == ~0ULL);
    if (geteuid() != 0) {
        EXPECT(NO_PERMISSION, set(device, &wanted));
        return;
    }
    /* The driver's own back end never charges memory from before the limit. */
    unsigned long long before = none == 0 ? reported.used : 0;
    HOLDS(before >= 2 * 256 * MIB || none == NOT_SUPPORTED);
    CHECK(info(device, &whole));
    CHECK(set(device, &wanted));
    CHECK(get(device, &reported));
    HOLDS(reported.soft == 1 << 30 && reported.hard == 2ULL << 30 && reported.used == before);
    size_t free_memory, total;
    CHECK(cu.cuMemGetInfo(&free_memory, &total));
    HOLDS(total == 2ULL << 30 && free_memory == total - reported.used);
    CHECK(info_v2(device, &second));
    HOLDS(second.total == total && second.free == free_memory);
    HOLDS(second.used + second.reserved == reported.used);
    CHECK(info(device, &first)); /* the GPU's, not the group's */
    HOLDS(first.total == whole.total && first.free == whole.free && first.used == whole.used);
    HOLDS(first.total > total);
    CUdeviceptr memory;
    CHECK(cu.cuMemAllocManaged(&memory, 64 * MIB, CU_MEM_ATTACH_GLOBAL));
    memset((void *)(uintptr_t)memory, 7, 64 * MIB);
    CHECK(get(device, &reported));
    HOLDS(reported.used == before); /* managed memory is not charged */
    CHECK(cu.cuMemFree(memory));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemAlloc(&memory, free_memory + 1));
    CHECK(cu.cuMemAlloc(&memory, free_memory));
    CHECK(get(device, &reported));
    HOLDS(reported.used == reported.hard);
    CHECK(cu.cuMemFree(memory));
    wanted.soft = 3ULL << 30;
    EXPECT(INVALID_ARGUMENT, set(device, &wanted));
    wanted.soft = 0, wanted.hard = 1ULL << 50;
    EXPECT(INVALID_ARGUMENT, set(device, &wanted));
    wanted.hard = ~0ULL;
    CHECK(set(device, &wanted)); /* none */
    EXPECT(none, get(device, &reported));
    if (none == 0) HOLDS(reported.soft == 0 && reported.hard == ~0ULL && reported.used == before);
    wanted.group = "/nowhere";
    EXPECT(OPERATING_SYSTEM, set(device, &wanted));
    wanted.group = "/proc";
    EXPECT(INVALID_ARGUMENT, set(device, &wanted));
    reported.group = NULL;
    EXPECT(INVALID_ARGUMENT, get(device, &reported));
    EXPECT(INVALID_ARGUMENT, get(device, NULL));
}

int main(int argc, char **argv) {
    int go[2], done[2];
    char byte;
    if (argc > 2) return 2;
    watchdog(60);
    HOLDS(pipe(go) == 0 && pipe(done) == 0);
    pid_t first = worker(go[0], done[1]);
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) return 3;
    FUNCTION(init, nvmlInit_v2, (void));
    FUNCTION(handle, nvmlDeviceGetHandleByIndex_v2, (unsigned, Device *));
    FUNCTION(mode_of, nvmlDeviceGetAccountingMode, (Device, int *));
    FUNCTION(set_mode, nvmlDeviceSetAccountingMode, (Device, int));
    FUNCTION(size_of, nvmlDeviceGetAccountingBufferSize, (Device, unsigned *));
    FUNCTION(clear, nvmlDeviceClearAccountingPids, (Device));
    FUNCTION(pids_of, nvmlDeviceGetAccountingPids, (Device, unsigned *, unsigned *));
    FUNCTION(stats_of, nvmlDeviceGetAccountingStats, (Device, unsigned, struct stats *));
    FUNCTION(stats_v2_of, nvmlDeviceGetAccountingStats_v2, (Device, struct stats_v2 *));
    struct stats stats;
    struct stats_v2 newer = {.pid = (unsigned)first};
    unsigned count = 0, pids[8], size;
    int mode;
    CHECK(init());
    CHECK(handle(0, &device));
    driver_open(); /* accounting is not enabled yet: no entry for this process */
    CHECK(mode_of(device, &mode));
    CHECK(size_of(device, &size));
    HOLDS(mode == 0 && size == 4000);
    EXPECT(NOT_SUPPORTED, pids_of(device, &count, NULL));
    EXPECT(NOT_SUPPORTED, stats_of(device, (unsigned)first, &stats));
    EXPECT(NOT_SUPPORTED, clear(device));
    EXPECT(INVALID_ARGUMENT, set_mode(device, 2));
    if (geteuid() != 0) {
        EXPECT(NO_PERMISSION, set_mode(device, 1));
        limits(argc == 2 ? argv[1] : NULL);
        HOLDS(write(go[1], "gg", 2) == 2 && waitpid(first, NULL, 0) == first);
        printf("{\"root\": 0}\n");
        return 0;
    }
    CHECK(set_mode(device, 1));
    CHECK(mode_of(device, &mode));
    HOLDS(mode == 1);
    count = 8;
    CHECK(pids_of(device, &count, pids));
    HOLDS(count == 0);
    EXPECT(NOT_FOUND, stats_of(device, (unsigned)getpid(), &stats));

    /* While the process runs. */
    HOLDS(write(go[1], "g", 1) == 1 && read(done[0], &byte, 1) == 1);
    details(first);
    limits(argc == 2 ? argv[1] : NULL);
    count = 0;
    EXPECT(INSUFFICIENT_SIZE, pids_of(device, &count, NULL));
    HOLDS(count == 1);
    CHECK(pids_of(device, &count, pids));
    HOLDS(pids[0] == (unsigned)first);
    CHECK(stats_of(device, (unsigned)first, &stats));
    HOLDS(stats.running == 1 && stats.time == 0 && stats.gpu >= 1 && stats.gpu <= 100);
    HOLDS(stats.highest >= (256 + 64) * MIB && stats.begun > 1000000000000000ULL);
    EXPECT(INVALID_ARGUMENT, stats_of(device, (unsigned)first, NULL));
    CHECK(stats_v2_of(device, &newer));
    HOLDS(newer.running == 1 && newer.highest == stats.highest &&
          newer.begun / 1000000 == stats.begun / 1000000);

    /* After it has ended. */
    CHECK(clear(device));
    HOLDS(write(go[1], "g", 1) == 1 && waitpid(first, NULL, 0) == first);
    do {
        usleep(5000);
        CHECK(stats_of(device, (unsigned)first, &stats));
    } while (stats.running);
    HOLDS(stats.time >= 100 && stats.highest >= (256 + 64) * MIB);
    CHECK(stats_v2_of(device, &newer));
    HOLDS(newer.running == 0 && newer.time == stats.time && newer.gpu == stats.gpu);
    HOLDS(newer.samples == 0 || newer.sum_gpu / newer.samples / 100 == newer.gpu);
    CHECK(clear(device));
    EXPECT(NOT_FOUND, stats_of(device, (unsigned)first, &stats));
    CHECK(set_mode(device, 0));
    EXPECT(NOT_SUPPORTED, pids_of(device, &count, NULL));
    printf("{\"root\": 1}\n");
    return 0;
}
