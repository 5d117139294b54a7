/* SPDX-License-Identifier: Apache-2.0
 *
 * oddities - looks up the functions of the odd driver.
 */
#include "where.h"

typedef int get_v1(const char *, void **, int, uint64_t);
typedef int get_v2(const char *, void **, int, uint64_t, int *);

int main(void) {
    alarm(60);
    void *driver = open_or_end("libcuda.so.1", RTLD_NOW);
    get_v1 *v1 = (get_v1 *)dlsym(driver, "cuGetProcAddress");
    get_v2 *v2 = (get_v2 *)dlsym(driver, "cuGetProcAddress_v2");
    const char *names[] = {"cuMemAlloc", "cuMemFree", "cuStreamCreate", "cuMemAllocPitch",
                           "cuStreamQuery", "cuBrandNew", "cuMemAllocBrandNew", "cuAbsent", ""};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        void *function = (void *)1;
        int status = -1;
        int answer = v2(names[i], &function, 12000, 0, &status);
        printf("v2 %s: %d %s %d\n", names[i], answer, where(function), status);
        answer = v2(names[i], &function, 12000, 0, NULL);
        printf("v2 %s without a status: %d %s\n", names[i], answer, where(function));
        answer = v1(names[i], &function, 12000, 0);
        printf("v1 %s: %d %s\n", names[i], answer, where(function));
    }
    printf("absent by dlsym: %s\n", where(dlsym(driver, "cuLaunchKernel")));
    return 0;
}
