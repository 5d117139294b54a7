/* SPDX-License-Identifier: Apache-2.0
 *
 * waiting HOW [ROUNDS] - launches work that waits for later work of the same program, which a gate
 * must not block forever. Prints "ready", reads a line, and prints "over" when all of it has run.
 *
 *     host        a host function waits for a kernel that is launched after it
 *     peer        a kernel waits for another one that is launched after it
 *     capture     a global capture stays open while another thread launches; then its graph is
 *                 launched repeatedly
 *     fork        children start and end while kernels are launched
 *     persistent  a kernel that never ends
 *     forth       a collective of two GPUs, the first GPU's part first
 *     back        the same, the second GPU's part first
 */
#include <pthread.h>
#include <sys/wait.h>

#include "graph.h"

static CUcontext context;
static CUstream stream[2];
static CUfunction kernel;
static unsigned rounds = 20;
static int released, over;

static void wait_for_release(void *nothing) {
    (void)nothing;
    while (!__atomic_load_n(&released, __ATOMIC_ACQUIRE)) sleep_seconds(50e-6);
}

static void host(void) {
    for (unsigned round = 0; round < rounds; round++) {
        __atomic_store_n(&released, 0, __ATOMIC_RELEASE);
        launch(kernel, stream[0]);
        CHECK(cu.cuLaunchHostFunc(stream[0], wait_for_release, NULL));
        for (int i = 0; i < 5; i++) launch(kernel, stream[0]);
        for (int i = 0; i < 5; i++) launch(kernel, stream[1]);
        CHECK(cu.cuStreamSynchronize(stream[1]));
        __atomic_store_n(&released, 1, __ATOMIC_RELEASE);
        CHECK(cu.cuStreamSynchronize(stream[0]));
    }
}

static void peer(void) {
    for (unsigned round = 0; round < rounds; round++) {
        char name[64];
        snprintf(name, sizeof name, "wait_peer_%u", (unsigned)getpid() * 1000 + round);
        CUfunction meets = driver_function(name);
        launch(meets, stream[0]);
        for (int i = 0; i < 10; i++) launch(kernel, stream[1]);
        launch(meets, stream[1]);
        CHECK(cu.cuStreamSynchronize(stream[0]));
        CHECK(cu.cuStreamSynchronize(stream[1]));
    }
}

static void *launches(void *nothing) {
    (void)nothing;
    CHECK(cu.cuCtxSetCurrent(context));
    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
        for (int i = 0; i < 10; i++) launch(kernel, stream[1]);
        CHECK(cu.cuStreamSynchronize(stream[1]));
    }
    return NULL;
}

static void capture(void) {
    pthread_t thread;
    CUgraph made;
    CUgraphExec exec;
    HOLDS(pthread_create(&thread, NULL, launches, NULL) == 0);
    sleep_seconds(0.1);
    CHECK(graph.BeginCapture(stream[0], GLOBAL));
    for (int i = 0; i < 10; i++) {
        launch(kernel, stream[0]);
        sleep_seconds(0.02);
    }
    CHECK(graph.EndCapture(stream[0], &made));
    HOLDS(count_of(made) == 10);
    CHECK(graph.Instantiate(&exec, made, 0));
    for (unsigned round = 0; round < rounds; round++) CHECK(graph.Launch(exec, stream[0]));
    CHECK(cu.cuStreamSynchronize(stream[0]));
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    HOLDS(pthread_join(thread, NULL) == 0);
    CHECK(graph.ExecDestroy(exec));
    CHECK(graph.Destroy(made));
}

static void forks(void) {
    for (unsigned round = 0; round < rounds; round++) {
        for (int i = 0; i < 20; i++) launch(kernel, stream[i % 2]);
        pid_t child = fork();
        HOLDS(child >= 0);
        if (child == 0) {
            sleep_seconds(0.005);
            _exit(0);
        }
        for (int i = 0; i < 20; i++) launch(kernel, stream[i % 2]);
        int status;
        HOLDS(waitpid(child, &status, 0) == child && status == 0);
    }
    CHECK(cu.cuCtxSynchronize());
}

static void collective(int back) {
    CUdevice device;
    CUcontext at[2] = {context};
    CUstream on[2] = {stream[0]};
    CUfunction part[2] = {driver_function("ncclDevKernel_AllReduce")};
    CHECK(cu.cuDeviceGet(&device, 1));
    CHECK(cu.cuDevicePrimaryCtxRetain(&at[1], device));
    CHECK(cu.cuCtxSetCurrent(at[1]));
    CHECK(cu.cuStreamCreate(&on[1], CU_STREAM_NON_BLOCKING));
    part[1] = driver_function("ncclDevKernel_AllReduce");
    for (unsigned round = 0; round < rounds; round++) {
        for (int i = 0; i < 2; i++) {
            int gpu = back ? 1 - i : i;
            CHECK(cu.cuCtxSetCurrent(at[gpu]));
            launch(part[gpu], on[gpu]);
        }
        if (round % 4 == 3) {
            for (int gpu = 0; gpu < 2; gpu++) {
                CHECK(cu.cuCtxSetCurrent(at[gpu]));
                CHECK(cu.cuStreamSynchronize(on[gpu]));
            }
        }
    }
    for (int gpu = 0; gpu < 2; gpu++) {
        CHECK(cu.cuCtxSetCurrent(at[gpu]));
        CHECK(cu.cuStreamSynchronize(on[gpu]));
    }
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    const char *how = argv[1];
    if (argc > 2) rounds = (unsigned)strtoul(argv[2], NULL, 10);
    watchdog(120);
    context = graph_open();
    for (int i = 0; i < 2; i++) CHECK(cu.cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    kernel = driver_function("spin_100us");
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 2;
    if (!strcmp(how, "host"))
        host();
    else if (!strcmp(how, "peer"))
        peer();
    else if (!strcmp(how, "capture"))
        capture();
    else if (!strcmp(how, "fork"))
        forks();
    else if (!strcmp(how, "forth"))
        collective(0);
    else if (!strcmp(how, "back"))
        collective(1);
    else if (!strcmp(how, "persistent")) {
        launch(driver_function("persistent"), stream[0]);
        for (int i = 0; i < 10; i++) launch(kernel, stream[1]);
        printf("launched\n");
        fflush(stdout);
        for (;;) pause();
    } else
        return 2;
    printf("over\n");
    fflush(stdout);
    /* For inspection of the counts. */
    (void)getchar();
    return 0;
}
