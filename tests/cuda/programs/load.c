/* SPDX-License-Identifier: Apache-2.0
 *
 * load [OPTIONS] - a process of a benchmark's tenant: keeps the GPU busy in a given way and
 * reports its completed work over time.
 *
 *     --us N          microseconds of a kernel (60)
 *     --kernel NAME   this kernel instead of one of N us; the simulated GPU knows some by name
 *                     (lognormal_60us_0.5, persistent)
 *     --shapes N      launches have N random shapes (grid, block, shared memory); 0: a new shape
 *                     for each launch
 *     --functions N   N random kernels instead of one, each with its own block: half take a fixed
 *                     time, half that time for each wave of their grid
 *     --seed N        seed of what is random (1)
 *     --iterations N  the result of another process's calibration of this kernel (see spin.h)
 *     --batch N       kernels in a batch (32)
 *     --ahead N       batches in flight before the program waits for the oldest (2); 0: it waits
 *                     for each
 *     --gap-us G      host time after each batch (0)
 *     --graph         a batch is one launch of a graph with that many kernels
 *     --copy BYTES    each batch copies this many bytes to the GPU and back
 *     --streams N     batches use N streams in turn (1)
 *     --threads N     N threads do all of the above (1)
 *     --bucket P      a token bucket, as in limiters that let programs overlap: it fills with P
 *                     percent of the time, each batch is paid with its time by two events, and
 *                     nothing is launched while it is empty. One thread
 *
 * Controlled by commands on standard input, with one JSON object per answer:
 *
 *     run START SECONDS STEP   runs from CLOCK_MONOTONIC second START on
 *     quit
 *
 * The answer of run has these fields. done: kernels completed by START + n x STEP, for each n.
 * ends and latencies, if the program waits for each batch: seconds from START, and from the
 * batch's first launch, to its end. cpu: CPU seconds of the threads that do all of the above,
 * without waits for the GPU. others: CPU seconds of these waits and of the driver's own threads.
 * In these the simulated driver emulates the GPU, and wakes early from waits to be exact; a real
 * driver does neither.
 */
#include <pthread.h>
#include <sys/prctl.h>

#include "spin.h"

enum { ONE_SHAPE = UINT32_MAX, MOST_FUNCTIONS = 64 };
enum {
    MOST_THREADS = 64,
    MOST_STREAMS = 64,
    MOST_AHEAD = 64,
    MOST_STEPS = 1 << 20,
    MOST_BATCHES = 1 << 20
};

static struct {
    unsigned us, batch, ahead, streams, threads, bucket, functions, seed;
    uint32_t iterations, shapes;
    const char *kernel;
    double gap;
    size_t copy;
    int graph;
} plan = {
    .us = 60, .batch = 32, .ahead = 2, .streams = 1, .threads = 1, .seed = 1, .shapes = ONE_SHAPE};

static struct {
    double start, seconds, step;
} command;

/* State of a thread: its streams, graph and buffers, and its observations of the present run. */
struct part {
    pthread_t thread;
    struct spin spin;
    CUfunction function[MOST_FUNCTIONS];
    uint64_t launches; /* number of launches in random shapes */
    CUstream stream[MOST_STREAMS];
    void *executable;
    void *host;
    CUdeviceptr gpu;
    uint64_t *done; /* by step */
    struct {
        double begun, ended;
    } *batch; /* the batches that were waited for */
    size_t steps, batches;
    double cpu;
};

static CUcontext context;
static struct part part[MOST_THREADS];
static CUresult (*graph_launch)(void *executable, CUstream stream);

/* splitmix64 of the seed and two numbers. */
static uint64_t draw_number(uint64_t one, uint64_t other) {
    uint64_t state =
        (plan.seed * UINT64_C(0x9e3779b97f4a7c15) + one) * UINT64_C(0xbf58476d1ce4e5b9) + other;
    state = (state ^ state >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    state = (state ^ state >> 27) * UINT64_C(0x94d049bb133111eb);
    return state ^ state >> 31;
}

/* Launches once in a random shape, with grids over twelve powers of two. */
static CUresult launch_drawn(struct part *part, CUstream stream) {
    uint64_t number = part->launches++, which = draw_number(1, number);
    if (plan.shapes == ONE_SHAPE)
        number = 0;
    else if (plan.shapes)
        number = (which >> 32) % plan.shapes;
    uint64_t shape = draw_number(2, number), block = shape >> 32;
    unsigned least = 1u << shape % 12, x = least + (unsigned)(shape >> 8) % least,
             y = 1 + (shape >> 24) % 4;
    CUfunction function = part->spin.function;
    if (plan.functions) {
        function = part->function[which % plan.functions];
        block = draw_number(4, which % plan.functions); /* each function has its own block */
    }
    unsigned threads = 32 * (unsigned)(1 + block % 32),
             shared = 16 * (unsigned)((block >> 8) % 1024);
    uint32_t iterations = part->spin.iterations;
    void *params[] = {&iterations, &part->spin.sink};
    return cu.cuLaunchKernel(function, x, y, 1, threads, 1, 1, shared, stream, params, NULL);
}

static void launch_batch(struct part *part, CUstream stream) {
    int drawn = plan.functions || plan.shapes != ONE_SHAPE;
    for (unsigned i = 0; i < plan.batch; i++)
        CHECK(drawn ? launch_drawn(part, stream)
                    : spin_launch(&part->spin, part->spin.iterations, stream));
}

static void open_functions(struct part *part) {
    char name[32];
    for (unsigned i = 0; i < plan.functions; i++) {
        unsigned us = 2 + (unsigned)(draw_number(3, i) % (2 * plan.us));
        snprintf(name, sizeof name, "%s_%uus", i % 2 ? "wave" : "spin", us);
        part->function[i] = spin_function(name);
    }
}

static void make_graph(struct part *part) {
    CUresult (*begin)(CUstream, int) = NULL, (*end)(CUstream, void **) = NULL;
    CUresult (*instantiate)(void **, void *, unsigned long long) = NULL;
    *(void **)&begin = driver_symbol("cuStreamBeginCapture_v2");
    *(void **)&end = driver_symbol("cuStreamEndCapture");
    *(void **)&instantiate = driver_symbol("cuGraphInstantiateWithFlags");
    *(void **)&graph_launch = driver_symbol("cuGraphLaunch");
    void *graph;
    CHECK(begin(part->stream[0], 1 /* thread-local */));
    launch_batch(part, part->stream[0]);
    CHECK(end(part->stream[0], &graph));
    CHECK(instantiate(&part->executable, graph, 0));
}

static void open_part(struct part *part, uint32_t iterations) {
    for (unsigned i = 0; i < plan.streams; i++)
        CHECK(cu.cuStreamCreate(&part->stream[i], CU_STREAM_NON_BLOCKING));
    part->spin =
        plan.kernel ? spin_named(plan.kernel) : spin_open(plan.us, iterations, part->stream[0]);
    open_functions(part);
    if (plan.graph) make_graph(part);
    if (plan.copy) {
        CHECK(cu.cuMemHostAlloc(&part->host, plan.copy, 0));
        CHECK(cu.cuMemAlloc(&part->gpu, plan.copy));
    }
    part->done = calloc(MOST_STEPS, sizeof *part->done);
    part->batch = calloc(MOST_BATCHES, sizeof *part->batch);
    HOLDS(part->done && part->batch);
}

/* Records that nothing was completed between the last record and now. */
static void record_progress(struct part *part, uint64_t done, size_t all) {
    double now = seconds_now() - command.start;
    while (part->steps < all && (double)part->steps * command.step <= now)
        part->done[part->steps++] = done;
}

static void submit(struct part *part, CUstream stream) {
    if (plan.copy) CHECK(cu.cuMemcpyHtoDAsync(part->gpu, part->host, plan.copy, stream));
    if (plan.graph)
        CHECK(graph_launch(part->executable, stream));
    else
        launch_batch(part, stream);
    if (plan.copy) CHECK(cu.cuMemcpyDtoHAsync(part->host, part->gpu, plan.copy, stream));
}

static double cpu_seconds(clockid_t of) {
    struct timespec used;
    HOLDS(clock_gettime(of, &used) == 0);
    return (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
}

/* GPU seconds that may still be used, the time of the last refill, and a batch's start and
 * whether it is paid. */
static struct {
    double tokens, filled;
} bucket;

struct slot {
    CUevent start, end;
    int owed;
};

/* Pays for a batch if it has ended. */
static void pay(struct slot *slot) {
    float ms;
    if (!slot->owed || cu.cuEventQuery(slot->end) != CUDA_SUCCESS) return;
    CHECK(cu.cuEventElapsedTime(&ms, slot->start, slot->end));
    bucket.tokens -= ms * 1e-3;
    slot->owed = 0;
}

/* Waits until the bucket has tokens. */
static void draw(struct slot *slot, unsigned slots) {
    const double most = 0.01, rate = plan.bucket * 0.01;
    for (;;) {
        double now = seconds_now();
        for (unsigned i = 0; i < slots; i++) pay(&slot[i]);
        bucket.tokens += (now - bucket.filled) * rate;
        if (bucket.tokens > most * rate) bucket.tokens = most * rate;
        bucket.filled = now;
        if (bucket.tokens > 0) return;
        sleep_seconds(-bucket.tokens / rate < 1e-3 ? 1e-4 : 1e-3);
    }
}

static void *run(void *argument) {
    struct part *part = argument;
    double cpu = cpu_seconds(CLOCK_THREAD_CPUTIME_ID), waits = 0;
    size_t steps = (size_t)(command.seconds / command.step) + 1;
    uint64_t submitted = 0, finished = 0;
    struct slot slot[MOST_AHEAD];
    unsigned ring = plan.ahead ? plan.ahead : 1;
    CHECK(cu.cuCtxSetCurrent(context));
    for (unsigned i = 0; i < ring; i++) {
        unsigned flags = 1 /* blocking sync */ | (plan.bucket ? 0 : CU_EVENT_DISABLE_TIMING);
        CHECK(cu.cuEventCreate(&slot[i].start, flags));
        CHECK(cu.cuEventCreate(&slot[i].end, flags));
        slot[i].owed = 0;
    }
    part->steps = part->batches = 0;
    if (command.start > seconds_now()) sleep_seconds(command.start - seconds_now());
    bucket.tokens = 0;
    bucket.filled = seconds_now();
    while (seconds_now() - command.start < command.seconds) {
        double begun = seconds_now();
        CUstream stream = part->stream[submitted % plan.streams];
        struct slot *last = &slot[submitted % ring];
        if (plan.bucket) {
            draw(slot, ring);
            CHECK(cu.cuEventRecord(last->start, stream));
        }
        submit(part, stream);
        CHECK(cu.cuEventRecord(last->end, stream));
        last->owed = plan.bucket > 0;
        submitted++;
        if (submitted - finished >= ring) {
            double before = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
            CHECK(cu.cuEventSynchronize(slot[finished % ring].end));
            waits += cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - before;
            if (plan.bucket) pay(&slot[finished % ring]);
            record_progress(part, finished * plan.batch, steps);
            finished++;
            if (!plan.ahead && part->batches < MOST_BATCHES) {
                part->batch[part->batches].begun = begun - command.start;
                part->batch[part->batches++].ended = seconds_now() - command.start;
            }
        }
        if (plan.gap > 0) sleep_seconds(plan.gap);
    }
    while (part->steps < steps) part->done[part->steps++] = finished * plan.batch;
    part->cpu = cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - cpu - waits;
    for (unsigned i = 0; i < plan.streams; i++) CHECK(cu.cuStreamSynchronize(part->stream[i]));
    for (unsigned i = 0; i < ring; i++) {
        CHECK(cu.cuEventDestroy(slot[i].start));
        CHECK(cu.cuEventDestroy(slot[i].end));
    }
    return NULL;
}

static void tell_batches(int latencies) {
    const char *comma = "";
    for (unsigned i = 0; i < plan.threads; i++) {
        for (size_t n = 0; n < part[i].batches; n++) {
            printf("%s%.6f", comma,
                   part[i].batch[n].ended - (latencies ? part[i].batch[n].begun : 0));
            comma = ",";
        }
    }
}

static void run_all(void) {
    double all = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID), cpu = 0;
    for (unsigned i = 1; i < plan.threads; i++)
        HOLDS(pthread_create(&part[i].thread, NULL, run, &part[i]) == 0);
    run(&part[0]);
    for (unsigned i = 1; i < plan.threads; i++) HOLDS(pthread_join(part[i].thread, NULL) == 0);
    for (unsigned i = 0; i < plan.threads; i++) cpu += part[i].cpu;
    all = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - all;
    printf("{\"cpu\": %.6f, \"others\": %.6f, \"done\": [", cpu, all - cpu);
    for (size_t step = 0; step < part[0].steps; step++) {
        uint64_t done = 0;
        for (unsigned i = 0; i < plan.threads; i++) done += part[i].done[step];
        printf("%s%" PRIu64, step ? "," : "", done);
    }
    printf("], \"ends\": [");
    tell_batches(0);
    printf("], \"latencies\": [");
    tell_batches(1);
    printf("]}\n");
}

static unsigned number(const char *text, unsigned least, unsigned most) {
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (*end || end == text || value < least || value > most) {
        fprintf(stderr, "load: %s: expected %u to %u\n", text, least, most);
        exit(2);
    }
    return (unsigned)value;
}

static void read_plan(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--graph")) {
            plan.graph = 1;
            continue;
        }
        const char *value = i + 1 < argc ? argv[++i] : "";
        if (!strcmp(name, "--us"))
            plan.us = number(value, 1, 10000000);
        else if (!strcmp(name, "--kernel"))
            plan.kernel = value;
        else if (!strcmp(name, "--shapes"))
            plan.shapes = number(value, 0, 10000000);
        else if (!strcmp(name, "--functions"))
            plan.functions = number(value, 1, MOST_FUNCTIONS);
        else if (!strcmp(name, "--seed"))
            plan.seed = number(value, 0, INT32_MAX);
        else if (!strcmp(name, "--iterations"))
            plan.iterations = number(value, 0, UINT32_MAX);
        else if (!strcmp(name, "--batch"))
            plan.batch = number(value, 1, 100000);
        else if (!strcmp(name, "--ahead"))
            plan.ahead = number(value, 0, MOST_AHEAD);
        else if (!strcmp(name, "--gap-us"))
            plan.gap = (double)number(value, 0, 10000000) * 1e-6;
        else if (!strcmp(name, "--copy"))
            plan.copy = number(value, 0, 1u << 30);
        else if (!strcmp(name, "--streams"))
            plan.streams = number(value, 1, MOST_STREAMS);
        else if (!strcmp(name, "--bucket"))
            plan.bucket = number(value, 1, 100);
        else if (!strcmp(name, "--threads"))
            plan.threads = number(value, 1, MOST_THREADS);
        else {
            fprintf(stderr, "load: not an option: %s\n", name);
            exit(2);
        }
    }
}

int main(int argc, char **argv) {
    char line[128];
    read_plan(argc, argv);
    watchdog(900);
    prctl(PR_SET_TIMERSLACK, 1); /* so that a gap of 20 us does not become one of 70 */
    context = driver_open();
    for (unsigned i = 0; i < plan.threads; i++)
        open_part(&part[i], i ? part[0].spin.iterations : plan.iterations);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("{\"ready\": true, \"iterations\": %" PRIu32 "}\n", part[0].spin.iterations);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "run %lf %lf %lf", &command.start, &command.seconds, &command.step) == 3 &&
            command.step > 0 && command.seconds / command.step < MOST_STEPS - 1)
            run_all();
        else if (!strcmp(line, "quit"))
            return 0;
        else {
            fprintf(stderr, "load: not a command: %s\n", line);
            return 2;
        }
    }
    return 0;
}
