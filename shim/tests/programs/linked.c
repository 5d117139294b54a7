/* SPDX-License-Identifier: Apache-2.0
 *
 * linked - is linked with the driver and looks nothing up. As linked.so, a plugin that is.
 */
#include "where.h"

int cuInit(unsigned flags);
int cuMemAlloc_v2(uint64_t *address, size_t bytes);
int cuStreamCreate(void **stream, unsigned flags);
int cuDriverGetVersion(int *version);

int linked(void) {
    int version = 0;
    printf("cuMemAlloc_v2: %s\n", where((void *)cuMemAlloc_v2));
    printf("cuStreamCreate: %s\n", where((void *)cuStreamCreate));
    printf("cuInit answers %d\n", cuInit(0));
    printf("cuDriverGetVersion answers %d\n", cuDriverGetVersion(&version));
    return 0;
}

#ifndef PLUGIN
int main(void) {
    alarm(60);
    return linked();
}
#endif
