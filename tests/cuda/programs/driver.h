/* SPDX-License-Identifier: Apache-2.0
 *
 * driver.h - common code of the test programs: declarations of the driver API, a loader, a
 * watchdog, checks.
 *
 * Written from the documented ABI without vendor headers, so that the programs build on any machine
 * with a C compiler. The driver is opened as in most programs, with dlopen("libcuda.so.1") and
 * dlsym of the versioned names. CGPU_TEST_LIBCUDA names another file.
 *
 * Exit codes: 0 all checks passed; 1 a check failed (one line on stderr says which); 2 wrong
 * arguments; 3 no driver. SIGALRM ends a program that hangs.
 */
#ifndef CGPU_TEST_DRIVER_H
#define CGPU_TEST_DRIVER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct context *CUcontext;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef struct stream *CUstream;
typedef struct event *CUevent;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_SUPPORTED = 801,
};

enum {
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
    CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST = 101,
    CU_MEM_ATTACH_GLOBAL = 1,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_GET_PROC_ADDRESS_DEFAULT = 0,
    CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
};

/* field, exported symbol, arguments */
#define DRIVER_FUNCTIONS(X)                                                                        \
    X(cuInit, cuInit, (unsigned flags))                                                            \
    X(cuDriverGetVersion, cuDriverGetVersion, (int *version))                                      \
    X(cuGetErrorName, cuGetErrorName, (CUresult error, const char **text))                         \
    X(cuDeviceGetCount, cuDeviceGetCount, (int *count))                                            \
    X(cuDeviceGet, cuDeviceGet, (CUdevice * device, int ordinal))                                  \
    X(cuDeviceGetName, cuDeviceGetName, (char *name, int len, CUdevice device))                    \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute, (int *value, int attribute, CUdevice device))    \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device))                     \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))  \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                  \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (CUdevice device))                      \
    X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState,                                      \
      (CUdevice device, unsigned *flags, int *active))                                             \
    X(cuCtxCreate, cuCtxCreate_v2, (CUcontext * context, unsigned flags, CUdevice device))         \
    X(cuCtxDestroy, cuCtxDestroy_v2, (CUcontext context))                                          \
    X(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext context))                                       \
    X(cuCtxGetCurrent, cuCtxGetCurrent, (CUcontext * context))                                     \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2, (CUcontext context))                                  \
    X(cuCtxPopCurrent, cuCtxPopCurrent_v2, (CUcontext * context))                                  \
    X(cuCtxGetDevice, cuCtxGetDevice, (CUdevice * device))                                         \
    X(cuCtxSynchronize, cuCtxSynchronize, (void))                                                  \
    X(cuMemGetInfo, cuMemGetInfo_v2, (size_t *free, size_t *total))                                \
    X(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))                            \
    X(cuMemAllocPitch, cuMemAllocPitch_v2,                                                         \
      (CUdeviceptr * address, size_t *pitch, size_t width, size_t height, unsigned element))       \
    X(cuMemAllocManaged, cuMemAllocManaged, (CUdeviceptr * address, size_t bytes, unsigned flags)) \
    X(cuMemFree, cuMemFree_v2, (CUdeviceptr address))                                              \
    X(cuMemHostAlloc, cuMemHostAlloc, (void **address, size_t bytes, unsigned flags))              \
    X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2,                                     \
      (CUdeviceptr * device, void *host, unsigned flags))                                          \
    X(cuMemFreeHost, cuMemFreeHost, (void *address))                                               \
    X(cuMemcpyHtoD, cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes))             \
    X(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes))                   \
    X(cuMemcpyDtoD, cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes))             \
    X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2,                                                     \
      (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                           \
    X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2,                                                     \
      (void *to, CUdeviceptr from, size_t bytes, CUstream stream))                                 \
    X(cuMemsetD8, cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t count))              \
    X(cuMemsetD32, cuMemsetD32_v2, (CUdeviceptr to, unsigned value, size_t count))                 \
    X(cuMemsetD8Async, cuMemsetD8Async,                                                            \
      (CUdeviceptr to, unsigned char value, size_t count, CUstream stream))                        \
    X(cuModuleLoadData, cuModuleLoadData, (CUmodule * module, const void *image))                  \
    X(cuModuleGetFunction, cuModuleGetFunction,                                                    \
      (CUfunction * function, CUmodule module, const char *name))                                  \
    X(cuModuleUnload, cuModuleUnload, (CUmodule module))                                           \
    X(cuLaunchKernel, cuLaunchKernel,                                                              \
      (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,       \
       unsigned bz, unsigned shared, CUstream stream, void **params, void **extra))                \
    X(cuLaunchHostFunc, cuLaunchHostFunc, (CUstream stream, void (*function)(void *), void *data)) \
    X(cuStreamCreate, cuStreamCreate, (CUstream * stream, unsigned flags))                         \
    X(cuStreamDestroy, cuStreamDestroy_v2, (CUstream stream))                                      \
    X(cuStreamQuery, cuStreamQuery, (CUstream stream))                                             \
    X(cuStreamSynchronize, cuStreamSynchronize, (CUstream stream))                                 \
    X(cuStreamWaitEvent, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))      \
    X(cuStreamWriteValue32, cuStreamWriteValue32_v2,                                               \
      (CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags))                      \
    X(cuStreamWaitValue32, cuStreamWaitValue32_v2,                                                 \
      (CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags))                      \
    X(cuEventCreate, cuEventCreate, (CUevent * event, unsigned flags))                             \
    X(cuEventDestroy, cuEventDestroy_v2, (CUevent event))                                          \
    X(cuEventRecord, cuEventRecord, (CUevent event, CUstream stream))                              \
    X(cuEventQuery, cuEventQuery, (CUevent event))                                                 \
    X(cuEventSynchronize, cuEventSynchronize, (CUevent event))                                     \
    X(cuEventElapsedTime, cuEventElapsedTime, (float *ms, CUevent start, CUevent end))

#define DRIVER_FIELD(field, symbol, arguments) CUresult(*field) arguments;
static struct {
    void *library;
    DRIVER_FUNCTIONS(DRIVER_FIELD)
} cu;
#undef DRIVER_FIELD

#define FAIL(...)                                       \
    do {                                                \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__);                   \
        fputc('\n', stderr);                            \
        exit(1);                                        \
    } while (0)

/* Requires that the call returns `code`. */
#define EXPECT(code, call)                                                 \
    do {                                                                   \
        CUresult expect_result = (call);                                   \
        if (expect_result != (code))                                       \
            FAIL("%s: expected %d, got %d", #call, (code), expect_result); \
    } while (0)

/* Requires that the call succeeds. */
#define CHECK(call) EXPECT(CUDA_SUCCESS, call)

/* Requires a condition. */
#define HOLDS(condition)                                         \
    do {                                                         \
        if (!(condition)) FAIL("does not hold: %s", #condition); \
    } while (0)

/* Whether a monitor runs, which observes some changes later: the last argument is `watched`. */
__attribute__((unused)) static int is_watched;

static inline void watched_by(int count, char **arguments) {
    is_watched = count > 1 && strcmp(arguments[count - 1], "watched") == 0;
}

/* Requires a condition at once, or, with a monitor, soon. */
#define COMES_TRUE(condition)                                                                   \
    do {                                                                                        \
        for (int looks = 0; is_watched && looks < 3000 && !(condition); looks++) usleep(10000); \
        HOLDS(condition);                                                                       \
    } while (0)

/* Ends the process by SIGALRM after `seconds`, so that a program that hangs does not outlive its
 * test. */
static inline void watchdog(unsigned seconds) { alarm(seconds); }

static inline void *driver_symbol(const char *name) {
    void *symbol = dlsym(cu.library, name);
    if (!symbol) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(3);
    }
    return symbol;
}

/* Stands for a function that an older driver lacks. */
static inline int driver_absent(void) {
    fprintf(stderr, "the driver lacks a function that the program calls\n");
    exit(3);
}

/* Opens the driver and looks up every function, without initialising it. */
static inline void driver_load(void) {
    const char *file = getenv("CGPU_TEST_LIBCUDA");
    if (!file) file = "libcuda.so.1";
    cu.library = dlopen(file, RTLD_NOW);
    if (!cu.library) {
        fprintf(stderr, "no driver: %s\n", dlerror());
        exit(3);
    }
#define DRIVER_LOOKUP(field, symbol, arguments)              \
    if (!(*(void **)&cu.field = dlsym(cu.library, #symbol))) \
        *(void **)&cu.field = (void *)driver_absent;
    DRIVER_FUNCTIONS(DRIVER_LOOKUP)
#undef DRIVER_LOOKUP
}

/* Opens and initialises the driver and makes device 0's primary context current. */
static inline CUcontext driver_open(void) {
    CUdevice device;
    CUcontext context;
    driver_load();
    CHECK(cu.cuInit(0));
    CHECK(cu.cuDeviceGet(&device, 0));
    CHECK(cu.cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cu.cuCtxSetCurrent(context));
    return context;
}

/* Returns a function of a module. A simulated GPU ignores the image; a real one needs PTX
 * (CGPU_TEST_PTX names a file). */
static inline CUfunction driver_function(const char *name) {
    static const char placeholder[] = "// any byte string is a module on the simulated GPU\n";
    CUmodule module;
    CUfunction function;
    const char *file = getenv("CGPU_TEST_PTX");
    if (file) {
        CUresult (*load)(CUmodule *, const char *);
        *(void **)&load = driver_symbol("cuModuleLoad");
        CHECK(load(&module, file));
    } else {
        CHECK(cu.cuModuleLoadData(&module, placeholder));
    }
    CHECK(cu.cuModuleGetFunction(&function, module, name));
    return function;
}

/* Parses "4096", "512K", "64M", "2G" (also KiB, MiB, GiB) into bytes. */
static inline size_t parse_bytes(const char *text) {
    char *end;
    double value = strtod(text, &end);
    size_t unit = 1;
    if (*end == 'K') unit = (size_t)1 << 10;
    if (*end == 'M') unit = (size_t)1 << 20;
    if (*end == 'G') unit = (size_t)1 << 30;
    if (end == text || value < 0 || (*end && unit == 1)) {
        fprintf(stderr, "not a number of bytes: %s\n", text);
        exit(2);
    }
    return (size_t)(value * (double)unit);
}

static inline double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void sleep_seconds(double seconds) {
    struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&pause, &pause) != 0) {}
}

#endif
