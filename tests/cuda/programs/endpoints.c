/* SPDX-License-Identifier: Apache-2.0
 *
 * endpoints [watched] - checks logical endpoints of one and of two GPUs, and fabric handles, in one
 * process and between two: refusals, what keeps bound memory, and the ledgers of the GPUs. Needs
 * two GPUs with endpoints. Prints only one JSON object.
 *
 * For a driver without a shim, or, with "watched", one with a monitor.
 */
#include "objects.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

struct handle {
    char bytes[64];
};

enum { DEVICE = 1, PINNED = 1, READ_WRITE = 3, DESCRIPTOR = 1, FABRIC = 8 };
enum { UNICAST = 1, MULTICAST = 2, BY_FABRIC = 1, COUNTED = 1 };
enum {
    FABRIC_SUPPORTED = 128,
    UNICAST_SUPPORTED = 153,
    MULTICAST_SUPPORTED = 154,
    HANDLE_TYPES = 158
};

static int line; /* to the other process */

static struct {
    CUresult (*reserve)(unsigned *, unsigned);
    CUresult (*release)(unsigned, unsigned);
    CUresult (*create)(unsigned, const struct endpoint *);
    CUresult (*add)(unsigned, CUdevice);
    CUresult (*destroy)(unsigned);
    CUresult (*bind_address)(unsigned, CUdevice, uint64_t, void *, uint64_t, uint64_t);
    CUresult (*bind)(unsigned, CUdevice, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
    CUresult (*unbind)(unsigned, CUdevice, uint64_t, uint64_t);
    CUresult (*export_to)(void *, unsigned, int);
    CUresult (*import)(unsigned, const void *, int);
    CUresult (*limits)(uint64_t *, uint64_t *, const struct endpoint *);
    CUresult (*query)(unsigned, unsigned, int *);
} endpoint;

static struct {
    CUresult (*create)(uint64_t *, size_t, const struct allocation *, uint64_t);
    CUresult (*release)(uint64_t);
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t);
    CUresult (*map)(CUdeviceptr, size_t, size_t, uint64_t, uint64_t);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*set_access)(CUdeviceptr, size_t, const struct access *, size_t);
    CUresult (*export_to)(void *, uint64_t, int, uint64_t);
    CUresult (*import)(uint64_t *, void *, int);
    CUresult (*properties)(struct allocation *, uint64_t);
} memory;

static void look_up(void) {
    *(void **)&endpoint.reserve = driver_symbol("cuLogicalEndpointIdReserve");
    *(void **)&endpoint.release = driver_symbol("cuLogicalEndpointIdRelease");
    *(void **)&endpoint.create = driver_symbol("cuLogicalEndpointCreate");
    *(void **)&endpoint.add = driver_symbol("cuLogicalEndpointAddDevice");
    *(void **)&endpoint.destroy = driver_symbol("cuLogicalEndpointDestroy");
    *(void **)&endpoint.bind_address = driver_symbol("cuLogicalEndpointBindAddr");
    *(void **)&endpoint.bind = driver_symbol("cuLogicalEndpointBindMem");
    *(void **)&endpoint.unbind = driver_symbol("cuLogicalEndpointUnbind");
    *(void **)&endpoint.export_to = driver_symbol("cuLogicalEndpointExport");
    *(void **)&endpoint.import = driver_symbol("cuLogicalEndpointImport");
    *(void **)&endpoint.limits = driver_symbol("cuLogicalEndpointGetLimits");
    *(void **)&endpoint.query = driver_symbol("cuLogicalEndpointQuery");
    *(void **)&memory.create = driver_symbol("cuMemCreate");
    *(void **)&memory.release = driver_symbol("cuMemRelease");
    *(void **)&memory.reserve = driver_symbol("cuMemAddressReserve");
    *(void **)&memory.map = driver_symbol("cuMemMap");
    *(void **)&memory.unmap = driver_symbol("cuMemUnmap");
    *(void **)&memory.set_access = driver_symbol("cuMemSetAccess");
    *(void **)&memory.export_to = driver_symbol("cuMemExportToShareableHandle");
    *(void **)&memory.import = driver_symbol("cuMemImportFromShareableHandle");
    *(void **)&memory.properties = driver_symbol("cuMemGetAllocationPropertiesFromHandle");
}

static void send_bytes(const void *bytes, size_t count) {
    HOLDS(write(line, bytes, count) == (ssize_t)count);
}

static void receive_bytes(void *bytes, size_t count) {
    HOLDS(recv(line, bytes, count, MSG_WAITALL) == (ssize_t)count);
}

static void send_byte(char word) { send_bytes(&word, 1); }

static void expect_byte(char word) {
    char heard;
    receive_bytes(&heard, 1);
    HOLDS(heard == word);
}

static uint64_t physical_on(CUdevice device, size_t bytes, int handle_types) {
    struct allocation wanted = {
        .kind = PINNED, .handle_types = handle_types, .location = {DEVICE, device}};
    uint64_t handle;
    CHECK(memory.create(&handle, bytes, &wanted, 0));
    return handle;
}

static CUdeviceptr mapped(uint64_t handle, size_t bytes) {
    struct access access = {{DEVICE, 0}, READ_WRITE};
    CUdeviceptr address;
    CHECK(memory.reserve(&address, bytes, 0, 0, 0));
    CHECK(memory.map(address, bytes, 0, handle, 0));
    CHECK(memory.set_access(address, bytes, &access, 1));
    return address;
}

static uint32_t word_at(CUdeviceptr address) {
    uint32_t word = 0;
    CHECK(cu.cuMemcpyDtoH(&word, address, sizeof word));
    return word;
}

static size_t free_bytes(void) {
    size_t available;
    CHECK(cu.cuMemGetInfo(&available, NULL));
    return available;
}

static void alone(void) {
    struct endpoint wanted = {UNICAST, 0, 4 * MIB, 0, 0}, wrong;
    uint64_t alignment, most, first = physical_on(0, 4 * MIB, 0),
                              second = physical_on(1, 4 * MIB, 0);
    size_t before = free_bytes();
    unsigned ids, others;
    int ready;
    struct handle handle;

    CHECK(endpoint.limits(&alignment, &most, &wanted));
    HOLDS(alignment == 2 * MIB && most > 4 * MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.reserve(&ids, 0));
    CHECK(endpoint.reserve(&ids, 3));
    CHECK(endpoint.reserve(&others, 1));
    HOLDS(others < ids || others >= ids + 3);
    CHECK(endpoint.release(others, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.release(others, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.create(others, &wanted)); /* not reserved */
    for (int what = 0; what < 6; what++) {
        wrong = wanted;
        if (what == 0) wrong.kind = 0;
        if (what == 1) wrong.size = 0;
        if (what == 2) wrong.size = MIB;
        if (what == 3) wrong.size = most + 2 * MIB;
        if (what == 4) wrong.handle_types = 2;
        if (what == 5) wrong = (struct endpoint){MULTICAST, 17, 4 * MIB, 0, 0};
        EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.create(ids, &wrong));
    }
    wrong = wanted;
    wrong.device_or_devices = 9;
    EXPECT(CUDA_ERROR_INVALID_DEVICE, endpoint.create(ids, &wrong));
    wrong = wanted;
    wrong.flags = COUNTED;
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, endpoint.create(ids, &wrong)); /* attribute 155 is 0 */

    /* One GPU. */
    CHECK(endpoint.create(ids, &wanted));
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.create(ids, &wanted));
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.add(ids, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           endpoint.bind(ids, 0, 0, first, 0, 4 * MIB, 0));           /* not queried yet */
    /* the second number has no endpoint */
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.query(ids, 2, &ready));
    CHECK(endpoint.query(ids, 1, &ready));
    HOLDS(ready);
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.bind(ids, 0, MIB, first, 0, 2 * MIB, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.bind(ids, 0, 2 * MIB, first, 0, 4 * MIB, 0));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, endpoint.bind(ids, 1, 0, second, 0, 4 * MIB, 0));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, endpoint.bind(ids, 0, 0, second, 0, 4 * MIB, 0));
    CHECK(endpoint.bind(ids, 0, 0, first, 0, 2 * MIB, 0));
    CUdeviceptr address = mapped(first, 4 * MIB);
    CHECK(
        endpoint.bind_address(ids, 0, 2 * MIB, (void *)(uintptr_t)(address + 2 * MIB), 2 * MIB, 0));
    /* already bound */
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.bind(ids, 0, 0, first, 0, 2 * MIB, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           endpoint.export_to(&handle, ids, BY_FABRIC)); /* not requested at creation */
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.unbind(ids, 0, 0, MIB));
    CHECK(endpoint.unbind(ids, 0, 0, 4 * MIB)); /* unbinds both */
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.unbind(ids, 0, 0, 4 * MIB));
    CHECK(endpoint.bind(ids, 0, 0, first, 0, 4 * MIB, 0));
    CHECK(memory.unmap(address, 4 * MIB));
    CHECK(memory.release(first));
    HOLDS(free_bytes() == before);                              /* bound */
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.release(ids, 3)); /* still has an endpoint */

    /* Two GPUs. */
    wanted = (struct endpoint){MULTICAST, 2, 4 * MIB, 0, 0};
    CHECK(endpoint.create(ids + 1, &wanted));
    CHECK(endpoint.query(ids, 2, &ready));
    HOLDS(!ready);
    CHECK(endpoint.add(ids + 1, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.add(ids + 1, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.bind(ids + 1, 1, 0, second, 0, 4 * MIB, 0));
    CHECK(endpoint.add(ids + 1, 1));
    CHECK(endpoint.query(ids, 2, &ready));
    HOLDS(ready);
    CHECK(endpoint.bind(ids + 1, 1, 0, second, 0, 4 * MIB, 0));
    CHECK(endpoint.destroy(ids + 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.destroy(ids + 1));
    CHECK(endpoint.destroy(ids));
    HOLDS(free_bytes() == before + 4 * MIB);
    CHECK(endpoint.release(ids, 3));
    CHECK(memory.release(second));
}

/* Creates an endpoint and memory, which the other process imports. */
static void maker(pid_t other) {
    struct endpoint wanted = {UNICAST, 0, 4 * MIB, BY_FABRIC, 0};
    struct allocation properties;
    size_t before = free_bytes();
    uint64_t physical = physical_on(0, 4 * MIB, FABRIC),
             plain = physical_on(0, 2 * MIB, DESCRIPTOR);
    unsigned id;
    int ready, status, descriptor;
    struct handle handle;

    /* A fabric handle, and no descriptor. */
    EXPECT(CUDA_ERROR_INVALID_VALUE, memory.export_to(&descriptor, physical, DESCRIPTOR, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, memory.export_to(&handle, plain, FABRIC, 0));
    CHECK(memory.release(plain));
    CHECK(memory.properties(&properties, physical));
    HOLDS(properties.handle_types == FABRIC);
    CHECK(memory.export_to(&handle, physical, FABRIC, 0));
    send_bytes(&handle, sizeof handle);
    expect_byte('M');

    CHECK(endpoint.reserve(&id, 1));
    CHECK(endpoint.create(id, &wanted));
    CHECK(endpoint.query(id, 1, &ready));
    plain = physical_on(0, 2 * MIB, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           endpoint.bind(id, 0, 0, plain, 0, 2 * MIB, 0)); /* not exportable */
    CHECK(memory.release(plain));
    CHECK(endpoint.bind(id, 0, 0, physical, 0, 4 * MIB, 0));
    CHECK(endpoint.export_to(&handle, id, BY_FABRIC));
    send_bytes(&handle, sizeof handle);
    expect_byte('E');
    CUdeviceptr address = mapped(physical, 4 * MIB);
    HOLDS(word_at(address) == 0x21);
    CHECK(memory.unmap(address, 4 * MIB));
    CHECK(memory.release(physical));
    HOLDS(free_bytes() == before - 4 * MIB);
    CHECK(endpoint.destroy(
        id)); /* what this process bound is released, although the other one has the endpoint */
    COMES_TRUE(free_bytes() == before);
    send_byte('D');
    HOLDS(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(endpoint.release(id, 1));
}

static void importer(void) {
    uint64_t physical, again;
    unsigned id;
    int ready;
    struct handle handle, nonsense;

    receive_bytes(&handle, sizeof handle);
    memset(&nonsense, 0x5a, sizeof nonsense);
    EXPECT(CUDA_ERROR_INVALID_VALUE, memory.import(&physical, &nonsense, FABRIC));
    CHECK(memory.import(&physical, &handle, FABRIC));
    CUdeviceptr address = mapped(physical, 4 * MIB);
    CHECK(cu.cuMemsetD32(address, 0x21, 1));
    CHECK(cu.cuCtxSynchronize());
    CHECK(memory.unmap(address, 4 * MIB));
    CHECK(memory.release(physical));
    send_byte('M');

    receive_bytes(&nonsense, sizeof nonsense);
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.import(7, &nonsense, BY_FABRIC)); /* not reserved */
    CHECK(endpoint.reserve(&id, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.import(id, &handle, BY_FABRIC)); /* memory */
    EXPECT(CUDA_ERROR_INVALID_VALUE, endpoint.import(id, &nonsense, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, memory.import(&again, &nonsense, FABRIC)); /* an endpoint */
    CHECK(endpoint.import(id, &nonsense, BY_FABRIC));
    CHECK(endpoint.query(id, 1, &ready));
    HOLDS(ready);
    physical = physical_on(0, 2 * MIB, FABRIC);
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           endpoint.bind(id, 0, 0, physical, 0, 2 * MIB, 0)); /* only the maker may bind */
    CHECK(memory.release(physical));
    send_byte('E');
    expect_byte('D');
    /* no process has it any more */
    EXPECT(CUDA_ERROR_INVALID_VALUE, memory.import(&physical, &handle, FABRIC));
    CHECK(endpoint.destroy(id));
    CHECK(endpoint.release(id, 1));
}

int main(int count, char **arguments) {
    CUresult (*attribute)(int *, int, CUdevice);
    int lines[2], number;
    watchdog(100);
    watched_by(count, arguments);
    HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, lines) == 0);
    pid_t other = fork();
    HOLDS(other >= 0);
    line = lines[other == 0];
    close(lines[other != 0]);
    watchdog(100);
    driver_load();
    driver_open();
    look_up();
    *(void **)&attribute = driver_symbol("cuDeviceGetAttribute");
    static const int needed[] = {FABRIC_SUPPORTED, UNICAST_SUPPORTED, MULTICAST_SUPPORTED,
                                 HANDLE_TYPES};
    for (int i = 0; i < 8; i++) {
        CHECK(attribute(&number, needed[i / 2], i % 2));
        HOLDS(number == 1);
    }
    if (other == 0) {
        send_byte('I');
        importer();
    } else {
        expect_byte('I'); /* the other process has its context */
        alone();
        maker(other);
        printf("{\"endpoints\": true}\n");
    }
    return 0;
}
