/* SPDX-License-Identifier: Apache-2.0
 *
 * fork_bomb BYTES - starts itself again and again, and so does each process that it starts. Each
 * allocates BYTES (K, M, G) if the driver lets it, and ends after a fifth of a second; the first
 * one prints {"ready": true} and goes on until it is killed. A refused fork is tried again.
 */
#include "driver.h"

#include <sys/wait.h>

static void allocate(size_t bytes) {
    CUdevice device;
    CUcontext context;
    CUdeviceptr address;
    if (cu.cuInit(0) == CUDA_SUCCESS && cu.cuDeviceGet(&device, 0) == CUDA_SUCCESS &&
        cu.cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS &&
        cu.cuCtxSetCurrent(context) == CUDA_SUCCESS)
        (void)!cu.cuMemAlloc(&address, bytes);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: fork_bomb BYTES\n");
        return 2;
    }
    int first = argc == 2;
    watchdog(120);
    driver_load();
    allocate(parse_bytes(argv[1]));
    if (first) printf("{\"ready\": true}\n");
    fflush(stdout);
    for (int i = 0; first || i < 200; i++) {
        if (fork() == 0) {
            execl("/proc/self/exe", argv[0], argv[1], "again", NULL);
            _exit(1);
        }
        while (waitpid(-1, NULL, WNOHANG) > 0) continue;
        usleep(1000);
    }
    _exit(0);
}
