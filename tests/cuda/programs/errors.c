/* SPDX-License-Identifier: Apache-2.0
 *
 * errors - checks what the driver returns for wrong calls: before it is initialised, without a
 * context, with invalid arguments and handles.
 */
#include "driver.h"

int main(void) {
    CUdevice device;
    CUcontext context;
    CUdeviceptr address;
    CUmodule module;
    CUfunction function;
    CUstream stream;
    CUevent event;
    const char *text;
    size_t bytes;
    int number;
    watchdog(60);
    driver_load();

    /* Before cuInit. Versions and names of errors do not need it. */
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cu.cuDeviceGetCount(&number));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cu.cuDeviceGetCount(NULL));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cu.cuCtxGetCurrent(&context));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cu.cuMemGetInfo(NULL, NULL));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cu.cuMemFree(0));
    EXPECT(CUDA_ERROR_INVALID_HANDLE,
           cu.cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK(cu.cuDriverGetVersion(&number));
    HOLDS(number >= 10000);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuDriverGetVersion(NULL));
    CHECK(cu.cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    HOLDS(!strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY"));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuGetErrorName(123456, &text));
    HOLDS(text == NULL);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuInit(1));
    CHECK(cu.cuInit(0));
    CHECK(cu.cuInit(0));

    /* Unknown GPUs. */
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cu.cuDeviceGet(&device, 99));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cu.cuDeviceGet(&device, -1));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cu.cuDeviceTotalMem(&bytes, 99));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuDeviceTotalMem(NULL, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuDeviceGetAttribute(&number, 9999, 0));

    /* Without a context. */
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cu.cuMemAlloc(&address, 4096));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cu.cuMemGetInfo(&bytes, NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cu.cuCtxSynchronize());
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cu.cuStreamCreate(&stream, 0));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cu.cuModuleLoadData(&module, "x"));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cu.cuCtxSetCurrent((CUcontext)0x1234));

    /* With one. */
    CHECK(cu.cuDeviceGet(&device, 0));
    CHECK(cu.cuCtxCreate(&context, 0, device));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemAlloc(NULL, 4096));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemAlloc(&address, 0));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemAlloc(&address, (size_t)1 << 50));
    HOLDS(address == 0);
    CHECK(cu.cuMemFree(0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree(0x1234));
    CHECK(cu.cuMemAlloc(&address, 4096));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree(address + 1));
    CHECK(cu.cuMemFree(address));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree(address));

    EXPECT(CUDA_ERROR_INVALID_HANDLE, cu.cuStreamSynchronize((CUstream)0x1234));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cu.cuEventQuery((CUevent)0x1234));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cu.cuModuleGetFunction(&function, (CUmodule)0x1234, "f"));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuStreamCreate(&stream, 77));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuEventCreate(NULL, 0));

    /* Handles of another kind, and stale ones. */
    function = driver_function("spin_10us");
    CHECK(cu.cuStreamCreate(&stream, 0));
    CHECK(cu.cuEventCreate(&event, 0));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cu.cuStreamSynchronize((CUstream)event));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cu.cuEventQuery((CUevent)stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cu.cuLaunchKernel(function, 0, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cu.cuLaunchKernel(function, 1, 1, 1, 1025, 1, 1, 0, stream, NULL, NULL));
    CHECK(cu.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    CHECK(cu.cuStreamDestroy(stream));
    EXPECT(CUDA_ERROR_INVALID_HANDLE,
           cu.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));

    /* A destroyed context invalidates what it owned. */
    CHECK(cu.cuCtxDestroy(context));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cu.cuEventQuery(event));
    EXPECT(CUDA_ERROR_INVALID_HANDLE,
           cu.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cu.cuCtxDestroy(context));
    printf("{\"checked\": true}\n");
    return 0;
}
