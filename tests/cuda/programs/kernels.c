/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels MODULES KERNELS [first|last] - starts like a framework: loads MODULES modules and
 * libraries alternately, looks up KERNELS kernels in them, loads the code of each onto the GPU, and
 * allocates. `first`, `last`: initialises NVML before the driver or at the end, and leaves it
 * initialised. Prints the final cuMemGetInfo as one JSON object.
 */
#include "driver.h"

static void *nvml(const char *name) {
    static void *library;
    if (!library) library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) FAIL("%s", dlerror());
    void *symbol = dlsym(library, name);
    if (!symbol) FAIL("NVML has no %s", name);
    return symbol;
}

static void start_nvml(void) {
    int (*init)(void);
    *(void **)&init = nvml("nvmlInit_v2");
    EXPECT(0, init());
}

int main(int argc, char **argv) {
    static const char image[] = "// any byte string is a module on the simulated GPU\n";
    CUresult (*function_load)(CUfunction), (*kernel_function)(CUfunction *, void *);
    CUresult (*library_load)(void **, const void *, void *, void *, unsigned, void *, void *,
                             unsigned);
    CUresult (*library_kernel)(void **, void *, const char *);
    if (argc < 3) {
        fprintf(stderr, "usage: kernels MODULES KERNELS [first|last]\n");
        return 2;
    }
    int modules = atoi(argv[1]), kernels = atoi(argv[2]),
        each = modules > 0 ? kernels / modules : 0;
    watchdog(120);
    if (argc > 3 && strcmp(argv[3], "first") == 0) start_nvml();
    driver_open();
    *(void **)&function_load = driver_symbol("cuFuncLoad");
    *(void **)&kernel_function = driver_symbol("cuKernelGetFunction");
    *(void **)&library_load = driver_symbol("cuLibraryLoadData");
    *(void **)&library_kernel = driver_symbol("cuLibraryGetKernel");
    for (int loaded = 0; loaded < modules; loaded++) {
        void *library = NULL, *kernel;
        CUmodule module = NULL;
        CUfunction function;
        if (loaded % 2)
            CHECK(library_load(&library, image, NULL, NULL, 0, NULL, NULL, 0));
        else
            CHECK(cu.cuModuleLoadData(&module, image));
        for (int number = 0; number < each; number++) {
            char name[32];
            snprintf(name, sizeof name, "kernel_%d", number);
            if (library) {
                CHECK(library_kernel(&kernel, library, name));
                CHECK(kernel_function(&function, kernel));
            } else {
                CHECK(cu.cuModuleGetFunction(&function, module, name));
            }
            CHECK(function_load(function));
        }
    }
    CUdeviceptr address;
    size_t available, total;
    CHECK(cu.cuMemAlloc(&address, (size_t)2 << 20));
    CHECK(cu.cuMemGetInfo(&available, &total));
    if (argc > 3 && strcmp(argv[3], "last") == 0) start_nvml();
    printf("{\"free\": %zu, \"total\": %zu}\n", available, total);
    return 0;
}
