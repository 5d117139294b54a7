/* SPDX-License-Identifier: Apache-2.0
 *
 * daemon FILE [late] - becomes a daemon in the classic way: forks twice, starts a session, closes
 * every descriptor. Then it allocates 256 MiB of the GPU and keeps them. With `late` the
 * descriptors are closed after the driver was opened, twice, and their numbers reused. Writes one
 * JSON object to FILE: pid, total, free. Ends when FILE is removed, or after 60 seconds.
 */
#include "driver.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void close_everything(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    int most = limit.rlim_cur > 65536 ? 65536 : (int)limit.rlim_cur;
    for (int fd = 0; fd < most; fd++) close(fd);
    for (int fd = 0; fd < 20; fd++) open("/dev/null", O_RDWR);
    for (int fd = 3; fd < 20; fd++) close(fd);
}

int main(int argc, char **argv) {
    CUdeviceptr address;
    size_t available, total;
    int status;
    if (argc < 2) {
        fprintf(stderr, "usage: daemon FILE [late]\n");
        return 2;
    }
    pid_t child = fork();
    HOLDS(child >= 0);
    if (child) {
        HOLDS(waitpid(child, &status, 0) == child);
        return WEXITSTATUS(status);
    }
    HOLDS(setsid() > 0);
    child = fork();
    if (child) _exit(child < 0);
    watchdog(90);
    HOLDS(chdir("/") == 0);
    umask(0);
    int late = argc > 2;
    if (!late) close_everything();
    driver_open();
    if (late) close_everything();
    CHECK(cu.cuMemAlloc(&address, (size_t)256 << 20));
    CHECK(cu.cuMemGetInfo(&available, &total));

    char draft[4096];
    snprintf(draft, sizeof draft, "%s.draft", argv[1]);
    FILE *file = fopen(draft, "w");
    HOLDS(file);
    fprintf(file, "{\"pid\": %d, \"total\": %zu, \"free\": %zu}\n", (int)getpid(), total,
            available);
    HOLDS(fclose(file) == 0 && rename(draft, argv[1]) == 0);
    for (double end = seconds_now() + 60; seconds_now() < end && access(argv[1], F_OK) == 0;)
        sleep_seconds(0.02);
    CHECK(cu.cuMemFree(address));
    return 0;
}
