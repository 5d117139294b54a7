/* SPDX-License-Identifier: Apache-2.0
 *
 * odd/libcuda.so.1 - a driver whose cuGetProcAddress returns functions that it does not export, and
 * one under two names.
 */
#include <stdint.h>
#include <string.h>

int cuInit(unsigned flags) { return (int)(flags * 0); }
int cuDeviceGetCount(int *count) { return *count = 0; }
int cuDriverGetVersion(int *version) { return (*version = 13000) * 0; }

static int hidden(void) { return 4711; }
int cuMemAlloc_v2(void) { return 1; }
int cuMemFree_v2(void) __attribute__((alias("cuMemAlloc_v2")));
int cuStreamCreate(void) { return 2; }

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                        int *status) {
    (void)version, (void)flags;
    *function = 0;
    if (status) *status = 1;
    if (!strcmp(name, "cuMemAlloc") || !strcmp(name, "cuMemFree"))
        *function = (void *)cuMemAlloc_v2;
    if (!strcmp(name, "cuStreamCreate")) *function = (void *)cuStreamCreate;
    if (!strcmp(name, "cuMemAllocPitch") || !strcmp(name, "cuStreamQuery") ||
        !strcmp(name, "cuBrandNew") || !strcmp(name, "cuMemAllocBrandNew"))
        *function = (void *)hidden;
    if (status && *function) *status = 0;
    return 0;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, 0);
}
