/* SPDX-License-Identifier: Apache-2.0
 *
 * bound - checks that memory bound to a multicast object or to a logical endpoint (the first
 * argument: multicast or endpoint) is charged to its maker until its handle, its mapping and its
 * binding are gone, in any order. After each step the ledger agrees with the driver. Then the same
 * with an object that is exported: what is still bound when the object is released here stays
 * charged. Prints what stayed charged. Needs two GPUs with such objects.
 */
#include "objects.h"
#include "two_gpus.h"

#define PIECE (4 * MIB)

enum { MULTICAST = 2, BY_FABRIC = 1, FABRIC = 8 };

static int is_endpoint;

/* Functions of both kinds of objects. */
static struct {
    CUresult (*create)(uint64_t *, const struct team *);
    CUresult (*add)(uint64_t, CUdevice);
    CUresult (*bind)(uint64_t, CUdevice, size_t, uint64_t, size_t, size_t, uint64_t);
    CUresult (*bind_plain)(uint64_t, size_t, uint64_t, size_t, size_t, uint64_t);
    CUresult (*bind_address)(uint64_t, CUdevice, size_t, CUdeviceptr, size_t, uint64_t);
    CUresult (*unbind)(uint64_t, CUdevice, size_t, size_t);
    CUresult (*hand_out)(void *, uint64_t, int, uint64_t);
} team;

static struct {
    CUresult (*reserve)(unsigned *, unsigned);
    CUresult (*release)(unsigned, unsigned);
    CUresult (*create)(unsigned, const struct endpoint *);
    CUresult (*add)(unsigned, CUdevice);
    CUresult (*query)(unsigned, unsigned, int *);
    CUresult (*destroy)(unsigned);
    CUresult (*bind)(unsigned, CUdevice, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
    CUresult (*bind_address)(unsigned, CUdevice, uint64_t, void *, uint64_t, uint64_t);
    CUresult (*unbind)(unsigned, CUdevice, uint64_t, uint64_t);
    CUresult (*hand_out)(void *, unsigned, int);
} endpoint;

static void look_up(void) {
    if (is_endpoint) {
        *(void **)&endpoint.reserve = driver_symbol("cuLogicalEndpointIdReserve");
        *(void **)&endpoint.release = driver_symbol("cuLogicalEndpointIdRelease");
        *(void **)&endpoint.create = driver_symbol("cuLogicalEndpointCreate");
        *(void **)&endpoint.add = driver_symbol("cuLogicalEndpointAddDevice");
        *(void **)&endpoint.query = driver_symbol("cuLogicalEndpointQuery");
        *(void **)&endpoint.destroy = driver_symbol("cuLogicalEndpointDestroy");
        *(void **)&endpoint.bind = driver_symbol("cuLogicalEndpointBindMem");
        *(void **)&endpoint.bind_address = driver_symbol("cuLogicalEndpointBindAddr");
        *(void **)&endpoint.unbind = driver_symbol("cuLogicalEndpointUnbind");
        *(void **)&endpoint.hand_out = driver_symbol("cuLogicalEndpointExport");
        return;
    }
    *(void **)&team.create = driver_symbol("cuMulticastCreate");
    *(void **)&team.add = driver_symbol("cuMulticastAddDevice");
    *(void **)&team.bind = driver_symbol("cuMulticastBindMem_v2");
    *(void **)&team.bind_plain = driver_symbol("cuMulticastBindMem");
    *(void **)&team.bind_address = driver_symbol("cuMulticastBindAddr_v2");
    *(void **)&team.unbind = driver_symbol("cuMulticastUnbind");
    *(void **)&team.hand_out = driver_symbol("cuMemExportToShareableHandle");
}

/* Exportable memory must be requested as such. */
static int sendable(void) { return is_endpoint ? FABRIC : DESCRIPTOR; }

/* Creates an object of both GPUs with this size. If shared, it is exported but not imported. */
static uint64_t object_of_both(size_t room, int is_shared) {
    char bytes[64];
    uint64_t object;
    if (is_endpoint) {
        struct endpoint wanted = {MULTICAST, 2, room, is_shared ? BY_FABRIC : 0, 0};
        unsigned id;
        int ready;
        CHECK(endpoint.reserve(&id, 1));
        CHECK(endpoint.create(id, &wanted));
        for (CUdevice device = 0; device < 2; device++) CHECK(endpoint.add(id, device));
        CHECK(endpoint.query(id, 1, &ready));
        HOLDS(ready);
        if (is_shared) CHECK(endpoint.hand_out(bytes, id, BY_FABRIC));
        return id;
    }
    struct team wanted = {2, room, is_shared ? DESCRIPTOR : 0, 0};
    CHECK(team.create(&object, &wanted));
    for (CUdevice device = 0; device < 2; device++) CHECK(team.add(object, device));
    if (is_shared) {
        int descriptor;
        CHECK(team.hand_out(&descriptor, object, DESCRIPTOR, 0));
        HOLDS(close(descriptor) == 0);
    }
    return object;
}

static CUresult bind(uint64_t object, CUdevice device, size_t at, uint64_t handle, size_t from,
                     size_t bytes) {
    if (is_endpoint) return endpoint.bind(object, device, at, handle, from, bytes, 0);
    return team.bind(object, device, at, handle, from, bytes, 0);
}

static CUresult bind_address(uint64_t object, CUdevice device, size_t at, CUdeviceptr address,
                             size_t bytes) {
    if (is_endpoint)
        return endpoint.bind_address(object, device, at, (void *)(uintptr_t)address, bytes, 0);
    return team.bind_address(object, device, at, address, bytes, 0);
}

static CUresult unbind(uint64_t object, CUdevice device, size_t at, size_t bytes) {
    return is_endpoint ? endpoint.unbind(object, device, at, bytes)
                       : team.unbind(object, device, at, bytes);
}

static void let_go(uint64_t object) {
    if (!is_endpoint) {
        CHECK(vm.release(object));
        return;
    }
    CHECK(endpoint.destroy(object));
    CHECK(endpoint.release(object, 1));
}

static size_t kept; /* charged on the first GPU so far */

static void agree(CUdevice device, size_t bytes, const char *when) {
    taken_of_both(device ? 0 : bytes, device ? bytes : 0, kept, when);
}

/* Binds one piece and releases its parts in an order: h its handle, u its mapping, b the
 * binding, o the object's handle, w the object's mapping. */
static void run_order(const char *order, int is_shared) {
    static unsigned plays;
    CUdevice device = is_shared ? 0 : plays++ % 2;
    uint64_t object = object_of_both(PIECE, is_shared),
             handle = physical_on(device, PIECE, is_shared ? sendable() : 0);
    CUdeviceptr own = mapped_for(device, handle, PIECE), window = 0;
    int has_handle = 1, is_mapped = 1, is_bound = 1, has_object = 1,
        has_window = strchr(order, 'w') != NULL;
    int is_limited = ledger.shown != ledger.had,
        goes_on = 0; /* the object is exported, and its end is not reported */
    if (has_window) window = mapped_for(device, object, PIECE);
    agree(device, PIECE, order);
    CHECK(plays / 2 % 2 ? bind(object, device, 0, handle, 0, PIECE)
                        : bind_address(object, device, 0, own, PIECE));
    HOLDS(bind(object, device, 0, handle, 0, PIECE) !=
          CUDA_SUCCESS); /* what was refused must hold no reference */
    agree(device, PIECE, order);
    for (const char *step = order; *step; step++) {
        switch (*step) {
        case 'h':
            CHECK(vm.release(handle));
            has_handle = 0;
            break;
        case 'u':
            unmapped(own, PIECE);
            is_mapped = 0;
            break;
        case 'w':
            unmapped(window, PIECE);
            has_window = 0;
            break;
        case 'o':
            let_go(object);
            has_object = 0;
            break;
        case 'b':
            if (!has_object) {
                HOLDS(unbind(object, device, 0, PIECE) != CUDA_SUCCESS);
                break;
            }
            CHECK(unbind(object, device, 0, PIECE));
            is_bound = 0;
        }
        if (!has_object && !has_window && is_bound) {
            is_bound = 0;
            goes_on = is_shared && !is_endpoint && is_limited;
        }
        int is_here = has_handle || is_mapped || is_bound;
        if (!is_here && goes_on) {
            kept += PIECE;
            goes_on = 0;
        }
        agree(device, is_here ? PIECE : 0, order);
    }
}

/* Runs every order of the parts. */
static void permute(char *order, size_t from, int is_shared) {
    if (!order[from]) {
        if (!is_shared || is_endpoint || strchr(order, 'b') < strchr(order, 'o'))
            run_order(order, is_shared);
        return;
    }
    for (size_t place = from; order[place]; place++) {
        char first = order[from];
        order[from] = order[place], order[place] = first;
        permute(order, from + 1, is_shared);
        order[place] = order[from], order[from] = first;
    }
}

/* Two parts of one piece, and two pieces in one object. */
static void parts(void) {
    uint64_t object = object_of_both(4 * PIECE, 0), first = physical_on(0, 2 * PIECE, 0),
             second = physical_on(1, PIECE, 0);
    CHECK(bind(object, 0, 0, first, PIECE, PIECE));
    CHECK(bind(object, 0, PIECE, first, 0, PIECE));
    if (is_endpoint)
        CHECK(bind(object, 1, 0, second, 0, PIECE));
    else
        CHECK(team.bind_plain(object, 0, second, 0, PIECE, 0));
    CHECK(vm.release(first));
    CHECK(vm.release(second));
    taken_of_both(2 * PIECE, PIECE, 0, "bound in parts");
    CHECK(unbind(object, 0, 0, PIECE));
    taken_of_both(2 * PIECE, PIECE, 0, "half unbound");
    CHECK(unbind(object, 1, 0, PIECE));
    taken_of_both(2 * PIECE, 0, 0, "the other GPU unbound");
    CHECK(unbind(object, 0, PIECE, PIECE));
    taken_of_both(0, 0, 0, "unbound");
    for (int i = 0; i < 4; i++) {
        uint64_t piece = physical_on(i % 2, PIECE, 0);
        CHECK(bind(object, i % 2, i * PIECE, piece, 0, PIECE));
        CHECK(vm.release(piece));
    }
    taken_of_both(2 * PIECE, 2 * PIECE, 0, "four pieces");
    CHECK(unbind(object, 0, 0, 4 * PIECE));
    taken_of_both(0, 2 * PIECE, 0, "one GPU's at once");
    let_go(object);
    taken_of_both(0, 0, 0, "the object is gone");
}

/* With full memory: objects take nothing, and unbound memory can be allocated again. */
static void full(void) {
    uint64_t object = object_of_both(PIECE, 0), handle = physical_on(0, PIECE, 0), more;
    CUdeviceptr rest;
    CHECK(bind(object, 0, 0, handle, 0, PIECE));
    CHECK(vm.release(handle));
    CHECK(cu.cuMemAlloc(&rest, free_shown() / GRANULE * GRANULE));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, vm.create(&more, PIECE, &on_the_gpu, 0));
    uint64_t another = object_of_both(PIECE, 0);
    CHECK(unbind(object, 0, 0, PIECE));
    CHECK(vm.create(&more, PIECE, &on_the_gpu, 0));
    CHECK(bind(another, 0, 0, more, 0, PIECE));
    CHECK(vm.release(more));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, vm.create(&more, PIECE, &on_the_gpu, 0));
    CHECK(cu.cuMemFree(rest));
    taken_of_both(PIECE, 0, 0, "full");
    let_go(object);
    let_go(another);
    taken_of_both(0, 0, 0, "full, and empty again");
}

int main(int count, char **arguments) {
    watchdog(60);
    if (count < 2) return 2;
    is_endpoint = arguments[1][0] == 'e';
    gpus_open();
    look_up();
    char order[] = "hubow", shorter[] = "hubo";
    permute(is_endpoint ? shorter : order, 0, 0);
    parts();
    full();
    permute(is_endpoint ? shorter : order, 0, 1);
    if (!is_endpoint) run_order("ohwu", 1); /* stays charged */
    printf("{\"kept\": %zu}\n", kept);
    return 0;
}
