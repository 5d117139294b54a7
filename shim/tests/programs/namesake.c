/* SPDX-License-Identifier: Apache-2.0
 *
 * namesake - a library that is not the driver keeps its own cuInit.
 */
#include "where.h"

int main(void) {
    alarm(60);
    open_or_end("libcuda.so.1", RTLD_NOW);
    void *other = open_or_end("other.so", RTLD_NOW);
    printf("%s\n", where(dlsym(other, "cuInit")));
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(other, "cuInit");
    printf("%d\n", init(7));
    return 0;
}
