/* SPDX-License-Identifier: Apache-2.0
 *
 * lookups FILE - makes the cuGetProcAddress calls of the CUDA runtime's start, as recorded in FILE
 * ("name ver V flags F -> symbol"), and prints for each line where the pointer leads.
 */
#include "where.h"

typedef int get_v1(const char *, void **, int, uint64_t);
typedef int get_v2(const char *, void **, int, uint64_t, int *);

int main(int argc, char **argv) {
    char line[512];
    alarm(60);
    FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (!file) return 2;
    void *driver = open_or_end("libcuda.so.1", RTLD_NOW);
    /* A runtime gets one of them by dlsym, according to its version; both must lead to the same. */
    get_v1 *v1 = (get_v1 *)dlsym(driver, "cuGetProcAddress");
    get_v2 *v2 = (get_v2 *)dlsym(driver, "cuGetProcAddress_v2");
    while (fgets(line, sizeof line, file)) {
        char name[256] = "", symbol[256] = "";
        int version, flags;
        const char *rest = strstr(line, " ver ");
        if (line[0] == '#' || !rest) continue;
        snprintf(name, sizeof name, "%.*s", (int)(rest - line), line);
        if (sscanf(rest, " ver %d flags %d -> %255s", &version, &flags, symbol) != 3) return 2;
        void *first = (void *)1, *second = (void *)1, *third = (void *)1;
        int status = -1;
        int answer1 = v1(name, &first, version, (uint64_t)flags);
        int answer2 = v2(name, &second, version, (uint64_t)flags, &status);
        int answer3 = v2(name, &third, version, (uint64_t)flags, NULL);
        if (answer2 != answer3 || second != third) {
            fprintf(stderr, "%s %d %d: another answer without a status\n", name, version, flags);
            return 1;
        }
        if (answer1 != 0) first = NULL;
        printf("%s|%d|%d|%s|%d|%s|%d|%s\n", name, version, flags, where(first), answer2,
               where(second), status, symbol);
    }
    return 0;
}
