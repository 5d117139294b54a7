/* SPDX-License-Identifier: Apache-2.0
 *
 * foreign.h - another interface to the GPU, which creates memory and semaphores for the driver to
 * import. A private table of the simulated driver provides it (docs/internals/simulator.md). On any
 * other driver `foreign_open` ends the program with 3.
 */
#ifndef CGPU_TEST_FOREIGN_H
#define CGPU_TEST_FOREIGN_H

#include "driver.h"

#include <fcntl.h>
#include <sys/mman.h>

enum {
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    OPAQUE_FD = 1,
    TIMELINE_FD = 9, /* of semaphores */
    DEDICATED = 1,
};

static struct foreign {
    size_t bytes;
    CUresult (*allocate)(CUdevice device, uint64_t bytes, uint64_t *memory);
    CUresult (*descriptor)(uint64_t memory, int *fd);
    CUresult (*free)(uint64_t memory);
    CUresult (*semaphore)(int counts, uint64_t *semaphore);
    CUresult (*semaphore_descriptor)(uint64_t semaphore, int *fd);
    CUresult (*signal)(uint64_t semaphore, uint64_t value);
    CUresult (*value)(uint64_t semaphore, uint64_t *value);
    CUresult (*destroy)(uint64_t semaphore);
} foreign;

static inline void foreign_open(void) {
    CUresult (*table_of)(const void **table, const char *name);
    const void *table;
    *(void **)&table_of = driver_symbol("cuGetExportTable");
    if (table_of(&table, "cgpu-sim foreign") != CUDA_SUCCESS) {
        fprintf(stderr, "no other interface\n");
        exit(3);
    }
    memcpy(&foreign, table, sizeof foreign);
    HOLDS(foreign.bytes == sizeof foreign);
}

typedef struct external_memory *CUexternalMemory;
typedef struct external_semaphore *CUexternalSemaphore;

typedef struct {
    int type;
    union {
        int fd;
        void *rest[2];
    } handle;
    unsigned long long size;
    unsigned flags, reserved[16];
} MemoryDesc;

typedef struct {
    unsigned long long offset, size;
    unsigned flags, reserved[16];
} BufferDesc;

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} ArrayDesc;

typedef struct {
    unsigned long long offset;
    ArrayDesc array;
    unsigned levels, reserved[16];
} MipmapDesc;

typedef struct {
    int type;
    union {
        int fd;
        void *rest[2];
    } handle;
    unsigned flags, reserved[16];
} SemaphoreDesc;

/* Parameters of a signal and of a wait: the used parts have the same layout. */
typedef struct {
    unsigned long long value, other[8];
    unsigned flags, reserved[16];
} SemaphoreParams;

static struct {
    CUresult (*import)(CUexternalMemory *memory, const MemoryDesc *from);
    CUresult (*destroy)(CUexternalMemory memory);
    CUresult (*buffer)(CUdeviceptr *address, CUexternalMemory memory, const BufferDesc *wanted);
    CUresult (*chain)(void **chain, CUexternalMemory memory, const MipmapDesc *wanted);
    CUresult (*import_semaphore)(CUexternalSemaphore *semaphore, const SemaphoreDesc *from);
    CUresult (*destroy_semaphore)(CUexternalSemaphore semaphore);
    CUresult (*signal)(const CUexternalSemaphore *all, const SemaphoreParams *params,
                       unsigned count, CUstream stream);
    CUresult (*wait)(const CUexternalSemaphore *all, const SemaphoreParams *params, unsigned count,
                     CUstream stream);
} ext;

/* The driver's functions for imported objects. */
static inline void external_find(void) {
    *(void **)&ext.import = driver_symbol("cuImportExternalMemory");
    *(void **)&ext.destroy = driver_symbol("cuDestroyExternalMemory");
    *(void **)&ext.buffer = driver_symbol("cuExternalMemoryGetMappedBuffer");
    *(void **)&ext.chain = driver_symbol("cuExternalMemoryGetMappedMipmappedArray");
    *(void **)&ext.import_semaphore = driver_symbol("cuImportExternalSemaphore");
    *(void **)&ext.destroy_semaphore = driver_symbol("cuDestroyExternalSemaphore");
    *(void **)&ext.signal = driver_symbol("cuSignalExternalSemaphoresAsync");
    *(void **)&ext.wait = driver_symbol("cuWaitExternalSemaphoresAsync");
}

static inline int is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

/* Imports memory by its descriptor, which then belongs to the driver. */
static inline CUexternalMemory import_memory(int fd, size_t bytes) {
    MemoryDesc from = {.type = OPAQUE_FD, .handle.fd = fd, .size = bytes};
    CUexternalMemory memory;
    CHECK(ext.import(&memory, &from));
    HOLDS(!is_open(fd));
    return memory;
}

static inline CUdeviceptr buffer_of(CUexternalMemory memory, size_t offset, size_t bytes) {
    BufferDesc wanted = {.offset = offset, .size = bytes};
    CUdeviceptr address;
    CHECK(ext.buffer(&address, memory, &wanted));
    return address;
}

static inline CUexternalSemaphore import_semaphore(int fd, int type) {
    SemaphoreDesc from = {.type = type, .handle.fd = fd};
    CUexternalSemaphore semaphore;
    CHECK(ext.import_semaphore(&semaphore, &from));
    HOLDS(!is_open(fd));
    return semaphore;
}

#endif
