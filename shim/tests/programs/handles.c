/* SPDX-License-Identifier: Apache-2.0
 *
 * handles - looks names up through every kind of handle, before and after the driver is opened, and
 * prints where each leads.
 */
#include "where.h"

static void query(const char *how, void *handle, const char *name) {
    dlerror();
    void *found = dlsym(handle, name);
    const char *error = dlerror();
    printf("%s %s: %s%s\n", how, name, where(found), !found && !error ? " without a word" : "");
}

static void ask_everywhere(const char *when) {
    char how[64];
    printf("-- %s\n", when);
    const char *names[] = {"cuMemAlloc_v2", "cuStreamCreate", "cuNothing",
                           "nvmlDeviceGetMemoryInfo", "qsort"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(how, sizeof how, "default");
        query(how, RTLD_DEFAULT, names[i]);
        snprintf(how, sizeof how, "next");
        query(how, RTLD_NEXT, names[i]);
        snprintf(how, sizeof how, "program");
        query(how, dlopen(NULL, RTLD_NOW), names[i]);
    }
}

int main(void) {
    alarm(60);
    ask_everywhere("without the driver");
    void *driver = open_or_end("libcuda.so.1", RTLD_NOW);
    void *libc = open_or_end("libc.so.6", RTLD_NOW);
    ask_everywhere("with the driver");
    printf("-- by handle\n");
    const char *names[] = {"cuInit", "cuMemAlloc", "cuMemAlloc_v2", "cuLaunchKernel_ptsz",
                           "cuGetProcAddress_v2",
                           "cuStreamCreate", "cuMemAlloc_v3", "cuNothing", "cu", "", "qsort"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        query("driver", driver, names[i]);
        query("libc", libc, names[i]);
    }
    printf("versioned cuMemAlloc_v2: %s\n", where(dlvsym(driver, "cuMemAlloc_v2", "GLIBC_2.2.5")));
    void *versioned = dlvsym(libc, "qsort", "GLIBC_2.2.5");
    printf("versioned qsort: %s\n", versioned == dlsym(libc, "qsort") ? "the same" : "another");
    void *nvml = open_or_end("libnvidia-ml.so.1", RTLD_NOW);
    query("nvml", nvml, "nvmlInit_v2");
    query("nvml", nvml, "nvmlDeviceGetMemoryInfo");
    query("nvml", nvml, "nvmlDeviceGetMemoryInfo_v2");
    return 0;
}
