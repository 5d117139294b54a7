/* SPDX-License-Identifier: Apache-2.0
 *
 * threads - sixteen threads initialise the driver at the same time, and each allocates 2 MiB.
 */
#include "where.h"
#include <pthread.h>

static int (*cuInit)(unsigned);
static int (*cuMemAlloc)(uint64_t *, size_t);
static int (*cuMemFree)(uint64_t);
static int (*cuMemGetInfo)(size_t *, size_t *);
static int (*retain)(void **, int);
static int (*set)(void *);
static pthread_barrier_t barrier;
static uint64_t address[16];

static void *start(void *arg) {
    void *context;
    pthread_barrier_wait(&barrier);
    if (cuInit(0) || retain(&context, 0) || set(context) ||
        cuMemAlloc(&address[(size_t)arg], 2 << 20))
        exit(1);
    return NULL;
}

static void used(void) {
    size_t available, total;
    if (cuMemGetInfo(&available, &total)) exit(1);
    printf("used %zu\n", total - available);
}

int main(void) {
    alarm(60);
    void *driver = open_or_end("libcuda.so.1", RTLD_NOW);
    *(void **)&cuInit = dlsym(driver, "cuInit");
    *(void **)&cuMemAlloc = dlsym(driver, "cuMemAlloc_v2");
    *(void **)&cuMemFree = dlsym(driver, "cuMemFree_v2");
    *(void **)&cuMemGetInfo = dlsym(driver, "cuMemGetInfo_v2");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&set = dlsym(driver, "cuCtxSetCurrent");
    pthread_t thread[16];
    void *context;
    pthread_barrier_init(&barrier, NULL, 16);
    for (size_t i = 0; i < 16; i++) pthread_create(&thread[i], NULL, start, (void *)i);
    for (size_t i = 0; i < 16; i++) pthread_join(thread[i], NULL);
    if (retain(&context, 0) || set(context)) return 1;
    used();
    for (size_t i = 0; i < 16; i++)
        if (cuMemFree(address[i])) return 1;
    used();
    return 0;
}
