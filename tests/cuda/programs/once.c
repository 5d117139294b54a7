/* SPDX-License-Identifier: Apache-2.0
 *
 * once - one allocation, one launch, one free. Prints nothing.
 */
#include "driver.h"

int main(void) {
    CUdeviceptr address;
    watchdog(60);
    driver_open();
    CUfunction kernel = driver_function("spin_1ms");
    CHECK(cu.cuMemAlloc(&address, (size_t)64 << 20));
    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CHECK(cu.cuCtxSynchronize());
    CHECK(cu.cuMemFree(address));
    return 0;
}
