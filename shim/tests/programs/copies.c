/* SPDX-License-Identifier: Apache-2.0
 *
 * copies STUB - opens the stub, finds that it is one, closes it, opens the driver; then closes and
 * reopens the driver.
 */
#include "where.h"

static int init(const char *file) {
    void *driver = open_or_end(file, RTLD_NOW);
    int (*cuInit)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    printf("%s\n", where((void *)cuInit));
    int answer = cuInit(0);
    printf("%d\n", answer);
    dlclose(driver);
    return answer;
}

int main(int argc, char **argv) {
    alarm(60);
    if (argc != 2) return 2;
    init(argv[1]);
    init("libcuda.so.1");
    init("libcuda.so.1");
    return 0;
}
