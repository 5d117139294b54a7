/* SPDX-License-Identifier: Apache-2.0
 *
 * selfish/libcuda.so.1 - a driver that looks itself up while it is loaded, initialised and queried,
 * and returns a table of functions that no header has.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

static void *own(const char *name) {
    void *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *found = self ? dlsym(self, name) : NULL;
    if (self) dlclose(self);
    return found;
}

static int secret(void) { return 4711; }
static const void *const table[2] = {(void *)sizeof table, (void *)secret};

__attribute__((constructor)) static void loaded(void) {
    (void)own("cuMemAlloc_v2");
    (void)dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2");
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) { return (*address = bytes) == 0; }
int cuDriverGetVersion(int *version) { return (*version = 13020) * 0; }
int cuDeviceGetCount(int *count) { return *count = 0; }

int cuGetExportTable(const void **to, const void *id) {
    (void)id;
    *to = table;
    return own("cuMemAlloc_v2") && own("cuGetExportTable") ? 0 : 500;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                        int *status) {
    (void)version, (void)flags;
    *function = own(strcmp(name, "cuMemAlloc") ? name : "cuMemAlloc_v2");
    if (status) *status = *function ? 0 : 1;
    return 0;
}

int cuInit(unsigned flags) {
    const void *ours;
    int (*again)(const void **, const void *) =
        (int (*)(const void **, const void *))own("cuGetExportTable");
    return again && !again(&ours, NULL) && ours == table ? (int)flags : 500;
}
