/* SPDX-License-Identifier: Apache-2.0
 *
 * context_turns - launches alternately in three contexts of one GPU, destroys the one that launched
 * first while work of the others is running, and continues. Prints "ready", reads a line, and
 * prints "over" when all has run. Stays until a second line.
 */
#include "graph.h"

enum { CONTEXTS = 3, ROUNDS = 40, LAUNCHES = 30 };

static CUcontext context[CONTEXTS];
static CUstream stream[CONTEXTS];
static CUfunction kernel[CONTEXTS];

static void round_from(int first) {
    for (int at = first; at < CONTEXTS; at++) {
        CHECK(cu.cuCtxSetCurrent(context[at]));
        for (int i = 0; i < LAUNCHES; i++) launch(kernel[at], stream[at]);
    }
}

int main(void) {
    watchdog(120);
    (void)graph_open();
    for (int at = 0; at < CONTEXTS; at++) {
        CHECK(cu.cuCtxCreate(&context[at], 0, 0));
        CHECK(cu.cuStreamCreate(&stream[at], CU_STREAM_NON_BLOCKING));
        kernel[at] = driver_function("spin_20us");
    }
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 2;
    for (int round = 0; round < ROUNDS; round++) round_from(0);
    CHECK(cu.cuCtxDestroy(context[0]));
    for (int round = 0; round < ROUNDS; round++) round_from(1);
    for (int at = 1; at < CONTEXTS; at++) {
        CHECK(cu.cuCtxSetCurrent(context[at]));
        CHECK(cu.cuStreamSynchronize(stream[at]));
        CHECK(cu.cuCtxDestroy(context[at]));
    }
    printf("over\n");
    fflush(stdout);
    (void)getchar();
    return 0;
}
