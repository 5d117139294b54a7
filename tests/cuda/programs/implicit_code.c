/* SPDX-License-Identifier: Apache-2.0
 *
 * implicit_code BYTES SPARE FUNCTIONS - fills the GPU except for what other programs need:
 * allocates BYTES, allocates and frees SPARE, and launches this many functions of one module for
 * the first time. Prints {"pid": PID} when they have run. Then it reads commands, one a line:
 *
 *     try BYTES   allocates and frees; prints {"result": R, "free": F}, F as shown before
 *     end         frees everything, exits 0
 */
#include "driver.h"

static const char text[] = "// any byte string is a module on the simulated GPU\n";

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: implicit_code BYTES SPARE FUNCTIONS\n");
        return 2;
    }
    watchdog(120);
    driver_open();
    CUdeviceptr kept, spare;
    CHECK(cu.cuMemAlloc(&kept, parse_bytes(argv[1])));
    CHECK(cu.cuMemAlloc(&spare, parse_bytes(argv[2])));
    CHECK(cu.cuMemFree(spare));
    CUmodule module;
    CHECK(cu.cuModuleLoadData(&module, text));
    for (int i = 0; i < atoi(argv[3]); i++) {
        char name[32];
        snprintf(name, sizeof name, "first_%d", i);
        CUfunction function;
        CHECK(cu.cuModuleGetFunction(&function, module, name));
        CHECK(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    }
    CHECK(cu.cuCtxSynchronize());
    printf("{\"pid\": %d}\n", (int)getpid());
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin) && strncmp(line, "try ", 4) == 0) {
        size_t free_before, total;
        line[strcspn(line, "\n")] = '\0';
        CHECK(cu.cuMemGetInfo(&free_before, &total));
        CUdeviceptr address;
        CUresult result = cu.cuMemAlloc(&address, parse_bytes(line + 4));
        if (result == CUDA_SUCCESS) CHECK(cu.cuMemFree(address));
        printf("{\"result\": %d, \"free\": %zu}\n", result, free_before);
        fflush(stdout);
    }
    CHECK(cu.cuModuleUnload(module));
    CHECK(cu.cuMemFree(kept));
    return 0;
}
