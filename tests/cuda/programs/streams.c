/* SPDX-License-Identifier: Apache-2.0
 *
 * streams - checks order in and between streams by events, and the times of events. Prints one JSON
 * object: the milliseconds that ten kernels of 1 ms took.
 */
#include "driver.h"

int main(void) {
    CUstream first, second;
    CUevent begin, end, untimed, never;
    uint32_t *gate;
    float ms;
    watchdog(60);
    driver_open();
    CUfunction kernel = driver_function("spin_1ms");
    CHECK(cu.cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    CHECK(cu.cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    CHECK(cu.cuEventCreate(&begin, 0));
    CHECK(cu.cuEventCreate(&end, 0));
    CHECK(cu.cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    CHECK(cu.cuEventCreate(&never, 0));

    /* An idle stream and an event that was never recorded are done. */
    CHECK(cu.cuStreamQuery(first));
    CHECK(cu.cuEventQuery(never));
    CHECK(cu.cuEventSynchronize(never));

    /* Closed until the host opens it, so that nothing ends before it is checked, however slow
     * the host is. */
    CHECK(cu.cuMemHostAlloc((void **)&gate, 4096, 0));
    __atomic_store_n(gate, 0, __ATOMIC_RELEASE);
    CHECK(cu.cuStreamWaitValue32(first, (CUdeviceptr)(uintptr_t)gate, 1, 0));
    CHECK(cu.cuEventRecord(begin, first));
    for (int i = 0; i < 10; i++)
        CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, first, NULL, NULL));
    CHECK(cu.cuEventRecord(end, first));
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(first));
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuEventQuery(end));
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuEventElapsedTime(&ms, begin, end));
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);

    /* The second stream waits for the first. */
    CHECK(cu.cuStreamWaitEvent(second, end, 0));
    CHECK(cu.cuEventRecord(untimed, second));
    CHECK(cu.cuEventSynchronize(untimed));
    CHECK(cu.cuEventQuery(end));
    CHECK(cu.cuStreamSynchronize(first));
    CHECK(cu.cuStreamQuery(first));
    CHECK(cu.cuEventElapsedTime(&ms, begin, end));
    HOLDS(ms >= 9.9f);

    /* Times need two timed and recorded events. */
    float unused;
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cu.cuEventElapsedTime(&unused, begin, untimed));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cu.cuEventElapsedTime(&unused, begin, never));

    /* The default stream waits for blocking streams, not for the others. */
    CUstream blocking;
    CHECK(cu.cuStreamCreate(&blocking, 0));
    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, blocking, NULL, NULL));
    CHECK(cu.cuEventRecord(begin, blocking));
    CHECK(cu.cuEventRecord(end, NULL));
    CHECK(cu.cuEventSynchronize(end));
    CHECK(cu.cuEventQuery(begin));

    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, first, NULL, NULL));
    CHECK(cu.cuCtxSynchronize());
    CHECK(cu.cuStreamQuery(first));

    CHECK(cu.cuMemFreeHost(gate));
    CHECK(cu.cuStreamDestroy(blocking));
    CHECK(cu.cuStreamDestroy(second));
    CHECK(cu.cuStreamDestroy(first));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cu.cuEventRecord(begin, first));
    CHECK(cu.cuEventDestroy(begin));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cu.cuEventQuery(begin));
    CHECK(cu.cuEventDestroy(end));
    CHECK(cu.cuEventDestroy(untimed));
    CHECK(cu.cuEventDestroy(never));
    printf("{\"ten_ms\": %.4f}\n", (double)ms);
    return 0;
}
