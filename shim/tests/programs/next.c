/* SPDX-License-Identifier: Apache-2.0
 *
 * next - calls a function that wrapper.so wraps, and looks up itself.
 */
#include "where.h"
#include <sys/syscall.h>

int looks_up_twice(void);

int main(void) {
    alarm(60);
    printf("%s\n", getppid() == (pid_t)syscall(SYS_getppid) ? "right" : "wrong");
    printf("%s\n", looks_up_twice() ? "twice" : "once");
    printf("%s\n", where(dlsym(RTLD_DEFAULT, "getppid")));
    return 0;
}
