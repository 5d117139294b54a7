/* SPDX-License-Identifier: Apache-2.0
 *
 * wrapping - is linked with a library that wraps the driver's functions, and after it with the
 * driver.
 */
#include "where.h"

const char *wrapped(const char *name);
int cuDriverGetVersion(int *version);

int main(void) {
    int version;
    alarm(60);
    cuDriverGetVersion(&version);
    printf("%s\n", wrapped("cuMemAlloc_v2"));
    printf("%s\n", wrapped("cuStreamCreate"));
    printf("%s\n", wrapped("cuNothing"));
    return 0;
}
