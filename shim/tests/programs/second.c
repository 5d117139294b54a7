/* SPDX-License-Identifier: Apache-2.0
 *
 * second COPY - uses the driver, then opens a second copy of it under another path, and uses that.
 * Prints where functions of the second one lead (hooked, not hooked, absent), and the results of
 * allocating and freeing across both.
 */
#include "where.h"

typedef unsigned long long address_t;

static int (*function(void *library, const char *name))() {
    int (*found)() = (int (*)())dlsym(library, name);
    if (!found) fprintf(stderr, "%s\n", dlerror());
    return found;
}

int main(int argc, char **argv) {
    address_t address = 0;
    void *context;
    alarm(60);
    if (argc != 2) return 2;
    void *first = open_or_end("libcuda.so.1", RTLD_NOW);
    if (function(first, "cuInit")(0) != 0) return 1;
    void *second = open_or_end(argv[1], RTLD_NOW);
    printf("%s\n", first == second ? "one copy" : "two copies");
    printf("%s\n", where(dlsym(second, "cuInit")));
    printf("%s\n", dlsym(second, "cuInit") == dlsym(first, "cuInit") ? "the same" : "another");
    void *ours = dlsym(first, "cuDeviceGetName");
    printf("%s\n", dlsym(second, "cuDeviceGetName") == ours ? "the same" : "another");
    printf("%s\n", where(dlsym(second, "cuNoSuchFunction")));
    printf("%s\n", dlerror() ? "said" : "silent");
    printf("%d\n", function(second, "cuInit")(0));
    printf("%d\n", function(first, "cuDevicePrimaryCtxRetain")(&context, 0));
    printf("%d\n", function(second, "cuCtxSetCurrent")(context));
    printf("%d\n", function(second, "cuMemAlloc_v2")(&address, (size_t)1 << 20));
    printf("%d\n", function(first, "cuMemFree_v2")(address));
    return 0;
}
