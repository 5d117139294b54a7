/* SPDX-License-Identifier: Apache-2.0
 *
 * ipc_events - checks an event that one process records and another one waits for: order between
 * processes without the host.
 */
#include "driver.h"
#include <sys/wait.h>

typedef struct {
    char reserved[64];
} Handle;

enum { CU_EVENT_INTERPROCESS = 4 };

static CUresult (*get)(Handle *handle, CUevent event);
static CUresult (*open_event)(CUevent *event, Handle handle);

static void find(void) {
    get = dlsym(cu.library, "cuIpcGetEventHandle");
    open_event = dlsym(cu.library, "cuIpcOpenEventHandle");
    if (!get || !open_event) FAIL("no cuIpc*EventHandle");
}

static void write_bytes(int pipe, const void *what, size_t bytes) {
    if (write(pipe, what, bytes) != (ssize_t)bytes) FAIL("the other process is gone");
}

static void read_bytes(int pipe, void *what, size_t bytes) {
    if (read(pipe, what, bytes) != (ssize_t)bytes) FAIL("the other process is gone");
}

/* Waits on the GPU for the parent's event, then records it itself. */
static int child(int from, int to) {
    Handle handle;
    CUevent event, own;
    CUstream stream;
    char go;
    watchdog(60);
    read_bytes(from, &handle, sizeof handle);
    driver_open();
    find();
    CUfunction kernel = driver_function("spin_1ms");
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(open_event(&event, handle));
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuEventQuery(event));
    CHECK(cu.cuEventCreate(&own, CU_EVENT_DISABLE_TIMING));
    CHECK(cu.cuStreamWaitEvent(stream, event, 0));
    CHECK(cu.cuEventRecord(own, stream));
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuEventQuery(own));
    write_bytes(to, "w", 1);
    CHECK(cu.cuEventSynchronize(own));
    CHECK(cu.cuEventQuery(event));
    /* In the other direction: the parent waits for what this process records. */
    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    CHECK(cu.cuEventRecord(event, stream));
    write_bytes(to, "r", 1);
    read_bytes(from, &go, 1);
    /* The parent has destroyed it. */
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cu.cuEventRecord(event, stream));
    CHECK(cu.cuEventDestroy(event));
    handle.reserved[0] ^= 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, open_event(&event, handle));
    return 0;
}

int main(void) {
    int down[2], up[2];
    Handle handle;
    CUevent event, lone, wrong;
    CUstream stream;
    uint32_t *gate;
    char what;
    watchdog(60);
    if (pipe(down) || pipe(up)) FAIL("no pipes");
    pid_t other = fork();
    if (other == 0) return child(down[0], up[1]);
    driver_open();
    find();
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    /* It must be created without timing and for interprocess use. */
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuEventCreate(&wrong, CU_EVENT_INTERPROCESS));
    CHECK(cu.cuEventCreate(&lone, CU_EVENT_DISABLE_TIMING));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, get(&handle, lone));
    CHECK(cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CHECK(get(&handle, event));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, open_event(&wrong, handle));

    CHECK(cu.cuMemHostAlloc((void **)&gate, 4096, 0));
    __atomic_store_n(gate, 0, __ATOMIC_RELEASE);
    CHECK(cu.cuStreamWaitValue32(stream, (CUdeviceptr)(uintptr_t)gate, 1, 0));
    CHECK(cu.cuEventRecord(event, stream));
    write_bytes(down[1], &handle, sizeof handle);
    read_bytes(up[0], &what, 1);
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
    read_bytes(up[0], &what, 1);
    CHECK(cu.cuStreamWaitEvent(stream, event, 0));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(cu.cuEventQuery(event));
    CHECK(cu.cuEventDestroy(event));
    write_bytes(down[1], "d", 1);
    int status;
    if (waitpid(other, &status, 0) != other || status) FAIL("the other process failed");
    printf("{}\n");
    return 0;
}
