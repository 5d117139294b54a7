/* SPDX-License-Identifier: Apache-2.0
 *
 * needed CHUNK - is linked with libcuda.so.1 (DT_NEEDED) instead of opening it. It never calls
 * dlsym, so the exported names of the first library in the search order count. Fills the GPU with
 * CHUNK bytes at a time and prints total, granted bytes and the error as one JSON object.
 *
 * Programs named needed* are linked with a libcuda.so.1 as an extra input; all others with -ldl
 * -lpthread only.
 */
#include "driver.h"

extern CUresult cuInit(unsigned flags);
extern CUresult cuDeviceGet(CUdevice *device, int ordinal);
extern CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
extern CUresult cuMemGetInfo_v2(size_t *available, size_t *total);
extern CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
extern CUresult cuMemFree_v2(CUdeviceptr address);

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: needed CHUNK\n");
        return 2;
    }
    size_t bytes = parse_bytes(argv[1]), available, total, chunks = 0;
    CUdevice device;
    CUcontext context;
    watchdog(60);
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuCtxCreate_v2(&context, 0, device));
    CHECK(cuMemGetInfo_v2(&available, &total));
    CUdeviceptr *chunk = calloc(total / bytes + 2, sizeof *chunk);
    HOLDS(chunk != NULL);
    CUresult result;
    while ((result = cuMemAlloc_v2(&chunk[chunks], bytes)) == CUDA_SUCCESS) {
        chunks++;
        HOLDS(chunks <= total / bytes);
    }
    for (size_t i = 0; i < chunks; i++) CHECK(cuMemFree_v2(chunk[i]));
    printf("{\"total\": %zu, \"granted\": %zu, \"error\": %d}\n", total, chunks * bytes, result);
    HOLDS(result == CUDA_ERROR_OUT_OF_MEMORY);
    return 0;
}
