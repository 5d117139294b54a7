/* SPDX-License-Identifier: Apache-2.0
 *
 * nvml_start CYCLES - measures how long NVML takes to initialise and shut down, repeatedly, in a
 * process that uses it for nothing else.
 *
 * Prints one JSON object a line, in ms, as soon as it is known, since an initialisation may hang:
 * load_ms (dlopen), then init_ms (nvmlInit_v2) and shutdown_ms (nvmlShutdown) of each cycle.
 */
#include "driver.h"

int main(int argc, char **argv) {
    int cycles = argc == 2 ? atoi(argv[1]) : 0;
    int (*init)(void), (*end)(void);
    if (cycles < 1) {
        fprintf(stderr, "usage: nvml_start CYCLES\n");
        return 2;
    }
    watchdog(60);
    setvbuf(stdout, NULL, _IOLBF, 0);
    double start = seconds_now();
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "no NVML: %s\n", dlerror());
        return 3;
    }
    printf("{\"load_ms\": %.3f}\n", (seconds_now() - start) * 1e3);
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&end = dlsym(library, "nvmlShutdown");
    HOLDS(init && end);
    for (int cycle = 0; cycle < cycles; cycle++) {
        start = seconds_now();
        CHECK(init());
        double started = seconds_now();
        CHECK(end());
        double ended = seconds_now();
        printf("{\"init_ms\": %.3f, \"shutdown_ms\": %.3f}\n", (started - start) * 1e3,
               (ended - started) * 1e3);
    }
    return 0;
}
