/* SPDX-License-Identifier: Apache-2.0
 *
 * two_gpus.h - used memory of two GPUs, each with a context of this process.
 */
#ifndef CGPU_TEST_TWO_GPUS_H
#define CGPU_TEST_TWO_GPUS_H

#include "ledger.h"

static struct {
    CUcontext context;
    size_t shown, had; /* free at the start: as shown, and by the driver */
} gpus[2];

static inline void on_gpu(CUdevice device) { CHECK(cu.cuCtxSetCurrent(gpus[device].context)); }

/* Creates contexts on both and begins to count. The first GPU is current. */
static inline void gpus_open(void) {
    driver_open();
    for (CUdevice device = 0; device < 2; device++)
        CHECK(cu.cuDevicePrimaryCtxRetain(&gpus[device].context, device));
    for (CUdevice device = 1; device >= 0; device--) {
        on_gpu(device);
        ledger_open();
        gpus[device].shown = ledger.shown;
        gpus[device].had = ledger.had;
    }
}

/* Returns the bytes taken on one of them since then. */
static inline void taken_of(CUdevice device, size_t *in_the_ledger, size_t *in_truth) {
    on_gpu(device);
    *in_the_ledger = gpus[device].shown - free_shown();
    *in_truth = gpus[device].had - free_in_truth();
    on_gpu(0);
}

/* Requires that this much is taken on each by the driver, and `kept` more of the first as shown. */
static inline void taken_of_both(size_t first, size_t second, size_t kept, const char *when) {
    for (CUdevice device = 0; device < 2; device++) {
        size_t expected = device ? second : first, says, has;
        taken_of(device, &says, &has);
        if (has != expected || says != expected + (device ? 0 : kept))
            FAIL("%s: expected %zu taken of GPU %d, the ledger has %zu, the driver %zu", when,
                 expected, device, says, has);
    }
}

static inline uint64_t physical_on(CUdevice device, size_t bytes, int handle_types) {
    struct allocation wanted = {
        .kind = PINNED, .handle_types = handle_types, .location = {DEVICE, device}};
    uint64_t handle;
    CHECK(vm.create(&handle, bytes, &wanted, 0));
    return handle;
}

/* Maps a handle for access from one GPU. */
static inline CUdeviceptr mapped_for(CUdevice device, uint64_t handle, size_t bytes) {
    struct access access = {{DEVICE, device}, READ_WRITE};
    CUdeviceptr address = reserve(bytes);
    CHECK(vm.map(address, bytes, 0, handle, 0));
    CHECK(vm.set_access(address, bytes, &access, 1));
    return address;
}

static inline void unmapped(CUdeviceptr address, size_t bytes) {
    CHECK(vm.unmap(address, bytes));
    CHECK(vm.unreserve(address, bytes));
}

#endif
