/* SPDX-License-Identifier: Apache-2.0
 *
 * implicit_contexts - creates contexts until the GPU has no room for another one. Every call that
 * creates one then fails as the driver fails, and after one is destroyed another one fits. Prints
 * {"contexts": N, "free": BYTES}, with the memory left at the first refusal.
 */
#include "driver.h"

int main(void) {
    enum { MOST = 64 };
    CUcontext contexts[MOST], context;
    size_t available = 0, total;
    int made = 0;
    watchdog(60);
    driver_load();
    CHECK(cu.cuInit(0));
    CUresult result = CUDA_SUCCESS;
    while (made < MOST && (result = cu.cuCtxCreate(&contexts[made], 0, 0)) == CUDA_SUCCESS) made++;
    if (result != CUDA_ERROR_OUT_OF_MEMORY) FAIL("%d contexts, then %d", made, result);
    HOLDS(made > 0);
    CHECK(cu.cuCtxSetCurrent(contexts[0]));
    CHECK(cu.cuMemGetInfo(&available, &total));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuDevicePrimaryCtxRetain(&context, 0));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuCtxCreate(&context, 0, 0));
    CHECK(cu.cuCtxDestroy(contexts[--made]));
    CHECK(cu.cuDevicePrimaryCtxRetain(&context, 0));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuCtxCreate(&contexts[made], 0, 0));
    CHECK(cu.cuDevicePrimaryCtxRelease(0));
    CHECK(cu.cuCtxCreate(&contexts[made], 0, 0));
    printf("{\"contexts\": %d, \"free\": %zu}\n", made + 1, available);
    return 0;
}
