/* SPDX-License-Identifier: Apache-2.0
 *
 * ledger.h - used memory as shown to the program and as the driver has it. These differ under a
 * shim, which answers from its ledger. The driver's own function is found in the symbol table of
 * its library, which no shim intercepts.
 */
#ifndef CGPU_TEST_LEDGER_H
#define CGPU_TEST_LEDGER_H

#include "records.h"

#include <elf.h>
#include <link.h>

#define GRANULE (2 * MIB)

enum {
    DEVICE = 1,
    HOST = 2,
    HOST_NUMA = 3,
    HOST_NUMA_CURRENT = 4,
    DEVICE_LOCALITY_DOMAIN = 6,
    PINNED = 1,
    MANAGED = 2,
    DESCRIPTOR = 1,
    READ_WRITE = 3
};

static struct {
    CUresult (*own)(size_t *available, size_t *total);
    size_t shown, had; /* free at the start: as shown, and by the driver */
} ledger;

/* The functions of virtual memory management. */
static struct {
    CUresult (*create)(uint64_t *handle, size_t size, const struct allocation *wanted,
                       uint64_t flags);
    CUresult (*release)(uint64_t handle);
    CUresult (*retain)(uint64_t *handle, void *address);
    CUresult (*reserve)(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr at,
                        uint64_t flags);
    CUresult (*unreserve)(CUdeviceptr address, size_t size);
    CUresult (*map)(CUdeviceptr address, size_t size, size_t offset, uint64_t handle,
                    uint64_t flags);
    CUresult (*unmap)(CUdeviceptr address, size_t size);
    CUresult (*set_access)(CUdeviceptr address, size_t size, const struct access *access,
                           size_t count);
} vm;

static const struct allocation on_the_gpu = {.kind = PINNED, .location = {DEVICE, 0}};

static inline void *own_symbol(const char *name) {
    struct link_map *map;
    const ElfW(Sym) *symbol = NULL;
    const char *text = NULL;
    if (dlinfo(cu.library, RTLD_DI_LINKMAP, &map) != 0) FAIL("%s", dlerror());
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) symbol = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) text = (const void *)entry->d_un.d_ptr;
    }
    HOLDS(symbol && text &&
          (const char *)symbol < text); /* linkers place the names after the symbols */
    for (; (const char *)(symbol + 1) <= text; symbol++)
        if (symbol->st_value && strcmp(text + symbol->st_name, name) == 0)
            return (char *)map->l_addr + symbol->st_value;
    FAIL("the driver's library has no %s", name);
}

static inline size_t free_shown(void) {
    size_t available, total;
    CHECK(cu.cuMemGetInfo(&available, &total));
    return available;
}

static inline size_t free_in_truth(void) {
    size_t available, total;
    CHECK(ledger.own(&available, &total));
    return available;
}

/* Begins to count. */
static inline void ledger_open(void) {
    *(void **)&ledger.own = own_symbol("cuMemGetInfo_v2");
    ledger.shown = free_shown();
    ledger.had = free_in_truth();
    *(void **)&vm.create = driver_symbol("cuMemCreate");
    *(void **)&vm.release = driver_symbol("cuMemRelease");
    *(void **)&vm.retain = driver_symbol("cuMemRetainAllocationHandle");
    *(void **)&vm.reserve = driver_symbol("cuMemAddressReserve");
    *(void **)&vm.unreserve = driver_symbol("cuMemAddressFree");
    *(void **)&vm.map = driver_symbol("cuMemMap");
    *(void **)&vm.unmap = driver_symbol("cuMemUnmap");
    *(void **)&vm.set_access = driver_symbol("cuMemSetAccess");
}

/* Bytes taken since then, as shown and by the driver. */
static inline size_t shown(void) { return ledger.shown - free_shown(); }
static inline size_t truth(void) { return ledger.had - free_in_truth(); }

/* Requires that this much is taken, as shown and by the driver. */
#define TAKEN(bytes)                                                                   \
    do {                                                                               \
        size_t taken_bytes = (bytes), taken_shown = shown(), taken_truth = truth();    \
        if (taken_shown != taken_bytes || taken_truth != taken_bytes)                  \
            FAIL("expected %zu taken, the ledger has %zu, the driver %zu", taken_bytes, \
                 taken_shown, taken_truth);                                            \
    } while (0)

static inline CUdeviceptr reserve(size_t bytes) {
    CUdeviceptr address;
    CHECK(vm.reserve(&address, bytes, 0, 0, 0));
    return address;
}

static inline void let_in(CUdeviceptr address, size_t bytes) {
    struct access access = {{DEVICE, 0}, READ_WRITE};
    CHECK(vm.set_access(address, bytes, &access, 1));
}

#endif
