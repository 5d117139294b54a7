/* SPDX-License-Identifier: Apache-2.0
 *
 * sharing - checks concurrent and ordered kernels on one GPU: by the size of their grids, by stream
 * priority, and cooperative launches; and code that is loaded by the first launch. Prints one JSON
 * object: milliseconds that two kernels of 20 ms took in two streams, small and large ones, and
 * bytes that first launches took.
 */
#include "driver.h"

typedef struct {
    CUfunction function;
    unsigned gx, gy, gz, bx, by, bz, shared;
    CUstream stream;
    void **params;
} Part;

static CUresult (*cooperative)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                               unsigned, unsigned, CUstream, void **);
static CUresult (*on_devices)(Part *parts, unsigned count, unsigned flags);
static CUresult (*with_priority)(CUstream *stream, unsigned flags, int priority);
static CUresult (*range)(int *least, int *greatest);
static CUresult (*is_loaded)(int *state, CUfunction function);

static void *symbol(const char *name) {
    void *found = dlsym(cu.library, name);
    if (!found) FAIL("no %s", name);
    return found;
}

static size_t room(void) {
    size_t free_bytes, total;
    CHECK(cu.cuMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

/* Milliseconds from the launch of one kernel to the end of both. */
static double both(CUfunction kernel, CUstream *stream, unsigned blocks) {
    CUevent begin, end;
    float ms;
    CHECK(cu.cuEventCreate(&begin, 0));
    CHECK(cu.cuEventCreate(&end, 0));
    CHECK(cu.cuEventRecord(begin, stream[0]));
    CHECK(cu.cuStreamWaitEvent(stream[1], begin, 0));
    for (int i = 0; i < 2; i++)
        CHECK(cu.cuLaunchKernel(kernel, blocks, 1, 1, 256, 1, 1, 0, stream[i], NULL, NULL));
    CHECK(cu.cuEventRecord(end, stream[1]));
    CHECK(cu.cuCtxSynchronize());
    CHECK(cu.cuEventElapsedTime(&ms, begin, end));
    CHECK(cu.cuEventDestroy(begin));
    CHECK(cu.cuEventDestroy(end));
    return ms;
}

int main(void) {
    CUstream stream[2], urgent;
    CUevent urgent_end, end;
    CUmodule module;
    CUfunction kernel, other;
    uint32_t *gate;
    int least, greatest, state;
    watchdog(60);
    driver_open();
    cooperative = symbol("cuLaunchCooperativeKernel");
    on_devices = symbol("cuLaunchCooperativeKernelMultiDevice");
    with_priority = symbol("cuStreamCreateWithPriority");
    range = symbol("cuCtxGetStreamPriorityRange");
    is_loaded = symbol("cuFuncIsLoaded");
    for (int i = 0; i < 2; i++) CHECK(cu.cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));

    /* The first launch loads the code, and only that one; or loading the module does. */
    const char *mode = getenv("CUDA_MODULE_LOADING");
    int eager = mode && !strcmp(mode, "EAGER");
    CHECK(cu.cuModuleLoadData(&module, "any image"));
    CHECK(cu.cuModuleGetFunction(&kernel, module, "spin_20ms"));
    CHECK(cu.cuModuleGetFunction(&other, module, "spin_10ms"));
    CHECK(is_loaded(&state, kernel));
    HOLDS(state == eager);
    size_t before = room();
    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream[0], NULL, NULL));
    size_t after = room();
    CHECK(is_loaded(&state, kernel));
    HOLDS(state == 1 && (eager ? after == before : after < before));
    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream[0], NULL, NULL));
    HOLDS(room() == after);

    double small = both(kernel, stream, 8), large = both(kernel, stream, 100000);

    /* A kernel of a higher priority runs before an earlier one that has several waves. */
    CHECK(range(&least, &greatest));
    HOLDS(least == 0 && greatest < 0);
    CHECK(with_priority(&urgent, CU_STREAM_NON_BLOCKING, greatest));
    CHECK(cu.cuMemHostAlloc((void **)&gate, 4096, 0));
    __atomic_store_n(gate, 0, __ATOMIC_RELEASE);
    for (int i = 0; i < 2; i++)
        CHECK(cu.cuStreamWaitValue32(stream[i], (CUdeviceptr)(uintptr_t)gate, 1, 0));
    CHECK(cu.cuStreamWaitValue32(urgent, (CUdeviceptr)(uintptr_t)gate, 1, 0));
    CHECK(cu.cuEventCreate(&end, 0));
    CHECK(cu.cuEventCreate(&urgent_end, 0));
    CHECK(cu.cuLaunchKernel(kernel, 100000, 1, 1, 256, 1, 1, 0, stream[0], NULL, NULL));
    CHECK(cu.cuEventRecord(end, stream[0]));
    CHECK(cu.cuLaunchKernel(other, 100000, 1, 1, 256, 1, 1, 0, urgent, NULL, NULL));
    CHECK(cu.cuEventRecord(urgent_end, urgent));
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
    CHECK(cu.cuCtxSynchronize());
    float later;
    CHECK(cu.cuEventElapsedTime(&later, urgent_end, end));
    HOLDS(later > 0);

    /* All blocks at once, or none. */
    EXPECT(720, cooperative(kernel, 100000, 1, 1, 256, 1, 1, 0, stream[0], NULL));
    CHECK(cooperative(other, 16, 1, 1, 256, 1, 1, 0, stream[0], NULL));
    Part part = {other, 16, 1, 1, 256, 1, 1, 0, stream[0], NULL};
    CHECK(on_devices(&part, 1, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, on_devices(&part, 0, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, on_devices(&part, 1, 8));
    Part twice[2] = {part, part};
    EXPECT(CUDA_ERROR_INVALID_VALUE, on_devices(twice, 2, 0));
    part.stream = NULL;
    EXPECT(CUDA_ERROR_INVALID_HANDLE, on_devices(&part, 1, 0));
    CHECK(cu.cuCtxSynchronize());
    printf("{\"small_ms\": %.3f, \"large_ms\": %.3f, \"code_bytes\": %zu}\n", small, large,
           before - after);
    return 0;
}
