/* SPDX-License-Identifier: Apache-2.0
 *
 * surroundings - prints a process's state besides GPU memory after it has used the driver: umask,
 * signal handlers and mask, environment, folder, limits, descriptors, threads, the state of stdio.
 * One item a line, so that two runs can be compared. Exits 1 if anything that it set before has
 * changed.
 */
#include "driver.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

extern char **environ;

static volatile sig_atomic_t caught;

static void handler(int signal) { caught = signal; }

static int entries(const char *folder) {
    DIR *directory = opendir(folder);
    int count = -1; /* opendir's own descriptor */
    struct dirent *entry;
    HOLDS(directory);
    while ((entry = readdir(directory)))
        if (entry->d_name[0] != '.') count++;
    closedir(directory);
    return count;
}

/* The fewest of several counts: a thread of the driver may have a file open for a moment. */
static int descriptors(void) {
    int fewest = entries("/proc/self/fd");
    for (int count = 0; count < 20; count++) {
        sleep_seconds(0.005);
        int now = entries("/proc/self/fd");
        if (now < fewest) fewest = now;
    }
    return fewest;
}

static int threads(void) { return entries("/proc/self/task") + 1; }

static mode_t mask(void) {
    mode_t now = umask(0);
    umask(now);
    return now;
}

int main(void) {
    struct sigaction before[65], after;
    sigset_t blocked, now;
    char folder[4096];
    CUdeviceptr address;
    unsigned hash = 0;
    int variables = 0;
    watchdog(60);

    umask(027);
    for (int number = 1; number < 65; number++) {
        struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
        if (number != SIGALRM && number != SIGKILL && number != SIGSTOP && number != 32 &&
            number != 33)
            sigaction(number, &action, NULL);
        if (sigaction(number, NULL, &before[number]) != 0) before[number].sa_handler = SIG_ERR;
    }
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGWINCH);
    sigprocmask(SIG_SETMASK, &blocked, NULL);
    setenv("SURROUNDINGS", "set before", 1);
    HOLDS(chdir("/") == 0);
    int threads_before = threads();
    int kept = open("/dev/null", O_RDWR);

    driver_open();
    CHECK(cu.cuMemAlloc(&address, (size_t)64 << 20));
    CHECK(cu.cuMemFree(address));

    HOLDS(mask() == 027);
    for (int number = 1; number < 65; number++) {
        if (before[number].sa_handler == SIG_ERR) continue;
        HOLDS(sigaction(number, NULL, &after) == 0);
        HOLDS(after.sa_handler == before[number].sa_handler &&
              after.sa_flags == before[number].sa_flags);
    }
    HOLDS(sigprocmask(SIG_SETMASK, NULL, &now) == 0 && !memcmp(&now, &blocked, sizeof now));
    raise(SIGUSR1);
    HOLDS(caught == SIGUSR1);
    HOLDS(!strcmp(getenv("SURROUNDINGS"), "set before"));
    HOLDS(getcwd(folder, sizeof folder) && !strcmp(folder, "/"));
    HOLDS(fcntl(kept, F_GETFD) != -1);
    HOLDS(threads_before == 1);
    for (char **variable = environ; *variable; variable++) {
        /* The test's own variables name the shim; no others may differ. */
        if (!strncmp(*variable, "LD_PRELOAD=", 11) || !strncmp(*variable, "CGPU_", 5) ||
            !strncmp(*variable, "ALIYUN_", 7))
            continue;
        variables++;
        for (const char *at = *variable; *at; at++) hash = hash * 31 + (unsigned char)*at;
    }
    printf("variables %d %08x\n", variables, hash);
    printf("threads %d\n", threads());
    printf("descriptors %d\n", descriptors());
    printf("name %s\n", program_invocation_short_name);
    printf("dumpable %d, timer slack %d\n", prctl(PR_GET_DUMPABLE), prctl(PR_GET_TIMERSLACK));
    for (int resource = 0; resource < RLIM_NLIMITS; resource++) {
        struct rlimit limit;
        if (getrlimit(resource, &limit) == 0)
            printf("limit %d %llu %llu\n", resource, (unsigned long long)limit.rlim_cur,
                   (unsigned long long)limit.rlim_max);
    }
    return 0;
}
