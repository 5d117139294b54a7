/* SPDX-License-Identifier: Apache-2.0
 *
 * green - checks green contexts: the GPU's multiprocessors are split, the parts get contexts and
 * streams, and a kernel's time depends on its part. Prints only one JSON object.
 *
 * For a driver without a shim, 12.4 or later. Expects a GPU of compute capability 8 or later.
 */
#include "records.h"

struct resource {
    int kind;
    unsigned char internal[92];
    unsigned multiprocessors, least, alignment, flags;
    unsigned char rest[24];
    void *next;
};

_Static_assert(sizeof(struct resource) == 144, "CUdevResource");

enum {
    SM = 1,
    WORKQUEUE = 10000,
    DEFAULT_STREAM = 1,
    INVALID_TYPE = 914,
    INVALID_CONFIGURATION = 915
};

static size_t free_bytes(void) {
    size_t available;
    CHECK(cu.cuMemGetInfo(&available, NULL));
    return available;
}

static double timed(CUfunction function, unsigned blocks, CUstream stream) {
    CUevent start, end;
    float ms;
    CHECK(cu.cuEventCreate(&start, 0));
    CHECK(cu.cuEventCreate(&end, 0));
    CHECK(cu.cuEventRecord(start, stream));
    CHECK(cu.cuLaunchKernel(function, blocks, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL));
    CHECK(cu.cuEventRecord(end, stream));
    CHECK(cu.cuEventSynchronize(end));
    CHECK(cu.cuEventElapsedTime(&ms, start, end));
    CHECK(cu.cuEventDestroy(start));
    CHECK(cu.cuEventDestroy(end));
    return ms;
}

/* Returns the minimum of several, since a delay of the program between the first event and the
 * launch is measured, too. */
static double best(CUfunction function, unsigned blocks, CUstream stream) {
    double least = timed(function, blocks, stream);
    for (int i = 0; i < 10; i++) {
        double again = timed(function, blocks, stream);
        if (again < least) least = again;
    }
    return least;
}

int main(void) {
    CUdevice device = 0;
    CUcontext primary, view, of_stream;
    CUdeviceptr address;
    CUfunction function;
    CUstream stream;
    void *description, *green, *found;
    struct resource all, parts[3], rest;
    unsigned count;
    int multiprocessors;
    uint64_t id;

    watchdog(60);
    primary = driver_open();
    FUNCTION(of_device, cuDeviceGetDevResource, (CUdevice, struct resource *, int));
    FUNCTION(of_context, cuCtxGetDevResource, (CUcontext, struct resource *, int));
    FUNCTION(of_green, cuGreenCtxGetDevResource, (void *, struct resource *, int));
    FUNCTION(split, cuDevSmResourceSplitByCount,
             (struct resource *, unsigned *, const struct resource *, struct resource *, unsigned,
              unsigned));
    FUNCTION(describe, cuDevResourceGenerateDesc, (void **, struct resource *, unsigned));
    FUNCTION(create, cuGreenCtxCreate, (void **, void *, CUdevice, unsigned));
    FUNCTION(destroy, cuGreenCtxDestroy, (void *));
    FUNCTION(get_view, cuCtxFromGreenCtx, (CUcontext *, void *));
    FUNCTION(get_id, cuGreenCtxGetId, (void *, uint64_t *));
    FUNCTION(stream_create, cuGreenCtxStreamCreate, (CUstream *, void *, unsigned, int));
    FUNCTION(stream_green, cuStreamGetGreenCtx, (CUstream, void **));
    FUNCTION(stream_context, cuStreamGetCtx, (CUstream, CUcontext *));

    function = driver_function("spin_4ms");
    timed(function, 1, NULL);
    size_t before = free_bytes();
    CHECK(cu.cuDeviceGetAttribute(&multiprocessors, 16, device));
    CHECK(of_device(device, &all, SM));
    HOLDS(all.kind == SM && all.multiprocessors == (unsigned)multiprocessors && all.least >= 2);
    EXPECT(INVALID_TYPE, of_device(device, &all, WORKQUEUE));
    CHECK(of_context(primary, &all, SM));

    CHECK(split(NULL, &count, &all, NULL, 0, 16));
    HOLDS(count == (unsigned)multiprocessors / 16);
    count = 3;
    CHECK(split(parts, &count, &all, &rest, 0, 15));
    HOLDS(count == 3 && parts[2].multiprocessors == 16 &&
          rest.multiprocessors == (unsigned)multiprocessors - 48);
    EXPECT(INVALID_CONFIGURATION,
           split(parts, &count, &all, &rest, 0, (unsigned)multiprocessors + 1));
    struct resource none = {0};
    EXPECT(INVALID_TYPE, split(parts, &count, &none, &rest, 0, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, describe(&description, parts, 0));
    CHECK(describe(&description, parts, 1));

    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&green, description, device, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&green, NULL, device, DEFAULT_STREAM));
    CHECK(create(&green, description, device, DEFAULT_STREAM));
    HOLDS(free_bytes() < before &&
          before - free_bytes() < ((size_t)64 << 20)); /* takes no context of its own */
    CHECK(of_green(green, &rest, SM));
    HOLDS(rest.multiprocessors == 16);
    CHECK(get_id(green, &id));
    EXPECT(CUDA_ERROR_INVALID_VALUE, stream_create(&stream, green, 0, 0));
    CHECK(stream_create(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    CHECK(stream_green(stream, &found));
    HOLDS(found == green);
    CHECK(get_view(&view, green));
    CHECK(stream_context(stream, &of_stream));
    HOLDS(view == of_stream && view != primary);

    /* Blocks for the whole GPU take longer in proportion to the part; blocks that fit the part
     * do not. */
    double due = multiprocessors / 16.0, whole = best(function, (unsigned)multiprocessors, NULL);
    double part = best(function, (unsigned)multiprocessors, stream), ratio = part / whole;
    if (ratio < due * 0.98 || ratio > due * 1.02)
        FAIL("%f ms became %f on 16 of %d", whole, part, multiprocessors);
    ratio = best(function, 16, stream) / whole;
    HOLDS(ratio > 0.98 && ratio < 1.02);

    CHECK(cu.cuCtxSetCurrent(view));
    CHECK(cu.cuMemAlloc(&address, 4096));
    CHECK(cu.cuMemFree(address));
    CHECK(cu.cuCtxSetCurrent(primary));
    CHECK(destroy(green));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cu.cuStreamQuery(stream));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, destroy(green));
    HOLDS(free_bytes() == before);
    printf("{\"green\": true}\n");
    return 0;
}
