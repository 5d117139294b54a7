/* SPDX-License-Identifier: Apache-2.0
 *
 * implicit_limits - a larger heap, stack or printf buffer takes memory of the GPU, and is refused
 * as the driver would where there is not so much: then the limit is as it was. What it took goes
 * back when it is made smaller, or with the context.
 */
#include "books.h"

enum { STACK = 0, PRINTF = 1, HEAP = 2, DEPTH = 3 };

static struct {
    CUresult (*set)(int limit, size_t value);
    CUresult (*get)(size_t *value, int limit);
} limits;

static size_t value_of(int limit) {
    size_t value;
    CHECK(limits.get(&value, limit));
    return value;
}

int main(void) {
    watchdog(60);
    driver_open();
    *(void **)&limits.set = driver_symbol("cuCtxSetLimit");
    *(void **)&limits.get = driver_symbol("cuCtxGetLimit");
    books_open();
    size_t heap = value_of(HEAP), fifo = value_of(PRINTF), stack = value_of(STACK);

    CHECK(limits.set(HEAP, heap + 128 * MIB));
    TAKEN(128 * MIB);
    CHECK(limits.set(PRINTF, fifo + 32 * MIB));
    TAKEN(160 * MIB);
    CHECK(limits.set(PRINTF, fifo));
    TAKEN(128 * MIB);

    /* What came with the context stays: less than that gives nothing back, and more is more than
     * that. */
    CHECK(limits.set(HEAP, MIB));
    TAKEN(0);
    CHECK(limits.set(HEAP, heap + 128 * MIB));
    TAKEN(128 * MIB);

    /* What is not there is refused, and changes nothing. */
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, limits.set(HEAP, (size_t)64 << 30));
    HOLDS(value_of(HEAP) == heap + 128 * MIB);
    TAKEN(128 * MIB);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, limits.set(HEAP, heap + books.shown + 2 * MIB));
    TAKEN(128 * MIB);

    CHECK(limits.set(HEAP, heap));
    TAKEN(0);

    /* A stack for each thread that can be on the GPU. */
    int processors, threads;
    CHECK(cu.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    CHECK(cu.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0));
    size_t stacks = (size_t)processors * (size_t)threads * 1024;
    CHECK(limits.set(STACK, stack + 1024));
    HOLDS(shown() == stacks && truth() >= stacks && truth() < stacks + GRANULE);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, limits.set(STACK, stack + (books.shown / stacks + 1) * 1024));
    CHECK(limits.set(STACK, stack));
    TAKEN(0);

    /* What takes no memory of the GPU costs none. */
    CHECK(limits.set(DEPTH, value_of(DEPTH) + 1));
    TAKEN(0);

    /* It goes with its context. */
    CHECK(limits.set(HEAP, heap + 64 * MIB));
    TAKEN(64 * MIB);
    CHECK(cu.cuDevicePrimaryCtxReset(0));
    CUcontext context;
    CHECK(cu.cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cu.cuCtxSetCurrent(context));
    TAKEN(0);
    return 0;
}
