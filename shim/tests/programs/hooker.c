/* SPDX-License-Identifier: Apache-2.0
 *
 * hooker.so - another preload that interposes dlsym, in the usual way: it finds the real one by
 * dlvsym, since dlsym cannot find itself. Counts look-ups of the driver's names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

static int seen;
int hooker_saw(void) { return seen; }

void *dlsym(void *handle, const char *name) {
    static void *(*real)(void *, const char *);
    if (!real) real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (!real) real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!strncmp(name, "cuMem", 5)) seen++;
    return real(handle, name);
}
