/* SPDX-License-Identifier: Apache-2.0
 *
 * imported BYTES [watched] - checks that memory of another interface is charged to the process that
 * allocated it, not to the importer that maps buffers of it, and to the importer once its maker is
 * dead. No intercepted call allocates it, so it is charged only with a monitor (the second
 * argument), once and never more. Without one, more than the limit can be imported.
 */
#include "ledger.h"
#include "descriptors.h"
#include "foreign.h"

#include <signal.h>
#include <sys/wait.h>

#define PIECE (64 * MIB)

static int is_watched, is_seen; /* whether memory is observed: with a monitor, or without a shim */

static void send_byte(int line, char word) { HOLDS(write(line, &word, 1) == 1); }

static void expect_byte(int line, char word) {
    char heard = 0;
    HOLDS(read(line, &heard, 1) == 1 && heard == word);
}

/* Has a context, so that a monitor finds it on the GPU. */
static int maker(int line, size_t bytes) {
    uint64_t memory;
    int descriptor;
    expect_byte(line, 'O'); /* contexts created one after another are measured exactly */
    driver_open();
    foreign_open();
    send_byte(line, 'O');
    expect_byte(line, 'M');
    CHECK(foreign.allocate(0, bytes, &memory));
    CHECK(foreign.descriptor(memory, &descriptor));
    send_descriptor(line, descriptor);
    HOLDS(close(descriptor) == 0);
    pause();
    return 1;
}

/* Requires that the driver has this much and that the ledger, as far as it can know, reaches the
 * same and keeps it. */
static void wait_until_settled(long long others, long long theirs) {
    long long expected = others + (is_seen ? theirs : 0);
    for (int looks = 0; (long long)truth() != others + theirs; looks++) {
        if (looks == 1000)
            FAIL("the driver has %lld, not %lld", (long long)truth(), others + theirs);
        sleep_seconds(0.01);
    }
    for (int looks = 0; (long long)shown() != expected; looks++) {
        CUdeviceptr none;
        if (looks % 50 == 0)
            EXPECT(CUDA_ERROR_OUT_OF_MEMORY,
                   /* a refused charge reclaims exited processes */
                   cu.cuMemAlloc(&none, (size_t)100 << 30));
        if (looks == 3000)
            FAIL("expected %lld in the ledger, there are %lld", expected, (long long)shown());
        sleep_seconds(0.01);
    }
    for (int looks = 0; is_watched && looks < 150; looks++) {
        if ((long long)shown() != expected)
            FAIL("expected %lld in the ledger, now there are %lld", expected, (long long)shown());
        sleep_seconds(0.01);
    }
}

/* All memory that the ledger shows as free can be allocated, and no more. */
static void fill(void) {
    CUdeviceptr pieces[1024];
    size_t count = 0, before = free_shown();
    CUresult result;
    while ((result = cu.cuMemAlloc(&pieces[count], PIECE)) == CUDA_SUCCESS) count++;
    HOLDS(result == CUDA_ERROR_OUT_OF_MEMORY && free_shown() < PIECE && count == before / PIECE);
    while (count > 0) CHECK(cu.cuMemFree(pieces[--count]));
    HOLDS(free_shown() == before);
}

int main(int count, char **arguments) {
    int line[2];
    watchdog(100);
    if (count < 2) return 2;
    long long bytes = (long long)parse_bytes(arguments[1]);
    is_watched = count > 2;
    HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, line) == 0);
    pid_t other = fork();
    HOLDS(other >= 0);
    if (other == 0) {
        watchdog(100);
        return maker(line[1], (size_t)bytes);
    }
    driver_open();
    external_find();
    ledger_open();
    is_seen = is_watched || ledger.shown == ledger.had;
    send_byte(line[0], 'O');
    expect_byte(line[0], 'O');
    long long context = (long long)truth();
    wait_until_settled(context, 0);

    send_byte(line[0], 'M');
    int descriptor = receive_descriptor(line[0]);
    wait_until_settled(context, bytes);
    CUexternalMemory memory = import_memory(descriptor, (size_t)bytes);
    wait_until_settled(context, bytes);
    CUdeviceptr all = buffer_of(memory, 0, (size_t)bytes), part = buffer_of(memory, MIB, MIB);
    CHECK(cu.cuMemsetD8(all + MIB, 42, 7));
    CHECK(cu.cuCtxSynchronize());
    wait_until_settled(context, bytes);
    fill();
    CHECK(cu.cuMemFree(all));
    CHECK(ext.destroy(memory));
    wait_until_settled(context, bytes);

    /* The maker is killed and its context released; its memory stays as long as the buffer. */
    HOLDS(kill(other, SIGKILL) == 0 && waitpid(other, NULL, 0) == other);
    wait_until_settled(0, bytes);
    unsigned char back;
    CHECK(cu.cuMemcpyDtoH(&back, part + 6, 1));
    HOLDS(back == 42);
    CHECK(cu.cuMemFree(part));
    wait_until_settled(0, 0);
    fill();
    printf("{\"imported\": %lld}\n", bytes);
    return 0;
}
