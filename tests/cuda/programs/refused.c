/* SPDX-License-Identifier: Apache-2.0
 *
 * refused NAME... - calls each of these driver functions with pointers to zeroed memory for all
 * arguments and prints the results as one JSON object by name; null for names that the driver does
 * not export. Only for functions that are refused with any argument.
 */
#include "driver.h"

typedef CUresult (*Any)(void *, void *, void *, void *, void *, void *, void *, void *);

int main(int argc, char **argv) {
    static char zero[8][4096];
    watchdog(60);
    driver_open();
    printf("{");
    for (int i = 1; i < argc; i++) {
        Any function;
        *(void **)&function = dlsym(cu.library, argv[i]);
        printf("%s\"%s\": ", i > 1 ? ", " : "", argv[i]);
        if (!function) {
            printf("null");
            continue;
        }
        memset(zero, 0, sizeof zero);
        printf("%d",
               function(zero[0], zero[1], zero[2], zero[3], zero[4], zero[5], zero[6], zero[7]));
    }
    printf("}\n");
    return 0;
}
