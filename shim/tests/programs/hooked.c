/* SPDX-License-Identifier: Apache-2.0
 *
 * hooked - looks up the driver's functions beside another preload that interposes dlsym.
 */
#include "where.h"

int main(void) {
    alarm(60);
    void *driver = open_or_end("libcuda.so.1", RTLD_NOW);
    printf("%s\n", where(dlsym(driver, "cuMemAlloc_v2")));
    printf("%s\n", where(dlsym(driver, "cuStreamCreate")));
    int (*saw)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "hooker_saw");
    printf("saw %d\n", saw ? saw() : -1);
    return 0;
}
