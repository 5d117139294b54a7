/* SPDX-License-Identifier: Apache-2.0
 *
 * forks - forks before and after cuInit, from a program with threads, twice, and by vfork; every
 * child initialises and allocates.
 */
#include "where.h"
#include <pthread.h>
#include <sys/wait.h>

static void *driver;
static int (*cuInit)(unsigned);
static int (*cuMemAlloc)(uint64_t *, size_t);
static int (*cuMemFree)(uint64_t);
static int (*cuMemGetInfo)(size_t *, size_t *);
static int (*retain)(void **, int);
static int (*set)(void *);

static int alone;

static int use(size_t bytes) {
    void *context;
    uint64_t address;
    size_t before, after, total;
    int answer = cuInit(0);
    if (!answer) answer = retain(&context, 0);
    if (!answer) answer = set(context);
    if (!answer) answer = cuMemGetInfo(&before, &total);
    if (!answer) answer = cuMemAlloc(&address, bytes);
    if (!answer) answer = cuMemGetInfo(&after, &total);
    if (!answer) answer = cuMemFree(address);
    if (!answer && alone && before - after != bytes) answer = 77;
    return answer;
}

static void join(const char *what, pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child) exit(4);
    printf("%s: %s %d\n", what, WIFEXITED(status) ? "ended with" : "killed by",
           WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    fflush(stdout);
}

static void child(const char *what) {
    pid_t pid = fork();
    if (pid == 0) {
        alarm(30);
        _exit(use(2 << 20));
    }
    join(what, pid);
}

static volatile int stop;
static void *churn(void *arg) {
    while (!stop) {
        uint64_t address;
        if (!cuMemAlloc(&address, 4096)) cuMemFree(address);
    }
    return arg;
}

int main(void) {
    alarm(60);
    alone = getenv("LIMITED") != NULL;
    driver = open_or_end("libcuda.so.1", RTLD_NOW);
    *(void **)&cuInit = dlsym(driver, "cuInit");
    *(void **)&cuMemAlloc = dlsym(driver, "cuMemAlloc_v2");
    *(void **)&cuMemFree = dlsym(driver, "cuMemFree_v2");
    *(void **)&cuMemGetInfo = dlsym(driver, "cuMemGetInfo_v2");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&set = dlsym(driver, "cuCtxSetCurrent");
    child("before cuInit");
    printf("parent: %d\n", use(4 << 20));
    fflush(stdout);
    child("after cuInit");
    pid_t pid = fork();
    if (pid == 0) {
        alarm(30);
        pid_t grandchild = fork();
        if (grandchild == 0) _exit(use(2 << 20));
        int status = 0;
        waitpid(grandchild, &status, 0);
        _exit(use(2 << 20) || status);
    }
    join("child and grandchild", pid);
    pid = vfork();
    if (pid == 0) _exit(0);
    join("vfork", pid);
    printf("parent after vfork: %d\n", use(4 << 20));
    fflush(stdout);
    alone = 0;
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, churn, NULL);
    for (int i = 0; i < 20; i++) child("with threads");
    stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    printf("parent in the end: %d\n", use(4 << 20));
    return 0;
}
