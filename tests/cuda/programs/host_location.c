/* SPDX-License-Identifier: Apache-2.0
 *
 * host_location [limited] - checks physical memory on the host, whose location id is no GPU: it is
 * not charged, and must not be taken for a GPU's (in other tools "Illegal device id", and a crash
 * in NCCL). Memory of a locality domain is the GPU's; its id has two fields. With "limited",
 * locations that cannot be distinguished are refused.
 */
#include "ledger.h"

int main(int argc, char **argv) {
    static const struct location host[] = {
        {HOST, 0}, {HOST, 12345}, {HOST_NUMA, 0}, {HOST_NUMA_CURRENT, -1}};
    int limited = argc > 1 && strcmp(argv[1], "limited") == 0;
    struct allocation wanted = on_the_gpu;
    uint64_t handle;
    CUdeviceptr range;
    watchdog(60);
    driver_open();
    ledger_open();
    range = reserve(64 * GRANULE);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) {
        wanted.location = host[i];
        CUresult result = vm.create(&handle, 64 * GRANULE, &wanted, 0);
        TAKEN(0);
        if (result != CUDA_SUCCESS) continue; /* some drivers lack some kinds */
        CHECK(vm.map(range, 64 * GRANULE, 0, handle, 0));
        CHECK(vm.release(handle));
        TAKEN(0);
        CHECK(vm.unmap(range, 64 * GRANULE));
    }
    /* Device 0, domain 1: as a number, 256. */
    wanted.location = (struct location){DEVICE_LOCALITY_DOMAIN, 1 << 8};
    if (vm.create(&handle, GRANULE, &wanted, 0) == CUDA_SUCCESS) {
        TAKEN(GRANULE);
        CHECK(vm.release(handle));
    }
    wanted.location = (struct location){0, 0};
    EXPECT(CUDA_ERROR_INVALID_VALUE, vm.create(&handle, GRANULE, &wanted, 0));
    wanted.location = (struct location){DEVICE, 77};
    HOLDS(vm.create(&handle, GRANULE, &wanted, 0) != CUDA_SUCCESS);
    wanted.location = (struct location){99, 0};
    CUresult unknown = vm.create(&handle, GRANULE, &wanted, 0);
    HOLDS(unknown != CUDA_SUCCESS && (!limited || unknown == CUDA_ERROR_NOT_SUPPORTED));
    wanted = on_the_gpu;
    wanted.kind = MANAGED;
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, vm.create(&handle, GRANULE, &wanted, 0));
    TAKEN(0);
    return 0;
}
