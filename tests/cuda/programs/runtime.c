/* SPDX-License-Identifier: Apache-2.0
 *
 * runtime LIBCUDART - opens a real CUDA runtime and lets it look up the driver, as at its first
 * call. Prints one line per function that it got, "NAME VERSION FLAGS LIBRARY:SYMBOL", and one per
 * private table of the driver that it requests, "table UUID RESULT". Last, as one JSON object, it
 * prints the number of both and the call's result. On a driver that is not the vendor's the
 * runtime stops there (103 or a similar code), which is expected.
 *
 * The executable's own dlsym comes first in the search order, so that it sees what the runtime
 * requests and gets.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef int (*first_t)(const char *, void **, int, uint64_t);
typedef int (*second_t)(const char *, void **, int, uint64_t, int *);

static first_t first;
static second_t second;
static int count;

static void print_function(const char *name, int version, uint64_t flags, void *function) {
    Dl_info info;
    if (!function) return;
    count++;
    if (!dladdr(function, &info) || !info.dli_sname || info.dli_saddr != function) {
        printf("%s %d %llu nowhere:?\n", name, version, (unsigned long long)flags);
        return;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    printf("%s %d %llu %s:%s\n", name, version, (unsigned long long)flags,
           slash ? slash + 1 : info.dli_fname, info.dli_sname);
}

static int spy_first(const char *name, void **function, int version, uint64_t flags);
static int spy_second(const char *name, void **function, int version, uint64_t flags, int *status);

/* Wraps the look-up function itself, by whatever way it was requested. */
static void *before(void *found, int is_second) {
    if (!found) return found;
    if (is_second) {
        second = (second_t)found;
        return (void *)spy_second;
    }
    first = (first_t)found;
    return (void *)spy_first;
}

static int (*real_table)(const void **, const unsigned char *);
static int tables;

static int spy_table(const void **table, const unsigned char *uuid) {
    int result = real_table(table, uuid);
    tables++;
    printf("table ");
    for (int i = 0; i < 16; i++) printf("%02x", uuid[i]);
    printf(" %d\n", result);
    return result;
}

/* Wraps the function that hands out the driver's private tables. */
static void *with_table(const char *name, void *found) {
    if (!found || strcmp(name, "cuGetExportTable")) return found;
    real_table = (int (*)(const void **, const unsigned char *))found;
    return (void *)spy_table;
}

static void got(const char *name, void **function, int version, uint64_t flags) {
    print_function(name, version, flags, *function);
    /* The runtime looks up the look-up function and continues with that. */
    if (!strcmp(name, "cuGetProcAddress")) *function = before(*function, version >= 12000);
    *function = with_table(name, *function);
}

static int spy_first(const char *name, void **function, int version, uint64_t flags) {
    int result = first(name, function, version, flags);
    if (result == 0) got(name, function, version, flags);
    return result;
}

static int spy_second(const char *name, void **function, int version, uint64_t flags, int *status) {
    int result = second(name, function, version, flags, status);
    if (result == 0) got(name, function, version, flags);
    return result;
}

void *dlsym(void *handle, const char *name) {
    static void *(*next)(void *, const char *);
    /* dlsym cannot find itself; the next one is found by glibc's version, or not at all. */
    if (!next) next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (!next) next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!next) return NULL;
    void *found = next(handle, name);
    if (!strncmp(name, "cuGetProcAddress", 16))
        return before(found, !strcmp(name, "cuGetProcAddress_v2"));
    if (!strncmp(name, "cu", 2) && strncmp(name, "cuda", 4)) print_function(name, 0, 0, found);
    return with_table(name, found);
}

int main(int argc, char **argv) {
    alarm(60);
    if (argc != 2) {
        fprintf(stderr, "usage: runtime LIBCUDART\n");
        return 2;
    }
    void *runtime = dlopen(argv[1], RTLD_NOW);
    if (!runtime) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    int devices = 0;
    int (*get_count)(int *) = (int (*)(int *))dlsym(runtime, "cudaGetDeviceCount");
    int result = get_count ? get_count(&devices) : -1;
    printf("{\"lookups\": %d, \"tables\": %d, \"result\": %d}\n", count, tables, result);
    return 0;
}
