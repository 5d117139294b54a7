/* SPDX-License-Identifier: Apache-2.0
 *
 * rewind CHUNK USE GO [SECONDS [raw]] - a hostile tenant: takes chunks until it is refused,
 * restores old bytes of its container's file USE, voids what the monitor has measured, and begins
 * again. With `raw` it leaves the region as it is, and takes the chunks by the driver's own
 * function, which it finds without dlsym.
 *
 * CHUNK takes K, M, G. It reports {"held": BYTES, "rounds": COUNT, "pid": PID} on one line when it
 * has a context. When the file GO exists, it copies the region and reports; when GO is gone, it
 * begins. It waits for neither where GO is `-`. After 200 rounds it reports again, and goes on
 * trying, ten times a second, until standard input ends or SECONDS (default 60) have passed. Then
 * it reports for the last time. It ignores SIGTERM.
 */
#define _GNU_SOURCE
#include "cgpu.h"
#include "driver.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>

static struct cgpu_use *region;
static struct cgpu_use *old;
static size_t held, rounds;
static int is_raw;

/* Returns the driver's function of this name by the symbols in its file. */
static void *raw(const char *name) {
    struct link_map *map;
    HOLDS(dlinfo(cu.library, RTLD_DI_LINKMAP, &map) == 0);
    int file = open(map->l_name, O_RDONLY);
    HOLDS(file >= 0);
    char *bytes = mmap(NULL, (size_t)lseek(file, 0, SEEK_END), PROT_READ, MAP_PRIVATE, file, 0);
    HOLDS(bytes != MAP_FAILED);
    const ElfW(Ehdr) *header = (void *)bytes;
    const ElfW(Shdr) *sections = (void *)(bytes + header->e_shoff), *section = sections;
    while (section->sh_type != SHT_DYNSYM) HOLDS(++section < sections + header->e_shnum);
    const char *names = bytes + sections[section->sh_link].sh_offset;
    const ElfW(Sym) *symbol = (void *)(bytes + section->sh_offset), *start = symbol;
    while (strcmp(names + symbol->st_name, name) != 0) {
        HOLDS(++symbol < start + section->sh_size / sizeof *symbol);
    }
    return (void *)(map->l_addr + symbol->st_value);
}

/* Restores the region as it was when all processes had started and none had memory. */
static void restore(void) {
    if (is_raw) return;
    memcpy(region, old, sizeof *region);
    for (unsigned slot = 0; slot < CGPU_SLOTS; slot++) {
        /* The start of several contexts at once is charged with too much until it is measured. */
        region->cell[0][slot].implicit = 0;
        region->cell[0][slot].implicit_epoch += ++rounds;
    }
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

static void await(const char *file, int exists) {
    if (strcmp(file, "-") == 0) return;
    while ((access(file, F_OK) == 0) != exists) usleep(1000);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: rewind CHUNK USE GO [SECONDS [raw]]\n");
        return 2;
    }
    size_t bytes = parse_bytes(argv[1]);
    int seconds = argc > 4 ? atoi(argv[4]) : 60;
    watchdog(60 + (unsigned)seconds);
    signal(SIGTERM, SIG_IGN);
    driver_open();
    is_raw = argc > 5;
    if (is_raw) *(void **)&cu.cuMemAlloc = raw("cuMemAlloc_v2");

    int file = open(argv[2], O_RDWR);
    HOLDS(file >= 0);
    region = mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    HOLDS(region != MAP_FAILED);
    old = malloc(sizeof *old);
    HOLDS(old != NULL);
    report();
    await(argv[3], 1);
    memcpy(old, region, sizeof *old);
    report();
    await(argv[3], 0);

    /* Many rounds: a process that is refused corrects its own count, and the next sees it. */
    for (int round = 0; round < 200; round++) {
        restore();
        held += fill(bytes);
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
