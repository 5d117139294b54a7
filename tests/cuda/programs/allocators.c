/* SPDX-License-Identifier: Apache-2.0
 *
 * allocators - checks that every way to allocate device memory other than cuMemAlloc takes and
 * returns the memory that it should: pools, physical memory behind handles, arrays, the functions
 * before CUDA 3.2, variables of modules. Prints the bytes that each took as one JSON object.
 *
 * For a driver without a shim: under a limit most of these are refused (see refused.c).
 */
#include "records.h"

struct array {
    size_t width, height;
    int format;
    unsigned channels;
};
struct rectangle_side {
    size_t x, y;
    unsigned kind;
    void *host;
    CUdeviceptr device;
    void *array;
    size_t pitch;
};
struct rectangle {
    struct rectangle_side from, to;
    size_t width, height;
};

enum { DEVICE = 1, PINNED = 1, READ_WRITE = 3, USED = 7, THRESHOLD = 4, UINT8 = 1, FLOAT = 32 };

static size_t free_bytes(void) {
    size_t available;
    CHECK(cu.cuMemGetInfo(&available, NULL));
    return available;
}

static size_t pools(void) {
    FUNCTION(allocate, cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream));
    FUNCTION(allocate_from, cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, void *, CUstream));
    FUNCTION(release, cuMemFreeAsync, (CUdeviceptr, CUstream));
    FUNCTION(create, cuMemPoolCreate, (void **, const struct pool_properties *));
    FUNCTION(destroy, cuMemPoolDestroy, (void *));
    FUNCTION(get, cuMemPoolGetAttribute, (void *, int, void *));
    FUNCTION(default_pool, cuDeviceGetDefaultMemPool, (void **, CUdevice));
    struct pool_properties properties = {
        .kind = PINNED, .location = {DEVICE, 0}, .max_size = 32 * MIB};
    CUdeviceptr first, second;
    CUstream stream;
    void *pool, *standard;
    uint64_t used;
    size_t before = free_bytes(), taken;
    unsigned char back[3] = {0};

    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(default_pool(&standard, 0));
    CHECK(allocate(&first, 64 * MIB, stream));
    taken = before - free_bytes();
    CHECK(get(standard, USED, &used));
    HOLDS(used == 64 * MIB);
    CHECK(cu.cuMemsetD8Async(first, 0x42, 64 * MIB, stream));
    CHECK(cu.cuMemcpyDtoHAsync(back, first + 64 * MIB - 3, 3, stream));
    CHECK(release(first, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(back[0] == 0x42 && back[2] == 0x42);
    HOLDS(free_bytes() == before);
    CHECK(get(standard, USED, &used));
    HOLDS(used == 0);

    CHECK(create(&pool, &properties));
    CHECK(allocate_from(&first, 20 * MIB, pool, stream));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, allocate_from(&second, 20 * MIB, pool, stream));
    CHECK(cu.cuMemFree(first)); /* cuMemFree also frees memory of a pool */
    CHECK(allocate_from(&second, 20 * MIB, pool, stream));
    CHECK(release(second, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    CHECK(destroy(pool));
    EXPECT(CUDA_ERROR_INVALID_VALUE, destroy(standard));
    EXPECT(CUDA_ERROR_INVALID_VALUE, release(0x1234, stream));
    CHECK(cu.cuStreamDestroy(stream));
    HOLDS(free_bytes() == before);
    return taken;
}

static size_t physical(void) {
    FUNCTION(granularity, cuMemGetAllocationGranularity,
             (size_t *, const struct allocation *, int));
    FUNCTION(create, cuMemCreate, (uint64_t *, size_t, const struct allocation *, uint64_t));
    FUNCTION(release, cuMemRelease, (uint64_t));
    FUNCTION(retain, cuMemRetainAllocationHandle, (uint64_t *, void *));
    FUNCTION(reserve, cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t));
    FUNCTION(unreserve, cuMemAddressFree, (CUdeviceptr, size_t));
    FUNCTION(map, cuMemMap, (CUdeviceptr, size_t, size_t, uint64_t, uint64_t));
    FUNCTION(unmap, cuMemUnmap, (CUdeviceptr, size_t));
    FUNCTION(set_access, cuMemSetAccess, (CUdeviceptr, size_t, const struct access *, size_t));
    struct allocation wanted = {.kind = PINNED, .location = {DEVICE, 0}};
    struct access access = {{DEVICE, 0}, READ_WRITE};
    size_t step, before = free_bytes(), taken;
    uint64_t handle, again;
    CUdeviceptr address;
    uint32_t word = 0;

    CHECK(granularity(&step, &wanted, 0));
    size_t bytes = 8 * step;
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&handle, step + 1, &wanted, 0));
    CHECK(create(&handle, bytes, &wanted, 0));
    taken = before - free_bytes();
    CHECK(reserve(&address, 2 * bytes, 0, 0, 0));
    CHECK(map(address + bytes, bytes, 0, handle, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, map(address + bytes, bytes, 0, handle, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemsetD32(address + bytes, 7, 1)); /* no access yet */
    CHECK(set_access(address + bytes, bytes, &access, 1));
    CHECK(cu.cuMemsetD32(address + 2 * bytes - 4, 0xfeedbeef, 1));
    CHECK(cu.cuMemcpyDtoH(&word, address + 2 * bytes - 4, 4));
    HOLDS(word == 0xfeedbeef);
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cu.cuMemcpyDtoH(&word, address, 4)); /* nothing is mapped there */

    /* The mapping keeps the memory, and so does a retained handle. */
    CHECK(release(handle));
    HOLDS(before - free_bytes() == taken);
    CHECK(retain(&again, (void *)(uintptr_t)(address + bytes)));
    HOLDS(again == handle);
    EXPECT(CUDA_ERROR_INVALID_VALUE, unreserve(address, 2 * bytes));
    CHECK(unmap(address + bytes, bytes));
    HOLDS(before - free_bytes() == taken);
    CHECK(release(again));
    HOLDS(free_bytes() == before);
    CHECK(unreserve(address, 2 * bytes));
    EXPECT(CUDA_ERROR_INVALID_VALUE, release(handle));
    return taken;
}

static size_t arrays(void) {
    FUNCTION(create, cuArrayCreate_v2, (void **, const struct array *));
    FUNCTION(destroy, cuArrayDestroy, (void *));
    FUNCTION(copy, cuMemcpy2D_v2, (const struct rectangle *));
    struct array wanted = {.width = 1000, .height = 2000, .format = FLOAT, .channels = 4};
    static float data[16][4000], back[16][4000];
    size_t before = free_bytes(), taken;
    void *array;

    CHECK(create(&array, &wanted));
    taken = before - free_bytes();
    HOLDS(taken >= 1000 * 2000 * 16);
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 4000; column++)
            data[row][column] = (float)(row * 4000 + column);
    struct rectangle in = {.from = {.kind = 1, .host = data, .pitch = sizeof data[0]},
                           .to = {.y = 1984, .kind = 3, .array = array},
                           .width = sizeof data[0],
                           .height = 16};
    struct rectangle out = {.from = {.y = 1984, .kind = 3, .array = array},
                            .to = {.kind = 1, .host = back, .pitch = sizeof back[0]},
                            .width = sizeof back[0],
                            .height = 16};
    CHECK(copy(&in));
    CHECK(copy(&out));
    HOLDS(memcmp(data, back, sizeof data) == 0);
    CHECK(destroy(array));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, destroy(array));
    HOLDS(free_bytes() == before);
    wanted.format = 77;
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&array, &wanted));
    return taken;
}

static size_t old_functions(void) {
    FUNCTION(allocate, cuMemAlloc, (uint32_t *, unsigned));
    FUNCTION(release, cuMemFree, (uint32_t));
    FUNCTION(range, cuMemGetAddressRange, (uint32_t *, unsigned *, uint32_t));
    FUNCTION(info, cuMemGetInfo, (unsigned *, unsigned *));
    uint32_t first, second, base;
    unsigned bytes, available, total;
    size_t before = free_bytes(), taken;

    CHECK(allocate(&first, 16 * MIB));
    CHECK(allocate(&second, 4 * MIB));
    HOLDS(first && second && first != second);
    taken = before - free_bytes();
    CHECK(range(&base, &bytes, second + 77));
    HOLDS(base == second && bytes == 4 * MIB);
    CHECK(info(&available, &total));
    HOLDS(available > 0 && total >= available);
    CHECK(release(first));
    EXPECT(CUDA_ERROR_INVALID_VALUE, release(first));
    CHECK(release(second));
    HOLDS(free_bytes() == before);
    return taken;
}

static size_t variables(void) {
    static const char image[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                                ".visible .global .align 4 .b8 table[4194304];\n"
                                ".visible .entry kernel(.param .u64 kernel_param_0) { ret; }\n";
    FUNCTION(global, cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *));
    size_t before = free_bytes(), bytes, taken;
    CUdeviceptr address;
    CUmodule module;
    unsigned char back = 0;

    CHECK(cu.cuModuleLoadData(&module, image));
    CHECK(global(&address, &bytes, module, "table"));
    HOLDS(bytes == 4194304);
    taken = before - free_bytes();
    CHECK(cu.cuMemsetD8(address, 9, bytes));
    CHECK(cu.cuMemcpyDtoH(&back, address + bytes - 1, 1));
    HOLDS(back == 9);
    EXPECT(CUDA_ERROR_NOT_FOUND, global(&address, &bytes, module, "none"));
    CHECK(cu.cuModuleUnload(module));
    HOLDS(free_bytes() == before);
    return taken;
}

int main(void) {
    watchdog(60);
    driver_open();
    size_t of_pools = pools(), of_physical = physical(), of_arrays = arrays(),
           of_old = old_functions(), of_variables = variables();
    printf("{\"pools\": %zu, \"physical\": %zu, \"arrays\": %zu, \"old_functions\": %zu, "
           "\"variables\": %zu}\n",
           of_pools, of_physical, of_arrays, of_old, of_variables);
    return 0;
}
