/* SPDX-License-Identifier: Apache-2.0
 *
 * rewind CHUNK USE GO [SECONDS] - a hostile tenant: takes chunks until it is refused, restores old
 * bytes of its container's file USE, voids what the monitor has measured, and begins again.
 *
 * CHUNK takes K, M, G. It reports {"held": BYTES, "rounds": COUNT, "pid": PID} on one line when it
 * has a context, and begins when the file GO exists. When a round grants nothing, it reports again,
 * and goes on trying, ten times a second, until standard input ends or SECONDS (default 60) have
 * passed. Then it reports for the last time. It ignores SIGTERM.
 */
#include "cgpu.h"
#include "driver.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>

static struct cgpu_use *region;
static struct cgpu_use *old;
static size_t held, rounds;

/* Restores the region as it was after this process had started. */
static void restore(void) {
    memcpy(region, old, sizeof *region);
    for (unsigned slot = 0; slot < CGPU_SLOTS; slot++)
        region->cell[0][slot].implicit_epoch += ++rounds;
}

/* Returns the bytes that were granted until a refusal. */
static size_t fill(size_t bytes) {
    size_t granted = 0;
    CUdeviceptr address;
    while (cu.cuMemAlloc(&address, bytes) == CUDA_SUCCESS) granted += bytes;
    return granted;
}

static void report(void) {
    printf("{\"held\": %zu, \"rounds\": %zu, \"pid\": %d}\n", held, rounds, (int)getpid());
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: rewind CHUNK USE GO [SECONDS]\n");
        return 2;
    }
    size_t bytes = parse_bytes(argv[1]);
    int seconds = argc > 4 ? atoi(argv[4]) : 60;
    watchdog(60 + (unsigned)seconds);
    signal(SIGTERM, SIG_IGN);
    driver_open();

    int file = open(argv[2], O_RDWR);
    HOLDS(file >= 0);
    region = mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    HOLDS(region != MAP_FAILED);
    old = malloc(sizeof *old);
    HOLDS(old != NULL);
    report();
    while (access(argv[3], F_OK) != 0) usleep(1000);
    memcpy(old, region, sizeof *old);
    usleep(500 * 1000); /* the others copy it, too, before one has memory */

    for (size_t granted; (granted = fill(bytes)) > 0;) {
        held += granted;
        restore();
    }
    report();
    struct pollfd input = {STDIN_FILENO, POLLIN, 0};
    for (int tenths = 0; tenths < 10 * seconds; tenths++) {
        char drop[256];
        if (poll(&input, 1, 100) > 0 && read(STDIN_FILENO, drop, sizeof drop) <= 0) break;
        restore();
        held += fill(bytes);
    }
    report();
    return 0;
}
