/* SPDX-License-Identifier: Apache-2.0
 *
 * launches FUNCTION SECONDS [host|mixed] - makes the GPU compute by this driver function for this
 * long, repeatedly, and stays for inspection. Prints "ready", reads a line, and prints the number
 * of calls, and "over" when all has run. With `host` copies read pinned host memory; with `mixed`
 * every second copy of a batch does.
 */
#include "batch.h"
#include "graph.h"

enum { BYTES = 1 << 16, SIDE = 512, AHEAD = 256, COPIES = 4 };

typedef struct {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    void *attributes;
    unsigned count;
} LaunchConfig;

typedef struct {
    CUfunction function;
    unsigned grid[3], block[3], shared;
    CUstream stream;
    void **params;
} Part;

/* Types of functions by their parameters. */
typedef CUresult (*Kernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                           unsigned, CUstream, void **, void **);
typedef CUresult (*Cooperative)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                unsigned, unsigned, CUstream, void **);
typedef CUresult (*Configured)(const LaunchConfig *, CUfunction, void **, void **);
typedef CUresult (*OnDevices)(Part *, unsigned, unsigned);
typedef CUresult (*Plain)(CUfunction);
typedef CUresult (*Grid)(CUfunction, int, int);
typedef CUresult (*GridAsync)(CUfunction, int, int, CUstream);
typedef CUresult (*Graph)(CUgraphExec, CUstream);
typedef CUresult (*Fill8)(CUdeviceptr, unsigned char, size_t);
typedef CUresult (*Fill8Async)(CUdeviceptr, unsigned char, size_t, CUstream);
typedef CUresult (*Fill16)(CUdeviceptr, unsigned short, size_t);
typedef CUresult (*Fill16Async)(CUdeviceptr, unsigned short, size_t, CUstream);
typedef CUresult (*Fill32)(CUdeviceptr, unsigned, size_t);
typedef CUresult (*Fill32Async)(CUdeviceptr, unsigned, size_t, CUstream);
typedef CUresult (*Rectangle)(CUdeviceptr, size_t, unsigned, size_t, size_t);
typedef CUresult (*RectangleAsync)(CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream);
typedef CUresult (*Copy)(CUdeviceptr, CUdeviceptr, size_t);
typedef CUresult (*CopyAsync)(CUdeviceptr, CUdeviceptr, size_t, CUstream);

static const char *name;
static void *function;
static CUfunction kernel;
static CUgraphExec exec;
static CUstream stream;
static CUdeviceptr to, from, other;

static int begins(const char *with) { return strncmp(name, with, strlen(with)) == 0; }
static int has(const char *part) { return strstr(name, part) != NULL; }

/* The function with one of these types. */
#define AS(kind) (*(kind *)&function)

static CUresult fill(void) {
    int later = has("Async");
    if (begins("cuMemsetD2D"))
        return later ? AS(RectangleAsync)(to, SIDE, 1, 64, 64, stream)
                     : AS(Rectangle)(to, SIDE, 1, 64, 64);
    if (begins("cuMemsetD8"))
        return later ? AS(Fill8Async)(to, 1, BYTES, stream) : AS(Fill8)(to, 1, BYTES);
    if (begins("cuMemsetD16"))
        return later ? AS(Fill16Async)(to, 1, BYTES / 2, stream) : AS(Fill16)(to, 1, BYTES / 2);
    return later ? AS(Fill32Async)(to, 1, BYTES / 4, stream) : AS(Fill32)(to, 1, BYTES / 4);
}

/* Copies the bytes in equal parts as one batch: of lines or of boxes, by version 1 or 2. */
static CUresult batch(void) {
    enum { PART = BYTES / COPIES };
    struct attributes attributes = {.access = IN_STREAM_ORDER};
    struct operation boxes[COPIES];
    CUdeviceptr tos[COPIES], froms[COPIES];
    size_t sizes[COPIES], start = 0, failed;
    for (int i = 0; i < COPIES; i++) {
        tos[i] = to + (CUdeviceptr)i * PART;
        froms[i] = (i % 2 ? from : other) + (CUdeviceptr)i * PART;
        sizes[i] = PART;
        boxes[i] = (struct operation){.from = {.kind = POINTER, .pointer = {.address = froms[i]}},
                                      .to = {.kind = POINTER, .pointer = {.address = tos[i]}},
                                      .width = PART,
                                      .height = 1,
                                      .depth = 1,
                                      .access = IN_STREAM_ORDER};
    }
    if (begins("cuMemcpyWithAttributes"))
        return AS(WithAttributes)(to, from, BYTES, &attributes, stream);
    if (begins("cuMemcpy3DWithAttributes")) return AS(BoxWithAttributes)(&boxes[1], 0, stream);
    if (begins("cuMemcpyBatchAsync_v2"))
        return AS(Batch)(tos, froms, sizes, COPIES, &attributes, &start, 1, stream);
    if (begins("cuMemcpyBatch"))
        return AS(BatchIndexed)(tos, froms, sizes, COPIES, &attributes, &start, 1, &failed, stream);
    if (begins("cuMemcpy3DBatchAsync_v2")) return AS(Boxes)(COPIES, boxes, 0, stream);
    return AS(BoxesIndexed)(COPIES, boxes, &failed, 0, stream);
}

static CUresult once(void) {
    LaunchConfig config = {{1, 1, 1}, {32, 1, 1}, 0, stream, NULL, 0};
    Part part = {kernel, {1, 1, 1}, {32, 1, 1}, 0, stream, NULL};
    if (begins("cuLaunchKernelEx")) return AS(Configured)(&config, kernel, NULL, NULL);
    if (begins("cuLaunchKernel"))
        return AS(Kernel)(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
    if (begins("cuLaunchCooperativeKernelMultiDevice")) return AS(OnDevices)(&part, 1, 0);
    if (begins("cuLaunchCooperativeKernel"))
        return AS(Cooperative)(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL);
    if (begins("cuLaunchGridAsync")) return AS(GridAsync)(kernel, 1, 1, stream);
    if (begins("cuLaunchGrid")) return AS(Grid)(kernel, 1, 1);
    if (begins("cuLaunch")) return AS(Plain)(kernel);
    if (begins("cuGraphLaunch")) return AS(Graph)(exec, stream);
    if (begins("cuMemset")) return fill();
    if (has("Batch") || has("WithAttributes")) return batch();
    return has("Async") ? AS(CopyAsync)(to, from, BYTES, stream) : AS(Copy)(to, from, BYTES);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    name = argv[1];
    double seconds = strtod(argv[2], NULL);
    watchdog(120);
    graph_open();
    function = driver_symbol(name);
    CUresult (*shape)(CUfunction, int, int, int) =
        (CUresult (*)(CUfunction, int, int, int))driver_symbol("cuFuncSetBlockShape");
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    kernel = driver_function("spin_20us");
    CHECK(shape(kernel, 32, 1, 1));
    CHECK(cu.cuMemAlloc(&to, BYTES));
    CHECK(cu.cuMemAlloc(&from, BYTES));
    other = from;
    if (argc > 3) {
        void *pinned;
        CHECK(cu.cuMemHostAlloc(&pinned, BYTES, 0));
        other = (CUdeviceptr)(uintptr_t)pinned;
        if (strcmp(argv[3], "host") == 0) from = other;
    }
    CUgraph made;
    CHECK(graph.BeginCapture(stream, RELAXED));
    CHECK(cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    CHECK(graph.EndCapture(stream, &made));
    CHECK(graph.Instantiate(&exec, made, 0));
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 2;
    unsigned count = 0;
    for (double end = seconds_now() + seconds; seconds_now() < end; count++) {
        /* Otherwise the queue holds many times what can run meanwhile if no other tenant wants
         * the GPU. */
        if (count % AHEAD == AHEAD - 1) CHECK(cu.cuCtxSynchronize());
        CHECK(once());
    }
    CHECK(cu.cuCtxSynchronize());
    printf("%u\nover\n", count);
    fflush(stdout);
    (void)getchar();
    return 0;
}
