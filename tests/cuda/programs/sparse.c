/* SPDX-License-Identifier: Apache-2.0
 *
 * sparse - checks sparse arrays, with and without levels: their reported tiling, memory that is
 * mapped tile by tile in stream order and kept only by the tiles, and refusals.
 */
#include "objects.h"

enum {
    FLOAT = 32,
    LAYERED = 1,
    CUBE = 4,
    SPARSE = 0x40,
    ARRAY = 0,
    CHAIN = 1,
    LEVEL = 0,
    TAIL = 1,
    MAP = 1,
    UNMAP = 2,
    SINGLE = 1
};
enum { TILE = 64 << 10, SUPPORTED = 112, PINNED = 1, DEVICE = 1 };

struct properties {
    unsigned tile[3], tail_level;
    unsigned long long tail;
    unsigned flags, reserved[4];
};

static CUresult (*map)(struct map_info *all, unsigned count, CUstream stream);
static CUresult (*make)(uint64_t *handle, size_t size, const struct allocation *wanted,
                        uint64_t flags);
static CUresult (*release)(uint64_t handle);
static CUresult (*create)(void **array, const struct array *wanted);
static CUresult (*destroy)(void *array);
static CUresult (*divided)(struct properties *properties, void *array);

struct corner {
    size_t x, y, z, lod;
    int type;
    const void *host;
    CUdeviceptr device;
    void *array, *reserved;
    size_t pitch, height;
};
struct box {
    struct corner src, dst;
    size_t width, height, depth;
};

static size_t available(void) {
    size_t available, total;
    CHECK(cu.cuMemGetInfo(&available, &total));
    return available;
}

static uint64_t pool_of(size_t bytes) {
    struct allocation wanted = {
        .kind = PINNED, .location = {DEVICE, 0}, .flags = {[2] = 1 /* for tiles */}};
    uint64_t handle;
    CHECK(make(&handle, bytes, &wanted, 0));
    return handle;
}

static struct map_info tiles(void *array, unsigned x, unsigned y, unsigned width, unsigned height) {
    return (struct map_info){.resource = array,
                             .part.level = {.offset = {x, y, 0}, .extent = {width, height, 1}},
                             .operation = MAP,
                             .devices = 1};
}

/* 1024 by 1024 floats are 8 by 8 tiles of 128 by 128. */
static void plane(void) {
    CUresult (*copy)(const struct box *);
    *(void **)&copy = driver_symbol("cuMemcpy3D_v2");
    struct array wanted = {
        .width = 1024, .height = 1024, .format = FLOAT, .channels = 1, .flags = SPARSE};
    struct properties how;
    size_t before = available();
    void *array;
    CHECK(create(&array, &wanted));
    HOLDS(before == available());
    CHECK(divided(&how, array));
    HOLDS(how.tile[0] == 128 && how.tile[1] == 128 && how.tile[2] == 1 && how.tail == 0 &&
          how.flags == 0);

    uint64_t pool = pool_of(4 * MIB);
    HOLDS(before - available() == 4 * MIB);
    unsigned row[256], back[256];
    for (unsigned i = 0; i < 256; i++) row[i] = i ^ 0x5a5a;
    struct box put = {.src = {.type = 1, .host = row, .pitch = sizeof row, .height = 1},
                      .dst = {.x = 4 * 128 * 4, .y = 130, .type = 3, .array = array},
                      .width = sizeof row,
                      .height = 1,
                      .depth = 1};
    struct box get = {.src = put.dst,
                      .dst = {.type = 1, .host = back, .pitch = sizeof back, .height = 1},
                      .width = sizeof back,
                      .height = 1,
                      .depth = 1};
    EXPECT(CUDA_ERROR_INVALID_VALUE, copy(&put)); /* nothing is mapped there */

    /* A refused call changes nothing. */
    struct map_info wrong = tiles(array, 64, 0, 128, 128);
    EXPECT(CUDA_ERROR_INVALID_VALUE, map(&wrong, 1, NULL)); /* names no memory and no tile */
    wrong.handle = pool;
    EXPECT(CUDA_ERROR_INVALID_VALUE, map(&wrong, 1, NULL));
    wrong = tiles(array, 0, 0, 128, 128), wrong.handle = pool, wrong.offset = 4096;
    EXPECT(CUDA_ERROR_INVALID_VALUE, map(&wrong, 1, NULL));
    wrong.offset = 4 * MIB;
    EXPECT(CUDA_ERROR_INVALID_VALUE, map(&wrong, 1, NULL));
    wrong.offset = 0, wrong.devices = 2;
    EXPECT(CUDA_ERROR_INVALID_VALUE, map(&wrong, 1, NULL));
    wrong.devices = 1, wrong.flags = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, map(&wrong, 1, NULL));
    wrong.flags = 0, wrong.part.level.layer = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, map(&wrong, 1, NULL));
    wrong.part.level.layer = 0, wrong.part_kind = TAIL;
    EXPECT(CUDA_ERROR_INVALID_VALUE, map(&wrong, 1, NULL));
    wrong.part_kind = LEVEL, wrong.resource = (void *)77;
    EXPECT(CUDA_ERROR_INVALID_HANDLE, map(&wrong, 1, NULL));
    struct allocation plain = {.kind = PINNED, .location = {DEVICE, 0}};
    uint64_t other;
    CHECK(make(&other, 2 * MIB, &plain, 0));
    wrong = tiles(array, 0, 0, 128, 128), wrong.handle = other; /* not for tiles */
    EXPECT(CUDA_ERROR_INVALID_VALUE, map(&wrong, 1, NULL));
    CHECK(release(other));

    /* Two tiles of the second row, which the copy touches. */
    struct map_info both = tiles(array, 4 * 128, 128, 256, 128);
    both.handle = pool, both.offset = 3 * TILE;
    CHECK(map(&both, 1, NULL));
    CHECK(copy(&put));
    CHECK(copy(&get));
    HOLDS(memcmp(row, back, sizeof row) == 0);
    put.dst.x += 4;
    EXPECT(CUDA_ERROR_INVALID_VALUE, copy(&put)); /* reaches into the next tile */

    /* Each tile keeps the memory, until the stream has unmapped the last one. */
    CHECK(release(pool));
    HOLDS(before - available() == 4 * MIB);
    CUstream stream;
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    both = tiles(array, 4 * 128, 128, 128, 128), both.operation = UNMAP;
    CHECK(map(&both, 1, stream));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(before - available() == 4 * MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, copy(&get));
    CHECK(
        cu.cuLaunchKernel(driver_function("spin_20ms"), 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    size_t kept = available();
    both = tiles(array, 5 * 128, 128, 128, 128), both.operation = UNMAP;
    CHECK(map(&both, 1, stream));
    EXPECT(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(stream));
    HOLDS(available() == kept);
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(available() == kept + 4 * MIB);
    both.handle = 5;
    EXPECT(CUDA_ERROR_INVALID_VALUE, map(&both, 1, stream)); /* an unmap must name no memory */

    /* A new mapping of a tile releases the former memory; the array's end releases all. */
    kept = available();
    pool = pool_of(2 * MIB), other = pool_of(2 * MIB);
    both = tiles(array, 0, 0, 128, 128), both.handle = pool;
    CHECK(map(&both, 1, stream));
    both.handle = other;
    CHECK(map(&both, 1, stream));
    CHECK(release(pool));
    CHECK(release(other));
    CHECK(cu.cuStreamSynchronize(stream));
    HOLDS(kept - available() == 2 * MIB);
    CHECK(destroy(array));
    HOLDS(available() == kept);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, divided(&how, array));
    CHECK(cu.cuStreamDestroy(stream));
}

static void chain(void) {
    CUresult (*create_chain)(void **, const struct array *, unsigned), (*destroy_chain)(void *);
    CUresult (*divided_chain)(struct properties *, void *), (*level_of)(void **, void *, unsigned);
    CUresult (*from_host)(void *, size_t, const void *, size_t),
        (*to_host)(void *, void *, size_t, size_t);
    *(void **)&create_chain = driver_symbol("cuMipmappedArrayCreate");
    *(void **)&destroy_chain = driver_symbol("cuMipmappedArrayDestroy");
    *(void **)&divided_chain = driver_symbol("cuMipmappedArrayGetSparseProperties");
    *(void **)&level_of = driver_symbol("cuMipmappedArrayGetLevel");
    *(void **)&from_host = driver_symbol("cuMemcpyHtoA_v2");
    *(void **)&to_host = driver_symbol("cuMemcpyAtoH_v2");
    struct array wanted = {.width = 512,
                           .height = 512,
                           .depth = 2,
                           .format = FLOAT,
                           .channels = 1,
                           .flags = SPARSE | LAYERED};
    struct properties how;
    size_t before = available();
    void *whole, *level, *small;
    char back[8];
    CHECK(create_chain(&whole, &wanted, 99));
    CHECK(divided_chain(&how, whole));
    HOLDS(how.tail_level == 3 && how.tail == TILE && how.flags == 0);
    CHECK(level_of(&level, whole, 1));
    /* only its whole array can be queried */
    EXPECT(CUDA_ERROR_INVALID_VALUE, divided(&how, level));
    CHECK(level_of(&small, whole, 5));
    EXPECT(CUDA_ERROR_INVALID_VALUE, from_host(level, 0, "level 1", 8));
    EXPECT(CUDA_ERROR_INVALID_VALUE, from_host(small, 0, "level 5", 8));
    uint64_t pool = pool_of(2 * MIB);
    struct map_info infos[2] = {tiles(whole, 0, 0, 128, 128), {0}};
    infos[0].resource_kind = CHAIN, infos[0].part.level.level = 1, infos[0].handle = pool;
    infos[1] = infos[0];
    infos[1].part_kind = TAIL, infos[1].offset = TILE;
    infos[1].part.words[0] = 0, infos[1].part.tail.offset = 0, infos[1].part.tail.size = TILE;
    CHECK(map(infos, 2, NULL));
    infos[1].part.tail.layer = 2;
    EXPECT(CUDA_ERROR_INVALID_VALUE, map(&infos[1], 1, NULL)); /* the array has two levels */
    infos[0].part.level.level = 3;
    EXPECT(CUDA_ERROR_INVALID_VALUE, map(&infos[0], 1, NULL)); /* the level is in the mip tail */
    CHECK(from_host(level, 0, "level 1", 8));
    CHECK(from_host(small, 0, "level 5", 8));
    CHECK(to_host(back, level, 0, 8));
    HOLDS(strcmp(back, "level 1") == 0);
    CHECK(release(pool));
    HOLDS(before - available() == 2 * MIB);
    CHECK(destroy_chain(whole));
    HOLDS(before == available());

    /* Smaller than a tile: the whole array is a mip tail. */
    wanted =
        (struct array){.width = 64, .height = 64, .format = FLOAT, .channels = 4, .flags = SPARSE};
    CHECK(create(&whole, &wanted));
    CHECK(divided(&how, whole));
    HOLDS(how.tile[0] == 64 && how.tile[1] == 64 && how.flags == 0 &&
          how.tail == 0); /* exactly one tile */
    CHECK(destroy(whole));
    wanted.height = 63;
    CHECK(create(&whole, &wanted));
    CHECK(divided(&how, whole));
    HOLDS(how.flags == SINGLE && how.tail == TILE && how.tail_level == 0);
    CHECK(destroy(whole));
    wanted.height = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&whole, &wanted));
    wanted.flags = SPARSE | 0x80;
    wanted.height = 64;
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&whole, &wanted)); /* deferred as well */
    wanted.flags = 0;
    CHECK(create(&whole, &wanted));
    EXPECT(CUDA_ERROR_INVALID_VALUE, divided(&how, whole));
    struct map_info dense = tiles(whole, 0, 0, 64, 64);
    EXPECT(CUDA_ERROR_INVALID_VALUE, map(&dense, 1, NULL));
    CHECK(destroy(whole));

    /* A destroyed context releases its arrays and what only they kept. */
    CUcontext context, current;
    CHECK(cu.cuCtxGetCurrent(&current));
    before = available();
    CHECK(cu.cuCtxCreate(&context, 0, 0));
    wanted.flags = SPARSE;
    CHECK(create(&whole, &wanted));
    pool = pool_of(2 * MIB);
    dense = tiles(whole, 0, 0, 64, 64), dense.handle = pool;
    CHECK(map(&dense, 1, NULL));
    CHECK(release(pool));
    CHECK(cu.cuCtxDestroy(context));
    CHECK(cu.cuCtxSetCurrent(current));
    HOLDS(before == available());
}

int main(void) {
    int has = 0;
    watchdog(60);
    driver_open();
    *(void **)&map = driver_symbol("cuMemMapArrayAsync");
    *(void **)&make = driver_symbol("cuMemCreate");
    *(void **)&release = driver_symbol("cuMemRelease");
    *(void **)&create = driver_symbol("cuArray3DCreate_v2");
    *(void **)&destroy = driver_symbol("cuArrayDestroy");
    *(void **)&divided = driver_symbol("cuArrayGetSparseProperties");
    CHECK(cu.cuDeviceGetAttribute(&has, SUPPORTED, 0));
    HOLDS(has == 1);
    /* The first launch loads its code. */
    CHECK(cu.cuLaunchKernel(driver_function("spin_20ms"), 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CHECK(cu.cuCtxSynchronize());
    plane();
    chain();
    printf("{\"sparse\": 1}\n");
    return 0;
}
