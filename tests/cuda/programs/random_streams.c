/* SPDX-License-Identifier: Apache-2.0
 *
 * random_streams SEED STEPS - makes random calls of streams, events, captures and graphs from a
 * seed, by two threads in turn. Prints each call's result, and the bytes and counts left by the
 * work at each full wait. The output does not depend on time: work writes each place with one value
 * only, and whether something has ended yet is not printed.
 */
#include <pthread.h>
#include <semaphore.h>

#include "graph.h"

enum {
    STREAMS = 7,
    OWN = 3,
    EVENTS = 2,
    EXECS = 4,
    WORDS = 64,
    COUNTERS = 4,
    PROGRAMMATIC = 6,
    COOPERATIVE = 2
};

typedef struct {
    int id, pad;
    union {
        char all[64];
        int number;
    };
} LaunchAttribute;

typedef struct {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    LaunchAttribute *attributes;
    unsigned count;
} LaunchConfig;

#define MORE_FUNCTIONS(X)                                                                       \
    X(LaunchEx, cuLaunchKernelEx,                                                               \
      (const LaunchConfig *config, CUfunction function, void **params, void **extra))           \
    X(LaunchExPtsz, cuLaunchKernelEx_ptsz,                                                      \
      (const LaunchConfig *config, CUfunction function, void **params, void **extra))           \
    X(LaunchGridAsync, cuLaunchGridAsync,                                                       \
      (CUfunction function, int width, int height, CUstream stream))                            \
    X(FillPtsz, cuMemsetD32Async_ptsz,                                                          \
      (CUdeviceptr to, unsigned value, size_t count, CUstream stream))                          \
    X(Fill, cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count, CUstream stream))  \
    X(CopyPtsz, cuMemcpyAsync_ptsz,                                                             \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                        \
    X(Copy, cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))   \
    X(RecordPtsz, cuEventRecord_ptsz, (CUevent event, CUstream stream))                         \
    X(WaitPtsz, cuStreamWaitEvent_ptsz, (CUstream stream, CUevent event, unsigned flags))       \
    X(HostPtsz, cuLaunchHostFunc_ptsz, (CUstream stream, void (*function)(void *), void *data)) \
    X(IsCapturingPtsz, cuStreamIsCapturing_ptsz, (CUstream stream, int *status))                \
    X(SynchronizePtsz, cuStreamSynchronize_ptsz, (CUstream stream))

static struct {
#define FIELD(field, symbol, arguments) CUresult(*field) arguments;
    MORE_FUNCTIONS(FIELD)
#undef FIELD
} more;

static uint64_t state;
static CUcontext context;
static CUstream stream[STREAMS];
static CUevent event[EVENTS];
static CUgraphExec exec[EXECS];
static CUfunction kernel;
static CUdeviceptr data, source;
static uint32_t *host, *taken, counter[COUNTERS];
static sem_t go, done;
static unsigned steps, number;
static int begun[STREAMS]; /* thread that began a capture there, from 1 on */

static unsigned draw(unsigned bound) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (unsigned)((state * 0x2545F4914F6CDD1DULL) >> 33) % bound;
}

static void count(void *which) { __atomic_fetch_add((uint32_t *)which, 1, __ATOMIC_RELAXED); }

/* Drops whether it has ended yet, which depends on time. */
static CUresult timeless(CUresult answer) {
    return answer == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : answer;
}

static CUresult launch_by(unsigned how, CUstream to, int own) {
    LaunchAttribute attribute = {.id = how == 1 ? PROGRAMMATIC : COOPERATIVE, .number = 1};
    LaunchConfig config = {{1, 1, 1}, {32, 1, 1}, 0, to, &attribute, how < 3};
    switch (how) {
    case 0: return more.LaunchGridAsync(kernel, 1, 1, to);
    case 1:
    case 2:
        return own ? more.LaunchExPtsz(&config, kernel, NULL, NULL)
                   : more.LaunchEx(&config, kernel, NULL, NULL);
    default:
        return own ? graph.LaunchKernelPtsz(kernel, 1, 1, 1, 32, 1, 1, 0, to, NULL, NULL)
                   : cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, to, NULL, NULL);
    }
}

/* Waits for everything, if allowed; then prints and clears what it left. */
static CUresult look(void) {
    uint32_t found[3 * WORDS];
    CUresult answer = cu.cuCtxSynchronize();
    if (answer != CUDA_SUCCESS) return answer;
    answer = cu.cuMemcpyDtoH(found, data, sizeof found);
    if (answer != CUDA_SUCCESS) return answer;
    uint64_t hash = 14695981039346656037ULL;
    for (unsigned i = 0; i < 3 * WORDS; i++) hash = (hash ^ found[i]) * 1099511628211ULL;
    for (unsigned i = 0; i < WORDS; i++) hash = (hash ^ taken[i]) * 1099511628211ULL;
    printf("%u: bytes %016" PRIx64 " calls", number, hash);
    for (unsigned i = 0; i < COUNTERS; i++)
        printf(" %" PRIu32, __atomic_exchange_n(&counter[i], 0, __ATOMIC_RELAXED));
    printf("\n");
    memset(taken, 0, WORDS * sizeof *taken);
    answer = cu.cuMemsetD32(data, 0, 3 * WORDS);
    return answer == CUDA_SUCCESS ? cu.cuCtxSynchronize() : answer;
}

/* Keeps the graph of a capture for later launches, in place of another one. */
static CUresult keep(CUresult answer, CUgraph made, unsigned place) {
    if (answer != CUDA_SUCCESS) return answer;
    printf("%u: nodes %zu\n", number, count_of(made));
    if (exec[place] && draw(2)) {
        UpdateInfo info;
        answer = graph.ExecUpdate(exec[place], made, &info);
        printf("%u: update %d %d\n", number, answer, info.result);
    } else {
        if (exec[place]) CHECK(graph.ExecDestroy(exec[place]));
        exec[place] = NULL;
        answer = graph.Instantiate(&exec[place], made, 0);
    }
    CUresult gone = graph.Destroy(made);
    return answer == CUDA_SUCCESS ? gone : answer;
}

static int any_begun(void) {
    for (unsigned i = 0; i < STREAMS; i++)
        if (begun[i]) return 1;
    return 0;
}

static CUresult end(unsigned which, int own, unsigned slot) {
    CUgraph made = NULL;
    CUresult answer = (own ? graph.EndCapturePtsz : graph.EndCapture)(stream[which], &made);
    if (answer != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD &&
        answer != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)
        begun[which] = 0;
    return keep(answer, made, slot);
}

/* Ends what this thread has begun. */
static CUresult end_all(int thread, unsigned slot) {
    for (unsigned i = 0; i < STREAMS; i++)
        if (begun[i] == thread + 1)
            printf("%u: stream %u: end %d\n", number, i, end(i, i == 2, slot));
    return CUDA_SUCCESS;
}

static void step(int thread) {
    static const int kinds[] = {0, 0, 0, 0, 1, 1,  2,  2,  3,  4,  5,  5,  5,  5,  6,  6,  6, 6,
                                7, 7, 8, 9, 9, 10, 11, 12, 13, 14, 15, 15, 16, 17, 18, 18, 19};
    int kind = kinds[draw(sizeof kinds / sizeof *kinds)], own = (int)draw(2), mode, status = -1;
    unsigned which = draw(10), place = draw(WORDS), mark = draw(EVENTS), slot = draw(EXECS);
    /* Calls that invalidate captures are rare during captures, so that some complete. */
    if (which >= OWN || (which < 2 && any_begun() && draw(8))) which = OWN + draw(STREAMS - OWN);
    if ((kind == 12 || kind == 13 || kind == 16 || kind == 18) && any_begun() && draw(8)) kind = 19;
    CUstream to = stream[which];
    CUdeviceptr taken_address = 0;
    CUresult answer = -1;
    switch (kind) {
    case 0: answer = launch_by(draw(6), to, own); break;
    case 1:
        answer = (own ? more.FillPtsz : more.Fill)(data + 4 * place, 0xA000 + place, 1, to);
        break;
    case 2:
        answer = (own ? more.CopyPtsz : more.Copy)(data + 4 * (WORDS + place), source + 4 * place,
                                                   4, to);
        break;
    case 3:
        answer = cu.cuMemcpyHtoDAsync(data + 4 * (2 * WORDS + place), host + place, 4, to);
        break;
    case 4: answer = cu.cuMemcpyDtoHAsync(taken + place, source + 4 * place, 4, to); break;
    case 5: answer = (own ? more.RecordPtsz : cu.cuEventRecord)(event[mark], to); break;
    case 6: answer = (own ? more.WaitPtsz : cu.cuStreamWaitEvent)(to, event[mark], 0); break;
    case 7:
        answer = (own ? graph.BeginCapturePtsz : graph.BeginCapture)(to, (int)draw(3));
        if (answer == CUDA_SUCCESS) begun[which] = thread + 1;
        break;
    case 8: answer = end(which, own, slot); break;
    case 19: answer = end_all(thread, slot); break;
    case 9:
        answer = exec[slot] ? (own ? graph.LaunchPtsz : graph.Launch)(exec[slot], to) : -1;
        break;
    case 10: answer = exec[slot] ? graph.LaunchPtsz(exec[slot], to) : -1; break;
    case 11:
        answer = (own ? more.IsCapturingPtsz : graph.IsCapturing)(to, &status);
        printf("%u: status %d\n", number, status);
        break;
    case 12: answer = (own ? more.SynchronizePtsz : cu.cuStreamSynchronize)(to); break;
    case 13:
        answer = draw(2) ? timeless(cu.cuStreamQuery(to)) : timeless(cu.cuEventQuery(event[mark]));
        break;
    case 14:
        mode = (int)draw(3);
        answer = graph.ExchangeMode(&mode);
        printf("%u: mode was %d\n", number, mode);
        break;
    case 15:
        answer = (own ? more.HostPtsz : cu.cuLaunchHostFunc)(to, count, &counter[draw(COUNTERS)]);
        break;
    case 16:
        answer = cu.cuMemAlloc(&taken_address, 4096);
        if (answer == CUDA_SUCCESS) answer = cu.cuMemFree(taken_address);
        break;
    case 17:
        if (which < OWN || draw(4)) break;
        answer = cu.cuStreamDestroy(to);
        begun[which] = 0;
        CHECK(cu.cuStreamCreate(&stream[which], which < OWN + 2 ? 0 : CU_STREAM_NON_BLOCKING));
        break;
    default: answer = look(); break;
    }
    printf("%u: thread %d call %d stream %u own %d: %d\n", number, thread, kind, which, own,
           answer);
}

static void *second(void *nothing) {
    (void)nothing;
    CHECK(cu.cuCtxSetCurrent(context));
    for (;;) {
        sem_wait(&go);
        if (number == steps) return NULL;
        step(1);
        sem_post(&done);
    }
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc != 3) return 2;
    watchdog(120);
    state = strtoull(argv[1], NULL, 10) * 0x9E3779B97F4A7C15ULL + 1;
    steps = (unsigned)strtoul(argv[2], NULL, 10);
    context = graph_open();
#define LOOKUP(field, symbol, arguments) *(void **)&more.field = driver_symbol(#symbol);
    MORE_FUNCTIONS(LOOKUP)
#undef LOOKUP
    kernel = driver_function("spin_100us");
    stream[1] = CU_STREAM_LEGACY;
    stream[2] = (CUstream)2;
    for (unsigned i = OWN; i < STREAMS; i++)
        CHECK(cu.cuStreamCreate(&stream[i], i < OWN + 2 ? 0 : CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < EVENTS; i++)
        CHECK(cu.cuEventCreate(&event[i], i % 2 ? CU_EVENT_DISABLE_TIMING : 0));
    CHECK(cu.cuMemAlloc(&data, 3 * WORDS * 4));
    CHECK(cu.cuMemAlloc(&source, WORDS * 4));
    CHECK(cu.cuMemHostAlloc((void **)&host, WORDS * 4, 0));
    CHECK(cu.cuMemHostAlloc((void **)&taken, WORDS * 4, 0));
    for (unsigned i = 0; i < WORDS; i++) host[i] = 0xB000 + i;
    CHECK(cu.cuMemcpyHtoD(source, host, WORDS * 4));
    memset(taken, 0, WORDS * 4);
    CHECK(cu.cuMemsetD32(data, 0, 3 * WORDS));
    CHECK(cu.cuCtxSynchronize());
    sem_init(&go, 0, 0);
    sem_init(&done, 0, 0);
    HOLDS(pthread_create(&thread, NULL, second, NULL) == 0);
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 2;
    while (number < steps) {
        number++;
        if (number < steps && draw(3) == 0) {
            sem_post(&go);
            sem_wait(&done);
        } else {
            step(0);
        }
    }
    sem_post(&go);
    HOLDS(pthread_join(thread, NULL) == 0);
    printf("over\n");
    fflush(stdout);
    /* For inspection of the counts. */
    (void)getchar();
    return 0;
}
