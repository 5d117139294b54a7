/* SPDX-License-Identifier: Apache-2.0
 *
 * init [TIMES] - calls cuInit (TIMES times, 1 by default) and prints its result, and that of
 * cuDeviceTotalMem for the first GPU, as one JSON object. Always exits 0: the test checks the
 * result.
 */
#include "driver.h"

int main(int argc, char **argv) {
    int times = argc > 1 ? atoi(argv[1]) : 1;
    size_t total = 0;
    CUresult result = CUDA_SUCCESS;
    watchdog(60);
    driver_load();
    for (int i = 0; i < times; i++) result = cu.cuInit(0);
    CUresult device = cu.cuDeviceTotalMem(&total, 0);
    printf("{\"init\": %d, \"device\": %d, \"total\": %zu}\n", result, device, total);
    return 0;
}
