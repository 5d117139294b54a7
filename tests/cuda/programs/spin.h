/* SPDX-License-Identifier: Apache-2.0
 *
 * spin.h - a kernel that keeps the whole GPU busy for a given time, on a real GPU and on the
 * simulated one. It has as many blocks as fit at once, so that kernels of several streams run one
 * after another.
 *
 * The simulated GPU takes the time from the name, spin_<n>us. A real one runs the PTX below, which
 * counts iterations of a dependent multiply-add. The iterations for <n> us are calibrated once with
 * events, while the GPU is otherwise idle. Iterations are counted instead of clock ticks, because
 * clocks continue while another context has the GPU.
 */
#ifndef CGPU_TEST_SPIN_H
#define CGPU_TEST_SPIN_H

#include "driver.h"

enum { SPIN_THREADS = 1024 }; /* of a block: the maximum */

struct spin {
    CUfunction function;
    CUdeviceptr sink;    /* the kernel writes here, so that the loop is not optimised away */
    unsigned blocks;     /* as many as fill the GPU */
    unsigned threads;    /* of each block */
    uint32_t iterations; /* of one launch */
};

static inline CUfunction spin_function(const char *name) {
    static const char format[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                 ".visible .entry %s(.param .u32 count, .param .u64 sink)\n"
                                 "{\n"
                                 "    .reg .pred %%p;\n"
                                 "    .reg .b32 %%r<4>;\n"
                                 "    .reg .b64 %%rd<2>;\n"
                                 "    ld.param.u32 %%r1, [count];\n"
                                 "    ld.param.u64 %%rd1, [sink];\n"
                                 "    mov.u32 %%r2, 0;\n"
                                 "    mov.u32 %%r3, 12345;\n"
                                 "again:\n"
                                 "    setp.ge.u32 %%p, %%r2, %%r1;\n"
                                 "    @%%p bra done;\n"
                                 "    mad.lo.u32 %%r3, %%r3, 1664525, %%r2;\n"
                                 "    add.u32 %%r2, %%r2, 1;\n"
                                 "    bra again;\n"
                                 "done:\n"
                                 "    st.global.u32 [%%rd1], %%r3;\n"
                                 "    ret;\n"
                                 "}\n";
    char image[2048];
    CUmodule module;
    CUfunction function;
    snprintf(image, sizeof image, format, name);
    CHECK(cu.cuModuleLoadData(&module, image));
    CHECK(cu.cuModuleGetFunction(&function, module, name));
    return function;
}

static inline CUresult spin_launch(const struct spin *spin, uint32_t iterations, CUstream stream) {
    CUdeviceptr sink = spin->sink;
    void *params[] = {&iterations, &sink};
    return cu.cuLaunchKernel(spin->function, spin->blocks, 1, 1, spin->threads, 1, 1, 0, stream,
                             params, NULL);
}

/* Returns the number of blocks that fill the current context's GPU. */
static inline unsigned spin_blocks(void) {
    CUdevice device;
    int processors, threads;
    CHECK(cu.cuCtxGetDevice(&device));
    CHECK(cu.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    CHECK(cu.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
                                  device));
    return (unsigned)processors * ((unsigned)threads / SPIN_THREADS);
}

/* Returns the GPU time of a launch with `iterations`, in milliseconds. */
static inline float spin_measure(const struct spin *spin, uint32_t iterations, CUstream stream) {
    CUevent start, end;
    float ms;
    CHECK(cu.cuEventCreate(&start, 0));
    CHECK(cu.cuEventCreate(&end, 0));
    CHECK(cu.cuEventRecord(start, stream));
    CHECK(spin_launch(spin, iterations, stream));
    CHECK(cu.cuEventRecord(end, stream));
    CHECK(cu.cuEventSynchronize(end));
    CHECK(cu.cuEventElapsedTime(&ms, start, end));
    CHECK(cu.cuEventDestroy(start));
    CHECK(cu.cuEventDestroy(end));
    return ms;
}

/* Opens a kernel of this name. The simulated GPU does what the name says, a real one nearly
 * nothing. */
static inline struct spin spin_named(const char *name) {
    struct spin spin = {.function = spin_function(name),
                        .blocks = spin_blocks(),
                        .threads = SPIN_THREADS,
                        .iterations = 1};
    CHECK(cu.cuMemAlloc(&spin.sink, 4));
    return spin;
}

/* Calibrates: returns the iterations of a launch that takes `us` microseconds. */
static inline uint32_t spin_iterations(const struct spin *spin, unsigned us, CUstream stream) {
    /* The difference of two lengths cancels the launch itself. If the time does not depend on
     * the argument, the GPU is the simulated one and keeps the name's time. A real GPU raises
     * its clocks by up to five times once it has work, which takes part of a second. */
    const uint32_t few = 20000, many = 220000;
    const double warm_up_s = 0.5;
    float best_few = 1e9f, best_many = 1e9f, per_iteration_us = 0;
    double start = seconds_now();
    for (int i = 0; i < 5 || (per_iteration_us > 0 && seconds_now() - start < warm_up_s); i++) {
        float ms = spin_measure(spin, few, stream);
        if (ms < best_few) best_few = ms;
        ms = spin_measure(spin, many, stream);
        if (ms < best_many) best_many = ms;
        per_iteration_us = (best_many - best_few) * 1000.0f / (float)(many - few);
        if (per_iteration_us < 1e-4f) per_iteration_us = 0;
    }
    return per_iteration_us > 0 ? (uint32_t)((float)us / per_iteration_us) + 1 : 1;
}

/* Opens a kernel of `us` microseconds. `iterations` is the result of an earlier calibration, or
 * 0 to calibrate now. */
static inline struct spin spin_open(unsigned us, uint32_t iterations, CUstream stream) {
    char name[32];
    snprintf(name, sizeof name, "spin_%uus", us);
    struct spin spin = spin_named(name);
    spin.iterations = iterations ? iterations : spin_iterations(&spin, us, stream);
    return spin;
}

#endif
