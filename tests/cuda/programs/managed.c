/* SPDX-License-Identifier: Apache-2.0
 *
 * managed [granted|refused] - requests managed memory by every function of the driver. Prints the
 * results and the three attributes that announce it as one JSON object. With an argument it exits 1
 * unless all results match. refused: NOT_SUPPORTED from every function, and all attributes 0.
 * granted: allocations are reported as managed, and an ordinary variable is not.
 */
#include "driver.h"

enum { MANAGED = 2, PINNED = 1, IS_MANAGED = 8, NOWHERE = 0, DEVICE = 1 };

struct location {
    int type, id;
};
struct pool_properties {
    int kind, handles;
    struct location location;
    void *security;
    size_t most;
    unsigned short usage;
    unsigned char rest[54];
};
struct allocation_properties {
    int kind, handles;
    struct location location;
    void *security;
    unsigned char rest[8];
};

static const char variables[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                                ".visible .global .attribute(.managed) .align 8 .u64 shared_word;\n"
                                ".visible .global .align 8 .u64 own_word;\n";

static int granted, refused, routes;

static int is_managed(CUdeviceptr address) {
    int (*attribute)(void *, int, CUdeviceptr);
    unsigned long long yes = 0;
    *(void **)&attribute = driver_symbol("cuPointerGetAttribute");
    CHECK(attribute(&yes, IS_MANAGED, address));
    return yes != 0;
}

/* Records a function's result. If granted, a function with an address returns managed memory;
 * the simulated GPU lacks the others. */
static void route(const char *name, CUresult result, CUdeviceptr address) {
    printf("%s\"%s\": %d", routes++ ? ", " : "", name, result);
    if (refused && result != CUDA_ERROR_NOT_SUPPORTED) FAIL("%s is not refused: %d", name, result);
    if (result != CUDA_SUCCESS) HOLDS(address == 0);
    if (granted && address) HOLDS(is_managed(address));
}

#define FUNCTION(name, arguments) \
    CUresult(*name) arguments;    \
    *(void **)&name = dlsym(cu.library, #name)

static CUdeviceptr plain(void) {
    CUdeviceptr address = 0;
    CUresult result = cu.cuMemAllocManaged(&address, 1 << 20, CU_MEM_ATTACH_GLOBAL);
    route("cuMemAllocManaged", result, address);
    return address;
}

static void physical(void) {
    FUNCTION(cuMemCreate,
             (uint64_t *, size_t, const struct allocation_properties *, unsigned long long));
    struct allocation_properties wanted = {.kind = MANAGED, .location = {DEVICE, 0}};
    uint64_t handle;
    if (cuMemCreate) route("cuMemCreate", cuMemCreate(&handle, 2 << 20, &wanted, 0), 0);
}

static void pools(void) {
    FUNCTION(cuMemPoolCreate, (void **, const struct pool_properties *));
    FUNCTION(cuMemPoolDestroy, (void *));
    FUNCTION(cuMemGetDefaultMemPool, (void **, struct location *, int));
    FUNCTION(cuMemGetMemPool, (void **, struct location *, int));
    FUNCTION(cuMemSetMemPool, (struct location *, int, void *));
    struct pool_properties wanted = {.kind = MANAGED, .location = {NOWHERE, 0}};
    struct location nowhere = {NOWHERE, 0};
    void *pool = NULL;
    if (cuMemPoolCreate) {
        route("cuMemPoolCreate", cuMemPoolCreate(&pool, &wanted), 0);
        wanted.kind = PINNED;
        wanted.location = (struct location){DEVICE, 0};
        CHECK(cuMemPoolCreate(&pool, &wanted));
    }
    if (cuMemGetDefaultMemPool) {
        void *managed;
        route("cuMemGetDefaultMemPool", cuMemGetDefaultMemPool(&managed, &nowhere, MANAGED), 0);
        route("cuMemGetMemPool", cuMemGetMemPool(&managed, &nowhere, MANAGED), 0);
        route("cuMemSetMemPool", cuMemSetMemPool(&nowhere, MANAGED, pool), 0);
    }
    if (pool) CHECK(cuMemPoolDestroy(pool));
}

static void variable_of_module(void) {
    FUNCTION(cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *));
    CUdeviceptr address = 0, own = 0;
    size_t bytes = 0;
    CUmodule module;
    CHECK(cu.cuModuleLoadData(&module, variables));
    CHECK(cuModuleGetGlobal_v2(&own, &bytes, module, "own_word"));
    HOLDS(own && bytes == 8 && !is_managed(own));
    bytes = 0;
    CUresult result = cuModuleGetGlobal_v2(&address, &bytes, module, "shared_word");
    route("cuModuleGetGlobal", result, address);
    HOLDS(bytes == (result == CUDA_SUCCESS ? 8 : 0));
    HOLDS(cuModuleGetGlobal_v2(NULL, NULL, module, "shared_word") == result);
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal_v2(&address, &bytes, module, "no_such_word"));
    CHECK(cu.cuModuleUnload(module));
}

static void variable_of_library(void) {
    FUNCTION(cuLibraryLoadData,
             (void **, const void *, void *, void *, unsigned, void *, void *, unsigned));
    FUNCTION(cuLibraryUnload, (void *));
    FUNCTION(cuLibraryGetManaged, (CUdeviceptr *, size_t *, void *, const char *));
    FUNCTION(cuLibraryGetGlobal, (CUdeviceptr *, size_t *, void *, const char *));
    CUdeviceptr address = 0;
    size_t bytes;
    void *library;
    if (!cuLibraryLoadData) return;
    CHECK(cuLibraryLoadData(&library, variables, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cuLibraryGetGlobal(&address, &bytes, library, "own_word"));
    HOLDS(!is_managed(address));
    address = 0;
    route("cuLibraryGetManaged", cuLibraryGetManaged(&address, &bytes, library, "shared_word"),
          address);
    address = 0;
    route("cuLibraryGetGlobal", cuLibraryGetGlobal(&address, &bytes, library, "shared_word"),
          address);
    CHECK(cuLibraryUnload(library));
}

int main(int argc, char **argv) {
    int managed, concurrent, direct, unified;
    watchdog(60);
    driver_open();
    granted = argc > 1 && !strcmp(argv[1], "granted");
    refused = argc > 1 && !strcmp(argv[1], "refused");
    CHECK(cu.cuDeviceGetAttribute(&managed, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0));
    CHECK(cu.cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0));
    CHECK(cu.cuDeviceGetAttribute(&direct, CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
                                  0));
    CHECK(cu.cuDeviceGetAttribute(&unified, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0));
    printf("{\"managed_memory\": %d, \"concurrent_managed_access\": %d, "
           "\"direct_managed_mem_access\": %d, "
           "\"unified_addressing\": %d, \"answers\": {",
           managed, concurrent, direct, unified);
    CUdeviceptr address = plain();
    physical();
    pools();
    variable_of_module();
    variable_of_library();
    printf("}}\n");
    if (granted) {
        HOLDS(managed == 1 && address);
        memset((void *)(uintptr_t)address, 7, 1 << 20); /* managed: the host can write it, too */
        CHECK(cu.cuMemFree(address));
    }
    if (refused) {
        HOLDS(managed == 0 && concurrent == 0 && direct == 0);
        HOLDS(unified == 1);
    }
    return 0;
}
