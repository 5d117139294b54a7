/* SPDX-License-Identifier: Apache-2.0
 *
 * logged FILE - allocates in the process, then in a forked child that has closed every descriptor
 * and reopened all low numbers as FILE. Prints the number of descriptors before and after, and the
 * child's process id.
 */
#include "where.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>

enum { NUMBERS = 64 };

static int (*cuInit)(unsigned);
static int (*cuMemAlloc)(uint64_t *, size_t);
static int (*cuMemFree)(uint64_t);
static int (*retain)(void **, int);
static int (*set)(void *);

static int use(void) {
    void *context;
    uint64_t address;
    int answer = cuInit(0);
    if (!answer) answer = retain(&context, 0);
    if (!answer) answer = set(context);
    if (!answer) answer = cuMemAlloc(&address, 4096);
    return answer ? answer : cuMemFree(address);
}

static int descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    if (!folder) exit(5);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

int main(int argc, char **argv) {
    int status;
    if (argc != 2) return 2;
    alarm(60);
    void *driver = open_or_end("libcuda.so.1", RTLD_NOW);
    *(void **)&cuInit = dlsym(driver, "cuInit");
    *(void **)&cuMemAlloc = dlsym(driver, "cuMemAlloc_v2");
    *(void **)&cuMemFree = dlsym(driver, "cuMemFree_v2");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&set = dlsym(driver, "cuCtxSetCurrent");
    int answer = use();
    int before = descriptors();
    if (!answer) answer = use();
    printf("%d, descriptors: %d\n", answer, descriptors() - before);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        for (int fd = 0; fd < 1024; fd++) close(fd);
        if (open(argv[1], O_WRONLY | O_CREAT, 0600) != 0) _exit(6);
        for (int fd = 1; fd < NUMBERS; fd++) dup2(0, fd);
        _exit(use());
    }
    if (waitpid(child, &status, 0) != child) return 4;
    printf("child: %d\n%d\n", WEXITSTATUS(status), child);
    return 0;
}
