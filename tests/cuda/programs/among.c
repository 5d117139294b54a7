/* SPDX-License-Identifier: Apache-2.0
 *
 * among LIVE BYTES PAIRS - allocates and frees BYTES (K, M, G) PAIRS times beside LIVE allocations
 * of that size. The loop is in a function of its own, for a tool that counts instructions.
 */
#include "driver.h"

__attribute__((noinline, noclone)) static void pairs(unsigned n, size_t bytes) {
    while (n--) {
        CUdeviceptr address;
        CHECK(cu.cuMemAlloc(&address, bytes));
        CHECK(cu.cuMemFree(address));
    }
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: among LIVE BYTES PAIRS\n");
        return 2;
    }
    size_t bytes = parse_bytes(argv[2]);
    watchdog(110);
    driver_open();
    for (unsigned long live = strtoul(argv[1], NULL, 10); live > 0; live--) {
        CUdeviceptr address;
        CHECK(cu.cuMemAlloc(&address, bytes));
    }
    pairs((unsigned)strtoul(argv[3], NULL, 10), bytes);
    return 0;
}
