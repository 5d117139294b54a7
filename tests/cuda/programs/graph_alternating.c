/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_alternating - launches graphs alternately. If all have their memory, none waits for
 * another. With room for one at a time, the other one's memory is released. At no time is more
 * taken than allowed. Prints one JSON object: launches.
 */
#include "graph_ledger.h"

enum { GRAPHS = 3, ROUNDS = 30 };

int main(void) {
    CUfunction kernel;
    CUstream stream = graphs_begin(120, "spin_200us", &kernel),
             other = stream_new(CU_STREAM_NON_BLOCKING);
    size_t third = free_shown() / GRAPHS / (2 * MIB) * (2 * MIB);
    CUgraphExec small[GRAPHS], large[GRAPHS];
    int launches = 0;
    for (int i = 0; i < GRAPHS; i++) {
        small[i] = executable(third, kernel);
        large[i] = executable(2 * third, kernel);
    }
    for (int i = 0; i < GRAPHS; i++) CHECK(graph.Launch(small[i], stream));
    for (int round = 0; round < ROUNDS; round++, launches += GRAPHS) {
        for (int i = 0; i < GRAPHS; i++) CHECK(graph.Launch(small[i], stream));
        RESERVED_IS(GRAPHS * third);
    }
    for (int round = 0; round < ROUNDS; round++, launches += GRAPHS) {
        for (int i = 0; i < GRAPHS; i++) {
            CHECK(graph.Launch(large[i], stream));
            WITHIN_THE_LIMIT();
            if (round % 5 == 0) trim();
        }
    }
    /* In another stream it would need further memory, which a small GPU does not have either. */
    CHECK(cu.cuStreamSynchronize(stream));
    for (int round = 0; round < ROUNDS; round++) {
        CUresult answer = graph.Launch(large[round % GRAPHS], round % 2 ? stream : other);
        HOLDS(answer == CUDA_SUCCESS || answer == CUDA_ERROR_OUT_OF_MEMORY);
        launches += answer == CUDA_SUCCESS;
        WITHIN_THE_LIMIT();
    }
    CHECK(cu.cuCtxSynchronize());
    trim();
    RESERVED_IS(0);
    printf("{\"launches\": %d}\n", launches);
    return 0;
}
