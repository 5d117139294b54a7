/* SPDX-License-Identifier: Apache-2.0
 *
 * tables - gets a driver's private table as the CUDA runtime does, by dlsym and by
 * cuGetProcAddress, and calls its functions.
 */
#include "where.h"

typedef int get_table(const void **, const void *);

static void query(const char *how, get_table *get) {
    const void *const *table = NULL;
    unsigned char id[16] = {0x6b, 0xd5, 0xfb, 0x6c};
    int answer = get ? get((const void **)&table, id) : -1;
    printf("%s: %d, %zu bytes, %s, %d\n", how, answer, table ? (size_t)table[0] : 0,
           where((void *)get), table ? ((int (*)(void))table[1])() : 0);
}

int main(void) {
    alarm(60);
    void *driver = open_or_end("libcuda.so.1", RTLD_NOW), *found = NULL;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    int (*look_up)(const char *, void **, int, uint64_t, int *) =
        (int (*)(const char *, void **, int, uint64_t, int *))dlsym(driver, "cuGetProcAddress_v2");
    int status = -1;
    query("before cuInit", (get_table *)dlsym(driver, "cuGetExportTable"));
    printf("cuInit: %d\n", init(0));
    query("by dlsym", (get_table *)dlsym(driver, "cuGetExportTable"));
    printf("look-up: %d", look_up("cuGetExportTable", &found, 3000, 0, &status));
    printf(", %d\n", status);
    query("by look-up", (get_table *)found);
    return 0;
}
