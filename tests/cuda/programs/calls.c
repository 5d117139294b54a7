/* SPDX-License-Identifier: Apache-2.0
 *
 * calls N [GRANT] - makes each kind of call N times, each kind in a function of its own, for a tool
 * that counts instructions. What the first call loads or creates is spread over all of them.
 *
 * With GRANT, the path of that file of the container's region, it finally makes N launches in the
 * container's own turn. The program writes the grant as the monitor would: contended, and this
 * container's turn.
 */
#include <fcntl.h>
#include <sys/mman.h>

#include "cgpu.h"
#include "driver.h"

#define COUNTED __attribute__((noinline, noclone)) static void

static CUfunction function;
static void *libc;
static CUresult (*proc_address)(const char *name, void **address, int version, uint64_t flags,
                                int *status);

COUNTED launches(unsigned n) {
    while (n--) CHECK(cu.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
}

/* Of another shape, so that the compiler does not merge both functions. */
COUNTED launches_in_turn(unsigned n) {
    while (n--) CHECK(cu.cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
}

COUNTED copies(unsigned n) {
    char byte = 0;
    while (n--) CHECK(cu.cuMemcpyHtoDAsync(4096, &byte, 1, NULL));
}

COUNTED allocations(unsigned n) {
    while (n--) {
        CUdeviceptr address;
        CHECK(cu.cuMemAlloc(&address, 4096));
        CHECK(cu.cuMemFree(address));
    }
}

/* A foreign name, a driver name that is not hooked, and one that is. */
COUNTED lookups_elsewhere(unsigned n) {
    while (n--) HOLDS(dlsym(libc, "qsort"));
}

COUNTED lookups_passed(unsigned n) {
    while (n--) HOLDS(dlsym(cu.library, "cuArrayGetDescriptor_v2"));
}

COUNTED lookups_hooked(unsigned n) {
    while (n--) HOLDS(dlsym(cu.library, "cuMemAlloc_v2"));
}

COUNTED proc_addresses(unsigned n) {
    void *address;
    int status;
    while (n--) CHECK(proc_address("cuMemAlloc", &address, 12000, 0, &status));
}

static void (*const all[])(unsigned) = {
    launches,       copies,         allocations,    lookups_elsewhere,
    lookups_passed, lookups_hooked, proc_addresses,
};

/* In this order: a reader that sees the gate word sees the rest. */
static void take_the_turn(const char *file) {
    int descriptor = open(file, O_RDWR | O_CLOEXEC);
    HOLDS(descriptor >= 0);
    struct cgpu_grant *grant =
        mmap(NULL, sizeof *grant, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    HOLDS(grant != MAP_FAILED && grant->magic == CGPU_GRANT_MAGIC);
    __atomic_store_n(&grant->monitor, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&grant->heartbeat, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&grant->gpu[0].budget, UINT64_C(3600000000000), __ATOMIC_RELAXED);
    __atomic_store_n(&grant->gpu[0].turn, UINT64_C(1) << 8 | CGPU_TURN_YOURS, __ATOMIC_RELEASE);
    __atomic_store_n(&grant->gate, grant->gate + 1, __ATOMIC_RELEASE);
}

int main(int argc, char **argv) {
    unsigned n = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
    if (!n || argc > 3) {
        fprintf(stderr, "usage: calls N [GRANT]\n");
        return 2;
    }
    watchdog(110);
    driver_open();
    function = driver_function("nothing");
    libc = dlopen("libc.so.6", RTLD_NOW);
    HOLDS(libc);
    *(void **)&proc_address = driver_symbol("cuGetProcAddress_v2");
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) all[i](n);
    if (argc > 2) {
        take_the_turn(argv[2]);
        launches_in_turn(n);
    }
    return 0;
}
