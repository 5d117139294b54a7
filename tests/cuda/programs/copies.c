/* SPDX-License-Identifier: Apache-2.0
 *
 * copies - copies bytes to the GPU, on it and back, and fills memory: synchronously and in stream
 * order, from pageable and from pinned memory, in rows. Checks every byte.
 */
#include "driver.h"

#define BYTES ((size_t)3 << 20)

/* Rectangles, as the driver has had them since CUDA 3.2. */
struct rectangle_side {
    size_t x, y;
    unsigned kind; /* 1 host, 2 device */
    void *host;
    CUdeviceptr device;
    void *array;
    size_t pitch;
};
struct rectangle {
    struct rectangle_side from, to;
    size_t width, height;
};

static void pattern(unsigned char *to, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = (unsigned char)(seed >> 24);
    }
}

int main(void) {
    CUresult (*copy_rows)(const struct rectangle *);
    CUdeviceptr first, second, pitched;
    CUstream stream;
    size_t pitch, rest;
    unsigned char *data = malloc(BYTES), *back = calloc(1, BYTES), *pinned;
    HOLDS(data && back);
    watchdog(60);
    driver_open();
    *(void **)&copy_rows = driver_symbol("cuMemcpy2D_v2");
    CHECK(cu.cuMemAlloc(&first, BYTES));
    CHECK(cu.cuMemAlloc(&second, BYTES));
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

    /* To the GPU, to another place on it, and back. */
    pattern(data, BYTES, 1);
    CHECK(cu.cuMemcpyHtoD(first, data, BYTES));
    CHECK(cu.cuMemcpyDtoD(second, first, BYTES));
    CHECK(cu.cuMemcpyDtoH(back, second, BYTES));
    HOLDS(memcmp(back, data, BYTES) == 0);

    /* Within an allocation, at an offset. */
    CHECK(cu.cuMemcpyHtoD(first + 4097, data + 11, 100000));
    CHECK(cu.cuMemcpyDtoH(back, first + 4097, 100000));
    HOLDS(memcmp(back, data + 11, 100000) == 0);

    /* Fills of all widths; neighbouring bytes stay. */
    CHECK(cu.cuMemsetD8(first, 0x11, BYTES));
    CHECK(cu.cuMemsetD32(first + 4096, 0x44332211u, 1024));
    CHECK(cu.cuMemcpyDtoH(back, first, BYTES));
    HOLDS(back[4095] == 0x11 && back[8192] == 0x11 && back[BYTES - 1] == 0x11);
    for (size_t i = 0; i < 4096; i++) HOLDS(back[4096 + i] == 0x11 * (i % 4 + 1));

    /* In stream order with pinned memory: nothing arrives before the wait, everything after it. */
    CHECK(cu.cuMemHostAlloc((void **)&pinned, 2 * BYTES, 0));
    pattern(pinned, BYTES, 2);
    CHECK(cu.cuMemcpyHtoDAsync(first, pinned, BYTES, stream));
    CHECK(cu.cuMemsetD8Async(first, 0x77, 5, stream));
    CHECK(cu.cuMemcpyDtoHAsync(pinned + BYTES, first, BYTES, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    for (int i = 0; i < 5; i++) HOLDS(pinned[BYTES + (size_t)i] == 0x77);
    HOLDS(memcmp(pinned + BYTES + 5, pinned + 5, BYTES - 5) == 0);

    /* The source in pageable memory may be reused when the call returns, even behind a long
     * kernel. */
    pattern(data, 4096, 3);
    memcpy(back, data, 4096);
    CHECK(
        cu.cuLaunchKernel(driver_function("spin_20ms"), 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    CHECK(cu.cuMemcpyHtoDAsync(first, data, 4096, stream));
    memset(data, 0, 4096);
    CHECK(cu.cuMemcpyDtoHAsync(pinned, first, 4096, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(memcmp(pinned, back, 4096) == 0);

    /* Rows into pitched memory and back. */
    pattern(data, BYTES, 4);
    CHECK(cu.cuMemAllocPitch(&pitched, &pitch, 1000, 300, 4));
    HOLDS(pitch >= 1000 && pitch % 4 == 0);
    struct rectangle rows = {
        .from = {.kind = 1, .host = data, .pitch = 1000},
        .to = {.kind = 2, .device = pitched, .pitch = pitch},
        .width = 1000,
        .height = 300,
    };
    CHECK(copy_rows(&rows));
    memset(back, 0, BYTES);
    struct rectangle part = {
        .from = {.x = 10, .y = 20, .kind = 2, .device = pitched, .pitch = pitch},
        .to = {.kind = 1, .host = back, .pitch = 500},
        .width = 500,
        .height = 100,
    };
    CHECK(copy_rows(&part));
    for (size_t row = 0; row < 100; row++)
        HOLDS(memcmp(back + row * 500, data + (row + 20) * 1000 + 10, 500) == 0);

    /* Ranges beyond an allocation and unknown addresses are refused. */
    CHECK(cu.cuMemFree(second));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyHtoD(second, data, 16));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyDtoH(back, first, (size_t)64 << 20));

    CHECK(cu.cuMemFreeHost(pinned));
    CHECK(cu.cuMemFree(pitched));
    CHECK(cu.cuMemFree(first));
    CHECK(cu.cuStreamDestroy(stream));
    CHECK(cu.cuMemGetInfo(&rest, NULL));
    printf("{\"bytes\": %zu}\n", BYTES);
    return 0;
}
