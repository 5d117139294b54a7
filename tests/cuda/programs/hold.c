/* SPDX-License-Identifier: Apache-2.0
 *
 * hold BYTES [SECONDS [ROOT]] - allocates BYTES (K, M, G), and prints {"held": BYTES, "pid": PID}
 * on one line. It keeps them until standard input ends, SECONDS (default 60) have passed, or it is
 * killed. Before it prints, it makes the folder ROOT its root.
 * Exits 0 after freeing, 4 if the allocation is refused.
 */
#include "driver.h"

#include <poll.h>

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: hold BYTES [SECONDS [ROOT]]\n");
        return 2;
    }
    size_t bytes = parse_bytes(argv[1]);
    int seconds = argc > 2 ? atoi(argv[2]) : 60;
    watchdog(60 + (unsigned)seconds);
    driver_open();
    CUdeviceptr address;
    CUresult result = cu.cuMemAlloc(&address, bytes);
    if (result != CUDA_SUCCESS) {
        printf("{\"held\": 0, \"error\": %d}\n", result);
        return 4;
    }
    if (argc > 3 && (chroot(argv[3]) != 0 || chdir("/") != 0)) {
        perror(argv[3]);
        return 1;
    }
    printf("{\"held\": %zu, \"pid\": %d}\n", bytes, (int)getpid());
    fflush(stdout);
    struct pollfd input = {STDIN_FILENO, POLLIN, 0};
    double end = seconds_now() + seconds;
    for (double left = seconds; left > 0; left = end - seconds_now()) {
        char drop[256];
        if (poll(&input, 1, (int)(left * 1000)) > 0 && read(STDIN_FILENO, drop, sizeof drop) <= 0)
            break;
    }
    CHECK(cu.cuMemFree(address));
    return 0;
}
