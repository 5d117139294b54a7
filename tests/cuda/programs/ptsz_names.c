/* SPDX-License-Identifier: Apache-2.0
 *
 * ptsz_names - works through the per-thread-default-stream names. Every one of them must be there both by dlsym of the suffixed
 * name and by cuGetProcAddress with the per-thread flag, as the same function; and they must do what the plain ones do.
 */
#include "driver.h"

typedef CUresult (*GetProcAddress)(const char *name, void **function, int version, uint64_t flags, int *status);

/* base name, suffixed symbol, version that introduced it */
static const struct {
    const char *base, *symbol;
    int version;
} names[] = {
    {"cuLaunchKernel", "cuLaunchKernel_ptsz", 7000},
    {"cuMemcpyHtoD", "cuMemcpyHtoD_v2_ptds", 7000},
    {"cuMemcpyDtoH", "cuMemcpyDtoH_v2_ptds", 7000},
    {"cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2_ptsz", 7000},
    {"cuMemsetD8", "cuMemsetD8_v2_ptds", 7000},
    {"cuStreamSynchronize", "cuStreamSynchronize_ptsz", 7000},
    {"cuEventRecord", "cuEventRecord_ptsz", 7000},
    {"cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz", 9000},
    {"cuLaunchHostFunc", "cuLaunchHostFunc_ptsz", 10000},
};
enum { LAUNCH, HTOD, DTOH, HTOD_ASYNC, MEMSET, SYNCHRONIZE, RECORD, COOPERATIVE, HOSTFUNC, NAMES };

int main(void) {
    void *function[NAMES];
    GetProcAddress get;
    watchdog(60);
    driver_open();
    *(void **)&get = driver_symbol("cuGetProcAddress_v2");
    for (int i = 0; i < NAMES; i++) {
        int status = -1;
        CHECK(get(names[i].base, &function[i], names[i].version, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
        if (status != 0) FAIL("%s: status %d", names[i].base, status);
        if (function[i] != driver_symbol(names[i].symbol)) FAIL("%s is not %s", names[i].base, names[i].symbol);
    }
    CUdeviceptr address;
    unsigned char bytes[4096], back[4096];
    memset(bytes, 0x5a, sizeof bytes);
    CHECK(cu.cuMemAlloc(&address, sizeof bytes));
    CHECK(((CUresult(*)(CUdeviceptr, unsigned char, size_t))function[MEMSET])(address, 0, sizeof bytes));
    CHECK(((CUresult(*)(CUdeviceptr, const void *, size_t))function[HTOD])(address, bytes, sizeof bytes / 2));
    CHECK(((CUresult(*)(CUdeviceptr, const void *, size_t, CUstream))function[HTOD_ASYNC])(
        address + sizeof bytes / 2, bytes, sizeof bytes / 2, NULL));
    CHECK(((CUresult(*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
                        void **))function[LAUNCH])(driver_function("spin_50us"), 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CHECK(((CUresult(*)(CUstream))function[SYNCHRONIZE])(NULL));
    CHECK(((CUresult(*)(void *, CUdeviceptr, size_t))function[DTOH])(back, address, sizeof back));
    HOLDS(memcmp(bytes, back, sizeof back) == 0);
    CHECK(cu.cuMemFree(address));
    printf("{\"names\": %d}\n", NAMES);
    return 0;
}
