/* SPDX-License-Identifier: Apache-2.0
 *
 * uneven - checks parts of different sizes of a GPU's multiprocessors, by locality domain if there
 * are several; and events of whole contexts, which are recorded after all work of their streams and
 * waited for by all of them. Prints one JSON object with the parts.
 *
 * For a driver without a shim, 13.1 or later. Expects a GPU of compute capability 8 or later.
 */
#include "records.h"

struct resource {
    int kind;
    unsigned char internal[92];
    unsigned multiprocessors, least, alignment, flags, domain;
    unsigned char rest[20];
    void *next;
};

struct group {
    unsigned multiprocessors, coscheduled, preferred, flags, domain, reserved[11];
};

_Static_assert(sizeof(struct resource) == 144 && sizeof(struct group) == 64,
               "as in the driver's header");

enum {
    SM = 1,
    DEFAULT_STREAM = 1,
    INVALID_TYPE = 914,
    INVALID_CONFIGURATION = 915,
    CAPTURE_UNSUPPORTED = 900
};
enum { BACKFILL = 1, LOCAL = 2, DOMAIN_COUNT = 149, RELAXED = 2, CAPTURE_INVALIDATED = 901 };

static struct {
    CUresult (*of_device)(CUdevice, struct resource *, int);
    CUresult (*of_green)(void *, struct resource *, int);
    CUresult (*split)(struct resource *, unsigned, const struct resource *, struct resource *,
                      unsigned, struct group *);
    CUresult (*describe)(void **, struct resource *, unsigned);
    CUresult (*create)(void **, void *, CUdevice, unsigned);
    CUresult (*destroy)(void *);
    CUresult (*stream)(CUstream *, void *, unsigned, int);
    CUresult (*record)(void *, CUevent);
    CUresult (*wait)(void *, CUevent);
    CUresult (*record_all)(CUcontext, CUevent);
    CUresult (*wait_all)(CUcontext, CUevent);
} green;

static void look_up(void) {
    *(void **)&green.of_device = driver_symbol("cuDeviceGetDevResource");
    *(void **)&green.of_green = driver_symbol("cuGreenCtxGetDevResource");
    *(void **)&green.split = driver_symbol("cuDevSmResourceSplit");
    *(void **)&green.describe = driver_symbol("cuDevResourceGenerateDesc");
    *(void **)&green.create = driver_symbol("cuGreenCtxCreate");
    *(void **)&green.destroy = driver_symbol("cuGreenCtxDestroy");
    *(void **)&green.stream = driver_symbol("cuGreenCtxStreamCreate");
    *(void **)&green.record = driver_symbol("cuGreenCtxRecordEvent");
    *(void **)&green.wait = driver_symbol("cuGreenCtxWaitEvent");
    *(void **)&green.record_all = driver_symbol("cuCtxRecordEvent");
    *(void **)&green.wait_all = driver_symbol("cuCtxWaitEvent");
}

static void *made_of(struct resource *part, CUstream *stream) {
    void *description, *made;
    CHECK(green.describe(&description, part, 1));
    CHECK(green.create(&made, description, 0, DEFAULT_STREAM));
    CHECK(green.stream(stream, made, CU_STREAM_NON_BLOCKING, 0));
    return made;
}

static void launch(CUfunction function, CUstream stream) {
    CHECK(cu.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
}

static float between(CUevent start, CUevent end) {
    float ms;
    CHECK(cu.cuEventSynchronize(end));
    CHECK(cu.cuEventElapsedTime(&ms, start, end));
    return ms;
}

static void refusals(struct resource *all) {
    struct resource result, none = {0};
    static const struct {
        struct group wanted;
        CUresult due;
    } tried[] = {
        {{.multiprocessors = 3}, CUDA_ERROR_INVALID_VALUE},
        {{.multiprocessors = 2, .flags = 8}, CUDA_ERROR_INVALID_VALUE},
        {{.multiprocessors = 2, .flags = 4}, CUDA_ERROR_INVALID_VALUE},
        {{.coscheduled = 64}, CUDA_ERROR_INVALID_VALUE},
        {{.reserved = {1}}, CUDA_ERROR_INVALID_VALUE},
        {{.multiprocessors = 4, .flags = LOCAL, .domain = 9}, CUDA_ERROR_INVALID_VALUE},
        {{.multiprocessors = 1000}, INVALID_CONFIGURATION},
    };
    for (size_t i = 0; i < sizeof tried / sizeof *tried; i++) {
        struct group group = tried[i].wanted;
        EXPECT(tried[i].due, green.split(&result, 1, all, NULL, 0, &group));
    }
    struct group group = {0};
    EXPECT(CUDA_ERROR_INVALID_VALUE, green.split(&result, 1, all, NULL, 1, &group));
    EXPECT(CUDA_ERROR_INVALID_VALUE, green.split(&result, 0, all, NULL, 0, &group));
    EXPECT(CUDA_ERROR_INVALID_VALUE, green.split(&result, 1, all, NULL, 0, NULL));
    EXPECT(INVALID_TYPE, green.split(&result, 1, &none, NULL, 0, &group));
}

static void events(CUcontext primary, void *one, CUstream first) {
    FUNCTION(begin, cuStreamBeginCapture_v2, (CUstream, int));
    FUNCTION(end_capture, cuStreamEndCapture, (CUstream, void **));
    CUfunction function = driver_function("spin_5ms");
    CUstream second, other, late;
    CUevent start, end, mark;
    void *graph;
    CHECK(green.stream(&second, one, CU_STREAM_NON_BLOCKING, 0));
    CHECK(cu.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CHECK(cu.cuEventCreate(&start, 0));
    CHECK(cu.cuEventCreate(&end, 0));
    CHECK(cu.cuEventCreate(&mark, 0));
    launch(function, first); /* loads its code */
    CHECK(cu.cuCtxSynchronize());

    /* After both streams of the green context, not after another's. */
    CHECK(cu.cuEventRecord(start, first));
    launch(function, first);
    launch(function, second);
    launch(function, second);
    for (int i = 0; i < 40; i++) launch(function, other); /* a busy host may pause this program */
    CHECK(green.record(one, end));
    float ms = between(start, end);
    HOLDS(ms > 9.9 && ms < 17);
    HOLDS(cu.cuStreamQuery(other) == CUDA_ERROR_NOT_READY);
    CHECK(green.record_all(primary, end));
    HOLDS(between(start, end) > 199);

    /* Both streams wait, and one that is created later; others do not. */
    CHECK(cu.cuEventRecord(start, other));
    for (int i = 0; i < 2; i++) launch(function, other);
    CHECK(cu.cuEventRecord(mark, other));
    CHECK(green.wait(one, mark));
    CHECK(green.stream(&late, one, CU_STREAM_NON_BLOCKING, 0));
    CUstream waiting[] = {first, second, late};
    for (int i = 0; i < 3; i++) {
        CHECK(cu.cuEventRecord(end, waiting[i]));
        HOLDS(between(start, end) > 9.9);
    }
    CHECK(cu.cuEventRecord(start, first));
    launch(function, first);
    CHECK(cu.cuEventRecord(mark, first));
    CHECK(green.wait_all(NULL, mark)); /* the current context */
    CHECK(cu.cuEventRecord(end, other));
    HOLDS(between(start, end) > 4.9);

    /* Neither during a capture of one of the streams. */
    CHECK(begin(second, RELAXED));
    EXPECT(CAPTURE_UNSUPPORTED, green.record(one, mark));
    EXPECT(CAPTURE_INVALIDATED, end_capture(second, &graph));
    CHECK(begin(second, RELAXED));
    EXPECT(CAPTURE_UNSUPPORTED, green.wait(one, mark));
    EXPECT(CAPTURE_INVALIDATED, end_capture(second, &graph));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, green.record(NULL, mark));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, green.record(one, NULL));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, green.wait(one, NULL));
}

int main(void) {
    int domains = 1;
    struct resource all, parts[3], rest, again;
    struct group groups[3] = {
        {.multiprocessors = 10, .coscheduled = 2}, {.multiprocessors = 24}, {.flags = BACKFILL}};
    CUstream first, second;

    watchdog(60);
    CUcontext primary = driver_open();
    look_up();
    CHECK(green.of_device(0, &all, SM));
    refusals(&all);

    /* Queried first, then split: the last group gets the rest. */
    CHECK(green.split(NULL, 3, &all, NULL, 0, groups));
    HOLDS(groups[2].multiprocessors == all.multiprocessors - 34);
    CHECK(green.split(parts, 3, &all, &rest, 0, groups));
    HOLDS(rest.kind == 0 && rest.multiprocessors == 0);
    for (int i = 0; i < 3; i++)
        HOLDS(parts[i].kind == SM && parts[i].multiprocessors == groups[i].multiprocessors);
    groups[2] = (struct group){.multiprocessors = 2};
    CHECK(green.split(parts, 3, &all, &rest, 0, groups));
    HOLDS(rest.multiprocessors == all.multiprocessors - 36);
    struct group nothing[2] = {{0}, {0}};
    CHECK(green.split(NULL, 2, &all, NULL, 0, nothing));
    HOLDS(nothing[0].multiprocessors == all.multiprocessors && nothing[1].multiprocessors == 0);
    nothing[0].multiprocessors = 0;
    EXPECT(INVALID_CONFIGURATION, green.split(parts, 2, &all, NULL, 0, nothing));

    void *one = made_of(&parts[0], &first), *two = made_of(&parts[1], &second);
    CHECK(green.of_green(one, &again, SM));
    HOLDS(again.multiprocessors == 10);
    CHECK(green.of_green(two, &again, SM));
    HOLDS(again.multiprocessors == 24);

    /* By domains. */
    if (cu.cuDeviceGetAttribute(&domains, DOMAIN_COUNT, 0) == CUDA_SUCCESS && domains > 1) {
        struct group local[2] = {{.flags = LOCAL}, {.flags = LOCAL, .domain = 1}};
        struct resource mixed[2];
        void *description;
        CHECK(green.split(mixed, 2, &all, &rest, 0, local));
        HOLDS(mixed[0].multiprocessors == mixed[1].multiprocessors && mixed[1].domain == 1 &&
              mixed[1].flags == LOCAL);
        HOLDS(rest.multiprocessors == all.multiprocessors - 2 * mixed[0].multiprocessors);
        EXPECT(INVALID_CONFIGURATION, green.describe(&description, mixed, 2)); /* of two domains */
        CUstream stream;
        void *there = made_of(&mixed[1], &stream);
        CHECK(green.of_green(there, &again, SM));
        HOLDS(again.domain == 1);
        CHECK(green.destroy(there));
    }
    events(primary, one, first);
    CHECK(green.destroy(one));
    CHECK(green.destroy(two));
    printf("{\"domains\": %d, \"rest\": %u}\n", domains, all.multiprocessors - 36);
    return 0;
}
