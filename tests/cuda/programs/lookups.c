/* SPDX-License-Identifier: Apache-2.0
 *
 * lookups LIBRARY NAMES SYMBOLS - prints a driver's results of cuGetProcAddress_v2 and its exported
 * symbols.
 *
 * LIBRARY is a libcuda, which is not initialised. NAMES and SYMBOLS are tables such as
 * abi/data/proc-address.tsv and driver-symbols.tsv. Each name is looked up at its version, just
 * below it, and at much older and much newer versions, with every flag. One line per look-up: name,
 * version, flags, result, status, symbol. Then one line per exported symbol. A function in another
 * library has that library's name and a colon before it. The same program runs with real drivers,
 * which need no GPU for it, and with the simulated one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 2000

static struct {
    char name[96];
    void *address;
} symbols[MOST];
static int count;

static struct link_map *requested;
static int (*look_up)(const char *, void **, int, uint64_t, int *);

static const char *symbol_at(void *address) {
    if (!address) return "-";
    for (int i = 0; i < count; i++)
        if (symbols[i].address == address) return symbols[i].name;
    return "unexported";
}

/* Returns the name of the other library that has the function, and a colon; or an empty string. */
static const char *elsewhere(void *address) {
    static char place[300];
    Dl_info info;
    if (!address) return "";
    if (!dladdr(address, &info)) return "nowhere:";
    if ((uintptr_t)info.dli_fbase == requested->l_addr) return "";
    const char *slash = strrchr(info.dli_fname, '/');
    snprintf(place, sizeof place, "%s:", slash ? slash + 1 : info.dli_fname);
    return place;
}

static void ask(const char *name, int version) {
    for (uint64_t flags = 0; flags < 5; flags++) {
        void *function = NULL;
        int status = -1;
        int result = look_up(name, &function, version, flags, &status);
        printf("%s %d %d: %d %d %s%s\n", name, version, (int)flags, result, status,
               elsewhere(function), symbol_at(function));
    }
}

static FILE *table(const char *path) {
    static char heading[256];
    FILE *file = fopen(path, "r");
    if (!file || !fgets(heading, sizeof heading, file)) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(2);
    }
    return file;
}

int main(int argc, char **argv) {
    char line[256], name[96];
    int version;
    alarm(120);
    if (argc != 4) return fprintf(stderr, "usage: lookups LIBRARY NAMES SYMBOLS\n"), 2;
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library || dlinfo(library, RTLD_DI_LINKMAP, &requested) != 0)
        return fprintf(stderr, "%s\n", dlerror()), 3;

    FILE *file = table(argv[3]);
    while (count < MOST && fgets(line, sizeof line, file))
        if (sscanf(line, "%95s", symbols[count].name) == 1 &&
            (symbols[count].address = dlsym(library, symbols[count].name)))
            count++;
    fclose(file);

    *(void **)&look_up = dlsym(library, "cuGetProcAddress_v2");
    file = table(argv[2]);
    while (look_up && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%95s %*s %d", name, &version) != 2) continue;
        ask(name, version);
        ask(name, version - 1);
        ask(name, version + 9);
        ask(name, 1000);
        ask(name, 99990);
        ask(name, -1);
    }
    fclose(file);
    for (int i = 0; i < count; i++)
        printf("%s%s\n", elsewhere(symbols[i].address), symbols[i].name);
    return 0;
}
