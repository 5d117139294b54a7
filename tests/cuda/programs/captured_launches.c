/* SPDX-License-Identifier: Apache-2.0
 *
 * captured_launches - launches kernels, then repeatedly captures launches of the same kernel on the
 * same stream. Prints "ready", reads a line, and prints the number of launches that were not
 * captured, and "over" when all have run. Stays until a second line, for inspection.
 */
#include "graph.h"

enum { ROUNDS = 60, LAUNCHES = 50, CAPTURED = 40 };

int main(void) {
    watchdog(120);
    CUcontext context = graph_open();
    (void)context;
    CUstream stream;
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUfunction kernel = driver_function("spin_20us");
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 2;
    for (int round = 0; round < ROUNDS; round++) {
        CUgraph made = NULL;
        for (int i = 0; i < LAUNCHES; i++) launch(kernel, stream);
        CHECK(graph.BeginCapture(stream, THREAD_LOCAL));
        for (int i = 0; i < CAPTURED; i++) launch(kernel, stream);
        CHECK(graph.EndCapture(stream, &made));
        HOLDS(count_of(made) == CAPTURED);
        CHECK(graph.Destroy(made));
    }
    CHECK(cu.cuStreamSynchronize(stream));
    /* One more slow path, so that the last launch is accounted. */
    for (int i = 0; i < 3; i++) {
        launch(kernel, stream);
        CHECK(cu.cuStreamSynchronize(stream));
    }
    printf("%d\nover\n", ROUNDS * LAUNCHES + 3);
    fflush(stdout);
    (void)getchar();
    return 0;
}
