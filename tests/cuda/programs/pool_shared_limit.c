/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_shared_limit - checks two processes of one container whose pools share its limit: memory of
 * one is not available to the other, and what one returns in a wait for the GPU the other can take.
 * Needs a limit of 2 GiB.
 */
#include "pool.h"

#include <sys/wait.h>

enum { PIECE = 64, MOST = 4096 };
static CUdeviceptr address[MOST];

static int fill(CUstream stream) {
    CUresult result = CUDA_SUCCESS;
    int count = 0;
    while (count < MOST &&
           (result = pools.alloc(&address[count], PIECE * MIB, stream)) == CUDA_SUCCESS)
        count++;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, result);
    return count;
}

static void empty(int count, CUstream stream) {
    while (count > 0) CHECK(pools.free(address[--count], stream));
    CHECK(cu.cuStreamSynchronize(stream));
}

static void pass_on(int to, int count) { HOLDS(write(to, &count, sizeof count) == sizeof count); }

static int wait_for(int from) {
    int count;
    HOLDS(read(from, &count, sizeof count) == sizeof count);
    return count;
}

int main(void) {
    int there[2], back[2], status;
    HOLDS(pipe(there) == 0 && pipe(back) == 0);
    pid_t child = fork();
    HOLDS(child >= 0);
    int to = child ? there[1] : back[1], from = child ? back[0] : there[0];
    close(child ? there[0] : there[1]);
    close(child ? back[1] : back[0]);
    CUstream stream = pools_begin(120);
    /* Both have their contexts. */
    pass_on(to, 0);
    wait_for(from);

    if (child) {
        for (int round = 0; round < 10; round++) {
            int mine = fill(stream);
            HOLDS(mine > 10);
            pass_on(to, 0);
            int theirs = wait_for(from);
            HOLDS(theirs == 0);
            empty(mine, stream);
            pass_on(to, 0);
            theirs = wait_for(from);
            HOLDS(theirs == mine);
            HOLDS(fill(stream) == 0);
            pass_on(to, 0);
            wait_for(from);
        }
        close(to);
        HOLDS(waitpid(child, &status, 0) == child);
        HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        return 0;
    }
    for (int round = 0; round < 10; round++) {
        wait_for(from);
        pass_on(to, fill(stream));
        wait_for(from);
        int mine = fill(stream);
        pass_on(to, mine);
        wait_for(from);
        empty(mine, stream);
        pass_on(to, 0);
    }
    return 0;
}
