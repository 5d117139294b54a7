/* SPDX-License-Identifier: Apache-2.0
 *
 * where.h - prints where a pointer leads: "libcgpu.so:cuInit", "libcuda.so.1:cuInit", "null", ...
 */
#ifndef WHERE_H
#define WHERE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline const char *where(const void *pointer) {
    static char text[4][512];
    static unsigned next;
    char *answer = text[next++ % 4];
    Dl_info info;
    if (!pointer) return "null";
    if (!dladdr(pointer, &info)) return "nowhere";
    const char *slash = strrchr(info.dli_fname, '/');
    const char *symbol = info.dli_sname && info.dli_saddr == pointer ? info.dli_sname : "?";
    snprintf(answer, sizeof text[0], "%s:%s", slash ? slash + 1 : info.dli_fname, symbol);
    return answer;
}

static inline void *open_or_end(const char *file, int flags) {
    void *handle = dlopen(file, flags);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    return handle;
}

#endif
