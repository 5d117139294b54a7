/* SPDX-License-Identifier: Apache-2.0
 *
 * arrays - checks that an array takes what its layout takes, which the driver reports only for
 * deferred mapping, and that copies of rows, rectangles and boxes preserve the bytes on every
 * level. Prints what some arrays took as one JSON object.
 *
 * For a driver without a shim.
 */
#include "records.h"

struct array {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
struct requirements {
    size_t size, alignment;
    unsigned reserved[4];
};
struct corner {
    size_t x, y, z, level;
    unsigned kind;
    void *host;
    CUdeviceptr device;
    void *array, *reserved;
    size_t pitch, height;
};
struct box {
    struct corner from, to;
    size_t width, height, depth;
};
struct map_info {
    unsigned resource;
    void *array;
    unsigned part;
    uint64_t where[4];
    unsigned operation, handle_kind;
    uint64_t handle, offset;
    unsigned devices, flags, reserved[2];
};

enum {
    FLOAT = 32,
    LAYERED = 1,
    SURFACE = 2,
    SPARSE = 0x40,
    DEFERRED = 0x80,
    HOST = 1,
    ARRAY = 3,
    DEVICE = 1,
    PINNED = 1,
    MAP = 1,
    UNMAP = 2
};

static size_t free_bytes(void) {
    size_t available;
    CHECK(cu.cuMemGetInfo(&available, NULL));
    return available;
}

/* Returns what the driver takes for this much memory in blocks of its own. */
static size_t rounded(size_t bytes) { return (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB); }

/* Creates an array, compares what it takes with what its deferred twin reports, and returns
 * that. */
static size_t costs(struct array descriptor) {
    FUNCTION(create, cuArray3DCreate_v2, (void **, const struct array *));
    FUNCTION(destroy, cuArrayDestroy, (void *));
    FUNCTION(require, cuArrayGetMemoryRequirements, (struct requirements *, void *, CUdevice));
    struct array twin = descriptor;
    struct requirements needs;
    void *array;
    size_t before = free_bytes();

    twin.flags |= DEFERRED;
    CHECK(create(&array, &twin));
    HOLDS(free_bytes() == before);
    CHECK(require(&needs, array, 0));
    CHECK(destroy(array));
    CHECK(create(&array, &descriptor));
    HOLDS(before - free_bytes() == rounded(needs.size));
    EXPECT(CUDA_ERROR_INVALID_VALUE, require(&needs, array, 0));
    CHECK(destroy(array));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, destroy(array));
    HOLDS(free_bytes() == before);
    HOLDS(needs.size >= 4 * descriptor.width * (descriptor.height ? descriptor.height : 1));
    return needs.size;
}

static void boxes(void) {
    FUNCTION(create, cuArray3DCreate_v2, (void **, const struct array *));
    FUNCTION(destroy, cuArrayDestroy, (void *));
    FUNCTION(copy, cuMemcpy3D_v2, (const struct box *));
    FUNCTION(to_host, cuMemcpyAtoH_v2, (void *, void *, size_t, size_t));
    FUNCTION(from_host, cuMemcpyHtoA_v2, (void *, size_t, const void *, size_t));
    struct array descriptor = {
        .width = 20, .height = 10, .depth = 5, .format = FLOAT, .channels = 1};
    static uint32_t in[5][10][20], out[5][10][20];
    void *array;

    for (uint32_t z = 0; z < 5; z++)
        for (uint32_t y = 0; y < 10; y++)
            for (uint32_t x = 0; x < 20; x++) in[z][y][x] = z << 16 | y << 8 | x;
    CHECK(create(&array, &descriptor));
    struct box whole = {.from = {.kind = HOST, .host = in, .pitch = 80, .height = 10},
                        .to = {.kind = ARRAY, .array = array},
                        .width = 80,
                        .height = 10,
                        .depth = 5};
    CHECK(copy(&whole));
    struct box part = {
        .from = {.x = 8, .y = 3, .z = 2, .kind = ARRAY, .array = array},
        .to = {.x = 4, .y = 1, .z = 1, .kind = HOST, .host = out, .pitch = 80, .height = 10},
        .width = 12,
        .height = 4,
        .depth = 3};
    CHECK(copy(&part));
    for (int z = 0; z < 3; z++)
        for (int y = 0; y < 4; y++)
            HOLDS(memcmp(&out[z + 1][y + 1][1], &in[z + 2][y + 3][2], 12) == 0 &&
                  out[z + 1][y + 1][4] == 0);
    part.from.x = 76; /* beyond the right edge of the array */
    EXPECT(CUDA_ERROR_INVALID_VALUE, copy(&part));
    part.from.x = 0, part.from.z = 3;
    EXPECT(CUDA_ERROR_INVALID_VALUE, copy(&part));

    CHECK(from_host(array, 8, "abcdefgh", 8));
    CHECK(to_host(out, array, 4, 16));
    HOLDS(out[0][0][0] == 1 && memcmp(&out[0][0][1], "abcdefgh", 8) == 0 && out[0][0][3] == 4);
    EXPECT(CUDA_ERROR_INVALID_VALUE, to_host(out, array, 72, 12));
    CHECK(destroy(array));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, copy(&whole));
}

static size_t levels(void) {
    FUNCTION(create, cuMipmappedArrayCreate, (void **, const struct array *, unsigned));
    FUNCTION(destroy, cuMipmappedArrayDestroy, (void *));
    FUNCTION(destroy_array, cuArrayDestroy, (void *));
    FUNCTION(get_level, cuMipmappedArrayGetLevel, (void **, void *, unsigned));
    FUNCTION(describe, cuArray3DGetDescriptor_v2, (struct array *, void *));
    FUNCTION(to_host, cuMemcpyAtoH_v2, (void *, void *, size_t, size_t));
    FUNCTION(from_host, cuMemcpyHtoA_v2, (void *, size_t, const void *, size_t));
    struct array descriptor = {.width = 1024, .height = 512, .format = FLOAT, .channels = 4}, found;
    size_t before = free_bytes(), taken;
    void *chain, *first, *third, *again;
    char back[9] = "";

    CHECK(create(&chain, &descriptor, 99)); /* clamped to the maximum of 11 */
    taken = before - free_bytes();
    CHECK(get_level(&third, chain, 2));
    CHECK(get_level(&again, chain, 2));
    HOLDS(third == again);
    CHECK(describe(&found, third));
    HOLDS(found.width == 256 && found.height == 128 && found.depth == 0 && found.channels == 4);
    CHECK(get_level(&first, chain, 10));
    CHECK(describe(&found, first));
    HOLDS(found.width == 1 && found.height == 1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, get_level(&again, chain, 11));
    CHECK(get_level(&first, chain, 0));
    CHECK(from_host(first, 0, "level0..", 8));
    CHECK(from_host(third, 0, "level2..", 8));
    CHECK(to_host(back, first, 0, 8));
    HOLDS(strcmp(back, "level0..") == 0);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, destroy_array(third)); /* is destroyed with the whole array */
    CHECK(destroy(chain));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, to_host(back, third, 0, 8));
    HOLDS(free_bytes() == before);
    return taken;
}

static void deferred(void) {
    FUNCTION(create, cuArray3DCreate_v2, (void **, const struct array *));
    FUNCTION(destroy, cuArrayDestroy, (void *));
    FUNCTION(require, cuArrayGetMemoryRequirements, (struct requirements *, void *, CUdevice));
    FUNCTION(map, cuMemMapArrayAsync, (struct map_info *, unsigned, CUstream));
    FUNCTION(make, cuMemCreate, (uint64_t *, size_t, const struct allocation *, uint64_t));
    FUNCTION(release, cuMemRelease, (uint64_t));
    FUNCTION(to_host, cuMemcpyAtoH_v2, (void *, void *, size_t, size_t));
    FUNCTION(from_host, cuMemcpyHtoA_v2, (void *, size_t, const void *, size_t));
    struct array descriptor = {
        .width = 500, .height = 300, .format = FLOAT, .channels = 1, .flags = DEFERRED};
    struct allocation wanted = {.kind = PINNED, .location = {DEVICE, 0}};
    struct requirements needs;
    struct map_info info = {.operation = MAP, .devices = 1};
    size_t before = free_bytes();
    char back[5] = "";

    CHECK(create(&info.array, &descriptor));
    CHECK(require(&needs, info.array, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, from_host(info.array, 0, "none", 4)); /* no memory is mapped */
    CHECK(make(&info.handle, rounded(needs.size), &wanted, 0));
    info.devices = 2;
    EXPECT(CUDA_ERROR_INVALID_VALUE, map(&info, 1, NULL));
    info.devices = 1;
    CHECK(map(&info, 1, NULL));
    CHECK(release(info.handle));
    HOLDS(before - free_bytes() == rounded(needs.size)); /* the array keeps the memory */
    CHECK(from_host(info.array, 0, "here", 4));
    CHECK(to_host(back, info.array, 0, 4));
    HOLDS(strcmp(back, "here") == 0);
    info.operation = UNMAP;
    CHECK(cu.cuLaunchKernel(driver_function("spin_20ms"), 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    size_t kept = free_bytes();
    info.handle = 0;
    CHECK(map(&info, 1, NULL));
    HOLDS(free_bytes() == kept); /* until the stream has freed it */
    EXPECT(CUDA_ERROR_INVALID_VALUE, to_host(back, info.array, 0, 4));
    CHECK(cu.cuCtxSynchronize());
    HOLDS(free_bytes() == kept + rounded(needs.size));
    CHECK(destroy(info.array));
}

struct resource {
    int kind;
    uint64_t which[16];
    unsigned flags;
};

static void views(void) {
    FUNCTION(create, cuArray3DCreate_v2, (void **, const struct array *));
    FUNCTION(destroy, cuArrayDestroy, (void *));
    FUNCTION(texture, cuTexObjectCreate,
             (uint64_t *, const struct resource *, const void *, const void *));
    FUNCTION(texture_of, cuTexObjectGetResourceDesc, (struct resource *, uint64_t));
    FUNCTION(texture_end, cuTexObjectDestroy, (uint64_t));
    FUNCTION(surface, cuSurfObjectCreate, (uint64_t *, const struct resource *));
    FUNCTION(surface_end, cuSurfObjectDestroy, (uint64_t));
    struct array descriptor = {.width = 16, .height = 16, .format = FLOAT, .channels = 1};
    struct resource shown = {.kind = 0}, found;
    char how[104] = "";
    uint64_t object;
    void *array;

    CHECK(create(&array, &descriptor));
    shown.which[0] = (uint64_t)(uintptr_t)array;
    CHECK(texture(&object, &shown, how, NULL));
    CHECK(texture_of(&found, object));
    HOLDS(found.kind == 0 && found.which[0] == shown.which[0]);
    EXPECT(CUDA_ERROR_INVALID_VALUE, surface(&object, &shown)); /* not created for surfaces */
    CHECK(texture_end(object));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, texture_end(object));
    CHECK(destroy(array));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, texture(&object, &shown, how, NULL));
    descriptor.flags = SURFACE;
    CHECK(create(&array, &descriptor));
    shown.which[0] = (uint64_t)(uintptr_t)array;
    CHECK(surface(&object, &shown));
    CHECK(surface_end(object));
    CHECK(destroy(array));
}

int main(void) {
    watchdog(60);
    driver_open();
    size_t flat = costs((struct array){.width = 1000, .format = FLOAT, .channels = 1});
    size_t plane =
        costs((struct array){.width = 1024, .height = 1025, .format = FLOAT, .channels = 1});
    size_t layers = costs((struct array){
        .width = 64, .height = 64, .depth = 33, .format = FLOAT, .channels = 1, .flags = LAYERED});
    boxes();
    views();
    size_t chain = levels();
    deferred();
    printf("{\"flat\": %zu, \"plane\": %zu, \"layers\": %zu, \"chain\": %zu}\n", flat, plane,
           layers, chain);
    return 0;
}
