/* SPDX-License-Identifier: Apache-2.0
 *
 * lookup - checks both versions of cuGetProcAddress, result by result, as measured on real drivers
 * (which need no GPU for it).
 */
#include "driver.h"

static CUresult (*first)(const char *, void **, int, uint64_t);
static CUresult (*second)(const char *, void **, int, uint64_t, int *);

/* Requires the exported symbol, or NULL with this status. */
static void gives(const char *name, int version, uint64_t flags, const char *symbol, int wanted) {
    void *function = (void *)1;
    int status = -1;
    CHECK(second(name, &function, version, flags, &status));
    if (function != (symbol ? driver_symbol(symbol) : NULL) || status != wanted)
        FAIL("%s at %d, flags %d: %p, status %d", name, version, (int)flags, function, status);
    function = (void *)1;
    CUresult result = first(name, &function, version, flags);
    if (symbol)
        HOLDS(result == CUDA_SUCCESS && function == driver_symbol(symbol));
    else
        HOLDS(result == CUDA_ERROR_NOT_FOUND && function == (void *)1);
}

int main(void) {
    void *function = (void *)1;
    int version;
    watchdog(60);
    driver_load();
    CHECK(cu.cuDriverGetVersion(&version));
    *(void **)&first = driver_symbol("cuGetProcAddress");
    *(void **)&second = driver_symbol("cuGetProcAddress_v2");

    gives("cuInit", 2000, 0, "cuInit", 0);
    gives("cuMemAlloc", 3010, 0, "cuMemAlloc", 0);
    gives("cuMemAlloc", 3020, 0, "cuMemAlloc_v2", 0);
    gives("cuMemAlloc", 99999, 0, "cuMemAlloc_v2", 0);
    gives("cuMemAlloc", -1, 0, "cuMemAlloc_v2", 0);
    gives("cuMemAlloc", 12000, 2, "cuMemAlloc_v2", 0);
    gives("cuGetProcAddress", 11030, 0, "cuGetProcAddress", 0);
    gives("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2", 0);
    gives("cuMemcpyHtoD", 12000, 0, "cuMemcpyHtoD_v2", 0);
    gives("cuMemcpyHtoD", 12000, 1, "cuMemcpyHtoD_v2", 0);
    gives("cuMemcpyHtoD", 12000, 2, "cuMemcpyHtoD_v2_ptds", 0);
    gives("cuMemcpyHtoD", 12000, 3, "cuMemcpyHtoD_v2_ptds", 0);
    gives("cuLaunchKernel", 4000, 0, "cuLaunchKernel", 0);
    gives("cuLaunchKernel", 4000, 2, NULL, 2);
    gives("cuLaunchKernel", 7000, 2, "cuLaunchKernel_ptsz", 0);
    gives("cuMemCreate", 9000, 0, NULL, 2);
    gives("cuMemAlloc", 0, 0, NULL, 2);
    gives("cuMemAlloc_v2", 12000, 0, NULL, 1);
    gives("cuNothing", 12000, 0, NULL, 1);
    gives("", 0, 0, NULL, 1);
    if (version < 13000)
        gives("cuMemGetDefaultMemPool", 13000, 0, NULL, 1);
    else
        gives("cuMemGetDefaultMemPool", 13000, 0, "cuMemGetDefaultMemPool", 0);

    /* Unknown flags; a caller without a status. */
    EXPECT(CUDA_ERROR_INVALID_VALUE, second("cuInit", &function, 12000, 4, NULL));
    HOLDS(function == (void *)1);
    CHECK(second("cuInit", &function, 12000, 0, NULL));
    HOLDS(function == driver_symbol("cuInit"));
    printf("{\"version\": %d}\n", version);
    return 0;
}
