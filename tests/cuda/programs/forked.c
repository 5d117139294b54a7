/* SPDX-License-Identifier: Apache-2.0
 *
 * forked - checks that the driver does not survive a fork. The child of a process that has
 * initialised it gets NOT_INITIALIZED from every call, and the parent continues. The child of a
 * process that has not can use the driver. Prints only one JSON object.
 */
#include "driver.h"

#include <sys/wait.h>

/* Returns the exit status of a child that runs `body`. */
static int child(void (*body)(void)) {
    pid_t pid = fork();
    int status;
    HOLDS(pid >= 0);
    if (pid == 0) {
        watchdog(30);
        body();
        exit(0);
    }
    HOLDS(waitpid(pid, &status, 0) == pid);
    return status;
}

static void fresh(void) {
    CUdeviceptr address;
    driver_open();
    CHECK(cu.cuMemAlloc(&address, 4096));
    CHECK(cu.cuMemFree(address));
}

static CUdeviceptr parents;

static void inherited(void) {
    CUdeviceptr address;
    size_t free_bytes;
    int count;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cu.cuInit(0));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cu.cuDeviceGetCount(&count));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cu.cuMemAlloc(&address, 4096));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cu.cuMemFree(parents));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cu.cuMemGetInfo(&free_bytes, NULL));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cu.cuCtxSynchronize());
}

int main(void) {
    size_t before, after;
    watchdog(60);
    HOLDS(child(fresh) == 0);
    driver_open();
    CUfunction kernel = driver_function("spin_1ms");
    CHECK(cu.cuMemAlloc(&parents, (size_t)64 << 20));
    /* The first launch loads code, which stays on the GPU. */
    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CHECK(cu.cuMemGetInfo(&before, NULL));
    HOLDS(child(inherited) == 0);
    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CHECK(cu.cuCtxSynchronize());
    CHECK(cu.cuMemGetInfo(&after, NULL));
    HOLDS(after >= before); /* more, once the memory of a former process is released */
    CHECK(cu.cuMemFree(parents));
    printf("{\"children\": 2}\n");
    return 0;
}
