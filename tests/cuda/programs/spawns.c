/* SPDX-License-Identifier: Apache-2.0
 *
 * spawns - a process that uses the GPU starts others in every way: fork, vfork and posix_spawn with
 * exec, system, popen, a fork whose child forks, and a vfork whose exec fails. Every child uses the
 * GPU, and the parent continues in between. Prints one JSON object: children, and the GPU's total,
 * which was the same in all.
 */
#include "driver.h"

#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static size_t total;
static int children;

static int child(void) {
    CUdeviceptr address;
    size_t seen;
    driver_open();
    CHECK(cu.cuMemAlloc(&address, (size_t)32 << 20));
    CHECK(cu.cuMemGetInfo(NULL, &seen));
    CHECK(cu.cuMemFree(address));
    printf("%zu\n", seen);
    return 0;
}

static void goes_on(void) {
    CUdeviceptr address;
    size_t seen;
    CHECK(cu.cuMemAlloc(&address, (size_t)16 << 20));
    CHECK(cu.cuMemGetInfo(NULL, &seen));
    HOLDS(seen == total);
    CHECK(cu.cuMemFree(address));
}

static void ended(pid_t pid, int code) {
    int status;
    HOLDS(waitpid(pid, &status, 0) == pid);
    HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == code);
    goes_on();
}

/* Reads a child's output from a pipe. */
static size_t said(int fd) {
    char text[64] = "";
    FILE *file = fdopen(fd, "r");
    HOLDS(file && fgets(text, sizeof text, file));
    fclose(file);
    children++;
    return (size_t)strtoull(text, NULL, 10);
}

int main(int argc, char **argv) {
    char self[4096], command[4200];
    char *arguments[] = {self, "child", NULL};
    int ends[2];
    pid_t pid;
    watchdog(60);
    if (argc > 1 && !strcmp(argv[1], "child")) return child();
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    HOLDS(length > 0);
    self[length] = 0;
    snprintf(command, sizeof command, "'%s' child", self);
    driver_open();
    CHECK(cu.cuMemGetInfo(NULL, &total));

    for (int way = 0; way < 4; way++) {
        HOLDS(pipe(ends) == 0);
        if (way == 0) {
            if ((pid = fork()) == 0) {
                dup2(ends[1], 1);
                execv(self, arguments);
                _exit(127);
            }
        } else if (way == 1) {
            if ((pid = vfork()) == 0) {
                dup2(ends[1], 1);
                execv(self, arguments);
                _exit(127);
            }
        } else if (way == 2) {
            posix_spawn_file_actions_t actions;
            posix_spawn_file_actions_init(&actions);
            posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
            HOLDS(posix_spawn(&pid, self, &actions, NULL, arguments, environ) == 0);
            posix_spawn_file_actions_destroy(&actions);
        } else if ((pid = fork()) == 0) {
            pid_t grandchild = fork();
            int status;
            if (grandchild == 0) {
                dup2(ends[1], 1);
                execv(self, arguments);
                _exit(127);
            }
            _exit(waitpid(grandchild, &status, 0) == grandchild ? WEXITSTATUS(status) : 1);
        }
        close(ends[1]);
        HOLDS(said(ends[0]) == total);
        ended(pid, 0);
    }
    if ((pid = vfork()) == 0) {
        execl("/nowhere/program", "program", NULL);
        _exit(127);
    }
    ended(pid, 127);

    FILE *reader = popen(command, "r");
    char text[64] = "";
    HOLDS(reader && fgets(text, sizeof text, reader) && pclose(reader) == 0);
    HOLDS(strtoull(text, NULL, 10) == total);
    children++;
    goes_on();

    strcat(command, " > /dev/null");
    HOLDS(system(command) == 0);
    children++;
    goes_on();
    printf("{\"children\": %d, \"total\": %zu}\n", children, total);
    return 0;
}
