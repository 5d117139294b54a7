/* SPDX-License-Identifier: Apache-2.0
 *
 * batches - checks copies with attributes, alone and in batches, by every version and both stream
 * variants: between pointers, boxes and arrays, from the host and on the GPU. Checks every byte and
 * every documented error. Prints the number of bytes.
 */
#include "batch.h"
#include "graph.h"

#define BYTES ((size_t)1 << 20)
#define PART 4096
#define PER_THREAD ((CUstream)2)
#define NO_COPY SIZE_MAX

/* Each function in one stream variant. */
static struct {
    Batch batch;
    BatchIndexed batch_indexed;
    Boxes boxes;
    BoxesIndexed boxes_indexed;
    WithAttributes with_attributes;
    BoxWithAttributes box_with_attributes;
} copy;

static CUdeviceptr first, second;
static unsigned char *data, *back, *pinned;
static CUfunction kernel;

static void look_up(const char *flavour) {
    char name[64];
#define LOOK_UP(field, symbol)                             \
    snprintf(name, sizeof name, "%s%s", #symbol, flavour); \
    *(void **)&copy.field = driver_symbol(name)
    LOOK_UP(batch, cuMemcpyBatchAsync_v2);
    LOOK_UP(batch_indexed, cuMemcpyBatchAsync);
    LOOK_UP(boxes, cuMemcpy3DBatchAsync_v2);
    LOOK_UP(boxes_indexed, cuMemcpy3DBatchAsync);
    LOOK_UP(with_attributes, cuMemcpyWithAttributesAsync);
    LOOK_UP(box_with_attributes, cuMemcpy3DWithAttributesAsync);
#undef LOOK_UP
}

static void pattern(unsigned char *to, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = (unsigned char)(seed >> 24);
    }
}

static CUdeviceptr host(const void *address) { return (CUdeviceptr)(uintptr_t)address; }

static void wait_for(CUstream stream) {
    if (stream)
        CHECK(cu.cuStreamSynchronize(stream));
    else
        CHECK(cu.cuCtxSynchronize());
}

static void long_kernel(CUstream stream) {
    CHECK(
        cu.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream ? stream : PER_THREAD, NULL, NULL));
}

/* Copies from pinned and pageable memory to the GPU, on it, and back, each in one batch. */
static void lines(CUstream stream) {
    CUdeviceptr up_to[] = {first, first + PART, first + 3 * PART};
    CUdeviceptr up_from[] = {host(pinned), host(data), host(pinned) + 5};
    size_t sizes[] = {PART, 2 * PART, 100};
    CUdeviceptr within_to[] = {second + 7, second + 2 * PART, second + 5 * PART};
    CUdeviceptr back_to[] = {host(back), host(back) + PART, host(back) + 3 * PART};
    struct attributes attributes[] = {{.access = IN_STREAM_ORDER},
                                      {.access = ANY_TIME, .flags = PREFER_OVERLAP}};
    size_t starts[] = {0, 2};
    pattern(data, BYTES, 1);
    pattern(pinned, BYTES, 2);
    memset(back, 0, BYTES);
    CHECK(copy.batch(up_to, up_from, sizes, 3, attributes, starts, 2, stream));
    CHECK(copy.batch_indexed(within_to, up_to, sizes, 3, attributes, starts, 1, NULL, stream));
    CHECK(copy.batch(back_to, within_to, sizes, 3, attributes, starts, 1, stream));
    wait_for(stream);
    HOLDS(memcmp(back, pinned, PART) == 0);
    HOLDS(memcmp(back + PART, data, 2 * PART) == 0);
    HOLDS(memcmp(back + 3 * PART, pinned + 5, 100) == 0 && back[3 * PART + 100] == 0);

    /* Single copies. */
    CHECK(copy.with_attributes(first, host(data) + 1, PART, &attributes[0], stream));
    CHECK(copy.with_attributes(second, first, PART, &attributes[1], stream));
    CHECK(copy.with_attributes(host(back), second, PART, &attributes[0], stream));
    wait_for(stream);
    HOLDS(memcmp(back, data + 1, PART) == 0);
}

/* A source with access during the call may be reused at once, even behind a long kernel. Other
 * sources are read in stream order. */
static void accesses(CUstream stream) {
    struct attributes during = {.access = DURING_CALL}, ordered = {.access = IN_STREAM_ORDER};
    unsigned char local[64];
    pattern(local, sizeof local, 3);
    memcpy(back, local, sizeof local);
    long_kernel(stream);
    CHECK(copy.with_attributes(first, host(local), sizeof local, &during, stream));
    memset(local, 0, sizeof local);
    CHECK(copy.with_attributes(host(pinned), first, sizeof local, &ordered, stream));
    wait_for(stream);
    HOLDS(memcmp(pinned, back, sizeof local) == 0);

    /* The copy reads what the GPU has yet to write. */
    CHECK(cu.cuMemsetD8(first, 1, PART));
    CHECK(cu.cuCtxSynchronize());
    long_kernel(stream);
    CHECK(cu.cuMemsetD8Async(first, 2, PART, stream ? stream : PER_THREAD));
    CHECK(copy.with_attributes(second, first, PART, &during, stream));
    CHECK(cu.cuMemcpyDtoH(back, second, PART));
    HOLDS(back[0] == 2 && back[PART - 1] == 2);
}

static struct operand at(CUdeviceptr address, size_t row_length, size_t layer_height) {
    return (struct operand){.kind = POINTER,
                            .pointer = {address, row_length, layer_height, {0, 0}}};
}

/* Boxes of two layers of three rows of eight elements of four bytes. */
static void boxes(CUstream stream) {
    struct {
        size_t width, height, depth;
        int format;
        unsigned channels, flags;
    } shape = {16, 8, 4, 0x20, 1, 0}, wide = {16, 8, 4, 0x20, 2, 0};
    CUresult (*create)(void **, const void *);
    CUresult (*destroy)(void *);
    void *array, *other, *pair;
    *(void **)&create = driver_symbol("cuArray3DCreate_v2");
    *(void **)&destroy = driver_symbol("cuArrayDestroy");
    CHECK(create(&array, &shape));
    CHECK(create(&other, &shape));
    CHECK(create(&pair, &wide));
    struct operand in_array = {.kind = ARRAY, .array = {array, 4, 2, 1}};
    struct operand in_other = {.kind = ARRAY, .array = {other, 1, 0, 0}};
    struct operand in_pair = {.kind = ARRAY, .array = {pair, 0, 0, 0}};
    pattern(pinned, BYTES, 4);
    memset(back, 0, BYTES);
    CHECK(cu.cuMemsetD8(second, 0, BYTES));
    CHECK(cu.cuCtxSynchronize());

    /* Between pointers an element is a byte; rows of 100 and layers of 5 become dense ones. */
    struct operation bytes[] = {
        {at(host(pinned), 100, 5), at(first, 0, 0), 32, 3, 2, IN_STREAM_ORDER, 0},
        {at(host(pinned) + PART, 0, 0), at(first + PART, 50, 4), 10, 2, 2, ANY_TIME,
         PREFER_OVERLAP},
    };
    CHECK(copy.boxes(2, bytes, 0, stream));
    struct operation dense = {at(first, 0, 0), at(second, 0, 0), 32, 3, 2, IN_STREAM_ORDER, 0};
    CHECK(copy.box_with_attributes(&dense, 0, stream));
    wait_for(stream);
    CHECK(cu.cuMemcpyDtoH(back, second, PART));
    for (size_t z = 0; z < 2; z++)
        for (size_t y = 0; y < 3; y++)
            HOLDS(memcmp(back + (z * 3 + y) * 32, pinned + (z * 5 + y) * 100, 32) == 0);
    HOLDS(back[192] == 0);
    CHECK(cu.cuMemcpyDtoH(back, first + PART, PART));
    HOLDS(memcmp(back + 50, pinned + PART + 10, 10) == 0 &&
          memcmp(back + 200, pinned + PART + 20, 10) == 0);

    /* An array's elements have four bytes: into one array, to another, and back. */
    struct operation into = {at(first, 0, 0), in_array, 8, 3, 2, IN_STREAM_ORDER, 0};
    struct operation over = {in_array, in_other, 8, 3, 2, IN_STREAM_ORDER, 0};
    struct operation out = {in_other, at(host(pinned) + 2 * PART, 10, 4), 8, 3, 2, IN_STREAM_ORDER,
                            0};
    CHECK(cu.cuMemcpyHtoD(first, pinned, PART));
    CHECK(copy.boxes_indexed(1, &into, NULL, 0, stream));
    CHECK(copy.boxes(1, &over, 0, stream));
    CHECK(copy.box_with_attributes(&out, 0, stream));
    wait_for(stream);
    for (size_t z = 0; z < 2; z++)
        for (size_t y = 0; y < 3; y++)
            HOLDS(memcmp(pinned + 2 * PART + (z * 4 + y) * 40, pinned + (z * 3 + y) * 32, 32) == 0);

    /* Errors of a box, and the index of the wrong one. */
    struct operation wrong[] = {dense, dense, dense};
    size_t failed;
#define WRONG(change)                                                                       \
    do {                                                                                    \
        wrong[1] = dense;                                                                   \
        change;                                                                             \
        failed = 77;                                                                        \
        EXPECT(CUDA_ERROR_INVALID_VALUE, copy.boxes_indexed(3, wrong, &failed, 0, stream)); \
        HOLDS(failed == 1);                                                                 \
        EXPECT(CUDA_ERROR_INVALID_VALUE, copy.boxes(3, wrong, 0, stream));                  \
        EXPECT(CUDA_ERROR_INVALID_VALUE, copy.box_with_attributes(&wrong[1], 0, stream));   \
    } while (0)
    WRONG(wrong[1].width = 0);
    WRONG(wrong[1].height = 0);
    WRONG(wrong[1].depth = 0);
    WRONG(wrong[1].from.pointer.row_length = 31);
    WRONG(wrong[1].to.pointer.layer_height = 2);
    WRONG(wrong[1].from.kind = 0);
    WRONG(wrong[1].access = 0);
    WRONG(wrong[1].access = 4);
    WRONG(wrong[1].to.pointer.address = 0);
    WRONG(wrong[1].depth = BYTES);
    WRONG((wrong[1] = over, wrong[1].width = 16));   /* exceeds the array */
    WRONG((wrong[1] = over, wrong[1].to = in_pair)); /* elements of two sizes */
#undef WRONG
    failed = 77;
    EXPECT(CUDA_ERROR_INVALID_VALUE, copy.boxes_indexed(1, &dense, &failed, 1, stream));
    HOLDS(failed == NO_COPY);
    EXPECT(CUDA_ERROR_INVALID_VALUE, copy.boxes(1, &dense, 1, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, copy.boxes(0, &dense, 0, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, copy.boxes(1, NULL, 0, stream));
    CHECK(destroy(array));
    CHECK(destroy(other));
    CHECK(destroy(pair));
}

/* A refused batch copies nothing. Version 1 reports the index of the wrong copy. */
static void errors(CUstream stream) {
    CUdeviceptr to[] = {second, second + PART, second + 2 * PART}, from[] = {first, first, first},
                bad;
    size_t sizes[] = {PART, PART, PART}, starts[] = {0, 1}, failed;
    struct attributes attributes[] = {{.access = IN_STREAM_ORDER}, {.access = IN_STREAM_ORDER}};
    CHECK(cu.cuMemsetD8(first, 9, PART));
    CHECK(cu.cuMemsetD8(second, 0, PART));
    CHECK(cu.cuCtxSynchronize());
    CHECK(cu.cuMemAlloc(&bad, BYTES));
    CHECK(cu.cuMemFree(bad));
#define WRONG(index, count, numbers)                                                            \
    do {                                                                                        \
        failed = 77;                                                                            \
        EXPECT(CUDA_ERROR_INVALID_VALUE, copy.batch_indexed(to, from, sizes, count, attributes, \
                                                            starts, numbers, &failed, stream)); \
        HOLDS(failed == (size_t)(index));                                                       \
        EXPECT(CUDA_ERROR_INVALID_VALUE,                                                        \
               copy.batch(to, from, sizes, count, attributes, starts, numbers, stream));        \
    } while (0)
    from[2] = bad;
    WRONG(2, 3, 2);
    from[2] = 0;
    WRONG(2, 3, 2);
    from[2] = first;
    sizes[1] = 4 * BYTES;
    WRONG(1, 3, 2);
    sizes[1] = PART;
    attributes[1].access = 0;
    WRONG(1, 3, 2);
    attributes[1].access = 4;
    WRONG(1, 3, 2);
    attributes[1].access = IN_STREAM_ORDER;
    starts[0] = 1;
    WRONG(NO_COPY, 3, 1);
    starts[0] = 0, starts[1] = 0;
    WRONG(NO_COPY, 3, 2);
    starts[1] = 3;
    WRONG(NO_COPY, 3, 2);
    starts[1] = 1;
    WRONG(NO_COPY, 3, 0);
    WRONG(NO_COPY, 1, 2);
    WRONG(NO_COPY, 0, 0);
#undef WRONG
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           copy.batch(NULL, from, sizes, 3, attributes, starts, 1, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, copy.batch(to, NULL, sizes, 3, attributes, starts, 1, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, copy.batch(to, from, NULL, 3, attributes, starts, 1, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, copy.batch(to, from, sizes, 3, NULL, starts, 1, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, copy.batch(to, from, sizes, 3, attributes, NULL, 1, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, copy.with_attributes(second, first, PART, NULL, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, copy.box_with_attributes(NULL, 0, stream));
    wait_for(stream);
    CHECK(cu.cuMemcpyDtoH(back, second, PART));
    HOLDS(back[0] == 0 && back[PART - 1] == 0);
}

/* Refused in the legacy stream and during a capture, which stays valid. */
static void streams(CUstream stream, CUstream legacy) {
    CUdeviceptr to[] = {second}, from[] = {first};
    size_t sizes[] = {PART}, starts[] = {0}, failed;
    struct attributes attributes = {.access = IN_STREAM_ORDER};
    struct operation operation = {
        at(first, 0, 0), at(second, 0, 0), PART, 1, 1, IN_STREAM_ORDER, 0};
    CUgraph made;
#define ALL(code, where)                                                                        \
    do {                                                                                        \
        failed = 77;                                                                            \
        EXPECT(code,                                                                            \
               copy.batch_indexed(to, from, sizes, 1, &attributes, starts, 1, &failed, where)); \
        HOLDS(failed == NO_COPY);                                                               \
        failed = 77;                                                                            \
        EXPECT(code, copy.boxes_indexed(1, &operation, &failed, 0, where));                     \
        HOLDS(failed == NO_COPY);                                                               \
        EXPECT(code, copy.batch(to, from, sizes, 1, &attributes, starts, 1, where));            \
        EXPECT(code, copy.boxes(1, &operation, 0, where));                                      \
        EXPECT(code, copy.with_attributes(second, first, PART, &attributes, where));            \
        EXPECT(code, copy.box_with_attributes(&operation, 0, where));                           \
    } while (0)
    ALL(CUDA_ERROR_INVALID_VALUE, legacy);
    CHECK(graph.BeginCapture(stream, RELAXED));
    ALL(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, stream);
    CHECK(graph.EndCapture(stream, &made));
    HOLDS(count_of(made) == 0);
    CHECK(graph.Destroy(made));
#undef ALL
}

int main(void) {
    CUstream stream;
    watchdog(60);
    graph_open();
    data = malloc(BYTES), back = malloc(BYTES);
    HOLDS(data && back);
    kernel = driver_function("spin_20ms");
    CHECK(cu.cuMemAlloc(&first, BYTES));
    CHECK(cu.cuMemAlloc(&second, BYTES));
    CHECK(cu.cuMemHostAlloc((void **)&pinned, BYTES, 0));
    CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int own = 0; own < 2; own++) {
        look_up(own ? "_ptsz" : "");
        lines(stream);
        accesses(stream);
        boxes(stream);
        errors(stream);
        streams(stream, CU_STREAM_LEGACY);
        if (own) {
            /* A null stream is the thread's own, which is allowed. */
            lines(NULL);
            accesses(NULL);
        } else {
            streams(stream, NULL);
        }
    }
    CHECK(cu.cuStreamDestroy(stream));
    CHECK(cu.cuMemFreeHost(pinned));
    CHECK(cu.cuMemFree(second));
    CHECK(cu.cuMemFree(first));
    printf("{\"bytes\": %zu}\n", BYTES);
    return 0;
}
