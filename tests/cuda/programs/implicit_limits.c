/* SPDX-License-Identifier: Apache-2.0
 *
 * implicit_limits - checks that a larger heap, stack or printf buffer takes GPU memory, and is
 * refused as by the driver if there is not enough; the limit then stays. The memory is returned
 * when the limit is lowered, or with the context.
 */
#include "ledger.h"

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
    ledger_open();
    size_t heap = value_of(HEAP), fifo = value_of(PRINTF), stack = value_of(STACK);

    CHECK(limits.set(HEAP, heap + 128 * MIB));
    TAKEN(128 * MIB);
    CHECK(limits.set(PRINTF, fifo + 32 * MIB));
    TAKEN(160 * MIB);
    CHECK(limits.set(PRINTF, fifo));
    TAKEN(128 * MIB);

    /* The context's own memory stays: a smaller limit returns nothing, and a larger one takes
     * the difference. */
    CHECK(limits.set(HEAP, MIB));
    TAKEN(0);
    CHECK(limits.set(HEAP, heap + 128 * MIB));
    TAKEN(128 * MIB);

    /* A limit beyond the memory is refused and changes nothing. */
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, limits.set(HEAP, (size_t)64 << 30));
    HOLDS(value_of(HEAP) == heap + 128 * MIB);
    TAKEN(128 * MIB);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, limits.set(HEAP, heap + ledger.shown + 2 * MIB));
    TAKEN(128 * MIB);

    CHECK(limits.set(HEAP, heap));
    TAKEN(0);

    /* A stack for each resident thread. */
    int processors, threads;
    CHECK(cu.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    CHECK(cu.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0));
    size_t stacks = (size_t)processors * (size_t)threads * 1024;
    CHECK(limits.set(STACK, stack + 1024));
    HOLDS(shown() == stacks && truth() >= stacks && truth() < stacks + GRANULE);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, limits.set(STACK, stack + (ledger.shown / stacks + 1) * 1024));
    CHECK(limits.set(STACK, stack));
    TAKEN(0);

    /* Limits that take no GPU memory are not charged. */
    CHECK(limits.set(DEPTH, value_of(DEPTH) + 1));
    TAKEN(0);

    /* The memory is returned with the context. */
    CHECK(limits.set(HEAP, heap + 64 * MIB));
    TAKEN(64 * MIB);
    CHECK(cu.cuDevicePrimaryCtxReset(0));
    CUcontext context;
    CHECK(cu.cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cu.cuCtxSetCurrent(context));
    TAKEN(0);
    return 0;
}
