/* SPDX-License-Identifier: Apache-2.0
 *
 * wrapper.so - wraps a function of the C library, as preloads and profilers do: dlsym(RTLD_NEXT)
 * must not return the wrapper itself.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

static int depth;

pid_t getppid(void) {
    if (depth++ > 8) return -1;
    pid_t (*next)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "getppid");
    pid_t answer = next ? next() : -2;
    depth--;
    return answer;
}

/* The second look-up must give the same. */
int looks_up_twice(void) {
    return dlsym(RTLD_NEXT, "getppid") &&
           dlsym(RTLD_NEXT, "getppid") == dlsym(RTLD_NEXT, "getppid");
}
