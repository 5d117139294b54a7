/* SPDX-License-Identifier: Apache-2.0
 *
 * memory_limits FOLDER [SOFT HARD] - sets the driver's own limits of a control group on the first
 * GPU, in MiB or "none", and prints what NVML then reports of them. Sets nothing without numbers.
 * For a driver without a shim.
 */
#include "driver.h"

typedef struct device *Device;
struct limits {
    const char *group;
    unsigned long long soft, hard, used;
};

static unsigned long long bytes(const char *text) {
    return strcmp(text, "none") == 0 ? ~0ULL : strtoull(text, NULL, 10) << 20;
}

int main(int argc, char **argv) {
    if (argc != 2 && argc != 4) return 2;
    watchdog(60);
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) return 3;
    int (*init)(void), (*shutdown)(void), (*handle)(unsigned, Device *);
    int (*set)(Device, struct limits *), (*get)(Device, struct limits *);
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&shutdown = dlsym(library, "nvmlShutdown");
    *(void **)&handle = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&set = dlsym(library, "nvmlDeviceSetMemoryLimits_v1");
    *(void **)&get = dlsym(library, "nvmlDeviceGetMemoryLimits_v1");
    if (!set || !get) {
        printf("{\"functions\": 0}\n");
        return 0;
    }
    Device device;
    CHECK(init());
    CHECK(handle(0, &device));
    struct limits limits = {.group = argv[1]};
    int changed = 0;
    if (argc == 4) {
        limits.soft = bytes(argv[2]), limits.hard = bytes(argv[3]);
        changed = set(device, &limits);
    }
    limits.soft = limits.hard = limits.used = 0;
    int reported = get(device, &limits);
    printf("{\"functions\": 1, \"set\": %d, \"get\": %d, \"soft\": %llu, \"hard\": %llu, "
           "\"used\": %llu}\n",
           changed, reported, limits.soft, limits.hard, limits.used);
    CHECK(shutdown());
    return 0;
}
