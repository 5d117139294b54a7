/* SPDX-License-Identifier: Apache-2.0
 *
 * localities - checks memory in the locality domains of a GPU: capacity, charges, queries and
 * refusals. On a GPU with one domain that is the GPU itself. Also checks the reported location of
 * unified memory. Prints one JSON object with the domains and their bytes.
 *
 * For a driver without a shim.
 */
#include "records.h"

#include <sys/mman.h>

enum { NONE = 0, DEVICE = 1, HOST_NUMA = 3, DOMAIN = 6 };
enum { PINNED = 1, MANAGED = 2, READ_WRITE = 3, DESCRIPTOR = 1 };
enum { MULTIPROCESSORS = 16, DOMAIN_COUNT = 149, DOMAIN_MULTIPROCESSORS = 157 };
enum {
    POINTER_ORDINAL = 22,
    POOL_LOCATION_ID = 11,
    POOL_LOCATION_TYPE = 12,
    POOL_DOMAIN = 15,
    POOL_RESERVED = 5
};

#define STEP (64 * MIB)

static struct location domain(int number) { return (struct location){DOMAIN, number << 8}; }

static size_t free_bytes(void) {
    size_t available;
    CHECK(cu.cuMemGetInfo(&available, NULL));
    return available;
}

/* Allocates memory at a location until there is none. Returns how much; `handles` gets the
 * handles. */
static size_t fill(struct location place, size_t step, uint64_t *handles, int *count) {
    FUNCTION(create, cuMemCreate, (uint64_t *, size_t, const struct allocation *, uint64_t));
    struct allocation wanted = {.kind = PINNED, .location = place};
    CUresult result;
    size_t taken = 0;
    while ((result = create(&handles[*count], step, &wanted, 0)) == CUDA_SUCCESS) {
        ++*count;
        taken += step;
    }
    HOLDS(result == CUDA_ERROR_OUT_OF_MEMORY);
    return taken;
}

static void release_all(uint64_t *handles, int *count) {
    FUNCTION(release, cuMemRelease, (uint64_t));
    while (*count) CHECK(release(handles[--*count]));
}

static void one_domain(void) {
    FUNCTION(create, cuMemCreate, (uint64_t *, size_t, const struct allocation *, uint64_t));
    FUNCTION(release, cuMemRelease, (uint64_t));
    FUNCTION(properties, cuMemGetAllocationPropertiesFromHandle, (struct allocation *, uint64_t));
    struct allocation wanted = {.kind = PINNED, .location = domain(0)};
    uint64_t handle;
    CHECK(create(&handle, 2 * MIB, &wanted, 0));
    CHECK(properties(&wanted, handle));
    HOLDS(wanted.location.kind == DEVICE && wanted.location.id == 0);
    CHECK(release(handle));
    wanted.location = domain(1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&handle, 2 * MIB, &wanted, 0));
}

static void handles(size_t room) {
    FUNCTION(create, cuMemCreate, (uint64_t *, size_t, const struct allocation *, uint64_t));
    FUNCTION(release, cuMemRelease, (uint64_t));
    FUNCTION(properties, cuMemGetAllocationPropertiesFromHandle, (struct allocation *, uint64_t));
    FUNCTION(reserve, cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t));
    FUNCTION(map, cuMemMap, (CUdeviceptr, size_t, size_t, uint64_t, uint64_t));
    FUNCTION(unmap, cuMemUnmap, (CUdeviceptr, size_t));
    FUNCTION(set_access, cuMemSetAccess, (CUdeviceptr, size_t, const struct access *, size_t));
    FUNCTION(export_handle, cuMemExportToShareableHandle, (void *, uint64_t, int, uint64_t));
    FUNCTION(import, cuMemImportFromShareableHandle, (uint64_t *, void *, int));
    FUNCTION(pointer_attribute, cuPointerGetAttribute, (void *, int, CUdeviceptr));
    static uint64_t held[8192];
    struct allocation wanted = {.kind = PINNED, .handle_types = DESCRIPTOR, .location = domain(1)};
    struct access access = {domain(1), READ_WRITE};
    size_t before = free_bytes();
    uint64_t handle, imported;
    CUdeviceptr address, linear;
    int descriptor, ordinal, count = 0;

    /* Has its location's name, even if the memory came from elsewhere. */
    CHECK(create(&handle, 4 * MIB, &wanted, 0));
    CHECK(export_handle(&descriptor, handle, DESCRIPTOR, 0));
    CHECK(import(&imported, (void *)(intptr_t)descriptor, DESCRIPTOR));
    HOLDS(close(descriptor) == 0);
    CHECK(release(handle));
    CHECK(properties(&wanted, imported));
    HOLDS(wanted.location.kind == DOMAIN && wanted.location.id == 1 << 8);
    HOLDS(free_bytes() == before - 4 * MIB);
    CHECK(reserve(&address, 4 * MIB, 0, 0, 0));
    CHECK(map(address, 4 * MIB, 0, imported, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           set_access(address, 4 * MIB, &access, 1)); /* of the GPU, not of a domain */
    access.location = (struct location){DEVICE, 0};
    CHECK(set_access(address, 4 * MIB, &access, 1));
    CHECK(cu.cuMemsetD32(address, 7, MIB));
    CHECK(pointer_attribute(&ordinal, POINTER_ORDINAL, address));
    HOLDS(ordinal == 1);
    CHECK(cu.cuMemAlloc(&linear, 1000));
    CHECK(pointer_attribute(&ordinal, POINTER_ORDINAL, linear));
    HOLDS(ordinal == -1);
    CHECK(cu.cuMemFree(linear));
    CHECK(unmap(address, 4 * MIB));
    CHECK(release(imported));
    HOLDS(free_bytes() == before);

    /* Each domain has its part, to the granule, independent of the other. */
    size_t first = fill(domain(0), STEP, held, &count);
    first += fill(domain(0), 2 * MIB, held, &count);
    HOLDS(first == room);
    HOLDS(free_bytes() == before - room);
    wanted = (struct allocation){.kind = PINNED, .location = domain(1)};
    CHECK(create(&handle, 2 * MIB, &wanted, 0));
    CHECK(release(handle));
    wanted.location = (struct location){DEVICE, 0};
    CHECK(create(&handle, 2 * MIB, &wanted, 0));
    CHECK(release(handle));
    release_all(held, &count);

    /* Memory without a domain can lie in any: then the GPU is full, and so are its domains. */
    fill((struct location){DEVICE, 0}, STEP, held, &count);
    fill((struct location){DEVICE, 0}, 2 * MIB, held, &count);
    for (int number = 0; number < 2; number++) {
        wanted.location = domain(number);
        EXPECT(CUDA_ERROR_OUT_OF_MEMORY, create(&handle, 2 * MIB, &wanted, 0));
    }
    release_all(held, &count);
    HOLDS(free_bytes() == before);

    wanted.location = domain(2);
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&handle, 2 * MIB, &wanted, 0));
    wanted.location = (struct location){DOMAIN, 7};
    EXPECT(CUDA_ERROR_INVALID_DEVICE, create(&handle, 2 * MIB, &wanted, 0));
    wanted.location = domain(1);
    wanted.kind = MANAGED;
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, create(&handle, 2 * MIB, &wanted, 0));
}

static void pools(size_t room) {
    FUNCTION(create, cuMemPoolCreate, (void **, const struct pool_properties *));
    FUNCTION(destroy, cuMemPoolDestroy, (void *));
    FUNCTION(attribute, cuMemPoolGetAttribute, (void *, int, void *));
    FUNCTION(trim, cuMemPoolTrimTo, (void *, size_t));
    FUNCTION(allocate, cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, void *, CUstream));
    FUNCTION(free_async, cuMemFreeAsync, (CUdeviceptr, CUstream));
    FUNCTION(default_pool, cuMemGetDefaultMemPool, (void **, struct location *, int));
    FUNCTION(get_pool, cuMemGetMemPool, (void **, struct location *, int));
    FUNCTION(set_pool, cuMemSetMemPool, (struct location *, int, void *));
    FUNCTION(gpu_pool, cuDeviceGetDefaultMemPool, (void **, CUdevice));
    FUNCTION(pointer_attribute, cuPointerGetAttribute, (void *, int, CUdeviceptr));
    struct pool_properties properties = {.kind = PINNED, .location = domain(1)};
    struct location place = domain(1), other = domain(0);
    size_t before = free_bytes();
    CUdeviceptr address;
    uint64_t reserved;
    void *pool, *of_gpu, *of_domain;
    int number;

    CHECK(create(&pool, &properties));
    CHECK(attribute(pool, POOL_LOCATION_TYPE, &number));
    HOLDS(number == DOMAIN);
    CHECK(attribute(pool, POOL_LOCATION_ID, &number));
    HOLDS(number == 1 << 8);
    CHECK(attribute(pool, POOL_DOMAIN, &number));
    HOLDS(number == 1);
    CHECK(allocate(&address, room, pool, NULL));
    CHECK(pointer_attribute(&number, POINTER_ORDINAL, address));
    HOLDS(number == 1);
    HOLDS(free_bytes() == before - room);
    CUdeviceptr more;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY,
           allocate(&more, 2 * MIB, pool, NULL)); /* the GPU is half empty */
    CHECK(free_async(address, NULL));
    CHECK(cu.cuCtxSynchronize());
    CHECK(trim(pool, 0));
    CHECK(attribute(pool, POOL_RESERVED, &reserved));
    HOLDS(reserved == 0 && free_bytes() == before);

    CHECK(gpu_pool(&of_gpu, 0));
    CHECK(attribute(of_gpu, POOL_DOMAIN, &number));
    HOLDS(number == -1);
    CHECK(default_pool(&of_domain, &place, PINNED));
    HOLDS(of_domain != of_gpu && of_domain != pool);
    CHECK(attribute(of_domain, POOL_DOMAIN, &number));
    HOLDS(number == 1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, set_pool(&other, PINNED, pool)); /* of another domain */
    CHECK(set_pool(&place, PINNED, pool));
    CHECK(get_pool(&of_domain, &place, PINNED));
    HOLDS(of_domain == pool);
    CHECK(destroy(pool));
    CHECK(get_pool(&of_domain, &place, PINNED));
    HOLDS(of_domain != pool);
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, default_pool(&of_domain, &place, MANAGED));
    properties.location = domain(2);
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&pool, &properties));
}

static void residency(void) {
    FUNCTION(where, cuMemGetLocationInfo, (CUdeviceptr, size_t, size_t, size_t, struct location *));
    struct location there[4];
    CUdeviceptr device;
    char *pages = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    HOLDS(pages != MAP_FAILED);
    madvise(pages, 4 * MIB, MADV_NOHUGEPAGE);
    memset(pages + MIB, 1, MIB);     /* the second part, */
    memset(pages + 2 * MIB, 1, MIB); /* the third, and a little of the fourth */
    memset(pages + 3 * MIB, 1, 8192);
    CUdeviceptr first = (CUdeviceptr)(uintptr_t)pages;
    CHECK(where(first, 4 * MIB, MIB, 4096, there));
    HOLDS(there[0].kind == NONE && there[1].kind == HOST_NUMA && there[2].kind == HOST_NUMA &&
          there[3].kind == NONE);
    CHECK(where(first, 3 * MIB + 4096, 3 * MIB, 0, there));
    HOLDS(there[0].kind == HOST_NUMA && there[1].kind == HOST_NUMA);
    EXPECT(CUDA_ERROR_INVALID_VALUE, where(first, MIB, 2 * MIB, 0, there));
    EXPECT(CUDA_ERROR_INVALID_VALUE, where(first, MIB, 0, 0, there));
    EXPECT(CUDA_ERROR_INVALID_VALUE, where(first, MIB, 4096, 8192, there));
    EXPECT(CUDA_ERROR_INVALID_VALUE, where(first, MIB, MIB, 0, NULL));
    CHECK(cu.cuMemAllocManaged(&device, MIB, CU_MEM_ATTACH_GLOBAL));
    memset((void *)(uintptr_t)device, 3, MIB);
    CHECK(where(device, MIB, MIB, 0, there));
    HOLDS(there[0].kind == HOST_NUMA && there[0].id == 0);
    CHECK(cu.cuMemFree(device));
    CHECK(cu.cuMemAlloc(&device, MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           where(device, MIB, MIB, 0, there)); /* neither managed nor pageable */
    CHECK(cu.cuMemFree(device));
    HOLDS(munmap(pages, 4 * MIB) == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, where(first, MIB, MIB, 0, there));
}

int main(void) {
    int domains, multiprocessors, all;
    size_t room;
    watchdog(60);
    driver_open();
    FUNCTION(attribute, cuDeviceGetAttribute, (int *, int, CUdevice));
    FUNCTION(total_memory, cuDeviceTotalMem_v2, (size_t *, CUdevice));
    CHECK(attribute(&domains, DOMAIN_COUNT, 0));
    CHECK(attribute(&multiprocessors, DOMAIN_MULTIPROCESSORS, 0));
    CHECK(attribute(&all, MULTIPROCESSORS, 0));
    HOLDS(domains * multiprocessors <= all);
    CHECK(total_memory(&room, 0));
    room = room / (size_t)domains / (2 * MIB) * (2 * MIB);
    if (domains == 1) {
        one_domain();
    } else {
        handles(room);
        pools(room);
    }
    residency();
    printf("{\"domains\": %d, \"multiprocessors\": %d, \"room\": %zu}\n", domains, multiprocessors,
           room);
    return 0;
}
