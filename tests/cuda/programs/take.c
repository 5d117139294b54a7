/* SPDX-License-Identifier: Apache-2.0
 *
 * take - a process that allocates and frees memory by commands on standard input, with one JSON
 * object per answer.
 *
 *     take BYTES      allocates (K, M, G)
 *     give            frees the last allocation
 *     info            does nothing
 *
 * Every answer has the call's result, total and free of the GPU as shown then, the bytes held, the
 * GPU's used bytes of all processes by the driver, and the process id.
 */
#include "ledger.h"

enum { MOST = 4096 };

int main(void) {
    static CUdeviceptr address[MOST];
    static size_t size[MOST];
    size_t count = 0, held = 0, available, total;
    char line[128];
    watchdog(280);
    driver_open();
    ledger_open();
    printf("{\"ready\": true}\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        CUresult result = CUDA_SUCCESS;
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "take ", 5)) {
            HOLDS(count < MOST);
            size[count] = parse_bytes(line + 5);
            result = cu.cuMemAlloc(&address[count], size[count]);
            if (result == CUDA_SUCCESS) held += size[count++];
        } else if (!strcmp(line, "give")) {
            HOLDS(count > 0);
            held -= size[--count];
            result = cu.cuMemFree(address[count]);
        } else if (strcmp(line, "info")) {
            fprintf(stderr, "not a command: %s\n", line);
            return 2;
        }
        size_t left, whole;
        CHECK(ledger.own(&left, &whole));
        CHECK(cu.cuMemGetInfo(&available, &total));
        printf("{\"result\": %d, \"total\": %zu, \"free\": %zu, \"held\": %zu, \"on_gpu\": %zu, "
               "\"pid\": %d}\n",
               result, total, available, held, whole - left, (int)getpid());
        fflush(stdout);
    }
    return 0;
}
