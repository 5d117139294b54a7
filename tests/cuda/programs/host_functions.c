/* SPDX-License-Identifier: Apache-2.0
 *
 * host_functions - checks host functions in streams: they run in order, on another thread, after
 * the work before them, and the stream waits for their return. They must not call the driver.
 */
#include "driver.h"

#include <pthread.h>

static struct {
    pthread_t main;
    unsigned calls[3], called;
    int other_thread;
    CUresult inside;
} record;

static void note(void *data) {
    if (record.called < 3) record.calls[record.called] = (unsigned)(uintptr_t)data;
    record.other_thread |= !pthread_equal(pthread_self(), record.main);
    usleep(2000);
    __atomic_fetch_add(&record.called, 1, __ATOMIC_RELEASE);
}

static void call_driver(void *data) {
    size_t free_bytes;
    (void)data;
    record.inside = cu.cuMemGetInfo(&free_bytes, NULL);
}

static void callback(CUstream stream, CUresult status, void *data) {
    HOLDS(stream == *(CUstream *)data);
    HOLDS(status == CUDA_SUCCESS);
    __atomic_fetch_add(&record.called, 1, __ATOMIC_RELEASE);
}

int main(void) {
    CUresult (*add_callback)(CUstream, void (*)(CUstream, CUresult, void *), void *, unsigned);
    CUstream stream;
    watchdog(60);
    driver_open();
    record.main = pthread_self();
    *(void **)&add_callback = driver_symbol("cuStreamAddCallback");
    CUfunction kernel = driver_function("spin_5ms");
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (uintptr_t i = 1; i <= 3; i++) {
        CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
        CHECK(cu.cuLaunchHostFunc(stream, note, (void *)i));
    }
    /* They run without a wait for the stream. */
    while (__atomic_load_n(&record.called, __ATOMIC_ACQUIRE) < 3) usleep(100);
    HOLDS(record.calls[0] == 1 && record.calls[1] == 2 && record.calls[2] == 3);
    HOLDS(record.other_thread);

    CHECK(add_callback(stream, callback, &stream, 0));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(record.called == 4);

    CHECK(cu.cuLaunchHostFunc(stream, call_driver, NULL));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(record.inside == 800); /* not permitted */
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuLaunchHostFunc(stream, NULL, NULL));
    printf("{\"called\": %u}\n", record.called);
    return 0;
}
