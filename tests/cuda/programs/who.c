/* SPDX-License-Identifier: Apache-2.0
 *
 * who [BYTES] - allocates BYTES (without: has no context either) and then answers each line of
 * input with one line of JSON: what NVML reports of the first GPU and its processes. The line
 * "work" runs the GPU for 300 ms before, "account" enables accounting. It also checks that all
 * versions of a list agree, by the protocol of two calls, and that wrong calls get the vendor's
 * errors. Functions that NVML lacks or does not support are left out; lists that it withholds are
 * null.
 *
 *     {"pid": 7, "total": ..., "used": ..., "free": ...,
 *      "compute": [[pid, bytes], ...], "graphics": [...], "mps": [...], "detail": [...],
 *      "busy": [[pid, percent], ...], "accounted": [[pid, most bytes], ...],
 *      "limits": {"soft": ..., "hard": ..., "used": ...},
 *      "instances": [{"mib": ..., "total": ..., "compute": [...]}, ...]}
 */
#include "driver.h"

typedef struct device *Device;
struct memory {
    unsigned long long total, free, used;
};
struct short_process {
    unsigned pid;
    unsigned long long memory;
};
struct long_process {
    unsigned pid;
    unsigned long long memory;
    unsigned instance, compute_instance;
};
struct detail {
    struct long_process process;
    unsigned long long protected_memory;
};
struct details {
    unsigned version, mode, count;
    struct detail *list;
};
struct sample {
    unsigned pid;
    unsigned long long time;
    unsigned sm, memory, encoder, decoder;
};
struct info {
    unsigned long long time;
    unsigned pid, sm, rest[5];
};
struct infos {
    unsigned version, count;
    unsigned long long since;
    struct info *list;
};
struct account {
    unsigned sm, memory_busy;
    unsigned long long most, time, start;
    unsigned running, reserved[5];
};

struct account_v2 {
    unsigned pid, running, sm, memory_busy;
    unsigned long long most;
    unsigned samples;
    unsigned long long sm_sum, memory_sum, time, start;
};
struct limits {
    const char *group;
    unsigned long long soft, hard, used;
};
struct attributes {
    unsigned counts[8];
    unsigned long long mib;
};

enum {
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    VERSION_MISMATCH = 25,
    ROOM = 64
};

static void *library;
static Device gpu;

#define FUNCTION(name, symbol, arguments) \
    int(*name) arguments;                 \
    *(void **)&name = dlsym(library, symbol)

static void put(const char *name, unsigned count, const struct short_process *list) {
    printf(", \"%s\": [", name);
    for (unsigned i = 0; i < count; i++)
        printf("%s[%u, %llu]", i ? ", " : "", list[i].pid, list[i].memory);
    printf("]");
}

/* Returns whether the other versions of a list agree with the first one. */
static int same(const char *kind, unsigned count, const struct short_process *shorts) {
    char symbol[96];
    struct long_process longs[ROOM];
    for (int version = 2; version <= 3; version++) {
        unsigned again = ROOM;
        snprintf(symbol, sizeof symbol, "nvmlDeviceGet%sRunningProcesses_v%d", kind, version);
        FUNCTION(get, symbol, (Device, unsigned *, struct long_process *));
        if (!get) continue;
        CHECK(get(gpu, &again, longs));
        if (again != count) return 0;
        for (unsigned i = 0; i < count; i++)
            if (longs[i].pid != shorts[i].pid || longs[i].memory != shorts[i].memory) return 0;
    }
    return 1;
}

static void list(const char *name, const char *kind) {
    char symbol[96];
    struct short_process shorts[ROOM];
    unsigned none = 0, count = ROOM, tries = 0;
    snprintf(symbol, sizeof symbol, "nvmlDeviceGet%sRunningProcesses", kind);
    FUNCTION(get, symbol, (Device, unsigned *, struct short_process *));
    EXPECT(INVALID_ARGUMENT, get(gpu, NULL, shorts));
    int answer = get(gpu, &none, NULL);
    if (answer == NO_PERMISSION) {
        EXPECT(NO_PERMISSION, get(gpu, &count, shorts));
        printf(", \"%s\": null", name);
        return;
    }
    HOLDS(answer == (none ? INSUFFICIENT_SIZE : CUDA_SUCCESS));
    /* They are queried one after another and may differ for a moment, so this is repeated for a
     * while. */
    do {
        count = ROOM;
        CHECK(get(gpu, &count, shorts));
    } while (!same(kind, count, shorts) && ++tries < 1000);
    HOLDS(tries < 1000);
    if (count > 1) {
        unsigned few = 1;
        EXPECT(INSUFFICIENT_SIZE, get(gpu, &few, shorts));
        HOLDS(few > 1);
    }
    put(name, count, shorts);
}

static void details(void) {
    struct detail room[ROOM];
    struct short_process shorts[ROOM];
    struct details requested = {.version = 1, .list = room, .count = ROOM};
    FUNCTION(get, "nvmlDeviceGetRunningProcessDetailList", (Device, struct details *));
    if (!get) return;
    HOLDS(get(gpu, &requested) != CUDA_SUCCESS);
    requested.version = 0x01000018;
    int first = get(gpu, &requested);
    if (first == NOT_SUPPORTED || first == NO_PERMISSION) return;
    requested.count = 0;
    requested.list = NULL;
    int answer = get(gpu, &requested);
    HOLDS(answer == (requested.count ? INSUFFICIENT_SIZE : CUDA_SUCCESS));
    requested.count = ROOM;
    requested.list = room;
    CHECK(get(gpu, &requested));
    HOLDS(requested.count <= ROOM);
    for (unsigned i = 0; i < requested.count; i++) {
        shorts[i] = (struct short_process){room[i].process.pid, room[i].process.memory};
        HOLDS(room[i].protected_memory <= room[i].process.memory);
    }
    put("detail", requested.count, shorts);
}

static void utilisation(void) {
    struct sample samples[ROOM];
    struct info infos[ROOM];
    struct short_process shorts[ROOM];
    unsigned count = 0;
    FUNCTION(get, "nvmlDeviceGetProcessUtilization",
             (Device, struct sample *, unsigned *, unsigned long long));
    FUNCTION(get_all, "nvmlDeviceGetProcessesUtilizationInfo", (Device, struct infos *));
    int answer = get(gpu, NULL, &count, 0);
    if (answer == NOT_SUPPORTED || answer == NO_PERMISSION)
        return; /* a partitioned GPU, or an initialisation that was refused */
    HOLDS(answer == (count ? INSUFFICIENT_SIZE : NOT_FOUND));
    count = ROOM;
    answer = get(gpu, samples, &count, 0);
    HOLDS(answer == (count ? CUDA_SUCCESS : NOT_FOUND));
    for (unsigned i = 0; i < count; i++)
        shorts[i] = (struct short_process){samples[i].pid, samples[i].sm};
    put("busy", count, shorts);
    if (!get_all) return;
    struct infos requested = {.version = 7, .count = ROOM, .list = infos};
    EXPECT(VERSION_MISMATCH, get_all(gpu, &requested));
    requested.version = 0x01000018;
    answer = get_all(gpu, &requested);
    if (answer == NOT_FOUND)
        requested.count = 0;
    else
        CHECK(answer);
    for (unsigned i = 0; i < requested.count; i++)
        shorts[i] = (struct short_process){infos[i].pid, infos[i].sm};
    put("busy_info", requested.count, shorts);
}

static void accounting(void) {
    unsigned pids[ROOM], count = ROOM;
    struct short_process shorts[ROOM];
    struct account about;
    FUNCTION(get_pids, "nvmlDeviceGetAccountingPids", (Device, unsigned *, unsigned *));
    FUNCTION(get, "nvmlDeviceGetAccountingStats", (Device, unsigned, struct account *));
    FUNCTION(get_v2, "nvmlDeviceGetAccountingStats_v2", (Device, struct account_v2 *));
    int first = get_pids(gpu, &count, pids);
    if (first == NOT_SUPPORTED || first == NO_PERMISSION) return;
    count = ROOM;
    CHECK(get_pids(gpu, &count, pids));
    for (unsigned i = 0; i < count; i++) {
        CHECK(get(gpu, pids[i], &about));
        shorts[i] = (struct short_process){pids[i], about.most};
        struct account_v2 again = {.pid = pids[i]};
        if (!get_v2) continue;
        CHECK(get_v2(gpu, &again));
        HOLDS(again.pid == pids[i] && again.running == about.running && again.start == about.start);
    }
    EXPECT(NOT_FOUND, get(gpu, 4000000, &about));
    put("accounted", count, shorts);
}

/* Limits of the root group, if the vendor has them. */
static void limits(void) {
    struct limits requested = {.group = "/sys/fs/cgroup"};
    FUNCTION(get, "nvmlDeviceGetMemoryLimits_v1", (Device, struct limits *));
    if (!get || get(gpu, &requested) != CUDA_SUCCESS) return;
    printf(", \"limits\": {\"soft\": %llu, \"hard\": %llu, \"used\": %llu}", requested.soft,
           requested.hard, requested.used);
}

/* Instances of a partitioned GPU. */
static void instances(void) {
    Device whole = gpu;
    unsigned cut = 0, pending;
    struct memory memory;
    struct attributes attributes;
    FUNCTION(mode, "nvmlDeviceGetMigMode", (Device, unsigned *, unsigned *));
    FUNCTION(by_index, "nvmlDeviceGetMigDeviceHandleByIndex", (Device, unsigned, Device *));
    FUNCTION(get, "nvmlDeviceGetMemoryInfo", (Device, struct memory *));
    FUNCTION(attributes_of, "nvmlDeviceGetAttributes_v2", (Device, struct attributes *));
    if (mode(whole, &cut, &pending) != CUDA_SUCCESS || !cut) return;
    printf(", \"instances\": [");
    for (unsigned i = 0; by_index(whole, i, &gpu) == CUDA_SUCCESS; i++) {
        CHECK(get(gpu, &memory));
        CHECK(attributes_of(gpu, &attributes));
        printf("%s{\"mib\": %llu, \"total\": %llu, \"used\": %llu", i ? ", " : "", attributes.mib,
               memory.total, memory.used);
        list("compute", "Compute");
        printf("}");
    }
    printf("]");
    gpu = whole;
}

static void work(void) {
    static CUfunction function; /* loaded once, since code takes memory */
    if (!function) function = driver_function("spin_10ms");
    for (int i = 0; i < 30; i++)
        CHECK(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK(cu.cuCtxSynchronize());
}

static void answer(void) {
    struct memory memory;
    FUNCTION(get, "nvmlDeviceGetMemoryInfo", (Device, struct memory *));
    CHECK(get(gpu, &memory));
    printf("{\"pid\": %d, \"total\": %llu, \"used\": %llu, \"free\": %llu", (int)getpid(),
           memory.total, memory.used, memory.free);
    list("compute", "Compute");
    list("graphics", "Graphics");
    list("mps", "MPSCompute");
    details();
    utilisation();
    accounting();
    limits();
    instances();
    printf("}\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    char line[64];
    CUdeviceptr address;
    watchdog(300);
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "no NVML: %s\n", dlerror());
        return 3;
    }
    FUNCTION(init, "nvmlInit_v2", (void));
    FUNCTION(keep_accounts, "nvmlDeviceSetAccountingMode", (Device, unsigned));
    FUNCTION(by_index, "nvmlDeviceGetHandleByIndex_v2", (unsigned, Device *));
    CHECK(init());
    CHECK(by_index(0, &gpu));
    if (argc > 1) {
        driver_open();
        CHECK(cu.cuMemAlloc(&address, parse_bytes(argv[1])));
    }
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "work\n")) work();
        if (!strcmp(line, "account\n")) CHECK(keep_accounts(gpu, 1));
        answer();
    }
    return 0;
}
