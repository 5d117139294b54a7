/* SPDX-License-Identifier: Apache-2.0
 *
 * array_sizes [bounded] - checks that arrays of odd shapes and formats take what the GPU's layout
 * takes, not width times height. They fill the GPU to its end and no further, by every function
 * that creates one, and the memory shown as used is the driver's. They are freed one by one and
 * with their context. With "bounded" the driver does not report the size of an array: more may be
 * shown than it has, but never less.
 */
#include "ledger.h"

struct flat {
    size_t width, height;
    int format;
    unsigned channels;
};
struct old_flat {
    unsigned width, height;
    int format;
    unsigned channels;
};
struct deep {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
struct old_deep {
    unsigned width, height, depth;
    int format;
    unsigned channels, flags;
};

enum {
    MOST = 4096,
    UINT8 = 1,
    UINT16 = 2,
    HALF = 16,
    FLOAT = 32,
    LAYERED = 1,
    SURFACE = 2,
    CUBEMAP = 4,
    SPARSE = 0x40,
    DEFERRED = 0x80,
    BROKEN = 77
};

typedef void *Array;

static struct {
    CUresult (*flat)(Array *, const struct flat *);
    CUresult (*old_flat)(Array *, const struct old_flat *);
    CUresult (*deep)(Array *, const struct deep *);
    CUresult (*old_deep)(Array *, const struct old_deep *);
    CUresult (*mipmapped)(Array *, const struct deep *, unsigned levels);
    CUresult (*level)(Array *, Array, unsigned level);
    CUresult (*destroy)(Array);
    CUresult (*destroy_mipmapped)(Array);
} make;

static int bounded;

static const struct deep forms[] = {
    {1000, 2000, 0, FLOAT, 4, 0},      {4096, 4097, 0, UINT8, 1, SURFACE},
    {16384, 129, 0, HALF, 2, 0},       {333, 444, 55, UINT16, 1, 0},
    {1, 65536, 0, UINT8, 1, 0},        {512, 512, 7, FLOAT, 1, LAYERED},
    {400, 400, 6, FLOAT, 2, CUBEMAP},  {130, 130, 12, FLOAT, 4, 5},
    {3000, 0, 100, FLOAT, 4, LAYERED}, {2000, 1000, 0, FLOAT, 1, 0},
    {65, 9, 513, FLOAT, 4, 0},         {131072, 1, 0, FLOAT, 4, 0},
};
enum { FORMS = sizeof forms / sizeof *forms };

/* Requires that the memory shown is the driver's. If the driver does not report sizes of arrays,
 * at least that. */
static void agree(void) {
    size_t ledger_says = shown(), driver_says = truth();
    if (ledger_says < driver_says || (!bounded && ledger_says > driver_says))
        FAIL("the ledger has %zu, the driver %zu", ledger_says, driver_says);
}

static CUresult make_one(Array *array, size_t number) {
    const struct deep *form = &forms[number % FORMS];
    struct flat flat = {form->width, form->height, form->format, form->channels};
    struct old_flat old_flat = {(unsigned)form->width, (unsigned)form->height, form->format,
                                form->channels};
    struct old_deep old_deep = {(unsigned)form->width, (unsigned)form->height,
                                (unsigned)form->depth, form->format,
                                form->channels,        form->flags};
    switch (number / FORMS % 4) {
    case 0: return make.deep(array, form);
    case 1: return make.old_deep(array, &old_deep);
    case 2: return form->depth || form->flags ? make.deep(array, form) : make.flat(array, &flat);
    default:
        return form->depth || form->flags ? make.old_deep(array, &old_deep)
                                          : make.old_flat(array, &old_flat);
    }
}

/* Creates arrays until none fits. Then a smaller one may fit, and no larger one. */
static void fill(void) {
    Array arrays[MOST];
    size_t count = 0;
    CUresult result = CUDA_SUCCESS;
    while (count < MOST && result == CUDA_SUCCESS) {
        result = make_one(&arrays[count], count);
        count += result == CUDA_SUCCESS;
        agree();
    }
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, result);
    HOLDS(count > FORMS);
    for (size_t i = 0; i < count; i += 2) {
        CHECK(make.destroy(arrays[i]));
        agree();
    }
    HOLDS(make.destroy(arrays[0]) != CUDA_SUCCESS);
    agree();
    CHECK(make_one(&arrays[0], 0));
    agree();
    CHECK(make.destroy(arrays[0]));
    for (size_t i = 1; i < count; i += 2) CHECK(make.destroy(arrays[i]));
    TAKEN(0);
}

static void levels(void) {
    Array array, level, again;
    struct deep form = {2048, 2048, 0, FLOAT, 4, 0};
    CHECK(make.deep(&array, &form));
    size_t plain = truth();
    CHECK(make.destroy(array));
    CHECK(make.mipmapped(&array, &form, 12));
    agree();
    HOLDS(truth() > plain && truth() < 2 * plain);
    CHECK(make.level(&level, array, 3));
    CHECK(make.level(&again, array, 3));
    agree();
    HOLDS(make.destroy(level) != CUDA_SUCCESS); /* a level belongs to its mipmapped array */
    agree();
    CHECK(make.destroy_mipmapped(array));
    TAKEN(0);
    for (unsigned count = 0; count < 14; count++) { /* 0 counts as 1, and too many levels as all */
        CHECK(make.mipmapped(&array, &form, count));
        agree();
        CHECK(make.destroy_mipmapped(array));
    }
    TAKEN(0);
}

/* Arrays with deferred mapping have no memory. */
static void without_memory(void) {
    struct deep form = {4096, 4096, 0, FLOAT, 4, DEFERRED};
    Array array;
    if (make.deep(&array, &form) == CUDA_SUCCESS) {
        TAKEN(0);
        CHECK(make.destroy(array));
    }
    form.flags = SPARSE;
    if (make.deep(&array, &form) == CUDA_SUCCESS) {
        TAKEN(0);
        CHECK(make.destroy(array));
    }
    TAKEN(0);
}

static void errors(void) {
    struct flat flat = {1000, 1000, BROKEN, 4};
    struct deep deep = {0, 10, 0, FLOAT, 4, 0};
    Array array;
    HOLDS(make.flat(&array, &flat) != CUDA_SUCCESS);
    HOLDS(make.flat(&array, NULL) != CUDA_SUCCESS);
    HOLDS(make.deep(&array, &deep) != CUDA_SUCCESS);
    HOLDS(make.destroy(NULL) != CUDA_SUCCESS);
    HOLDS(make.destroy_mipmapped((Array)(uintptr_t)0x1230) != CUDA_SUCCESS);
    TAKEN(0);
}

/* A context frees all of its arrays. */
static void contexts(CUcontext primary) {
    struct deep form = {1024, 1024, 0, FLOAT, 4, 0};
    CUcontext context;
    Array array;
    for (int round = 0; round < 3; round++) {
        CHECK(cu.cuCtxCreate(&context, 0, 0));
        for (size_t i = 0; i < 6; i++) CHECK(make_one(&array, i));
        CHECK(make.mipmapped(&array, &form, 3));
        CHECK(cu.cuCtxDestroy(context));
        CHECK(cu.cuCtxSetCurrent(primary));
        TAKEN(0);
    }
}

int main(int argc, char **argv) {
    CUcontext primary;
    bounded = argc > 1 && strcmp(argv[1], "bounded") == 0;
    watchdog(100);
    primary = driver_open();
    ledger_open();
    *(void **)&make.flat = driver_symbol("cuArrayCreate_v2");
    *(void **)&make.old_flat = driver_symbol("cuArrayCreate");
    *(void **)&make.deep = driver_symbol("cuArray3DCreate_v2");
    *(void **)&make.old_deep = driver_symbol("cuArray3DCreate");
    *(void **)&make.mipmapped = driver_symbol("cuMipmappedArrayCreate");
    *(void **)&make.level = driver_symbol("cuMipmappedArrayGetLevel");
    *(void **)&make.destroy = driver_symbol("cuArrayDestroy");
    *(void **)&make.destroy_mipmapped = driver_symbol("cuMipmappedArrayDestroy");
    errors();
    fill();
    levels();
    without_memory();
    contexts(primary);
    fill();
    return 0;
}
