/* SPDX-License-Identifier: Apache-2.0
 *
 * multicast [watched] - checks multicast objects, by which one write reaches the memory of several
 * GPUs: teams in one process and of two, bindings, lifetimes, and the ledgers of the GPUs. Needs
 * two GPUs with a switch. Prints only one JSON object.
 *
 * For a driver without a shim, or, with "watched", one with a monitor.
 */
#include "descriptors.h"
#include "objects.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

enum {
    DEVICE = 1,
    PINNED = 1,
    READ_WRITE = 3,
    DESCRIPTOR = 1,
    MINIMUM = 0,
    RECOMMENDED = 1,
    MULTICAST_SUPPORTED = 132
};

static int line; /* to the other process */

static struct {
    CUresult (*create)(uint64_t *, const struct team *);
    CUresult (*add)(uint64_t, CUdevice);
    CUresult (*bind)(uint64_t, size_t, uint64_t, size_t, size_t, uint64_t);
    CUresult (*bind_on)(uint64_t, CUdevice, size_t, uint64_t, size_t, size_t, uint64_t);
    CUresult (*bind_address)(uint64_t, size_t, CUdeviceptr, size_t, uint64_t);
    CUresult (*bind_address_on)(uint64_t, CUdevice, size_t, CUdeviceptr, size_t, uint64_t);
    CUresult (*unbind)(uint64_t, CUdevice, size_t, size_t);
    CUresult (*granularity)(size_t *, const struct team *, int);
} multicast;

static struct {
    CUresult (*create)(uint64_t *, size_t, const struct allocation *, uint64_t);
    CUresult (*release)(uint64_t);
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t);
    CUresult (*map)(CUdeviceptr, size_t, size_t, uint64_t, uint64_t);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*set_access)(CUdeviceptr, size_t, const struct access *, size_t);
    CUresult (*export_handle)(void *, uint64_t, int, uint64_t);
    CUresult (*import)(uint64_t *, void *, int);
    CUresult (*retain)(uint64_t *, CUdeviceptr);
    CUresult (*properties)(struct allocation *, uint64_t);
} memory;

static void look_up(void) {
    *(void **)&multicast.create = driver_symbol("cuMulticastCreate");
    *(void **)&multicast.add = driver_symbol("cuMulticastAddDevice");
    *(void **)&multicast.bind = driver_symbol("cuMulticastBindMem");
    *(void **)&multicast.bind_on = driver_symbol("cuMulticastBindMem_v2");
    *(void **)&multicast.bind_address = driver_symbol("cuMulticastBindAddr");
    *(void **)&multicast.bind_address_on = driver_symbol("cuMulticastBindAddr_v2");
    *(void **)&multicast.unbind = driver_symbol("cuMulticastUnbind");
    *(void **)&multicast.granularity = driver_symbol("cuMulticastGetGranularity");
    *(void **)&memory.create = driver_symbol("cuMemCreate");
    *(void **)&memory.release = driver_symbol("cuMemRelease");
    *(void **)&memory.reserve = driver_symbol("cuMemAddressReserve");
    *(void **)&memory.map = driver_symbol("cuMemMap");
    *(void **)&memory.unmap = driver_symbol("cuMemUnmap");
    *(void **)&memory.set_access = driver_symbol("cuMemSetAccess");
    *(void **)&memory.export_handle = driver_symbol("cuMemExportToShareableHandle");
    *(void **)&memory.import = driver_symbol("cuMemImportFromShareableHandle");
    *(void **)&memory.retain = driver_symbol("cuMemRetainAllocationHandle");
    *(void **)&memory.properties = driver_symbol("cuMemGetAllocationPropertiesFromHandle");
}

static uint64_t physical_on(CUdevice device, size_t bytes, int handle_types) {
    struct allocation wanted = {
        .kind = PINNED, .handle_types = handle_types, .location = {DEVICE, device}};
    uint64_t handle;
    CHECK(memory.create(&handle, bytes, &wanted, 0));
    return handle;
}

/* Maps a handle for access from one GPU. */
static CUdeviceptr mapped(uint64_t handle, size_t bytes, CUdevice device) {
    struct access access = {{DEVICE, device}, READ_WRITE};
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

static CUcontext contexts[2];

static size_t free_bytes(CUdevice device) {
    size_t available;
    CHECK(cu.cuCtxSetCurrent(contexts[device]));
    CHECK(cu.cuMemGetInfo(&available, NULL));
    CHECK(cu.cuCtxSetCurrent(contexts[0]));
    return available;
}

static void fill(CUdeviceptr address, uint32_t value, size_t words) {
    CHECK(cu.cuMemsetD32(address, value, words));
    CHECK(cu.cuCtxSynchronize());
}

/* Refused sizes, kinds and numbers. */
static void refusals(void) {
    struct team wanted = {2, 4 * MIB, 0, 0};
    uint64_t team, plain = physical_on(0, 4 * MIB, 0), shared = physical_on(0, 4 * MIB, DESCRIPTOR);
    struct allocation properties;
    CUdeviceptr linear;
    size_t granularity;
    int descriptor;

    CHECK(multicast.granularity(&granularity, &wanted, MINIMUM));
    HOLDS(granularity == 2 * MIB);
    CHECK(multicast.granularity(&granularity, &wanted, RECOMMENDED));
    HOLDS(granularity % (2 * MIB) == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.granularity(&granularity, &wanted, 2));
    for (int what = 0; what < 6; what++) {
        struct team wrong = wanted;
        if (what == 0) wrong.devices = 0;
        if (what == 1) wrong.devices = 17;
        if (what == 2) wrong.size = 0;
        if (what == 3) wrong.size += 4096;
        if (what == 4) wrong.flags = 1;
        if (what == 5) wrong.handle_types = 1 << 10;
        EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.create(&team, &wrong));
    }
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.create(NULL, &wanted));
    CHECK(multicast.create(&team, &wanted));

    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.add(plain, 0));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, multicast.add(team, 7));
    CHECK(multicast.add(team, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.add(team, 0));
    CHECK(multicast.add(team, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.add(team, 1));

    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.bind(plain, 0, plain, 0, 2 * MIB, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.bind(team, 0, team, 0, 2 * MIB, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.bind(team, 0, plain, 0, 0, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.bind(team, 0, plain, 0, MIB, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.bind(team, MIB, plain, 0, 2 * MIB, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.bind(team, 0, plain, MIB, 2 * MIB, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.bind(team, 0, plain, 0, 2 * MIB, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           multicast.bind(team, 2 * MIB, plain, 0, 4 * MIB, 0)); /* beyond the object */
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           multicast.bind(team, 0, plain, 2 * MIB, 4 * MIB, 0)); /* beyond the memory */
    EXPECT(CUDA_ERROR_INVALID_DEVICE,
           multicast.bind_on(team, 1, 0, plain, 0, 2 * MIB, 0)); /* another GPU's memory */
    EXPECT(CUDA_ERROR_INVALID_DEVICE, multicast.bind_on(team, 9, 0, plain, 0, 2 * MIB, 0));
    CHECK(cu.cuMemAlloc(&linear, 4 * MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           multicast.bind_address(team, 0, linear, 2 * MIB, 0)); /* without a handle or a pool */
    CHECK(cu.cuMemFree(linear));

    CHECK(multicast.bind(team, 0, plain, 2 * MIB, 2 * MIB, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           multicast.bind(team, 0, shared, 0, 2 * MIB, 0)); /* bound already */
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.bind(team, 0, shared, 0, 4 * MIB, 0));
    CHECK(multicast.bind(team, 2 * MIB, shared, 0, 2 * MIB, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           multicast.unbind(team, 1, 0, 2 * MIB)); /* that GPU has nothing bound */
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.unbind(team, 0, MIB, 2 * MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.unbind(plain, 0, 0, 2 * MIB));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, multicast.unbind(team, 7, 0, 2 * MIB));
    CHECK(multicast.unbind(team, 0, 0, 2 * MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.unbind(team, 0, 0, 2 * MIB));

    EXPECT(CUDA_ERROR_INVALID_VALUE, memory.export_handle(&descriptor, team, DESCRIPTOR, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, memory.properties(&properties, team)); /* not an allocation */
    CHECK(memory.release(team));
    EXPECT(CUDA_ERROR_INVALID_VALUE, memory.release(team));
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.add(team, 0));

    /* An exportable object accepts only exportable memory. */
    wanted.handle_types = DESCRIPTOR;
    CHECK(multicast.create(&team, &wanted));
    CHECK(multicast.add(team, 0));
    CHECK(multicast.add(team, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.bind(team, 0, plain, 0, 2 * MIB, 0));
    CHECK(multicast.bind(team, 0, shared, 0, 2 * MIB, 0));
    CHECK(memory.release(team));

    /* A team of one GPU accepts no memory of another. */
    wanted = (struct team){1, 2 * MIB, 0, 0};
    uint64_t other = physical_on(1, 2 * MIB, 0);
    CHECK(multicast.create(&team, &wanted));
    CHECK(multicast.add(team, 0));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, multicast.bind(team, 0, other, 0, 2 * MIB, 0));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, multicast.bind_on(team, 1, 0, other, 0, 2 * MIB, 0));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, multicast.unbind(team, 1, 0, 2 * MIB));
    CHECK(memory.release(team));
    CHECK(memory.release(other));
    CHECK(memory.release(plain));
    CHECK(memory.release(shared));
}

/* Both GPUs in one process. */
static void alone(void) {
    FUNCTION(free_async, cuMemFreeAsync, (CUdeviceptr, CUstream));
    FUNCTION(allocate_async, cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream));
    FUNCTION(pointer_attribute, cuPointerGetAttribute, (void *, int, CUdeviceptr));
    enum { MEMORY_TYPE = 2, ORDINAL = 9, OF_DEVICE = 2 };
    struct team wanted = {2, 8 * MIB, 0, 0};
    struct access both[] = {{{DEVICE, 0}, READ_WRITE}, {{DEVICE, 1}, READ_WRITE}},
                  none = {{DEVICE, 2}, READ_WRITE};
    size_t before[] = {free_bytes(0), free_bytes(1)};
    uint64_t team, again, first, second;
    CUdeviceptr window, own[2], pooled;
    uint32_t words[4] = {11, 12, 13, 14};
    int number;

    CHECK(multicast.create(&team, &wanted));
    CHECK(multicast.add(team, 1));
    CHECK(multicast.add(team, 0));
    HOLDS(free_bytes(0) == before[0] && free_bytes(1) == before[1]); /* takes no memory itself */

    /* Binding memory keeps its bytes and its mapping. */
    first = physical_on(0, 8 * MIB, 0);
    second = physical_on(1, 4 * MIB, 0);
    own[0] = mapped(first, 8 * MIB, 0);
    own[1] = mapped(second, 4 * MIB, 1);
    fill(own[0] + 4 * MIB, 0x41, 4);
    CHECK(multicast.bind(team, 0, first, 4 * MIB, 4 * MIB, 0));
    CHECK(multicast.bind_address_on(team, 1, 0, own[1], 4 * MIB, 0));
    HOLDS(word_at(own[0] + 4 * MIB) == 0x41);
    HOLDS(free_bytes(0) == before[0] - 8 * MIB && free_bytes(1) == before[1] - 4 * MIB);

    CHECK(memory.reserve(&window, 8 * MIB, 0, 0, 0));
    CHECK(memory.map(window, 8 * MIB, 0, team, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cu.cuMemsetD32(window, 1, 1)); /* no side has access yet */
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           memory.set_access(window, 8 * MIB, &none, 1)); /* not of the team */
    CHECK(memory.set_access(window, 8 * MIB, both, 2));
    CHECK(pointer_attribute(&number, MEMORY_TYPE, window + 5));
    HOLDS(number == OF_DEVICE);
    CHECK(pointer_attribute(&number, ORDINAL, window));
    HOLDS(number == 0);

    /* A read returns the first GPU's bytes. */
    HOLDS(word_at(window) == 0x41 && word_at(own[1]) == 0);
    CHECK(cu.cuMemcpyHtoD(window + 64, words, sizeof words));
    for (int i = 0; i < 4; i++) {
        HOLDS(word_at(own[0] + 4 * MIB + 64 + 4 * i) == words[i]);
        HOLDS(word_at(own[1] + 64 + 4 * i) == words[i]);
    }
    fill(window + 2 * MIB - 8, 0x77, 4); /* across a granule's end */
    HOLDS(word_at(own[0] + 6 * MIB) == 0x77 && word_at(own[1] + 2 * MIB + 4) == 0x77);
    HOLDS(word_at(own[1] + 2 * MIB + 8) == 0 && word_at(own[0]) == 0);
    fill(window, 0, MIB);
    HOLDS(word_at(own[0] + 4 * MIB + 64) == 0 && word_at(own[1] + 64) == 0);
    CHECK(cu.cuStreamWriteValue32(NULL, window + 128, 0x99, 0));
    CHECK(cu.cuStreamWaitValue32(NULL, own[1] + 128, 0x99, 1));
    CHECK(cu.cuStreamWaitValue32(NULL, window + 128, 0x99, 1));
    CHECK(cu.cuCtxSynchronize());
    HOLDS(word_at(own[0] + 4 * MIB + 128) == 0x99);

    /* Writes where only one GPU has memory, and where none has. */
    CHECK(allocate_async(&pooled, 2 * MIB, NULL));
    CHECK(cu.cuCtxSynchronize());
    fill(pooled, 0x31, 4);
    CHECK(multicast.bind_address(team, 6 * MIB, pooled, 2 * MIB, 0));
    HOLDS(word_at(pooled) == 0x31 && word_at(window + 6 * MIB) == 0x31);
    fill(window + 6 * MIB, 0x32, 4);
    HOLDS(word_at(pooled) == 0x32);
    fill(window + 4 * MIB, 0x33, 4);
    HOLDS(word_at(window + 4 * MIB) == 0);
    CHECK(multicast.unbind(team, 0, 6 * MIB, 2 * MIB));
    fill(window + 6 * MIB, 0x34, 4);
    HOLDS(word_at(pooled) == 0x32);
    CHECK(free_async(pooled, NULL));
    CHECK(cu.cuCtxSynchronize());

    /* Bound memory stays without its handle and mapping; the object stays while it is mapped. */
    CHECK(memory.unmap(own[1], 4 * MIB));
    CHECK(memory.release(second));
    HOLDS(free_bytes(1) == before[1] - 4 * MIB);
    CHECK(memory.release(team));
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.unbind(team, 1, 0, 4 * MIB));
    CHECK(memory.retain(&again, window));
    HOLDS(again == team);
    fill(window, 0x55, 4);
    HOLDS(word_at(own[0] + 4 * MIB) == 0x55);
    CHECK(multicast.unbind(team, 1, 0, 4 * MIB));
    HOLDS(free_bytes(1) == before[1]);
    CHECK(memory.release(team));
    CHECK(memory.unmap(own[0], 8 * MIB));
    CHECK(memory.release(first));
    HOLDS(free_bytes(0) == before[0] - 8 * MIB);
    HOLDS(word_at(window) == 0x55);
    CHECK(memory.unmap(window, 8 * MIB)); /* the object's end releases its bindings */
    HOLDS(free_bytes(0) == before[0]);
}

static void *add_late(void *team) {
    usleep(30000);
    CHECK(multicast.add(*(uint64_t *)team, 1));
    return NULL;
}

/* Binding and mapping need all GPUs to be added. */
static void late(void) {
    struct team wanted = {2, 2 * MIB, 0, 0};
    uint64_t team, physical = physical_on(0, 2 * MIB, 0);
    pthread_t thread;
    CHECK(multicast.create(&team, &wanted));
    CHECK(multicast.add(team, 0));
    HOLDS(pthread_create(&thread, NULL, add_late, &team) == 0);
    CHECK(multicast.bind(team, 0, physical, 0, 2 * MIB, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.add(team, 1)); /* was there before the binding */
    HOLDS(pthread_join(thread, NULL) == 0);
    CHECK(memory.release(physical));
    CHECK(memory.release(team));
}

static void send_byte(char word) { HOLDS(write(line, &word, 1) == 1); }

static void expect_byte(char word) {
    char heard;
    HOLDS(read(line, &heard, 1) == 1 && heard == word);
}

/* The second member of a team of two processes, with GPU 1; killed with the object and its
 * memory bound. */
static void second_member(void) {
    struct access access = {{DEVICE, 1}, READ_WRITE};
    CUdeviceptr window, own;
    uint64_t team, physical;
    int descriptor = receive_descriptor(line);
    CHECK(memory.import(&team, (void *)(intptr_t)descriptor, DESCRIPTOR));
    HOLDS(close(descriptor) == 0);
    CHECK(multicast.add(team, 1));
    physical = physical_on(1, 4 * MIB, DESCRIPTOR);
    CHECK(
        /* blocks until the other GPU is added */
        multicast.bind_on(team, 1, 0, physical, 0, 4 * MIB, 0));
    own = mapped(physical, 4 * MIB, 1);
    CHECK(memory.reserve(&window, 4 * MIB, 0, 0, 0));
    CHECK(memory.map(window, 4 * MIB, 0, team, 0));
    CHECK(memory.set_access(window, 4 * MIB, &access, 1));
    send_byte('B');
    expect_byte('W');
    HOLDS(word_at(own + 12) == 0x61);
    HOLDS(word_at(window + 12) == 0x61);
    fill(window + 2 * MIB, 0x62, 4);
    send_byte('R');
    expect_byte('K');
    kill(getpid(), SIGKILL);
}

static void first_member(pid_t other) {
    struct team wanted = {2, 4 * MIB, DESCRIPTOR, 0};
    size_t before[] = {free_bytes(0), free_bytes(1)};
    uint64_t team, physical;
    CUdeviceptr window, own;
    int descriptor, status;
    CHECK(multicast.create(&team, &wanted));
    CHECK(memory.export_handle(&descriptor, team, DESCRIPTOR, 0));
    send_descriptor(line, descriptor);
    CHECK(multicast.add(team, 0));
    physical = physical_on(0, 4 * MIB, DESCRIPTOR);
    /* blocks until the other GPU is added */
    CHECK(multicast.bind(team, 0, physical, 0, 4 * MIB, 0));
    own = mapped(physical, 4 * MIB, 0);
    window = mapped(team, 4 * MIB, 0);
    expect_byte('B');
    fill(window, 0x61, 8);
    send_byte('W');
    expect_byte('R');
    HOLDS(word_at(own + 2 * MIB) == 0x62);
    HOLDS(word_at(window + 2 * MIB + 12) == 0x62);
    send_byte('K');
    HOLDS(waitpid(other, &status, 0) == other && WIFSIGNALED(status));
    /* Its contexts and memory are released some time after it; memory of this process stays. */
    while (free_bytes(1) <= before[1]) usleep(1000);
    COMES_TRUE(free_bytes(1) - before[1] == free_bytes(0) - (before[0] - 4 * MIB));
    before[0] = free_bytes(0) + 4 * MIB;
    fill(window, 0x63, 4);
    HOLDS(word_at(own) == 0x63);

    /* A descriptor alone keeps the object, and the object its bindings. */
    CHECK(memory.unmap(window, 4 * MIB));
    CHECK(memory.release(team));
    CHECK(memory.unmap(own, 4 * MIB));
    CHECK(memory.release(physical));
    COMES_TRUE(free_bytes(0) == before[0] - 4 * MIB);
    CHECK(memory.import(&team, (void *)(intptr_t)descriptor, DESCRIPTOR));
    EXPECT(CUDA_ERROR_INVALID_VALUE, multicast.add(team, 0)); /* still complete */
    window = mapped(team, 4 * MIB, 0);
    HOLDS(word_at(window) == 0x63);
    CHECK(memory.unmap(window, 4 * MIB));
    CHECK(memory.release(team));
    COMES_TRUE(free_bytes(0) == before[0] - 4 * MIB);
    HOLDS(close(descriptor) == 0);
    COMES_TRUE(free_bytes(0) == before[0]);
}

int main(int count, char **arguments) {
    CUresult (*attribute)(int *, int, CUdevice);
    int lines[2], supported;
    watchdog(100);
    watched_by(count, arguments);
    HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, lines) == 0);
    pid_t other = fork();
    HOLDS(other >= 0);
    line = lines[other == 0];
    close(lines[other != 0]);
    watchdog(100);
    driver_load();
    if (other == 0) expect_byte('G');
    driver_open();
    look_up();
    *(void **)&attribute = driver_symbol("cuDeviceGetAttribute");
    for (CUdevice device = 0; device < 2; device++) {
        CHECK(cu.cuDevicePrimaryCtxRetain(&contexts[device], device));
        CHECK(attribute(&supported, MULTICAST_SUPPORTED, device));
        HOLDS(supported == 1);
    }
    if (other == 0) {
        CHECK(cu.cuCtxSetCurrent(contexts[1]));
        send_byte('G');
        second_member();
    } else {
        refusals();
        alone();
        late();
        send_byte('G');
        expect_byte('G');
        first_member(other);
        printf("{\"multicast\": true}\n");
    }
    return 0;
}
