/* SPDX-License-Identifier: Apache-2.0
 *
 * share - checks device memory shared by two processes: IPC handles, and physical memory and pools
 * by descriptor. The bytes are the same, the importer uses nothing while the exporter has the
 * memory, and the memory is freed with its last holder, even if that is only an open descriptor.
 * Prints only one JSON object.
 *
 * For a driver without a shim: under a limit some of these are refused.
 */
#include "descriptors.h"
#include "records.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

struct handle {
    char bytes[64];
};

enum { DEVICE = 1, PINNED = 1, READ_WRITE = 3, DESCRIPTOR = 1, FABRIC = 8, LAZY = 1 };

static int line; /* to the other process */

static void send_bytes(const void *bytes, size_t count) {
    HOLDS(write(line, bytes, count) == (ssize_t)count);
}

static void receive_bytes(void *bytes, size_t count) {
    HOLDS(recv(line, bytes, count, MSG_WAITALL) == (ssize_t)count);
}

static void send_byte(char word) { send_bytes(&word, 1); }

static void expect_byte(char word) {
    char heard;
    receive_bytes(&heard, 1);
    HOLDS(heard == word);
}

static size_t free_bytes(void) {
    size_t available;
    CHECK(cu.cuMemGetInfo(&available, NULL));
    return available;
}

static uint32_t word_at(CUdeviceptr address) {
    uint32_t word = 0;
    CHECK(cu.cuMemcpyDtoH(&word, address, sizeof word));
    return word;
}

static CUdeviceptr reserve_and_map(size_t bytes, uint64_t handle) {
    FUNCTION(reserve, cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t));
    FUNCTION(map, cuMemMap, (CUdeviceptr, size_t, size_t, uint64_t, uint64_t));
    FUNCTION(set_access, cuMemSetAccess, (CUdeviceptr, size_t, const struct access *, size_t));
    struct access access = {{DEVICE, 0}, READ_WRITE};
    CUdeviceptr address;
    CHECK(reserve(&address, bytes, 0, 0, 0));
    CHECK(map(address, bytes, 0, handle, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemsetD32(address, 1, 1)); /* no side has access yet */
    CHECK(set_access(address, bytes, &access, 1));
    return address;
}

/* The exporter. */
static void exporter(void) {
    FUNCTION(get, cuIpcGetMemHandle, (struct handle *, CUdeviceptr));
    FUNCTION(open, cuIpcOpenMemHandle_v2, (CUdeviceptr *, struct handle, unsigned));
    FUNCTION(close_handle, cuIpcCloseMemHandle, (CUdeviceptr));
    FUNCTION(create, cuMemCreate, (uint64_t *, size_t, const struct allocation *, uint64_t));
    FUNCTION(release, cuMemRelease, (uint64_t));
    FUNCTION(unmap, cuMemUnmap, (CUdeviceptr, size_t));
    FUNCTION(export_handle, cuMemExportToShareableHandle, (void *, uint64_t, int, uint64_t));
    FUNCTION(import, cuMemImportFromShareableHandle, (uint64_t *, void *, int));
    FUNCTION(pool_create, cuMemPoolCreate, (void **, const struct pool_properties *));
    FUNCTION(pool_destroy, cuMemPoolDestroy, (void *));
    FUNCTION(pool_export, cuMemPoolExportToShareableHandle, (void *, void *, int, uint64_t));
    FUNCTION(pool_point, cuMemPoolExportPointer, (struct handle *, CUdeviceptr));
    FUNCTION(allocate_from, cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, void *, CUstream));
    FUNCTION(free_async, cuMemFreeAsync, (CUdeviceptr, CUstream));
    struct allocation wanted = {.kind = PINNED,
                                .handle_types = DESCRIPTOR,
                                .location = {DEVICE, 0}},
                      alone = wanted;
    struct pool_properties properties = {
        .kind = PINNED, .handle_types = DESCRIPTOR, .location = {DEVICE, 0}};
    struct handle handle;
    CUdeviceptr small, large, address;
    uint64_t physical;
    int descriptor;
    void *pool;

    expect_byte('R');
    size_t before = free_bytes();

    /* IPC handles: of a small allocation, whose block holds others, and of a large one. */
    CHECK(cu.cuMemAlloc(&small, 1000));
    CHECK(cu.cuMemAlloc(&large, 5 * MIB));
    CHECK(cu.cuMemsetD32(small, 0x51, 250));
    CHECK(cu.cuMemsetD32(large, 0x52, MIB));
    size_t with = free_bytes();
    CHECK(get(&handle, small));
    CHECK(get(&handle, small + 4)); /* any address within the allocation is accepted */
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, open(&address, handle, LAZY));
    EXPECT(CUDA_ERROR_INVALID_VALUE, open(&address, handle, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, get(&handle, 0x1234));
    EXPECT(CUDA_ERROR_INVALID_VALUE, close_handle(small));
    HOLDS(word_at(small) == 0x51); /* unchanged, wherever it is now */
    send_bytes(&handle, sizeof handle);
    CHECK(get(&handle, large));
    send_bytes(&handle, sizeof handle);
    expect_byte('O');
    HOLDS(word_at(large) == 0x99);
    HOLDS(free_bytes() == with); /* the importer uses nothing */
    CHECK(cu.cuMemFree(large));
    HOLDS(free_bytes() == with); /* the importer has it open */
    send_byte('F');
    expect_byte('C');
    HOLDS(free_bytes() == before - 2 * MIB);
    CHECK(cu.cuMemFree(small));
    HOLDS(free_bytes() == before);

    /* Physical memory by a descriptor. */
    alone.handle_types = 0;
    CHECK(create(&physical, 2 * MIB, &alone, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, export_handle(&descriptor, physical, DESCRIPTOR, 0));
    CHECK(release(physical));
    wanted.handle_types = FABRIC;
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, create(&physical, 2 * MIB, &wanted, 0));
    wanted.handle_types = DESCRIPTOR;
    CHECK(create(&physical, 4 * MIB, &wanted, 0));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, export_handle(&descriptor, physical, FABRIC, 0));
    address = reserve_and_map(4 * MIB, physical);
    CHECK(cu.cuMemsetD32(address, 0x61, MIB));
    CHECK(cu.cuCtxSynchronize());
    CHECK(export_handle(&descriptor, physical, DESCRIPTOR, 0));
    send_descriptor(line, descriptor);
    HOLDS(close(descriptor) == 0);
    expect_byte('M');
    HOLDS(word_at(address) == 0x62);
    HOLDS(free_bytes() == before - 4 * MIB);
    CHECK(unmap(address, 4 * MIB));
    CHECK(release(physical));
    HOLDS(free_bytes() == before - 4 * MIB); /* the importer holds it */
    send_byte('L');
    expect_byte('U');
    HOLDS(free_bytes() == before);

    /* A descriptor alone keeps it. */
    CHECK(create(&physical, 6 * MIB, &wanted, 0));
    CHECK(export_handle(&descriptor, physical, DESCRIPTOR, 0));
    CHECK(release(physical));
    HOLDS(free_bytes() == before - 6 * MIB);
    /* its own memory, imported */
    CHECK(import(&physical, (void *)(intptr_t)descriptor, DESCRIPTOR));
    HOLDS(free_bytes() == before - 6 * MIB);
    CHECK(release(physical));
    HOLDS(close(descriptor) == 0);
    HOLDS(free_bytes() == before);
    EXPECT(CUDA_ERROR_INVALID_VALUE, import(&physical, (void *)(intptr_t)descriptor, DESCRIPTOR));
    EXPECT(CUDA_ERROR_INVALID_VALUE, import(&physical, (void *)(intptr_t)line, DESCRIPTOR));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, import(&physical, (void *)(intptr_t)line, FABRIC));

    /* A pool, and an allocation of it. */
    properties.handle_types = 0;
    CHECK(pool_create(&pool, &properties));
    EXPECT(CUDA_ERROR_INVALID_VALUE, pool_export(&descriptor, pool, DESCRIPTOR, 0));
    CHECK(pool_destroy(pool));
    properties.handle_types = DESCRIPTOR;
    CHECK(pool_create(&pool, &properties));
    CHECK(allocate_from(&address, 3 * MIB, pool, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, pool_point(&handle, address)); /* the pool was not exported */
    CHECK(pool_export(&descriptor, pool, DESCRIPTOR, 0));
    CHECK(pool_point(&handle, address));
    EXPECT(CUDA_ERROR_INVALID_VALUE, import(&physical, (void *)(intptr_t)descriptor, DESCRIPTOR));
    CHECK(cu.cuMemsetD32(address, 0x71, 64));
    CHECK(cu.cuCtxSynchronize());
    size_t pooled = free_bytes();
    HOLDS(pooled < before - 3 * MIB); /* a chunk is more */
    send_descriptor(line, descriptor);
    HOLDS(close(descriptor) == 0);
    send_bytes(&handle, sizeof handle);
    expect_byte('P');
    HOLDS(word_at(address) == 0x72);
    HOLDS(free_bytes() == pooled);
    send_byte('X');
    expect_byte('Q');
    CHECK(free_async(address, NULL));
    CHECK(pool_destroy(pool));
    CHECK(cu.cuCtxSynchronize());
    HOLDS(free_bytes() == before);

    /* Killed while the importer has its memory open: that stays. */
    CHECK(cu.cuMemAlloc(&large, 8 * MIB));
    CHECK(cu.cuMemsetD32(large, 0x81, 2 * MIB));
    CHECK(get(&handle, large));
    CHECK(cu.cuCtxSynchronize());
    send_bytes(&handle, sizeof handle);
    expect_byte('K');
    kill(getpid(), SIGKILL);
}

/* The importer. */
static void importer(pid_t other) {
    FUNCTION(open, cuIpcOpenMemHandle_v2, (CUdeviceptr *, struct handle, unsigned));
    FUNCTION(close_handle, cuIpcCloseMemHandle, (CUdeviceptr));
    FUNCTION(import, cuMemImportFromShareableHandle, (uint64_t *, void *, int));
    FUNCTION(release, cuMemRelease, (uint64_t));
    FUNCTION(unmap, cuMemUnmap, (CUdeviceptr, size_t));
    FUNCTION(pool_import, cuMemPoolImportFromShareableHandle, (void **, void *, int, uint64_t));
    FUNCTION(pool_point, cuMemPoolImportPointer, (CUdeviceptr *, void *, struct handle *));
    FUNCTION(pool_destroy, cuMemPoolDestroy, (void *));
    FUNCTION(set_pool, cuDeviceSetMemPool, (CUdevice, void *));
    FUNCTION(allocate_from, cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, void *, CUstream));
    FUNCTION(free_async, cuMemFreeAsync, (CUdeviceptr, CUstream));
    struct handle handle, large;
    CUdeviceptr address, again, other_one;
    CUcontext second, first;
    uint64_t physical;
    int descriptor, status;
    void *pool;

    CHECK(cu.cuCtxGetCurrent(&first));
    CHECK(cu.cuCtxCreate(&second, 0, 0));
    CHECK(cu.cuCtxSetCurrent(first));
    send_byte('R');

    receive_bytes(&handle, sizeof handle);
    receive_bytes(&large, sizeof large);
    CHECK(open(&address, handle, LAZY));
    CHECK(open(&again, handle, LAZY));
    HOLDS(address == again);
    HOLDS(word_at(address) == 0x51);
    CHECK(cu.cuCtxSetCurrent(second));
    /* another context has it open */
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, open(&again, handle, LAZY));
    CHECK(cu.cuCtxSetCurrent(first));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree(address)); /* not this process's to free */
    CHECK(open(&other_one, large, LAZY));
    HOLDS(word_at(other_one) == 0x52);
    CHECK(cu.cuMemsetD32(other_one, 0x99, 1));
    CHECK(cu.cuCtxSynchronize());
    send_byte('O');
    expect_byte('F');
    HOLDS(word_at(other_one) == 0x99); /* freed by the exporter, open here */
    EXPECT(CUDA_ERROR_INVALID_VALUE, open(&again, large, LAZY));
    CHECK(close_handle(other_one));
    EXPECT(CUDA_ERROR_INVALID_VALUE, close_handle(other_one));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyDtoH(&status, other_one, sizeof status));
    CHECK(close_handle(address));
    HOLDS(word_at(address) == 0x51); /* was opened twice */
    CHECK(close_handle(address));
    memset(&handle, 0x55, sizeof handle);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, open(&address, handle, LAZY));
    send_byte('C');

    descriptor = receive_descriptor(line);
    CHECK(import(&physical, (void *)(intptr_t)descriptor, DESCRIPTOR));
    HOLDS(close(descriptor) == 0);
    address = reserve_and_map(4 * MIB, physical);
    HOLDS(word_at(address + 2 * MIB) == 0x61);
    CHECK(cu.cuMemsetD32(address, 0x62, 1));
    CHECK(cu.cuCtxSynchronize());
    send_byte('M');
    expect_byte('L');
    HOLDS(word_at(address) == 0x62);
    CHECK(release(physical));
    CHECK(unmap(address, 4 * MIB));
    send_byte('U');

    descriptor = receive_descriptor(line);
    receive_bytes(&handle, sizeof handle);
    CHECK(pool_import(&pool, (void *)(intptr_t)descriptor, DESCRIPTOR, 0));
    HOLDS(close(descriptor) == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, allocate_from(&address, MIB, pool, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, set_pool(0, pool));
    CHECK(pool_point(&address, pool, &handle));
    HOLDS(word_at(address) == 0x71);
    CHECK(cu.cuMemsetD32(address, 0x72, 1));
    CHECK(cu.cuCtxSynchronize());
    send_byte('P');
    expect_byte('X');
    CHECK(free_async(address, NULL));
    CHECK(cu.cuCtxSynchronize());
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyDtoH(&status, address, sizeof status));
    CHECK(pool_destroy(pool));
    send_byte('Q');

    receive_bytes(&handle, sizeof handle);
    CHECK(open(&address, handle, LAZY));
    size_t before = free_bytes();
    send_byte('K');
    HOLDS(waitpid(other, &status, 0) == other && WIFSIGNALED(status));
    /* Its context is released some time after it. Memory open here stays, and is charged here
     * from then on. */
    while (free_bytes() == before) usleep(1000);
    HOLDS(word_at(address) == 0x81);
    size_t with = free_bytes();
    CHECK(close_handle(address));
    HOLDS(free_bytes() == with + 8 * MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, open(&address, handle, LAZY));
}

int main(void) {
    int lines[2];
    watchdog(60);
    HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, lines) == 0);
    pid_t other = fork();
    HOLDS(other >= 0);
    line = lines[other == 0];
    close(lines[other != 0]);
    watchdog(60);
    driver_open();
    if (other == 0) {
        exporter();
    } else {
        importer(other);
        printf("{\"shared\": true}\n");
    }
    return 0;
}
