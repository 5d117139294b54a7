/* SPDX-License-Identifier: Apache-2.0
 *
 * memops - checks stream memory operations: words that a stream writes, seen by a host that only
 * polls memory, and words that a stream waits for. Nothing is synchronised before the words are
 * seen.
 */
#include "driver.h"

enum { GEQ = 0, EQ = 1 };

static uint32_t seen(volatile uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

int main(void) {
    static uint32_t registered[1024] __attribute__((aligned(4096)));
    CUresult (*reg)(void *, size_t, unsigned), (*unreg)(void *);
    CUdeviceptr address;
    CUstream stream, other;
    uint32_t device_word = 0;
    CUdeviceptr on_gpu;
    watchdog(60);
    driver_open();
    *(void **)&reg = driver_symbol("cuMemHostRegister_v2");
    *(void **)&unreg = driver_symbol("cuMemHostUnregister");
    CUfunction kernel = driver_function("spin_2ms");
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cu.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CHECK(reg(registered, sizeof registered, 2 /* device map */));
    EXPECT(712 /* already registered */, reg(registered, 4096, 2));
    CHECK(cu.cuMemHostGetDevicePointer(&address, registered, 0));

    /* Words appear in order, each after the kernel before it. The first kernel waits for the
     * host. */
    CHECK(cu.cuStreamWaitValue32(stream, address + 20, 1, EQ));
    for (uint32_t i = 1; i <= 3; i++) {
        CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
        CHECK(cu.cuStreamWriteValue32(stream, address + 4 * i, i, 0));
    }
    HOLDS(seen(&registered[1]) == 0);
    __atomic_store_n(&registered[5], 1, __ATOMIC_RELEASE);
    while (seen(&registered[3]) != 3) usleep(100);
    HOLDS(seen(&registered[1]) == 1 && seen(&registered[2]) == 2);

    /* A stream waits for a word that the host writes, and for one that another stream writes. */
    CHECK(cu.cuStreamWaitValue32(stream, address, 7, GEQ));
    CHECK(cu.cuStreamWriteValue32(stream, address + 16, 1, 0));
    usleep(5000);
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(stream));
    HOLDS(seen(&registered[4]) == 0);
    __atomic_store_n(&registered[0], 8, __ATOMIC_RELEASE);
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(seen(&registered[4]) == 1);

    CHECK(cu.cuMemAlloc(&on_gpu, 4096));
    CHECK(cu.cuMemsetD8(on_gpu, 0, 4096));
    CHECK(cu.cuCtxSynchronize());
    CHECK(cu.cuStreamWaitValue32(stream, on_gpu, 5, EQ));
    CHECK(cu.cuStreamWriteValue32(other, on_gpu, 5, 0));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(cu.cuMemcpyDtoH(&device_word, on_gpu, 4));
    HOLDS(device_word == 5);

    /* Unregistered memory and unaligned words are refused. */
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cu.cuStreamWriteValue32(stream, (CUdeviceptr)(uintptr_t)&device_word, 1, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuStreamWriteValue32(stream, address + 2, 1, 0));
    CHECK(unreg(registered));
    EXPECT(713 /* not registered */, unreg(registered));
    CHECK(cu.cuMemFree(on_gpu));
    printf("{\"words\": 5}\n");
    return 0;
}
